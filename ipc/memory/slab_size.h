/*
 * How large a new slab is to be.
 */
#ifndef CW_IPC_MEMORY_SLAB_SIZE_H
#define CW_IPC_MEMORY_SLAB_SIZE_H

#include <stdint.h>

#include "ipc/memory/allocator.h"

#define CW_SLAB_BLOCKS_MAX 16384u /* block numbers of a shared slab */

/* So many bytes in whole granules. */
uint64_t cw_slab_granules(const struct cw_heap *heap, uint64_t size_bytes);
/* The size of a new slab for an array of this size, and the number of its blocks. */
uint64_t cw_slab_plan(struct cw_heap *heap, uint64_t size_bytes, uint32_t *capacity);

#endif
