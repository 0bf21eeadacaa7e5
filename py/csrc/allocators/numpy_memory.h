/*
 * allocators/numpy_memory.h: host memory of ours for NumPy's arrays, which is shared without a copy
 * later.
 *
 * Part of the CFFI module, since a process must have one libcableway. The text between the marks is
 * also the cdef.
 */
#ifndef CABLEWAY_PY_NUMPY_MEMORY_H
#define CABLEWAY_PY_NUMPY_MEMORY_H

#include "ipc/cableway.h"

/* cdef begins */
/* A handler of NumPy's (PyDataMem_Handler), which stays and is the same each time: arrays of so
 * many bytes and more (1 MiB at least) come over this connection, from now on for all who use the
 * handler; all others, and whatever is refused, come from the handler beneath, whose struct must
 * stay. reused: only where arrays of this connection lay before (CW_REUSED). NULL: in a forked
 * child, or there is no memory. */
void *cwpy_numpy_handler(cw_client *client, uint64_t least_bytes, int reused, const void *beneath);
/* The array of ours in which one such array of NumPy's lies from its first byte to its last, for as
 * long as that is there. NULL: it is none of this connection, or there was a fork meanwhile. */
cw_array *cwpy_numpy_array(cw_client *client, const void *memory, uint64_t size_bytes);
/* Whether new arrays come from here at all. */
void cwpy_numpy_allow(int allowed);
/* Bytes that NumPy's arrays have here now, but for those from before a fork. */
uint64_t cwpy_numpy_bytes(void);
/* cdef ends */

#endif
