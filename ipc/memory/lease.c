/*
 * Leases of this client: which blocks it holds, each once in a slot that the broker can read.
 *
 * Several arrays on one block share one slot and count privately (struct cw_local). The slots of a
 * table are written by this process alone, under client->lock. If the process dies the broker
 * forgets the tables; if the broker dies nothing here matters any more.
 *
 * Where a suballocation's block comes free, a lease on the block around it ends with it. The
 * allocator does not end that one: it returns it to whoever ended the first, so that a release is
 * never entered within another. A suballocation lies in a block of an arena, so there are two at
 * most.
 */
#include <stdlib.h>

#include "ipc/client.h"
#include "ipc/memory/allocator.h"
#include "ipc/memory/lease.h"
#include "ipc/memory/slab.h"
#include "ipc/request/channel.h"
#include "ipc/request/socket.h"

static struct cw_lease_table *table_of(cw_client *client, uint32_t slot, uint32_t *index) {
    *index = slot % CW_LEASE_TABLE_SLOTS;
    return client->leases.tables[slot / CW_LEASE_TABLE_SLOTS];
}

/* Adds a table and its slots; low slots are given out first. */
static int add_table(struct cw_leases *leases, struct cw_lease_table *table) {
    uint32_t first = leases->tables_count * CW_LEASE_TABLE_SLOTS;
    uint32_t *grown = realloc(leases->free, (first + CW_LEASE_TABLE_SLOTS) * sizeof *grown);
    if (!grown)
        return cw_fail(-EDQUOT, "no memory for a table of %u leases", CW_LEASE_TABLE_SLOTS);
    leases->free = grown;
    for (uint32_t i = CW_LEASE_TABLE_SLOTS; i-- > 0;)
        leases->free[leases->free_count++] = first + i;
    leases->tables[leases->tables_count++] = table;
    return 0;
}

int cw_leases_init(cw_client *client) {
    return add_table(&client->leases, cw_session_leases(client->session_segment.base));
}

void cw_leases_deinit(cw_client *client) {
    for (uint32_t i = 1; i < client->leases.tables_count; i++)
        cw_segment_close(&client->leases.segments[i]);
    free(client->leases.free);
    client->leases = (struct cw_leases){.free = NULL};
}

/* One more table from the broker. */
static int grow(cw_client *client) {
    struct cw_leases *leases = &client->leases;
    if (leases->tables_count == CW_LEASE_TABLES_MAX)
        return cw_fail(-EDQUOT,
                       "this process has %u arrays open, which is the most: close some first",
                       leases->held);
    struct cw_fds fds = {.count = 1};
    struct cw_segment_reply reply;
    int code = cw_socket_call_apart(client, &client->lock, CW_OP_LEASE_TABLE, NULL, 0, NULL, &reply,
                                    sizeof reply, &fds);
    if (code)
        return code;
    if (leases->tables_count == CW_LEASE_TABLES_MAX) { /* other threads were at it */
        cw_fds_close(&fds);
        return 0;
    }
    struct cw_segment *segment = &leases->segments[leases->tables_count];
    code = cw_segment_open(fds.fd[0], reply.size_bytes, CW_SEGMENT_LEASES, true, 0, segment);
    if (code)
        return code;
    cw_segment_close_fd(segment);
    if (segment->size_bytes < CW_PAGE + sizeof(struct cw_lease_table)) {
        cw_segment_close(segment);
        return cw_fail(-EPROTO, "the broker handed out a lease table that is too small");
    }
    void *table = (uint8_t *)segment->base + CW_PAGE;
    code = add_table(leases, table);
    if (code)
        cw_segment_close(segment);
    return code;
}

int cw_leases_room(cw_client *client, uint32_t count) {
    int code = 0;
    while (code == 0 && client->leases.free_count < count)
        code = grow(client);
    return code;
}

/* A free slot that now names the block. */
static void slot_take(cw_client *client, struct cw_slab *slab, uint32_t block) {
    struct cw_leases *leases = &client->leases;
    CW_ASSERT(leases->free_count > 0); /* cw_leases_room() */
    uint32_t slot = leases->free[--leases->free_count], index;
    struct cw_lease_table *table = table_of(client, slot, &index);
    cw_lease_take(table, index, slab->id, block);
    slab->locals[block].slot = slot;
}

