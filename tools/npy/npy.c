/*
 * NPY headers: see npy.h. A header is read whole into memory (NPY_HEADER_MAX at most), then taken
 * apart.
 */
#include "tools/npy/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "tools/npy/text.h"

#define MAGIC_BYTES 6u
static const unsigned char magic[MAGIC_BYTES] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

enum seen { SEEN_DESCR = 1, SEEN_ORDER = 2, SEEN_SHAPE = 4, SEEN_ALL = 7 };

/* Reads exactly so many bytes. -EPROTO when the file ends before. */
static int read_exactly(int fd, void *to, size_t size_bytes, const char *path) {
    size_t done = 0;
    while (done < size_bytes) {
        ssize_t count = read(fd, (char *)to + done, size_bytes - done);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return cw_fail(-errno, "reading %.200s failed: %m", path);
        if (count == 0)
            return cw_fail(-EPROTO, "%.200s is no .npy file, or was cut off in its header", path);
        done += (size_t)count;
    }
    return 0;
}

/* Latin-1 (versions 1 and 2) as UTF-8. The caller frees it. */
static char *from_latin1(const char *text, size_t size_bytes, size_t *out_bytes) {
    char *out = malloc(size_bytes * 2 + 1), *to = out;
    CW_ASSERT(out);
    for (size_t i = 0; i < size_bytes; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (byte >= 0x80)
            *to++ = (char)(0xc0 | byte >> 6);
        *to++ = (char)(byte >= 0x80 ? 0x80 | (byte & 0x3f) : byte);
    }
    *out_bytes = (size_t)(to - out);
    return out;
}

/* The dtype as we carry it: a typestr without its quotes, anything else word for word. */
static int parse_descr(struct npy_text *text, struct npy *out) {
    char first = npy_text_next(text);
    if (first == '\'' || first == '"') {
        int code = npy_text_string(text, out->dtype, sizeof out->dtype);
        return code ? code : npy_dtype_itemsize(out->dtype, &out->itemsize);
    }
    const char *begin, *end;
    int code = npy_text_skip(text, &begin, &end);
    if (code)
        return code;
    if (end - begin > CW_DTYPE_MAX)
        return cw_fail(-ENOTSUP, "the dtype takes %zd bytes as text, %d are possible", end - begin,
                       CW_DTYPE_MAX);
    memcpy(out->dtype, begin, (size_t)(end - begin));
    out->dtype[end - begin] = 0;
    for (char *at = out->dtype; *at; at++) {
        if (*at == '\n' || *at == '\t' || *at == '\r')
            *at = ' ';
    }
    return npy_dtype_itemsize(out->dtype, &out->itemsize);
}

static int parse_entry(struct npy_text *text, unsigned *seen, struct npy *out) {
    char key[32];
    int code = npy_text_string(text, key, sizeof key);
    if (code == 0)
        code = npy_text_take(text, ':');
    if (code)
        return code;
    unsigned which = !strcmp(key, "descr")           ? SEEN_DESCR
                     : !strcmp(key, "fortran_order") ? SEEN_ORDER
                     : !strcmp(key, "shape")         ? SEEN_SHAPE
                                                     : 0;
    if (!which || (*seen & which))
        return cw_fail(-EPROTO, "the header of the .npy file has an unknown or repeated key \"%s\"",
                       key);
    *seen |= which;
    if (which == SEEN_DESCR)
        return parse_descr(text, out);
    if (which == SEEN_ORDER)
        return npy_text_bool(text, &out->fortran_order);
    return npy_text_tuple(text, out->shape, &out->ndim);
}

static int parse_dictionary(struct npy_text *text, struct npy *out) {
    unsigned seen = 0;
    int code = npy_text_take(text, '{');
    while (code == 0 && npy_text_next(text) != '}') {
        code = parse_entry(text, &seen, out);
        if (code == 0 && npy_text_next(text) != '}')
            code = npy_text_take(text, ',');
    }
    if (code == 0)
        code = npy_text_take(text, '}');
    if (code == 0 && npy_text_next(text) != 0)
        code = cw_fail(-EPROTO, "the header of the .npy file goes on behind its end");
    if (code == 0 && seen != SEEN_ALL)
        code = cw_fail(-EPROTO, "the header of the .npy file lacks descr, fortran_order or shape");
    return code;
}

/* Strides and bytes, from shape, itemsize and order. */
static int measure(struct npy *npy) {
    int64_t stride = npy->itemsize;
    bool empty = npy->itemsize == 0;
    for (uint32_t i = 0; i < npy->ndim; i++) {
        uint32_t axis = npy->fortran_order ? i : npy->ndim - 1 - i;
        npy->strides[axis] = stride;
        empty |= npy->shape[axis] == 0;
        if (__builtin_mul_overflow(stride, npy->shape[axis] ? npy->shape[axis] : 1, &stride))
            return cw_fail(-EPROTO, "the .npy file claims more bytes than 63 bits can count");
    }
    npy->nbytes = empty ? 0 : (uint64_t)stride;
    return 0;
}

