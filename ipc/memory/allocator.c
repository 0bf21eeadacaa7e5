/*
 * The heap: slabs that this client owns, and blocks carved out of them.
 *
 * A block is private or published. No other process can know of a private block, so it is freed at
 * once, without the broker. A published block was named, exported or existed at a fork: the broker
 * decides when it is free and sets its word to FREE. Until we see that, the block is in the pending
 * list; session->reclaimed says when it pays to look.
 *
 * slab_size.c decides how large slabs are. Free slabs are kept up to cache_limit_bytes, since to
 * make one takes a second per GiB. Before a new one is made, the broker is asked for the slabs of
 * dead makers.
 *
 * This is the plain allocator: it takes what is there, and what is made or given back for the
 * asking. It moves no array. What else is done about a full device is decided above it
 * (ipc/array/allocate.c), whose evictions allocate here: so no allocation is entered within
 * another.
 *
 * Owner: client->lock. Only a slab's memory is made without the lock, since that takes long. If
 * this process dies, its slabs become orphans, which the user's next client adopts.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/client.h"
#include "ipc/memory/adoption.h"
#include "ipc/memory/allocator.h"
#include "ipc/memory/lease.h"
#include "ipc/memory/retry.h"
#include "ipc/memory/slab.h"
#include "ipc/memory/slab_cache.h"
#include "ipc/memory/slab_size.h"
#include "ipc/order/fence.h"

#define CW_LARGE_ALIGN_BYTES 4096u /* of blocks from CW_LARGE_BYTES on */

#define ADOPT_TRIES   8u
#define COLLECT_SHARE 16u /* a look at all pending blocks pays when one in so many came back */

int cw_heap_init(struct cw_heap *heap, const struct cw_backend *backend, int device) {
    uint64_t granule, cache;
    uint8_t uuid[CW_UUID_BYTES];
    int code = backend->device_limits(device, &granule, &cache);
    if (code == 0)
        code = backend->device_uuid(device, uuid);
    if (code == 0)
        code = cw_slab_cache_limit(backend, cache, &cache);
    if (code)
        return code;
    *heap = (struct cw_heap){.backend = backend,
                             .device = device,
                             .granule_bytes = granule,
                             .next_slab_bytes = backend->slab_min_bytes,
                             .cache_limit_bytes = cache};
    memcpy(heap->device_uuid, uuid, sizeof uuid);
    return 0;
}

static struct cw_heap *find_heap(cw_client *client, const struct cw_backend *backend, int device) {
    struct cw_heap *heap = &client->heap;
    while (heap && (heap->backend != backend || heap->device != device))
        heap = heap->next;
    return heap;
}

int cw_heap_of(cw_client *client, const struct cw_backend *backend, int device,
               struct cw_heap **out) {
    pthread_mutex_lock(&client->lock);
    *out = find_heap(client, backend, device);
    pthread_mutex_unlock(&client->lock);
    if (*out)
        return 0;
    struct cw_heap *made = malloc(sizeof *made);
    if (!made)
        return cw_fail(-EDQUOT, "no memory for the books of %s:%d", backend->name, device);
    int code = cw_heap_init(made, backend, device);
    if (code) {
        free(made);
        return code;
    }
    pthread_mutex_lock(&client->lock);
    *out = find_heap(client, backend, device);
    if (!*out) {
        made->next = client->heap.next;
        client->heap.next = *out = made;
        made = NULL;
    }
    pthread_mutex_unlock(&client->lock);
    free(made); /* another thread was quicker */
    return 0;
}

void cw_heaps_deinit(cw_client *client) {
    for (struct cw_heap *next, *heap = client->heap.next; heap; heap = next) {
        next = heap->next;
        free(heap);
    }
    client->heap.next = NULL;
}

bool cw_heap_drained(cw_client *client, struct cw_slab *slab, uint32_t block) {
    return slab->device_kind == CW_DEVICE_HOST || cw_order_passed(client, slab, block);
}

