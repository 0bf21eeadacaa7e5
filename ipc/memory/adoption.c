/*
 * Adoption: slabs of dead makers, of which the user's next client that needs memory becomes the
 * owner; and, at the end, slabs of memory that somebody else has made.
 *
 * What is free in one is read from its block table, which its maker and others could write: each
 * entry is copied and checked, and a table that cannot be is left alone. What is live there waits
 * in the heap's pending list until the broker frees it.
 *
 * Owner: client->lock. If this process dies in the middle, or cannot open it, the slab is an orphan
 * again.
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
#include "ipc/order/fence.h"
#include "ipc/request/channel.h"

struct found_block {
    uint64_t offset_bytes, length_bytes, gen;
    uint32_t number;
    bool drains; /* free, but a stream of somebody may still use it */
};

static int by_offset(const void *left, const void *right) {
    const struct found_block *a = left, *b = right;
    return a->offset_bytes < b->offset_bytes ? -1 : a->offset_bytes > b->offset_bytes;
}

/* Copies the live entries of an adopted slab's table, in the order of their addresses. -1: one
 * cannot be. */
static int64_t read_entries(cw_client *client, struct cw_slab *slab, struct found_block *found) {
    int64_t count = 0;
    for (uint32_t i = slab->capacity; i-- > 0;) {
        struct cw_block *entry = &slab->table->blocks[i];
        /* B8: pairs with B7 of the dead owner: offset and length are as new as the word. */
        uint64_t word = CW_LOAD(B8, &entry->word, acquire);
        bool is_free = cw_block_state(word) == CW_BLOCK_FREE;
        if (is_free && cw_heap_drained(client, slab, i)) {
            slab->blocks[slab->blocks_free++] = i;
            continue;
        }
        found[count++] = (struct found_block){
            .offset_bytes = CW_LOAD(B9, &entry->offset_bytes, relaxed),
            .length_bytes = CW_LOAD(B9, &entry->length_bytes, relaxed),
            .gen = cw_block_gen(word),
            .number = i,
            .drains = is_free,
        };
    }
    slab->blocks_used = slab->capacity;
    qsort(found, (size_t)count, sizeof *found, by_offset);
    uint64_t end = 0;
    for (int64_t i = 0; i < count; i++) {
        if ((found[i].offset_bytes | found[i].length_bytes) % CW_CARVE_UNIT ||
            found[i].length_bytes == 0 || found[i].offset_bytes < end ||
            found[i].offset_bytes > slab->arena.size_bytes ||
            found[i].length_bytes > slab->arena.size_bytes - found[i].offset_bytes)
            return -1;
        end = found[i].offset_bytes + found[i].length_bytes;
    }
    return count;
}

/* Makes known what tells whether streams have passed the free entries: such an entry says where its
 * number lay last, and once all streams had passed the owner may have carved others there. What is
 * not known counts as not passed, and would lie across these. Gives the lock up meanwhile; the slab
 * stays. */
static void learn(cw_client *client, struct cw_slab *slab) {
    bool more = slab->device_kind == CW_DEVICE_CUDA;
    slab->held++;
    while (more) {
        for (uint32_t i = 0; i < slab->capacity; i++) {
            /* B8: as in read_entries(). */
            uint64_t word = CW_LOAD(B8, &slab->table->blocks[i].word, acquire);
            if (cw_block_state(word) == CW_BLOCK_FREE)
                (void)cw_heap_drained(client, slab, i); /* notes one page that is not mapped */
        }
        pthread_mutex_unlock(&client->lock);
        more = cw_fences_learn(client);
        pthread_mutex_lock(&client->lock);
    }
    slab->held--;
}

/* Builds the free space of an adopted slab from its table: what is live waits until the broker
 * frees it. A table that a dead maker damaged is left alone: nothing is carved from that slab
 * again. */
static int rebuild(cw_client *client, struct cw_slab *slab) {
    struct cw_heap *heap = slab->heap;
    int code = cw_heap_divide(slab, &heap->carver, false);
    struct found_block *found = malloc(slab->capacity * sizeof *found);
    int64_t count = code == 0 && found ? read_entries(client, slab, found) : -1;
    if (count < 0 && slab->carved)
        slab->arena.full = true;
    /* From the highest address down: each claim finds its range in the first extent. */
    for (int64_t i = count; i-- > 0;) {
        struct cw_extent *extent =
            cw_arena_claim(&slab->arena, found[i].offset_bytes, found[i].length_bytes);
        if (!extent) {
            slab->arena.full = true;
            break;
        }
        extent->block = found[i].number;
        extent->gen = found[i].gen;
        extent->published = true;
        slab->locals[extent->block].extent = extent;
        if (found[i].drains)
            (void)cw_heap_give(client, slab, extent->block); /* nothing was held for it */
        else
            cw_heap_await(client, slab, extent->block);
    }
    free(found);
    heap->owed++; /* some may have come back between the copy and now: look once */
    if (count >= 0 && !slab->arena.full)
        cw_heap_settle(client, slab);
    return code;
}

