/*
 * Allocation: blocks on one device, out of slabs that this client owns. The caller holds
 * client->lock unless the comment says otherwise.
 */
#ifndef CW_IPC_MEMORY_ALLOCATOR_H
#define CW_IPC_MEMORY_ALLOCATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/cableway.h"
#include "ipc/memory/backend.h"
#include "ipc/memory/slab.h"

#define CW_LARGE_BYTES (1ull << 20) /* blocks of so many begin with a page */

struct cw_heap { /* allocation on one device */
    const struct cw_backend *backend;
    int device;
    uint8_t device_uuid[CW_UUID_BYTES];
    uint64_t granule_bytes; /* slabs are multiples of it */
    struct cw_carver carver;
    struct cw_carver foreign; /* memory of other libraries: one block a slab, never carved */
    uint64_t next_slab_bytes;
    uint64_t crowded_bytes; /* the last slab that ran out of block numbers had so much in use; 0: it
                             * was followed by one for such arrays */
    uint32_t large_ones;    /* arrays for which a slab was made that is larger than the next one */
    uint64_t cached_bytes, cache_limit_bytes; /* of entirely free slabs that are kept */
    bool retains;              /* keeps free slabs beyond the limit: they are about to be used */
    struct cw_extent *pending; /* published, dropped, not freed yet; the oldest come back first */
    struct cw_extent *pending_last;
    uint64_t pending_count;
    uint64_t reclaimed_seen;    /* session->reclaimed as last looked at */
    uint64_t owed;              /* blocks that came back, still in the pending list */
    struct cw_extent *draining; /* free, but streams may still use them (order.h) */
    uint64_t given;             /* blocks whose bytes came back so far */
    struct cw_heap *next;       /* of this client */
};

int cw_heap_init(struct cw_heap *heap, const struct cw_backend *backend, int device);
/* The heap of a device, made when there is none. -ENODEV, -EDQUOT. Without client->lock: it may
 * open the driver. */
int cw_heap_of(cw_client *client, const struct cw_backend *backend, int device,
               struct cw_heap **out);
void cw_heaps_deinit(cw_client *client);

struct cw_allocation { /* the progress of one allocation; zeros at first */
    uint32_t tries;
    uint32_t made; /* the slab that was last made for it; 0: none */
    bool adopted;  /* slabs of dead makers were tried */
    bool dropped;  /* cached slabs were given up */
    bool asked;    /* memory that other clients keep was asked for */
    bool apart;    /* in a slab of its own, from its first byte on */
    bool refused;  /* the last call's -EDQUOT: no memory for a slab, here or within a limit */
};

/* Carves a block and holds it. *clean: it reads as zeros. The caller does NOT hold client->lock.
 * Where it was refused, whoever makes room may call again with the same allocation. */
int cw_heap_take(cw_client *client, struct cw_heap *heap, uint64_t size_bytes,
                 struct cw_allocation *allocation, struct cw_slab **slab, uint32_t *block,
                 uint64_t *gen, bool *clean);
/* The same in the slabs that there are, for who may not wait: -EAGAIN, without a sentence, where
 * they have no room. used: only where pages are there, since arrays lay there before. */
int cw_heap_take_here(cw_client *client, struct cw_heap *heap, uint64_t size_bytes, bool used,
                      struct cw_slab **slab, uint32_t *block, uint64_t *gen, bool *clean);
/* A private block of ours ended: its bytes are free. Returns the extent around it that was held for
 * it, whose lease the caller ends (lease.c), or NULL. */
struct cw_extent *cw_heap_give(cw_client *client, struct cw_slab *slab, uint32_t block);
/* A published block of ours is held by us no more: it comes back when the broker frees it. */
void cw_heap_await(cw_client *client, struct cw_slab *slab, uint32_t block);
/* Ends the wait for it. */
void cw_heap_await_no_more(struct cw_heap *heap, struct cw_extent *extent);
/* Takes back what the broker freed, on all devices: when a look pays, or now. Asks nobody: what
 * waits for streams of processes that were never met here stays. */
void cw_heap_collect(cw_client *client, bool now);
/* The same for who may wait for the broker, which is asked for the fences of such streams.
 * Meanwhile the lock is given up. retaining: a heap that keeps what becomes free beyond its limit,
 * or NULL. Returns how often something was learned. */
uint32_t cw_heap_collect_all(cw_client *client, struct cw_heap *retaining);
/* Without a broker: suballocations that nobody here holds are at their end (suballocation.c). */
void cw_heap_end_suballocations(cw_client *client);
/* Prepares an own slab to be carved; clean: it reads as zeros. */
int cw_heap_divide(struct cw_slab *slab, struct cw_carver *carver, bool clean);
/* May a free block's bytes be used anew? In GPU memory the last user's work may still be under way,
 * also when all leases have ended. */
bool cw_heap_drained(cw_client *client, struct cw_slab *slab, uint32_t block);
/* A block table with nothing in it. Without client->lock. */
int cw_heap_make_table(uint32_t device_kind, uint32_t capacity, uint64_t slab_bytes,
                       struct cw_segment *out);

#endif