/* Returns what held it, see give(). */
static struct cw_extent *give_drained(cw_client *client, struct cw_slab *slab,
                                      struct cw_extent *extent) {
    slab->heap->given++;
    slab->locals[extent->block].extent = NULL;
    slab->blocks[slab->blocks_free++] = extent->block;
    slab->arena.full = false;
    if (extent->on_free)
        return extent->on_free(client, extent);
    if (slab->flags & CW_SLAB_FOREIGN) {
        cw_slab_close(client, slab);
        return NULL;
    }
    cw_carve_give(extent);
    cw_heap_settle(client, slab);
    return NULL;
}

/* A block that is FREE: its bytes come back now, or when the last stream has passed. What was held
 * for it (the block around a suballocation) is held still: the caller ends that lease, so that none
 * ends within the end of another. */
static struct cw_extent *give(cw_client *client, struct cw_slab *slab, struct cw_extent *extent) {
    if (cw_heap_drained(client, slab, extent->block))
        return give_drained(client, slab, extent);
    extent->next = slab->heap->draining;
    slab->heap->draining = extent;
    return NULL;
}

/* The same, and the lease on what was held for it ends. May free the slab. */
static void give_whole(cw_client *client, struct cw_extent *extent) {
    struct cw_slab *slab = extent->arena->user;
    struct cw_extent *outer = give(client, slab, extent);
    if (outer)
        cw_lease_release(client, slab, outer->block, outer->gen);
}

static void drain(cw_client *client, struct cw_heap *heap) {
    struct cw_extent *list = heap->draining;
    heap->draining = NULL;
    while (list) {
        struct cw_extent *next = list->next;
        give_whole(client, list);
        list = next;
    }
}

struct cw_extent *cw_heap_give(cw_client *client, struct cw_slab *slab, uint32_t block) {
    return give(client, slab, slab->locals[block].extent);
}

void cw_heap_await(cw_client *client, struct cw_slab *slab, uint32_t block) {
    struct cw_extent *extent = slab->locals[block].extent;
    struct cw_heap *heap = slab->heap;
    (void)client;
    if (extent->pending)
        return;
    extent->pending = true;
    extent->next = NULL;
    extent->prev = heap->pending_last;
    *(extent->prev ? &extent->prev->next : &heap->pending) = extent;
    heap->pending_last = extent;
    heap->pending_count++;
}

/* Did the broker free it? */
static bool came_back(const struct cw_slab *slab, const struct cw_extent *extent) {
    /* B8: pairs with B4: the last user's reads and writes come before our reuse. */
    uint64_t word = CW_LOAD(B8, &slab->table->blocks[extent->block].word, acquire);
    return cw_block_gen(word) != extent->gen && cw_block_state(word) == CW_BLOCK_FREE &&
           slab->locals[extent->block].count == 0;
}

void cw_heap_await_no_more(struct cw_heap *heap, struct cw_extent *extent) {
    *(extent->prev ? &extent->prev->next : &heap->pending) = extent->next;
    *(extent->next ? &extent->next->prev : &heap->pending_last) = extent->prev;
    heap->pending_count--;
}

static void collect(cw_client *client, struct cw_heap *heap, bool now) {
    /* S1: rises by one for each block, after its word went FREE (B4): what it tells of is there. */
    uint64_t reclaimed = CW_LOAD(S1, &client->shared->reclaimed, acquire);
    heap->owed += reclaimed - heap->reclaimed_seen;
    heap->reclaimed_seen = reclaimed;
    if (heap->owed == 0 || (!now && heap->owed * COLLECT_SHARE < heap->pending_count))
        return;
    for (struct cw_extent *next, *extent = heap->pending; extent && heap->owed; extent = next) {
        struct cw_slab *slab = extent->arena->user;
        next = extent->next;
        if (!came_back(slab, extent))
            continue;
        cw_heap_await_no_more(heap, extent);
        heap->owed--;
        give_whole(client, extent);
    }
    if (!heap->pending || heap->owed)
        heap->owed =
            0; /* all was looked at: the rest was never in the list, or is another heap's */
}

void cw_heap_collect(cw_client *client, bool now) {
    for (struct cw_heap *heap = &client->heap; heap; heap = heap->next) {
        collect(client, heap, now);
        if (heap->draining)
            drain(client, heap);
    }
}

