/*
 * Allocation: a block on a device, with all that is done before a full one is reported.
 *
 *   allocate    what is tried, and in which order (here)
 *   evict_one   moves one array's bytes to a block in host memory
 *   heap_take   the plain allocator: takes what is there (ipc/memory/allocator.h)
 *
 * Each calls those below it alone. What an eviction needs in host memory is of the plain allocator,
 * so that no allocation waits for one of its own thread.
 *
 * No state. If this process dies, what it allocated is nobody's, and its slabs become orphans. If
 * the broker dies, whoever would ask it is told.
 */
#ifndef CW_IPC_ARRAY_ALLOCATE_H
#define CW_IPC_ARRAY_ALLOCATE_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/cableway.h"

struct cw_heap;
struct cw_slab;

/* Carves a block and holds it. flags: CW_APART and CW_OWN_SLAB count. *clean: it reads as zeros.
 * -EDQUOT, -EINTR, -ECONNRESET, or why an array that was to leave could not. Without
 * client->lock. */
int cw_allocate(cw_client *client, struct cw_heap *heap, uint64_t size_bytes, uint32_t flags,
                struct cw_slab **slab, uint32_t *block, uint64_t *gen, bool *clean);

#endif
