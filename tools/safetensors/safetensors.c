/*
 * Safetensors headers: see safetensors.h. Eight bytes with the length of a JSON object, which names
 * each array with its dtype, its shape and where its data begin and end behind the object.
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

#define HEADER_MAX   (16u << 20) /* one array takes some hundred bytes; the rest is metadata */
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

/* ---- rows of the table ---- */

static const cw_dtype_row *row_by_name(const char *name) {
    uint32_t count;
    const cw_dtype_row *rows = cw_dtype_table(&count);
    for (uint32_t i = 0; i < count; i++)
        if (*name && strcmp(rows[i].safetensors, name) == 0)
            return &rows[i];
    return NULL;
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

static int damaged(const char *path, const char *what) {
    return cw_fail(-EPROTO, "%.200s is damaged: %s", path, what);
}

/* A number that is none below 0 and no boolean. */
static bool whole(const json_t *json, uint64_t *out) {
    if (!json_is_integer(json) || json_integer_value(json) < 0)
        return false;
    *out = (uint64_t)json_integer_value(json);
    return true;
}

/* Shape, strides and bytes. */
static int read_shape(const json_t *shape, const char *path, const cw_dtype_row *row,
                      struct npy *out) {
    if (!json_is_array(shape))
        return damaged(path, "its shape is no list");
    if (json_array_size(shape) > CW_NDIM_MAX)
        return cw_fail(-ENOTSUP, "the array in %.200s has %zu axes, %d are possible", path,
                       json_array_size(shape), CW_NDIM_MAX);
    out->ndim = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < out->ndim; i++) {
        uint64_t extent;
        if (!whole(json_array_get(shape, i), &extent))
            return damaged(path, "a length in its shape is no number of elements");
        out->shape[i] = (int64_t)extent;
    }
    if (row->dlpack_lanes > 1) {
        if (!out->ndim || out->shape[out->ndim - 1] % row->dlpack_lanes)
            return cw_fail(-ENOTSUP,
                           "the last axis of the array in %.200s has an odd number of elements of "
                           "4 bits: two of them are one byte here",
                           path);
        out->shape[out->ndim - 1] /= row->dlpack_lanes;
    }
    int64_t stride = row->size_bytes;
    bool empty = false;
    for (uint32_t i = out->ndim; i-- > 0;) {
        out->strides[i] = stride;
        empty |= out->shape[i] == 0;
        if (__builtin_mul_overflow(stride, out->shape[i] ? out->shape[i] : 1, &stride))
            return damaged(path, "it claims more bytes than 63 bits can count");
    }
    out->nbytes = empty ? 0 : (uint64_t)stride;
    return 0;
}

static int read_array(const json_t *array, const char *path, struct npy *out) {
    const char *name = json_string_value(json_object_get(array, "dtype"));
    const json_t *offsets = json_object_get(array, "data_offsets");
    uint64_t begin, end;
    if (!name || json_object_size(array) != 3)
        return damaged(path, "an array in it has not dtype, shape and data_offsets");
    const cw_dtype_row *row = row_by_name(name);
    if (!row)
        return cw_fail(-ENOTSUP, "the array in %.200s has the dtype %.40s, which none is here",
                       path, name);
    int code = read_shape(json_object_get(array, "shape"), path, row, out);
    if (code)
        return code;
    if (json_array_size(offsets) != 2 || !whole(json_array_get(offsets, 0), &begin) ||
        !whole(json_array_get(offsets, 1), &end) || begin != 0 || end != out->nbytes)
        return damaged(path, "its data_offsets are not those of its dtype and shape");
    strcpy(out->dtype, row->dtype);
    out->itemsize = row->size_bytes;
    return 0;
}

static int read_object(json_t *header, const char *path, struct npy *out) {
    const char *key, *inner;
    json_t *value, *array = NULL, *text;
    size_t count = 0;
    json_object_foreach(header, key, value) {
        if (!json_is_object(value))
            return damaged(path, "an entry of its header is no object");
        if (strcmp(key, METADATA)) {
            array = value;
            count++;
            continue;
        }
        json_object_foreach(value, inner, text) {
            if (!json_is_string(text))
                return damaged(path, "its metadata are not texts");
        }
    }
    if (count != 1)
        return cw_fail(-ENOTSUP, "%.200s holds %zu arrays, and a name holds one", path, count);
    return read_array(array, path, out);
}

/* The data must end with the file; of a pipe its end tells. */
static int check_end(int fd, const char *path, uint64_t nbytes) {
    struct stat status;
    off_t at = lseek(fd, 0, SEEK_CUR);
    if (at < 0 || fstat(fd, &status) || !S_ISREG(status.st_mode) || status.st_size < at)
        return 0;
    return (uint64_t)(status.st_size - at) > nbytes ? damaged(path, "it goes on behind its data")
                                                    : 0;
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
    code = read_exactly(fd, text, size_bytes, path);
    json_error_t error;
    json_t *header = NULL;
    if (code == 0 && *text != '{')
        code = damaged(path, "its header does not begin with {");
    if (code == 0 && !(header = json_loadb(text, size_bytes, JSON_REJECT_DUPLICATES, &error)))
        code =
            cw_fail(-EPROTO, "%.200s is damaged: its header is no JSON (%.100s)", path, error.text);
    free(text);
    struct npy *found = calloc(1, sizeof *found);
    CW_ASSERT(found);
    if (code == 0)
        code = read_object(header, path, found);
    if (code == 0)
        code = check_end(fd, path, found->nbytes);
    json_decref(header);
    if (code == 0)
        *out = *found;
    free(found);
    return code;
}

/* ---- writing ---- */

int safetensors_format_header(const char *name, const cw_layout *layout, char **out,
                              uint64_t *size_bytes) {
    const cw_dtype_row *row = row_by_dtype(layout->dtype);
    if (!row || (row->dlpack_lanes > 1 && !layout->ndim))
        return cw_fail(-ENOTSUP,
                       "a .safetensors file has no dtype %.60s; from Python numpy.save(file, "
                       "cableway.get(name).numpy()) writes its bytes",
                       layout->dtype);
    if (!strcmp(name, METADATA))
        return cw_fail(-ENOTSUP, "no array in a .safetensors file is called " METADATA
                                 "; put it under another name first");
    uint64_t nbytes = layout->itemsize;
    json_t *shape = json_array();
    for (uint32_t i = 0; i < layout->ndim; i++) {
        nbytes *= (uint64_t)layout->shape[i];
        int64_t lanes = i + 1 == layout->ndim ? row->dlpack_lanes : 1;
        json_array_append_new(shape, json_integer(layout->shape[i] * lanes));
    }
    json_t *header = json_pack("{s:{s:s, s:o, s:[i, I]}}", name, "dtype", row->safetensors, "shape",
                               shape, "data_offsets", 0, (json_int_t)nbytes);
    char *text = header ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (!text)
        return cw_fail(-ENOTSUP, "the name %.200s cannot stand in a .safetensors file", name);
    size_t used = LENGTH_BYTES + strlen(text), whole_bytes = (used + NPY_ALIGN - 1) / NPY_ALIGN;
    whole_bytes *= NPY_ALIGN;
    char *made = malloc(whole_bytes);
    CW_ASSERT(made);
    memset(made, ' ', whole_bytes);
    for (size_t i = 0; i < LENGTH_BYTES; i++)
        made[i] = (char)((whole_bytes - LENGTH_BYTES) >> (8 * i));
    memcpy(made + LENGTH_BYTES, text, used - LENGTH_BYTES);
    free(text);
    *out = made;
    *size_bytes = whole_bytes;
    return 0;
}
