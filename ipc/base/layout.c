/*
 * Layout: checks what callers and other processes say about the bytes of an array.
 *
 * Pure functions, from any thread. Nothing is trusted: every product and sum is looked at for
 * overflow.
 */
#include "ipc/base/layout.h"

#include <string.h>

#include "shm/base/error.h"

int cw_shape_check_dtype(const struct cw_shape *shape) {
    uint32_t size_bytes;
    if (strlen(shape->dtype) != shape->dtype_bytes)
        return cw_fail(-EINVAL, "a dtype's text holds a zero byte");
    for (uint32_t i = 0; i < shape->dtype_bytes; i++)
        if ((unsigned char)shape->dtype[i] < 0x20 || shape->dtype[i] == 0x7f)
            return cw_fail(-EINVAL, "a dtype's text holds the control character 0x%02x",
                           (unsigned char)shape->dtype[i]);
    int code = cw_dtype_size(shape->dtype, &size_bytes);
    if (code == 0 && size_bytes != shape->itemsize)
        code = cw_fail(-EINVAL, "elements of \"%.200s\" have %u bytes, the layout says %u",
                       shape->dtype, size_bytes, shape->itemsize);
    return code;
}

/* Copies the dtype's text, if it is one (dtype.c), of elements that are as large as it says. */
static int resolve_dtype(const char *dtype, struct cw_shape *out) {
    if (!dtype)
        return cw_fail(-EINVAL, "a layout needs a dtype (such as \"<f8\"), it has none");
    size_t length = strnlen(dtype, CW_DTYPE_MAX + 1);
    if (length == 0 || length > CW_DTYPE_MAX)
        return cw_fail(-EINVAL, "a dtype's text has 1 to %d bytes, this one has %s", CW_DTYPE_MAX,
                       length ? "more" : "none");
    memcpy(out->dtype, dtype, length); /* another thread may write there: the copy is checked */
    out->dtype[length] = 0;
    out->dtype_bytes = (uint32_t)length;
    return cw_shape_check_dtype(out);
}

static int overflow(void) {
    return cw_fail(-EINVAL, "an array of this shape has more bytes than 63 bits can count");
}

/* Strides of C order. */
static int resolve_strides(struct cw_shape *out) {
    int64_t stride = out->itemsize;
    for (uint32_t i = out->ndim; i-- > 0;) {
        out->strides[i] = stride;
        if (__builtin_mul_overflow(stride, out->shape[i] ? out->shape[i] : 1, &stride))
            return overflow();
    }
    return 0;
}

int cw_shape_measure(struct cw_shape *shape) {
    int64_t low = 0, high = 0, reach;
    for (uint32_t i = 0; i < shape->ndim; i++) /* also behind an axis of length 0 */
        if (shape->shape[i] < 0)
            return cw_fail(-EINVAL, "axis %u has the length %lld: it must be 0 or more", i,
                           (long long)shape->shape[i]);
    for (uint32_t i = 0; i < shape->ndim; i++) {
        if (shape->shape[i] == 0) {
            shape->origin_bytes = shape->span_bytes = 0;
            return 0;
        }
        if (__builtin_mul_overflow(shape->shape[i] - 1, shape->strides[i], &reach) ||
            __builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high))
            return overflow();
    }
    if (__builtin_add_overflow(high, (int64_t)shape->itemsize, &high) ||
        __builtin_sub_overflow(high, low, &reach))
        return overflow();
    shape->origin_bytes = 0 - (uint64_t)low;
    shape->span_bytes = (uint64_t)reach;
    return 0;
}

void cw_shape_bytes(uint64_t size_bytes, struct cw_shape *out) {
    *out = (struct cw_shape){.ndim = 1,
                             .itemsize = 1,
                             .dtype_bytes = 3,
                             .span_bytes = size_bytes,
                             .strides = {1},
                             .dtype = "|u1"};
    out->shape[0] = (int64_t)size_bytes;
}

int cw_layout_resolve(const cw_layout *layout, struct cw_shape *out) {
    if (!layout)
        return cw_fail(-EINVAL, "a layout is needed, NULL was given");
    if (layout->reserved[0] || layout->reserved[1])
        return cw_fail(-EINVAL, "the reserved words of a layout must be 0: begin it with zeros");
    if (layout->ndim > CW_NDIM_MAX)
        return cw_fail(-EINVAL, "an array has at most %d axes, %u were asked for", CW_NDIM_MAX,
                       layout->ndim);
    if (layout->ndim && !layout->shape)
        return cw_fail(-EINVAL, "a layout with %u axes needs a shape, NULL was given",
                       layout->ndim);
    out->ndim = layout->ndim;
    out->itemsize = layout->itemsize;
    int code = resolve_dtype(layout->dtype, out);
    if (code)
        return code;
    for (uint32_t i = 0; i < layout->ndim; i++) {
        out->shape[i] = layout->shape[i];
        if (layout->strides)
            out->strides[i] = layout->strides[i];
        if (out->shape[i] < 0)
            return cw_fail(-EINVAL, "axis %u has the length %lld: it must be 0 or more", i,
                           (long long)out->shape[i]);
    }
    if (!layout->strides) {
        code = resolve_strides(out);
        if (code)
            return code;
    }
    return cw_shape_measure(out);
}