static void slot_drop(cw_client *client, struct cw_slab *slab, uint32_t block) {
    uint32_t slot = slab->locals[block].slot, index;
    struct cw_lease_table *table = table_of(client, slot, &index);
    cw_lease_drop(table, index);
    client->leases.free[client->leases.free_count++] = slot;
}

static void count_first(cw_client *client, struct cw_slab *slab, uint32_t block) {
    slab->locals[block].count = 1;
    client->leases.held++;
    if (slab->held++ == 0)
        cw_slab_wake(client, slab);
}

static void tell_drop(cw_client *client, struct cw_slab *slab, uint32_t block, uint64_t gen) {
    struct cw_block_ref ref = {.slab = slab->id, .block = block, .gen = gen};
    cw_channel_post(client, CW_OP_DROP, &ref, sizeof ref); /* a lost broker needs not be told */
}

int cw_lease_hold(cw_client *client, struct cw_slab *slab, uint32_t block, uint64_t gen) {
    struct cw_block *entry = &slab->table->blocks[block];
    struct cw_local *local = &slab->locals[block];
    int code;
    if (local->count) {
        code = cw_block_check(entry, gen);
        if (code == 0)
            local->count++;
        return code;
    }
    slot_take(client, slab, block);
    code = cw_block_check(entry, gen);
    if (code == 0) {
        count_first(client, slab, block);
        return 0;
    }
    /* Our slot stood for a moment on whatever the block is now: a scan may have taken it for a
     * lease. */
    slot_drop(client, slab, block);
    if (cw_block_drop_tells(entry)) {
        /* B8: which generation to name; a hint, the broker looks itself. */
        uint64_t word = CW_LOAD(B8, &entry->word, acquire);
        tell_drop(client, slab, block, cw_block_gen(word));
    }
    return code;
}

void cw_lease_hold_new(cw_client *client, struct cw_slab *slab, uint32_t block) {
    slot_take(client, slab, block);
    count_first(client, slab, block);
}

void cw_lease_unhold_new(cw_client *client, struct cw_slab *slab, uint32_t block) {
    slab->locals[block].count = 0;
    slab->held--;
    client->leases.held--;
    slot_drop(client, slab, block);
}

/* One hold ends. Returns the extent that was held for a block that came free by it, or NULL. */
static struct cw_extent *release(cw_client *client, struct cw_slab *slab, uint32_t block,
                                 uint64_t gen) {
    struct cw_local *local = &slab->locals[block];
    CW_ASSERT(local->count > 0);
    if (--local->count)
        return NULL;
    /* None of a block in an adopted slab whose dead maker left a table that is none (adoption.c):
     * the broker frees it, as everybody else's. */
    struct cw_extent *extent = slab->own ? local->extent : NULL;
    slot_drop(client, slab, block);
    client->leases.held--;
    bool rests = --slab->held == 0;
    if (extent && !extent->published) {
        cw_block_free_local(&slab->table->blocks[block]);
        return cw_heap_give(client, slab, block);
    }
    if (extent) {
        /* The owner's last lease: the broker may never have heard of this block (a handle that went
         * by hand). Once told, of a lease's end or of a transit, it looks again by itself when its
         * last reference goes, and the block is WANTED while it has none. So a warm get and close
         * by the owner asks nobody either. */
        if (cw_block_drop_tells(&slab->table->blocks[block]) || !extent->told)
            tell_drop(client, slab, block, gen);
        extent->told = true;
        cw_heap_await(client, slab, block);
    } else if (cw_block_drop_tells(&slab->table->blocks[block]))
        tell_drop(client, slab, block, gen);
    if (rests)
        cw_slab_rest(client, slab);
    return NULL;
}

void cw_lease_release(cw_client *client, struct cw_slab *slab, uint32_t block, uint64_t gen) {
    struct cw_extent *outer = release(client, slab, block, gen);
    if (outer) { /* holds its slab, which is the same */
        outer = release(client, slab, outer->block, outer->gen);
        CW_ASSERT(!outer); /* a suballocation lies in no other one */
    }
}