uint32_t cw_heap_collect_all(cw_client *client, struct cw_heap *retaining) {
    for (uint32_t learned = 0;; learned++) {
        if (retaining)
            retaining->retains = true; /* never past the lock */
        cw_heap_collect(client, true);
        if (retaining)
            retaining->retains = false;
        pthread_mutex_unlock(&client->lock);
        bool more = cw_fences_learn(client);
        pthread_mutex_lock(&client->lock);
        if (!more)
            return learned;
    }
}

void cw_heap_end_suballocations(cw_client *client) {
    for (struct cw_heap *heap = &client->heap; heap; heap = heap->next) {
        for (struct cw_extent *next, *extent = heap->pending; extent; extent = next) {
            struct cw_slab *slab = extent->arena->user;
            next = extent->next; /* of another slab, if this ends the slab */
            if (!extent->on_free || slab->locals[extent->block].count)
                continue;
            cw_heap_await_no_more(heap, extent);
            give_whole(client, extent);
        }
    }
}

int cw_heap_divide(struct cw_slab *slab, struct cw_carver *carver, bool clean) {
    uint64_t odd = slab->size_bytes % CW_CARVE_UNIT, usable = slab->size_bytes - odd;
    if (slab->flags & CW_SLAB_FOREIGN && odd)
        usable += CW_CARVE_UNIT; /* one block, whole: only the books are rounded up */
    slab->blocks = malloc(slab->capacity * sizeof *slab->blocks);
    if (!slab->blocks || usable == 0 || !cw_arena_init(&slab->arena, carver, slab, usable, clean))
        return cw_fail(-EDQUOT, "no memory to divide slab %u", slab->id);
    slab->carved = true;
    if (slab->capacity == slab->backend->large_blocks)
        slab->arena.least_bytes = slab->size_bytes / 4;
    return 0;
}

/* Which room will do: in any slab of ours, in an empty one alone, or what was carved before. */
enum room { ROOM_ANY, ROOM_APART, ROOM_USED };

/* Room in a slab that is ours, and a lease on the block number that comes next there. NULL: none.
 */
static struct cw_extent *find_room(cw_client *client, struct cw_heap *heap, uint64_t size_bytes,
                                   uint64_t align, bool used, uint32_t *number) {
    for (struct cw_extent *extent;
         (extent = cw_carve_take(&heap->carver, size_bytes ? size_bytes : 1, align, used));) {
        struct cw_slab *slab = extent->arena->user;
        *number = slab->blocks_free ? slab->blocks[slab->blocks_free - 1] : slab->blocks_used;
        cw_lease_hold_new(client, slab, *number);
        if (cw_table_keep(slab->table))
            return extent;
        cw_lease_unhold_new(client, slab, *number);
        cw_carve_give(extent);
        slab->arena.full = true;
        cw_slab_cache_forget(client);
    }
    return NULL;
}

/* The same in an empty slab that is as long as the array, in whole granules. */
static struct cw_extent *find_apart(cw_client *client, struct cw_heap *heap, uint64_t size_bytes,
                                    uint32_t *number) {
    uint64_t slab_bytes = cw_slab_granules(heap, size_bytes);
    uint64_t length = (size_bytes + CW_CARVE_UNIT - 1) / CW_CARVE_UNIT * CW_CARVE_UNIT;
    for (struct cw_slab *slab = client->slabs.own; slab; slab = slab->own_next) {
        if (slab->heap != heap || !slab->carved || slab->flags & CW_SLAB_FOREIGN ||
            slab->size_bytes != slab_bytes || slab->arena.free_bytes != slab->arena.size_bytes ||
            (slab->blocks_free == 0 && slab->blocks_used == slab->capacity))
            continue;
        *number = slab->blocks_free ? slab->blocks[slab->blocks_free - 1] : slab->blocks_used;
        cw_lease_hold_new(client, slab, *number);
        struct cw_extent *extent =
            cw_table_keep(slab->table) ? cw_arena_claim(&slab->arena, 0, length) : NULL;
        if (extent)
            return extent;
        cw_lease_unhold_new(client, slab, *number); /* withdrawn: forgotten when next told */
    }
    return NULL;
}

