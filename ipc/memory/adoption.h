/*
 * Slabs that this client did not make: those of dead makers, and memory of other libraries.
 */
#ifndef CW_IPC_MEMORY_ADOPTION_H
#define CW_IPC_MEMORY_ADOPTION_H

#include <stdint.h>

#include "ipc/memory/allocator.h"

/* Takes over a dead maker's slab with at least so much free. -ENOENT: there is none. Without the
 * lock. */
int cw_heap_adopt(cw_client *client, struct cw_heap *heap, uint64_t size_bytes);
/* Makes a slab of somebody else's memory with a table of so many entries; block 0 is all of it, and
 * held. Without client->lock. */
int cw_heap_adopt_foreign(cw_client *client, struct cw_heap *heap, int fd, uint64_t size_bytes,
                          uint32_t capacity, struct cw_slab **slab, uint64_t *gen);

#endif
