/*
 * Evictable arrays: GPU arrays whose bytes go to host memory when their GPU is full, and come back
 * at the next use.
 *
 *   here --full, longest unused--> leaving --copied--> away --use--> returning --submitted--> here
 *    ^                                |                 ^                |
 *    +---------- no host memory ------+                 +-- still full --+
 *
 * Who: the process that made the array, and no other. An allocation of its own on that GPU that
 * would fail makes the array leave that was used last the longest time ago, then the next, until
 * there is room. Neither the broker nor another process takes part, nor knows.
 *
 * Which: an array that is here; that nobody uses now (pins: a call under way, an open section, an
 * address that was given out); whose block is this process's alone (never named, no handle made, no
 * fork); on which no stream works, and whose last write is complete. All else stays where it is.
 *
 * Invariant: the bytes lie whole in one place that counts: the GPU block (here, leaving) or the
 * host block (away, returning). The other place is given up only after the state has changed. A
 * copy that fails changes nothing. While it returns, the copy's section has the turn to write the
 * block, so whoever uses it on a stream comes after the copy; its host block is kept until that has
 * passed.
 *
 * Layers: the bytes move between blocks, by the plain allocator and by copies that pin nothing
 * (allocate.h, copy_bytes.h). No public call is made for it, so a move needs no other one and waits
 * for none of its own thread: evict_one() never brings back, and what brings back lets others leave
 * by cw_allocate() as every allocation does.
 *
 * Owner: client->lock, and client->moved for who waits for a copy to end. If the process dies both
 * blocks are nobody's, and come back as all that it alone held. If the broker dies no new memory
 * comes: what is here stays usable, what is away cannot return. In a forked child it is of no use,
 * as all of CUDA.
 */
#ifndef CW_IPC_ARRAY_EVICT_H
#define CW_IPC_ARRAY_EVICT_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/array/array.h"
#include "ipc/cableway.h"

struct cw_heap;
struct cw_slab;

enum cw_evict_state { CW_HERE, CW_LEAVING, CW_AWAY, CW_RETURNING };

/* A block in host memory, which no array has. */
struct cw_evicted {
    struct cw_slab *slab;
    uint32_t block;
    uint64_t gen;
    uint8_t *bytes;
};

struct cw_evictable {
    cw_array *array;
    enum cw_evict_state state;
    uint32_t pins;
    uint64_t used; /* when it was used last, by client->uses */
    struct cw_location location;
    struct cw_evicted host; /* away: the bytes. Here: what they were copied from, until that has
                             * passed; no slab: none */
    struct cw_evictable *prev, *next; /* in client->evictables */
};

/* Makes a new array of ours evictable. -EDQUOT. */
int cw_evict_admit(cw_array *array);
/* Ends what there is of it beside the array's own lease; false: it has no lease, it was away. */
bool cw_evict_end(cw_array *array);
/* Is that larger than the device itself, or than the broker's limit for all GPU memory? Then arrays
 * would leave for it in vain. */
bool cw_evict_in_vain(const cw_client *client, const struct cw_heap *heap, uint64_t size_bytes);
/* Makes room on a heap's device: one array leaves. 0; -ENOENT: none may; another code: the copy
 * failed, with its reason. Without client->lock. */
int cw_evict_one(cw_client *client, const struct cw_heap *heap);

#endif
