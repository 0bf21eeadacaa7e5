/*
 * extra.h: what the Python package needs beside causeway.h so that a warm get() is a single call.
 *
 * Included by the CFFI module alone. The text between the marks is also the cdef. Every function
 * may be called from any thread; the status of the last cwpy_get() is kept per thread.
 */
#ifndef CAUSEWAY_PY_EXTRA_H
#define CAUSEWAY_PY_EXTRA_H

#include <linux/mempolicy.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/causeway.h"

/* cdef begins */
/* cw_get() by its result: NULL on failure, and then cwpy_status() has the code. */
static cw_array *cwpy_get(cw_client *client, const char *name, uint32_t flags);
static int cwpy_status(void);
/* The layout as bytes (ndim, itemsize, nbytes, shape, strides, dtype), to be the key of a cache.
 * Writes at most size_bytes and returns the length that it would take, 0 when the layout cannot be.
 */
static uint64_t cwpy_layout(const cw_array *array, void *buffer, uint64_t size_bytes);
/* The lowest byte of an array in this process, and how many bytes lie from there to behind its
 * highest one. Element 0 lies above it where strides are negative. */
static void *cwpy_memory(const cw_array *array, uint64_t *span_bytes);
/* Memory of this thread, and of those that it starts, comes from that NUMA node first, from others
 * when it is full. 0, or -1 where the kernel or the container does not let us. */
static int cwpy_prefer_node(int node);
/* cdef ends */

static __thread int cwpy_last_status;

static cw_array *cwpy_get(cw_client *client, const char *name, uint32_t flags) {
    cw_array *array = NULL;

    cwpy_last_status = cw_get(client, name, flags, &array);
    return cwpy_last_status < 0 ? NULL : array;
}

static int cwpy_status(void) {
    return cwpy_last_status;
}

static int cwpy_prefer_node(int node) {
    unsigned long nodes[16] = {0}, bits = 8 * sizeof nodes[0];

    if (node < 0 || (unsigned)node >= 16 * bits)
        return -1;
    nodes[(unsigned)node / bits] = 1ul << (unsigned)node % bits;
    return (int)syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes, 16 * bits);
}

static uint64_t cwpy_layout(const cw_array *array, void *buffer, uint64_t size_bytes) {
    cw_layout layout;
    uint64_t nbytes = cw_array_nbytes(array);
    uint8_t *at = buffer;

    cw_array_layout(array, &layout);
    if (layout.ndim > CW_NDIM_MAX || !layout.strides)
        return 0;
    size_t dims = layout.ndim * sizeof(int64_t), text = strnlen(layout.dtype, CW_DTYPE_MAX);
    uint64_t length = 16 + 2 * dims + text;
    if (length > size_bytes)
        return length;
    memcpy(at, &layout.ndim, 4);
    memcpy(at + 4, &layout.itemsize, 4);
    memcpy(at + 8, &nbytes, 8);
    memcpy(at + 16, layout.shape, dims);
    memcpy(at + 16 + dims, layout.strides, dims);
    memcpy(at + 16 + 2 * dims, layout.dtype, text);
    return length;
}

static void *cwpy_memory(const cw_array *array, uint64_t *span_bytes) {
    cw_layout layout;
    int64_t low = 0, high = 0;

    cw_array_layout(array, &layout);
    *span_bytes = 0;
    for (uint32_t i = 0; i < layout.ndim; i++) {
        if (layout.shape[i] == 0)
            return cw_array_data(array);
        int64_t reach = (layout.shape[i] - 1) * layout.strides[i];
        *(reach < 0 ? &low : &high) += reach; /* the library has checked that nothing overflows */
    }
    *span_bytes = (uint64_t)(high - low) + layout.itemsize;
    return (uint8_t *)cw_array_data(array) + low;
}

#endif
