/*
 * Safetensors headers: see safetensors.h. Eight bytes with the length of a JSON object, which names
 * each array with its dtype, its shape and where its data begin and end behind the object. The
 * library parses it (cw_safetensors_parse); here it is read and written.
 *
 * Two numbers of 4 bits are two elements to the format (F4), and one to us: of such an array the
 * last axis is twice as long in the file. Pure but for the reads of fd; nothing outlives a call.
 */
#include "tools/safetensors/safetensors.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/base/error.h"

#define HEADER_MAX   CW_SAFETENSORS_HEADER_MAX
#define LENGTH_BYTES 8u
#define METADATA     "__metadata__"

static const char SUFFIX[] = ".safetensors";

bool safetensors_is_path(const char *path) {
    size_t length = strlen(path), suffix = sizeof SUFFIX - 1;
    return length >= suffix && strcmp(path + length - suffix, SUFFIX) == 0;
}

static int read_exactly(int fd, void *to, size_t size_bytes, const char *path) {
    size_t done = 0;
    while (done < size_bytes) {
        ssize_t count = read(fd, (char *)to + done, size_bytes - done);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return cw_fail(-errno, "reading %.200s failed: %m", path);
        if (count == 0)
            return cw_fail(-EPROTO, "%.200s is no .safetensors file, or was cut off in its header",
                           path);
        done += (size_t)count;
    }
    return 0;
}

static const cw_dtype_row *row_by_dtype(const char *dtype) {
    uint32_t count;
    const cw_dtype_row *rows = cw_dtype_table(&count);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(rows[i].dtype, dtype) == 0 && *rows[i].safetensors)
            return &rows[i];
    return NULL;
}

/* ---- reading ---- */

/* The one tensor, as an .npy file of it would be told. */
static int describe(const cw_safetensors *file, const char *path, struct npy *out) {
    cw_tensor tensor;
    uint32_t count = cw_safetensors_count(file);
    if (count != 1)
        return cw_fail(-ENOTSUP,
                       "%.200s holds %u arrays, and put takes one: `cableway load` makes a tree of "
                       "them",
                       path, count);
    int code = cw_safetensors_tensor(file, 0, &tensor);
    if (code)
        return code;
    int64_t stride = tensor.layout.itemsize;
    out->ndim = tensor.layout.ndim;
    out->itemsize = tensor.layout.itemsize;
    out->nbytes = tensor.size_bytes;
    strcpy(out->dtype, tensor.layout.dtype);
    for (uint32_t i = out->ndim; i-- > 0;) {
        out->shape[i] = tensor.layout.shape[i];
        out->strides[i] = stride;
        stride *= out->shape[i] ? out->shape[i] : 1; /* it was checked not to overflow */
    }
    return 0;
}

/* How many bytes are left of it; UINT64_MAX: it is a pipe, whose end tells. */
static uint64_t bytes_left(int fd) {
    struct stat status;
    off_t at = lseek(fd, 0, SEEK_CUR);
    if (at < 0 || fstat(fd, &status) || !S_ISREG(status.st_mode) || status.st_size < at)
        return UINT64_MAX;
    return (uint64_t)(status.st_size - at);
}

int safetensors_read_header(int fd, const char *path, struct npy *out) {
    unsigned char length[LENGTH_BYTES];
    int code = read_exactly(fd, length, sizeof length, path);
    if (code)
        return code;
    uint64_t size_bytes = 0;
    for (size_t i = LENGTH_BYTES; i-- > 0;)
        size_bytes = size_bytes << 8 | length[i];
    if (size_bytes < 2 || size_bytes > HEADER_MAX)
        return cw_fail(-EPROTO,
                       "%.200s is no .safetensors file: it begins with a header of %llu bytes; %u "
                       "are possible",
                       path, (unsigned long long)size_bytes, HEADER_MAX);
    char *text = malloc(size_bytes);
    if (!text)
        return cw_fail(-EDQUOT, "no memory for a header of %llu bytes",
                       (unsigned long long)size_bytes);
    cw_safetensors *file = NULL;
    code = read_exactly(fd, text, size_bytes, path);
    if (code == 0)
        code = cw_safetensors_parse(path, text, size_bytes, bytes_left(fd), &file);
    free(text);
    if (code)
        return code;
    struct npy found = {.ndim = 0};
    code = describe(file, path, &found);
    cw_safetensors_free(file);
    if (code == 0)
        *out = found;
    return code;
}