/* Carves from what we own. NULL slab: no room. */
static void carve(cw_client *client, struct cw_heap *heap, uint64_t size_bytes, enum room room,
                  struct cw_slab **out, uint32_t *block, uint64_t *gen, bool *clean) {
    uint64_t align = size_bytes >= CW_LARGE_BYTES ? CW_LARGE_ALIGN_BYTES : CW_CARVE_UNIT;
    uint32_t number;
    if (align < heap->backend->align_bytes)
        align = heap->backend->align_bytes;
    *out = NULL;
    struct cw_extent *extent =
        room == ROOM_APART ? find_apart(client, heap, size_bytes, &number)
                           : find_room(client, heap, size_bytes, align, room == ROOM_USED, &number);
    if (!extent)
        return;
    struct cw_slab *slab = extent->arena->user;
    if (slab->blocks_free)
        slab->blocks_free--;
    else
        slab->blocks_used++;
    slab->arena.full = slab->blocks_free == 0 && slab->blocks_used == slab->capacity;
    if (slab->arena.full && slab->device_kind == CW_DEVICE_HOST)
        heap->crowded_bytes = slab->arena.size_bytes - slab->arena.free_bytes;
    if (slab->cached) {
        slab->cached = false;
        heap->cached_bytes -= slab->size_bytes;
    }
    extent->block = number;
    extent->published = extent->pending = extent->told = extent->pool = false;
    if (slab->device_kind == CW_DEVICE_CUDA)
        cw_order_clear(cw_order_of(slab->table, number));
    extent->gen =
        cw_block_carve(&slab->table->blocks[number], extent->offset_bytes, extent->length_bytes);
    slab->locals[number].extent = extent;
    *out = slab;
    *block = number;
    *gen = extent->gen;
    *clean = extent->clean;
}

int cw_heap_make_table(uint32_t device_kind, uint32_t capacity, uint64_t slab_bytes,
                       struct cw_segment *out) {
    int code = cw_segment_create("blocks", cw_slab_table_bytes(device_kind, capacity),
                                 CW_SEGMENT_BLOCKS, 0, 0, out);
    if (code)
        return code;
    struct cw_block_table *table = out->base;
    table->capacity = capacity;
    table->slab_bytes = slab_bytes;
    return 0;
}

/* Makes a slab of so many bytes and blocks; *made: its id. Without the lock, but for the end. */
static int make_planned_slab(cw_client *client, struct cw_heap *heap, uint64_t slab_bytes,
                             uint32_t capacity, uint32_t *made) {
    int fd, code = cw_retry_check(client, heap, slab_bytes, capacity);
    if (code == 0)
        code = heap->backend->slab_create(heap->device, slab_bytes, &fd);
    if (code)
        return code;
    struct cw_segment table;
    code = cw_heap_make_table(heap->backend->device_kind, capacity, slab_bytes, &table);
    if (code)
        goto close_data;
    struct cw_slab_info info = {
        .device_kind = heap->backend->device_kind, .size_bytes = slab_bytes, .blocks = capacity};
    memcpy(info.device_uuid, heap->device_uuid, sizeof info.device_uuid);
    struct cw_slab *slab;
    pthread_mutex_lock(&client->lock);
    code = cw_slab_add(client, heap, &info, fd, &table, &slab);
    if (code == 0) {
        *made = slab->id;
        code = cw_heap_divide(slab, &heap->carver, true);
        if (code)
            cw_slab_close(client, slab);
        pthread_mutex_unlock(&client->lock);
        return code;
    }
    pthread_mutex_unlock(&client->lock);
    cw_segment_close(&table);
close_data:
    close(fd);
    return code;
}

/* Makes a slab for an array of this size: where there is no memory for one with room to spare, a
 * smaller one, down to the array alone. */
static int make_slab(cw_client *client, struct cw_heap *heap, uint64_t size_bytes, uint32_t *made) {
    for (;;) {
        uint32_t capacity;
        pthread_mutex_lock(&client->lock);
        uint64_t slab_bytes = cw_slab_plan(heap, size_bytes, &capacity);
        pthread_mutex_unlock(&client->lock);
        int code = make_planned_slab(client, heap, slab_bytes, capacity, made);
        if (code != -EDQUOT || capacity == heap->backend->large_blocks ||
            slab_bytes == heap->granule_bytes)
            return code;
        pthread_mutex_lock(&client->lock);
        heap->next_slab_bytes = slab_bytes / 4;
        pthread_mutex_unlock(&client->lock);
    }
}

