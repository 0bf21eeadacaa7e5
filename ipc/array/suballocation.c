/*
 * Suballocations: pieces of an array of ours that somebody else's allocator manages, given to
 * others.
 *
 * A GPU library carves its arrays out of memory that it has from us (a block, the *outer* one). To
 * share one of them it needs a lease of its own: else nobody could tell when others have let go of
 * this piece, and the library would use it anew under their eyes. So a suballocation is a block
 * inside a block: an entry of the slab's table, whose range lies within the outer one's, with its
 * own leases, names, handles and record of streams.
 *
 * Invariants
 *   A1  A suballocation's range lies within its outer block, which the suballocation holds: the
 *       outer block's memory is not free before the suballocation has ended, whatever the library
 *       does.
 *   A2  A suballocation ends when its block is free (no lease, no name, no handle under way, as
 *       with every block) and the work of all streams on it has passed. Then it is told once, by
 *       cw_loan_next(); until then the allocator keeps the memory as it is.
 *   A3  A range that is suballocated is so once: it is found again, so that all who work on it
 *       stand in one record.
 * Its extent is no part of an arena: the bytes are the outer block's. Its range is rounded to whole
 * units of the carver, as every entry of a table.
 *
 * Owner: client->lock. If this process dies, broker and holders go on with the suballocation's
 * block as with any other; the outer one comes back at once, and whoever adopts the slab finds the
 * suballocation's entry alone. Met together (somebody still held both) they overlap: then nothing
 * is carved from that slab until it is given up. Dies the broker: nobody knows any more who else
 * holds a suballocation, and no name or handle leads to it. It ends with this process's last lease
 * and the work that is under way on it, so that its memory is not lost to the library for good; who
 * has it mapped may still look at it, and sees what the library writes there next. Work of others
 * whose fences were never seen here cannot be waited for without a broker: then the memory stays in
 * use.
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/array/array.h"
#include "ipc/array/suballocation.h"
#include "ipc/client.h"
#include "ipc/memory/allocator.h"
#include "ipc/memory/lease.h"
#include "ipc/memory/slab.h"
#include "shm/blocks/order.h"

struct cw_suballocation {
    struct cw_extent extent; /* first: found from it */
    uint64_t number;
    struct cw_extent *outer;       /* whose block it holds */
    struct cw_suballocation *next; /* in use, or ended and not told yet */
};

/* One row of numbers for all clients of the process: they are keys. No lock, which a fork could
 * find held. */
static uint64_t next_number(void) {
    static cw_a64 last;
    return CW_ADD(K20, &last, 1, relaxed) + 1; /* K20: it is a number and says nothing else */
}

/* The slab of ours, mapped writable, that has these addresses. imported: or one of imported memory,
 * which is shared only where that is asked for. */
static struct cw_slab *find_slab(cw_client *client, uintptr_t address, uint64_t size_bytes,
                                 bool imported) {
    for (struct cw_slab *slab = client->slabs.own; slab; slab = slab->own_next) {
        uintptr_t base = (uintptr_t)cw_slab_base(slab, false);
        if (base && slab->carved && !slab->gone && (imported || !slab->allocation) &&
            address >= base && address - base < slab->size_bytes &&
            size_bytes <= slab->size_bytes - (address - base))
            return slab;
    }
    return NULL;
}

static struct cw_extent *find_outer(const struct cw_slab *slab, uint64_t begin, uint64_t size) {
    for (struct cw_extent *extent = slab->arena.first; extent; extent = extent->after)
        if (begin < extent->offset_bytes + extent->length_bytes)
            return extent->carved && extent->pool && slab->locals[extent->block].count &&
                           begin + size <= extent->offset_bytes + extent->length_bytes
                       ? extent
                       : NULL;
    return NULL;
}

/* A3: takes a lease on a suballocation of the same range that has not ended. */
static struct cw_suballocation *hold_known(cw_client *client, struct cw_slab *slab, uint64_t begin,
                                           uint64_t size) {
    for (struct cw_suballocation *piece = client->suballocations; piece; piece = piece->next)
        if (piece->extent.arena == &slab->arena && piece->extent.offset_bytes == begin &&
            piece->extent.length_bytes == size &&
            cw_lease_hold(client, slab, piece->extent.block, piece->extent.gen) == 0)
            return piece;
    return NULL;
}

/* Its block is free, and no stream is at work on it: to be told. The caller ends the lease on the
 * block around it. */
static struct cw_extent *on_free(cw_client *client, struct cw_extent *extent) {
    struct cw_suballocation *piece = (struct cw_suballocation *)extent,
                            **at = &client->suballocations;
    while (*at != piece)
        at = &(*at)->next;
    *at = piece->next;
    piece->next = client->suballocations_ended;
    client->suballocations_ended = piece;
    return piece->outer;
}