static int parse_header(const char *bytes, size_t size_bytes, struct npy *out) {
    char *utf8 = NULL;
    if (out->version < 3)
        bytes = utf8 = from_latin1(bytes, size_bytes, &size_bytes);
    struct npy_text text = {.at = bytes, .end = bytes + size_bytes};
    int code = parse_dictionary(&text, out);
    free(utf8);
    return code ? code : measure(out);
}

int npy_read_header(int fd, const char *path, struct npy *out) {
    unsigned char start[MAGIC_BYTES + 2], length[4] = {0};
    int code = read_exactly(fd, start, sizeof start, path);
    if (code)
        return code;
    if (memcmp(start, magic, MAGIC_BYTES))
        return cw_fail(-EPROTO, "%.200s is no .npy file: it does not begin as one", path);
    struct npy npy = {.version = start[MAGIC_BYTES]};
    if (npy.version < 1 || npy.version > 3)
        return cw_fail(-EPROTO, "%.200s is an .npy file of version %u.%u; 1.0 to 3.0 are known",
                       path, npy.version, start[MAGIC_BYTES + 1]);
    code = read_exactly(fd, length, npy.version == 1 ? 2 : 4, path);
    if (code)
        return code;
    uint32_t size_bytes = length[0] | (uint32_t)length[1] << 8 | (uint32_t)length[2] << 16 |
                          (uint32_t)length[3] << 24;
    if (size_bytes > NPY_HEADER_MAX)
        return cw_fail(-EPROTO, "%.200s has a header of %u bytes; %u are possible", path,
                       size_bytes, NPY_HEADER_MAX);
    char *header = malloc(size_bytes + 1);
    CW_ASSERT(header);
    code = read_exactly(fd, header, size_bytes, path);
    if (code == 0)
        code = parse_header(header, size_bytes, &npy);
    free(header);
    if (code)
        return code;
    *out = npy;
    return 0;
}

static bool is_ascii(const char *text) {
    while (*text && (unsigned char)*text < 0x80)
        text++;
    return !*text;
}

/* NumPy would write '<V2', which nobody can read back. */
static int no_word(const char *dtype) {
    uint32_t count;
    const cw_dtype_row *row = cw_dtype_table(&count), *end = row + count;
    while (row < end && strcmp(row->dtype, dtype))
        row++;
    if (row < end && *row->safetensors)
        return cw_fail(
            -ENOTSUP,
            "a .npy file has no dtype %.60s; write the array into a file whose name ends "
            "in .safetensors",
            dtype);
    return cw_fail(-ENOTSUP,
                   "neither a .npy file nor a .safetensors file has a dtype %.60s; from Python "
                   "numpy.save(file, cableway.get(name).numpy()) writes its bytes",
                   dtype);
}

int npy_format_header(const cw_layout *layout, bool fortran_order, char **out,
                      uint64_t *size_bytes) {
    uint32_t itemsize;
    if (layout->dtype[0] >= 'a' && layout->dtype[0] <= 'z')
        return no_word(layout->dtype);
    if (npy_dtype_itemsize(layout->dtype, &itemsize) != 0 || itemsize != layout->itemsize)
        return cw_fail(-ENOTSUP,
                       "the dtype %.60s cannot stand in a .npy file as it is here; from Python "
                       "numpy.save(file, cableway.get(name).numpy()) writes it",
                       layout->dtype);
    const char *quote = layout->dtype[0] == '[' || layout->dtype[0] == '(' ? "" : "'";
    size_t room = strlen(layout->dtype) + 24 * (size_t)layout->ndim + 256;
    char *header = calloc(1, room);
    CW_ASSERT(header);
    bool version1 = is_ascii(layout->dtype);
    size_t begin = MAGIC_BYTES + 2 + (version1 ? 2 : 4), at = begin;
    at += (size_t)sprintf(header + at, "{'descr': %s%s%s, 'fortran_order': %s, 'shape': (", quote,
                          layout->dtype, quote, fortran_order ? "True" : "False");
    for (uint32_t i = 0; i < layout->ndim; i++)
        at += (size_t)sprintf(header + at, i ? ", %lld" : "%lld", (long long)layout->shape[i]);
    at += (size_t)sprintf(header + at, layout->ndim == 1 ? ",), }" : "), }");
    while ((at + 1) % NPY_ALIGN)
        header[at++] = ' ';
    header[at++] = '\n';
    memcpy(header, magic, MAGIC_BYTES);
    header[MAGIC_BYTES] = version1 ? 1 : 3;
    uint32_t length = (uint32_t)(at - begin);
    for (size_t i = 0; i < begin - MAGIC_BYTES - 2; i++)
        header[MAGIC_BYTES + 2 + i] = (char)(length >> (8 * i));
    *out = header;
    *size_bytes = at;
    return 0;
}