int cw_heap_adopt(cw_client *client, struct cw_heap *heap, uint64_t size_bytes) {
    /* M1: advice: whether it pays to ask. */
    if (CW_LOAD(M1, &client->root->gauges[CW_GAUGE_orphan_slabs], relaxed) == 0)
        return -ENOENT;
    struct cw_slab_request request = {.device_kind = heap->backend->device_kind,
                                      .free_bytes = size_bytes};
    memcpy(request.device_uuid, heap->device_uuid, sizeof request.device_uuid);
    struct iovec part = {&request, sizeof request};
    struct cw_slab_info info;
    uint32_t info_bytes = sizeof info;
    int code =
        cw_channel_call(client, CW_OP_SLAB_ADOPT, &part, 1, &info, &info_bytes, CW_CALL_SHORT, -1);
    if (code)
        return code;
    if (info_bytes != sizeof info)
        return cw_fail(-EPROTO, "the broker answered SLAB_ADOPT with %u bytes", info_bytes);
    struct cw_slab *slab;
    bool ours = false;
    pthread_mutex_lock(&client->lock);
    code = cw_slab_get(client, info.slab, &slab);
    if (code == 0 && slab->own)
        code = cw_fail(-EPROTO, "the broker let us adopt our own slab %u", info.slab);
    if (code == 0)
        code = cw_slab_map(client, slab, false);
    if (code == 0) {
        cw_slab_wake(client, slab);
        learn(client, slab);
        slab->heap = heap;
        slab->own = ours = true;
        slab->own_next = client->slabs.own;
        client->slabs.own = slab;
        code = rebuild(client, slab);
    }
    pthread_mutex_unlock(&client->lock);
    if (code && !ours) {
        /* It could not be opened: it is an orphan again, for who can. */
        request.slab = info.slab;
        cw_channel_post(client, CW_OP_SLAB_CLOSE, &request, sizeof request);
    }
    /* The dead maker may have left a table that is none: its slab is of no use, ours will do. */
    return code == -EPROTO ? -ENOENT : code;
}

static int adopt_foreign(cw_client *client, struct cw_heap *heap, int fd, uint64_t size_bytes,
                         uint32_t capacity, struct cw_slab **out, uint64_t *gen) {
    struct cw_segment table;
    int code = cw_heap_make_table(heap->backend->device_kind, capacity, size_bytes, &table);
    if (code)
        return code;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    struct cw_slab_info info = {.device_kind = heap->backend->device_kind,
                                .size_bytes = size_bytes,
                                .blocks = capacity,
                                .flags = CW_SLAB_FOREIGN};
    memcpy(info.device_uuid, heap->device_uuid, sizeof info.device_uuid);
    pthread_mutex_lock(&client->lock);
    code = copy < 0 ? cw_fail(errno == EBADF ? -EINVAL : -EDQUOT,
                              "descriptor %d could not be doubled for adoption: %m", fd)
                    : cw_slab_add(client, heap, &info, copy, &table, out);
    if (code) {
        pthread_mutex_unlock(&client->lock);
        cw_segment_close(&table);
        if (copy >= 0)
            close(copy);
        return code;
    }
    code = cw_leases_room(client, 1);
    if (code == 0)
        code = cw_heap_divide(*out, &heap->foreign, false);
    if (code)
        cw_slab_close(client, *out);
    else {
        cw_lease_hold_new(client, *out, 0);
        struct cw_extent *extent = cw_arena_claim(&(*out)->arena, 0, (*out)->arena.size_bytes);
        CW_ASSERT(extent); /* the one extent there is, whole: nothing to allocate */
        extent->published = true;
        *gen = extent->gen = cw_block_carve(&(*out)->table->blocks[0], 0, size_bytes);
        (*out)->locals[0].extent = extent;
        (*out)->blocks_used = 1;
    }
    pthread_mutex_unlock(&client->lock);
    return code;
}

int cw_heap_adopt_foreign(cw_client *client, struct cw_heap *heap, int fd, uint64_t size_bytes,
                          uint32_t capacity, struct cw_slab **out, uint64_t *gen) {
    int code = adopt_foreign(client, heap, fd, size_bytes, capacity, out, gen);
    if (code != -EDQUOT || heap->backend->device_kind != CW_DEVICE_HOST)
        return code;
    code = cw_retry_ask_others(client, size_bytes);
    return code == -EAGAIN ? adopt_foreign(client, heap, fd, size_bytes, capacity, out, gen) : code;
}
