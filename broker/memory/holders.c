/*
 * Holders: see holders.h. The loop's thread alone. A lease table is its client's to write: what
 * stands in it is compared with slots that are asked for, and decides nothing else.
 *
 * Many blocks are asked for at once by who lists all names: the tables are then read once for all
 * of them. Most leases are on none, which a small filter of bits tells without a search.
 */
#include "broker/memory/holders.h"

#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/memory/slabs.h"
#include "broker/session/session.h"
#include "shm/blocks/block.h"

#define FILTER_BITS 8192u

struct wanted {
    uint64_t slot;
    uint32_t place;   /* in the question */
    uint32_t session; /* the last one that was counted */
};

static struct cwd_slab *slab_of(struct cwd_broker *b, uint32_t number, uint32_t block,
                                uint64_t gen) {
    struct cwd_slab *slab = cwd_slab_find(b, number);
    bool alive =
        slab && block < slab->capacity && cw_block_check(&slab->table->blocks[block], gen) == 0;
    return alive ? slab : NULL;
}

/* Has it a lease on this block, or (CW_BLOCK_ANY) on any of the slab? */
static bool session_holds(struct cwd_session *session, uint32_t slab, uint32_t block) {
    for (uint32_t t = 0; t < session->tables; t++) {
        struct cw_lease_table *table = cwd_session_table(session, t);
        for (uint32_t i = 0, count = cw_lease_count(table); i < count; i++) {
            uint64_t slot = cw_lease_read(table, i);
            if (slot && cw_lease_slab(slot) == slab &&
                (block == CW_BLOCK_ANY || cw_lease_block(slot) == block))
                return true;
        }
    }
    return false;
}

int cwd_holders_list(struct cwd_broker *b, const struct cw_block_ref *ref, struct cw_holders *head,
                     uint32_t *pids) {
    bool any = ref->block == CW_BLOCK_ANY;
    struct cwd_slab *slab =
        any ? cwd_slab_find(b, ref->slab) : slab_of(b, ref->slab, ref->block, ref->gen);
    if (!slab && any)
        return cw_fail(-ESTALE, "there is no slab %u", ref->slab);
    if (!slab)
        return cw_fail(-ESTALE, "the array is gone: slab %u has no block %u of generation %llu",
                       ref->slab, ref->block, (unsigned long long)ref->gen);
    *head = (struct cw_holders){
        .references = any ? slab->refs : cwd_ref_count(b, ref->slab, ref->block, ref->gen),
        .owner_pid = slab->owner ? (uint32_t)slab->owner->pid : 0,
        .device_kind = slab->info.device_kind,
    };
    memcpy(head->device_uuid, slab->info.device_uuid, sizeof head->device_uuid);
    for (struct cwd_session *other = b->sessions; other; other = other->hh.next) {
        if (!session_holds(other, ref->slab, ref->block))
            continue;
        head->holders++;
        if (head->listed < CWD_HOLDERS_LISTED)
            pids[head->listed++] = (uint32_t)other->pid;
    }
    return 0;
}

static int compare_slots(const void *left, const void *right) {
    const struct wanted *l = left, *r = right;
    return l->slot < r->slot ? -1 : l->slot > r->slot;
}

static uint32_t filter_bit(uint64_t slot) {
    return (uint32_t)(slot * 0x9e3779b97f4a7c15ull >> 51) % FILTER_BITS;
}

/* One lease: whoever was asked for and has this slot is held by one client more. Two names may be
 * of one block, and a client may have two leases on it. */
static void count_lease(struct wanted *wanted, uint32_t count, uint64_t slot, uint32_t session,
                        struct cw_block_holders *out) {
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (wanted[middle].slot < slot)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < count && wanted[low].slot == slot; low++) {
        if (wanted[low].session != session)
            out[wanted[low].place].holders++;
        wanted[low].session = session;
    }
}

void cwd_holders_count(struct cwd_broker *b, const struct cw_block_name *asked, uint32_t count,
                       struct cw_block_holders *out) {
    struct wanted wanted[CW_BLOCKS_ASKED];
    uint64_t filter[FILTER_BITS / 64] = {0};
    CW_ASSERT(count <= CW_BLOCKS_ASKED);
    for (uint32_t i = 0; i < count; i++) {
        struct cwd_slab *slab = slab_of(b, asked[i].slab, asked[i].block, asked[i].gen);
        uint64_t slot = slab ? cw_lease_slot(asked[i].slab, asked[i].block) : 0;
        out[i] = (struct cw_block_holders){.device_kind = slab ? slab->info.device_kind : 0};
        wanted[i] = (struct wanted){.slot = slot, .place = i};
        if (!slab)
            continue;
        out[i].references = cwd_ref_count(b, asked[i].slab, asked[i].block, asked[i].gen);
        memcpy(out[i].device_uuid, slab->info.device_uuid, sizeof out[i].device_uuid);
        filter[filter_bit(slot) / 64] |= 1ull << filter_bit(slot) % 64;
    }
    qsort(wanted, count, sizeof *wanted, compare_slots);
    for (struct cwd_session *session = b->sessions; session; session = session->hh.next) {
        for (uint32_t t = 0; t < session->tables; t++) {
            struct cw_lease_table *table = cwd_session_table(session, t);
            for (uint32_t i = 0, most = cw_lease_count(table); i < most; i++) {
                uint64_t slot = cw_lease_read(table, i);
                if (slot && filter[filter_bit(slot) / 64] >> filter_bit(slot) % 64 & 1)
                    count_lease(wanted, count, slot, session->id, out);
            }
        }
    }
}