static int take_here(cw_client *client, struct cw_heap *heap, uint64_t size_bytes, enum room room,
                     struct cw_slab **slab, uint32_t *block, uint64_t *gen, bool *clean) {
    *slab = NULL;
    pthread_mutex_lock(&client->lock);
    cw_slab_cache_forget_if_told(client);
    if (client->leases.free_count) {
        heap->retains = true; /* what comes back now is about to be used */
        cw_heap_collect(client, false);
        carve(client, heap, size_bytes, room, slab, block, gen, clean);
        if (!*slab) {
            cw_heap_collect(client, true);
            carve(client, heap, size_bytes, room, slab, block, gen, clean);
        }
        heap->retains = false;
        if (*slab)
            cw_slab_cache_trim(client, heap);
    }
    pthread_mutex_unlock(&client->lock);
    return *slab ? 0 : -EAGAIN;
}

int cw_heap_take_here(cw_client *client, struct cw_heap *heap, uint64_t size_bytes, bool used,
                      struct cw_slab **slab, uint32_t *block, uint64_t *gen, bool *clean) {
    return take_here(client, heap, size_bytes, used ? ROOM_USED : ROOM_ANY, slab, block, gen,
                     clean);
}

/* The same for who may ask the broker: for room for a lease, and for what tells that streams have
 * passed. */
static int take_carved(cw_client *client, struct cw_heap *heap, uint64_t size_bytes, bool apart,
                       struct cw_slab **slab, uint32_t *block, uint64_t *gen, bool *clean) {
    for (;;) {
        pthread_mutex_lock(&client->lock);
        int code = cw_leases_room(client, 1);
        pthread_mutex_unlock(&client->lock);
        if (code == 0)
            code = take_here(client, heap, size_bytes, apart ? ROOM_APART : ROOM_ANY, slab, block,
                             gen, clean);
        if (code != -EAGAIN)
            return code;
        pthread_mutex_lock(&client->lock);
        uint32_t learned = cw_heap_collect_all(client, heap);
        pthread_mutex_unlock(&client->lock);
        if (!learned)
            return code;
    }
}

int cw_heap_take(cw_client *client, struct cw_heap *heap, uint64_t size_bytes,
                 struct cw_allocation *allocation, struct cw_slab **slab, uint32_t *block,
                 uint64_t *gen, bool *clean) {
    if (allocation->refused) { /* room was made meanwhile; perhaps a slab is empty now */
        allocation->refused = allocation->dropped = false;
        allocation->tries = ADOPT_TRIES;
    }
    while (allocation->tries++ < 2 * ADOPT_TRIES) {
        int code =
            take_carved(client, heap, size_bytes, allocation->apart, slab, block, gen, clean);
        if (code != -EAGAIN) {
            cw_slab_cache_settle(client, allocation->made); /* if what came back was taken */
            return code;
        }
        if (!allocation->adopted && !allocation->apart) {
            code = allocation->tries <= ADOPT_TRIES ? cw_heap_adopt(client, heap, size_bytes)
                                                    : -ENOENT;
            if (code && code != -ENOENT)
                return code;
            allocation->adopted = code != 0;
            if (code == 0)
                continue;
        }
        code = allocation->apart
                   ? make_planned_slab(client, heap, cw_slab_granules(heap, size_bytes),
                                       heap->backend->large_blocks, &allocation->made)
                   : make_slab(client, heap, size_bytes, &allocation->made);
        if (code == -EDQUOT && !allocation->dropped) {
            allocation->dropped = true;
            code = cw_retry_make_room(client, heap);
            if (code == -EAGAIN)
                continue;
        }
        if (code == -EDQUOT && heap->backend->device_kind == CW_DEVICE_HOST && !allocation->asked) {
            allocation->asked = true;
            code = cw_retry_ask_others(client, size_bytes);
            if (code == -EAGAIN)
                continue;
        }
        allocation->refused = code == -EDQUOT;
        if (code)
            return code;
    }
    return cw_fail(-EDQUOT,
                   "no room for %llu bytes although slabs were made: other threads took it",
                   (unsigned long long)size_bytes);
}
