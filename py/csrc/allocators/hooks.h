/*
 * allocators/hooks.h: memory of ours for the allocators of GPU libraries (CuPy, PyTorch, Numba).
 *
 * Part of the CFFI module, since a process must have one libcableway. The text between the marks is
 * also the cdef. The two functions with streams have the signatures of PyTorch's pluggable
 * allocator and are exported.
 */
#ifndef CABLEWAY_PY_HOOKS_H
#define CABLEWAY_PY_HOOKS_H

#include "ipc/cableway.h"

/* cdef begins */
/* From now on memory comes over this connection. 0 or -EINVAL. */
int cwpy_hook_begin(cw_client *client);
/* Memory on the GPU of that number, of which nothing is known. NULL: see cwpy_hook_status(). Any
 * thread. May ask the broker, and wait for work of this process's GPUs. */
void *cwpy_hook_alloc(size_t size, int device, void *stream);
/* Gives memory of cwpy_hook_alloc() back: it is used anew after all work has passed that this
 * process's GPUs have by then. NULL is allowed. */
void cwpy_hook_free(void *memory, size_t size, int device, void *stream);
/* How this thread's last cwpy_hook_alloc() ended: 0 or a negative code; cw_error() has the
 * sentence. */
int cwpy_hook_status(void);
/* Bytes that the libraries have now, and those given back whose last use may not have passed. */
uint64_t cwpy_hook_bytes(void);
uint64_t cwpy_hook_freed_bytes(void);
/* cdef ends */

#endif