static int make(cw_client *client, struct cw_slab *slab, uint64_t begin, uint64_t size,
                struct cw_suballocation **out) {
    struct cw_extent *outer = find_outer(slab, begin, size);
    if (!outer)
        return cw_fail(-ENOENT,
                       "these %llu bytes do not lie inside one pool (CW_POOL) of this process",
                       (unsigned long long)size);
    if (slab->blocks_free == 0 && slab->blocks_used == slab->capacity)
        return cw_fail(-EDQUOT,
                       "all %u blocks of the slab are in use: no more pieces of it can be shared "
                       "until some are closed",
                       slab->capacity);
    struct cw_suballocation *piece = calloc(1, sizeof *piece);
    if (!piece)
        return cw_fail(-EDQUOT, "no memory to keep track of a suballocation");
    uint32_t block = slab->blocks_free ? slab->blocks[slab->blocks_free - 1] : slab->blocks_used;
    int code = cw_lease_hold(client, slab, outer->block, outer->gen);
    if (code) {
        free(piece);
        return code;
    }
    cw_lease_hold_new(client, slab, block);
    if (slab->blocks_free)
        slab->blocks_free--;
    else
        slab->blocks_used++;
    slab->arena.full = slab->blocks_free == 0 && slab->blocks_used == slab->capacity;
    *piece = (struct cw_suballocation){.extent = {.arena = &slab->arena,
                                                  .offset_bytes = begin,
                                                  .length_bytes = size,
                                                  .block = block,
                                                  .carved = true,
                                                  .on_free = on_free},
                                       .number = next_number(),
                                       .outer = outer,
                                       .next = client->suballocations};
    if (slab->device_kind == CW_DEVICE_CUDA)
        cw_order_clear(cw_order_of(slab->table, block));
    piece->extent.gen = cw_block_carve(&slab->table->blocks[block], begin, size);
    slab->locals[block].extent = &piece->extent;
    client->suballocations = *out = piece;
    return 0;
}

/* A suballocation of these bytes, new or known, and an array on it. The lock is held; it is given
 * up where room for leases has to be made. -EDQUOT: perhaps there is room when what came back is
 * taken. */
static int suballocate(cw_client *client, uintptr_t address, uint64_t size_bytes, bool imported,
                       const struct cw_shape *shape, cw_array **out, uint64_t *number) {
    int code = cw_leases_room(client, 2); /* the memory's around it, and its own */
    if (code)
        return code;
    struct cw_slab *slab = find_slab(client, address, size_bytes, imported);
    if (!slab)
        return cw_fail(-ENOENT, "%p does not lie in a slab of this process", (void *)address);
    uint64_t within = address - (uintptr_t)cw_slab_base(slab, false);
    uint64_t begin = within / CW_CARVE_UNIT * CW_CARVE_UNIT;
    uint64_t end = (within + size_bytes + CW_CARVE_UNIT - 1) / CW_CARVE_UNIT * CW_CARVE_UNIT;
    struct cw_suballocation *piece = hold_known(client, slab, begin, end - begin);
    if (!piece)
        code = make(client, slab, begin, end - begin, &piece);
    if (code)
        return code;
    uint64_t given = piece->number, gen = piece->extent.gen;
    uint32_t block = piece->extent.block;
    const struct cw_range range = {begin, end - begin};
    code =
        cw_array_make(client, slab, block, gen, &range, within - begin, size_bytes, shape, 0, out);
    if (code)
        cw_lease_release(client, slab, block, gen);
    else
        *number = given;
    return code;
}

int cw_suballocation_take(cw_client *client, const void *address, uint64_t size_bytes,
                          bool imported, cw_array **out, uint64_t *number) {
    if (!client || !out || !number || size_bytes == 0)
        return cw_fail(-EINVAL, "a client, bytes and places for the answers are needed");
    if (size_bytes > INT64_MAX)
        return cw_fail(-EINVAL, "no array has %llu bytes", (unsigned long long)size_bytes);
    int64_t length = (int64_t)size_bytes;
    cw_layout bytes = {.ndim = 1, .itemsize = 1, .shape = &length, .dtype = "|u1"};
    struct cw_shape shape;
    int code = cw_client_usable(client);
    if (code == 0)
        code = cw_layout_resolve(&bytes, &shape);
    if (code)
        return code;
    pthread_mutex_lock(&client->lock);
    code = suballocate(client, (uintptr_t)address, size_bytes, imported, &shape, out, number);
    if (code == -EDQUOT) {
        cw_heap_collect_all(client, NULL);
        code = suballocate(client, (uintptr_t)address, size_bytes, imported, &shape, out, number);
    }
    pthread_mutex_unlock(&client->lock);
    return code;
}

int cw_array_at(cw_client *client, const void *address, uint64_t size_bytes, cw_array **out,
                uint64_t *number) {
    return cw_suballocation_take(client, address, size_bytes, false, out, number);
}

int cw_loan_next(cw_client *client, uint64_t *number) {
    if (!client || !number)
        return cw_fail(-EINVAL, "a client and a place for the number are needed");
    if (cw_client_forked(client))
        return cw_fail_plain(-EAGAIN,
                             "this process has no suballocations: they belong to its parent");
    pthread_mutex_lock(&client->lock);
    if (!client->suballocations_ended)
        cw_heap_collect_all(client, NULL); /* nobody else may ever ask */
    if (!client->suballocations_ended && client->suballocations &&
        cw_client_usable(client) == -ECONNRESET)
        cw_heap_end_suballocations(client);
    struct cw_suballocation *piece = client->suballocations_ended;
    if (piece) {
        client->suballocations_ended = piece->next;
        *number = piece->number;
    }
    pthread_mutex_unlock(&client->lock);
    free(piece);
    return piece ? 0 : cw_fail_plain(-EAGAIN, "no suballocation has ended");
}

static void free_all(struct cw_suballocation **list) {
    for (struct cw_suballocation *piece; (piece = *list);) {
        *list = piece->next;
        free(piece);
    }
}

void cw_suballocations_deinit(cw_client *client) {
    free_all(&client->suballocations);
    free_all(&client->suballocations_ended);
}