/* ---- writing ---- */

static bool add(json_t *header, const char *name, const cw_layout *layout, const cw_dtype_row *row,
                uint64_t begin, uint64_t end) {
    json_t *shape = json_array();
    for (uint32_t i = 0; i < layout->ndim; i++) {
        int64_t lanes = i + 1 == layout->ndim ? row->dlpack_lanes : 1;
        json_array_append_new(shape, json_integer(layout->shape[i] * lanes));
    }
    json_t *told = json_pack("{s:s, s:o, s:[I, I]}", "dtype", row->safetensors, "shape", shape,
                             "data_offsets", (json_int_t)begin, (json_int_t)end);
    return told && json_object_set_new(header, name, told) == 0;
}

int safetensors_add(json_t *header, const char *name, const cw_layout *layout,
                    uint64_t *data_bytes) {
    const cw_dtype_row *row = row_by_dtype(layout->dtype);
    if (!row || (row->dlpack_lanes > 1 && !layout->ndim))
        return cw_fail(-ENOTSUP,
                       "\"%.200s\": a .safetensors file has no dtype %.60s; from Python "
                       "numpy.save(file, array.numpy()) writes the bytes of one array",
                       name, layout->dtype);
    if (!strcmp(name, METADATA))
        return cw_fail(-ENOTSUP, "no array in a .safetensors file is called " METADATA
                                 "; put it under another name first");
    uint64_t nbytes = layout->itemsize;
    for (uint32_t i = 0; i < layout->ndim; i++)
        nbytes *= (uint64_t)layout->shape[i];
    if (!add(header, name, layout, row, *data_bytes, *data_bytes + nbytes))
        return cw_fail(-ENOTSUP, "the name %.200s cannot stand in a .safetensors file", name);
    *data_bytes += nbytes;
    return 0;
}

int safetensors_set_metadata(json_t *header, json_t *texts) {
    return json_object_set(header, METADATA, texts) == 0
               ? 0
               : cw_fail(-EDQUOT, "no memory for the metadata of a .safetensors file");
}

int safetensors_format(const json_t *header, char **out, uint64_t *size_bytes) {
    char *text = json_dumps(header, JSON_COMPACT);
    if (!text)
        return cw_fail(-EDQUOT, "no memory for the header of a .safetensors file");
    size_t used = LENGTH_BYTES + strlen(text), whole_bytes = (used + NPY_ALIGN - 1) / NPY_ALIGN;
    whole_bytes *= NPY_ALIGN;
    char *made = whole_bytes - LENGTH_BYTES <= HEADER_MAX ? malloc(whole_bytes) : NULL;
    if (!made) {
        free(text);
        return whole_bytes - LENGTH_BYTES <= HEADER_MAX
                   ? cw_fail(-EDQUOT, "no memory for a header of %zu bytes", whole_bytes)
                   : cw_fail(-ENOTSUP,
                             "the names, shapes and metadata take %zu bytes; the header of a "
                             ".safetensors file has at most %u",
                             whole_bytes, HEADER_MAX);
    }
    memset(made, ' ', whole_bytes);
    for (size_t i = 0; i < LENGTH_BYTES; i++)
        made[i] = (char)((whole_bytes - LENGTH_BYTES) >> (8 * i));
    memcpy(made + LENGTH_BYTES, text, used - LENGTH_BYTES);
    free(text);
    *out = made;
    *size_bytes = whole_bytes;
    return 0;
}

int safetensors_format_header(const char *name, const cw_layout *layout, char **out,
                              uint64_t *size_bytes) {
    json_t *header = json_object();
    uint64_t data_bytes = 0;
    CW_ASSERT(header);
    int code = safetensors_add(header, name, layout, &data_bytes);
    if (code == 0)
        code = safetensors_format(header, out, size_bytes);
    json_decref(header);
    return code;
}
