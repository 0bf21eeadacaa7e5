/*
 * Layout: shapes, strides and dtypes, checked once and then trusted.
 *
 * A struct cw_shape is a cw_layout that was checked: no negative extents, no product that
 * overflows, strides computed where none were given, and the span of bytes that its elements touch.
 * It owns nothing and points to nothing but itself, so that it can be copied field by field.
 */
#ifndef CW_IPC_BASE_LAYOUT_H
#define CW_IPC_BASE_LAYOUT_H

#include <stdint.h>

#include "ipc/cableway.h"

struct cw_shape {
    uint32_t ndim, itemsize, dtype_bytes;
    uint64_t origin_bytes; /* from the lowest byte to element 0 */
    uint64_t span_bytes;   /* from the lowest byte to behind the highest */
    int64_t shape[CW_NDIM_MAX];
    int64_t strides[CW_NDIM_MAX];
    char dtype[CW_DTYPE_MAX + 1]; /* terminated */
};

/* Plain bytes: |u1, in one dimension. */
void cw_shape_bytes(uint64_t size_bytes, struct cw_shape *out);
/* Checks a caller's layout. Only the first ndim values and the dtype's text are written. 0 or
 * -EINVAL. */
int cw_layout_resolve(const cw_layout *layout, struct cw_shape *out);
/* Is the dtype's text one, and of elements of itemsize? 0 or -EINVAL. */
int cw_shape_check_dtype(const struct cw_shape *shape);
/* Computes origin and span from shape, strides and itemsize. 0 or -EINVAL. */
int cw_shape_measure(struct cw_shape *shape);

/* Is this a name of this node's? As cw_name_check(). */
int cw_local_name_check(const char *name);
/* Is this a path in a tree? 1 to CW_PATH_MAX bytes of UTF-8 without control characters. 0 or
 * -EINVAL. */
int cw_path_check(const char *path);
/* Of a text that another machine sent: what is no UTF-8, and control characters (which may move a
 * terminal's cursor), become '?'. How many did. */
uint32_t cw_text_clean(char *text, size_t length);
/* Is this a namespace? 0 or -EINVAL with the rule. */
int cw_namespace_check(const char *name_space);

#endif
