/*
 * The 'descr' of an NPY header: typestr, sub-array tuple, or list of fields. Only its itemsize is
 * computed, and that every part of it is a type without objects; the text itself travels as it is.
 *
 * A recursive descent over at most CW_DTYPE_MAX bytes, DEPTH_MAX deep. Pure functions.
 */
#include "tools/npy/npy.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "tools/npy/text.h"

#define DEPTH_MAX 32

static int parse_type(struct npy_text *text, unsigned depth, uint64_t *itemsize);

static int no_type(const char *what) {
    return cw_fail(-EPROTO, "the dtype %.80s is none that NumPy writes", what);
}

static bool size_fits(char kind, unsigned long size) {
    switch (kind) {
    case 'b':
        return size == 1;
    case 'i':
    case 'u':
        return size == 1 || size == 2 || size == 4 || size == 8;
    case 'f':
        return size == 2 || size == 4 || size == 8 || size == 12 || size == 16;
    case 'c':
        return size == 8 || size == 16 || size == 24 || size == 32;
    case 'm':
    case 'M':
        return size == 8;
    default:
        return size <= INT32_MAX / 4;
    }
}

/* "<f8", "|S10", "<M8[ns]". */
static int typestr_itemsize(const char *typestr, uint64_t *itemsize) {
    const char *at = typestr;
    bool ordered = *at == '<' || *at == '>';
    if (*at && strchr("<>|=", *at))
        at++;
    char kind = *at ? *at++ : 0;
    if (kind == 'V' && ordered) /* NumPy's own void has no order */
        return cw_fail(-ENOTSUP,
                       "the dtype %.40s in the .npy file is what numpy.save() makes of one that it "
                       "does not know, such as bfloat16; save a .safetensors file, or the bytes: "
                       "x.view('u1')",
                       typestr);
    if (kind == 'O')
        return cw_fail(-ENOTSUP,
                       "the array holds Python objects (dtype %.40s): only their own process could "
                       "use them",
                       typestr);
    if (!kind || !strchr("biufcmMSaUV", kind))
        return no_type(typestr);
    char *end;
    if (*at < '0' || *at > '9')
        return no_type(typestr);
    unsigned long size = strtoul(at, &end, 10);
    if (!size_fits(kind, size))
        return no_type(typestr);
    if ((kind == 'm' || kind == 'M') && *end == '[') {
        end += strcspn(end, "]");
        end += *end == ']';
    }
    if (*end)
        return no_type(typestr);
    *itemsize = kind == 'U' ? size * 4 : size;
    return 0;
}

/* The shape of a sub-array: an integer or a tuple of them. Multiplies *itemsize. */
static int parse_subshape(struct npy_text *text, uint64_t *itemsize) {
    int64_t extents[CW_NDIM_MAX];
    uint32_t count = 1;
    int code = npy_text_next(text) == '(' ? npy_text_tuple(text, extents, &count)
                                          : npy_text_integer(text, &extents[0]);
    for (uint32_t i = 0; code == 0 && i < count; i++) {
        if (extents[i] < 0 || __builtin_mul_overflow(*itemsize, (uint64_t)extents[i], itemsize) ||
            *itemsize > INT32_MAX)
            code = cw_fail(-EPROTO, "a sub-array of the dtype is too large");
    }
    return code;
}

/* A field's name: a string, or a tuple of title and name. */
static int parse_field_name(struct npy_text *text) {
    char name[CW_DTYPE_MAX + 1];
    if (npy_text_next(text) != '(')
        return npy_text_string(text, name, sizeof name);
    int code = npy_text_take(text, '(');
    if (code == 0)
        code = npy_text_string(text, name, sizeof name);
    if (code == 0)
        code = npy_text_take(text, ',');
    if (code == 0)
        code = npy_text_string(text, name, sizeof name);
    return code ? code : npy_text_take(text, ')');
}

/* ('name', type) or ('name', type, shape) */
static int parse_field(struct npy_text *text, unsigned depth, uint64_t *itemsize) {
    int code = npy_text_take(text, '(');
    if (code == 0)
        code = parse_field_name(text);
    if (code == 0)
        code = npy_text_take(text, ',');
    if (code == 0)
        code = parse_type(text, depth + 1, itemsize);
    if (code == 0 && npy_text_next(text) == ',') {
        code = npy_text_take(text, ',');
        if (code == 0 && npy_text_next(text) != ')')
            code = parse_subshape(text, itemsize);
    }
    return code ? code : npy_text_take(text, ')');
}

static int parse_fields(struct npy_text *text, unsigned depth, uint64_t *itemsize) {
    uint64_t total = 0;
    int code = npy_text_take(text, '[');
    while (code == 0 && npy_text_next(text) != ']') {
        uint64_t field;
        code = parse_field(text, depth, &field);
        if (code)
            return code;
        total += field;
        if (total > INT32_MAX)
            return cw_fail(-EPROTO, "one element of the dtype has more than 2 GiB");
        if (npy_text_next(text) != ']')
            code = npy_text_take(text, ',');
    }
    *itemsize = total;
    return code ? code : npy_text_take(text, ']');
}

/* (type, shape): a sub-array. */
static int parse_pair(struct npy_text *text, unsigned depth, uint64_t *itemsize) {
    int code = npy_text_take(text, '(');
    if (code == 0)
        code = parse_type(text, depth + 1, itemsize);
    if (code == 0)
        code = npy_text_take(text, ',');
    if (code == 0)
        code = parse_subshape(text, itemsize);
    return code ? code : npy_text_take(text, ')');
}

static int parse_type(struct npy_text *text, unsigned depth, uint64_t *itemsize) {
    char typestr[64];
    if (depth > DEPTH_MAX)
        return cw_fail(-EPROTO, "the dtype is nested more than %d deep", DEPTH_MAX);
    switch (npy_text_next(text)) {
    case '[':
        return parse_fields(text, depth, itemsize);
    case '(':
        return parse_pair(text, depth, itemsize);
    default:;
        int code = npy_text_string(text, typestr, sizeof typestr);
        return code ? code : typestr_itemsize(typestr, itemsize);
    }
}

int npy_dtype_itemsize(const char *dtype, uint32_t *itemsize) {
    uint64_t size;
    int code;
    dtype += strspn(dtype, " \t");
    if (*dtype == '[' || *dtype == '(') {
        struct npy_text text = {.at = dtype, .end = dtype + strlen(dtype)};
        code = parse_type(&text, 0, &size);
        if (code == 0 && npy_text_next(&text) != 0)
            code = no_type(dtype);
    } else {
        code = typestr_itemsize(dtype, &size);
    }
    if (code)
        return code;
    *itemsize = (uint32_t)size;
    return 0;
}
