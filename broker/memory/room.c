/*
 * Room: see room.h. The loop's thread owns all. What is alive in a slab is known from what the
 * broker has itself (references, waits, suspects), from its owner's lease tables and from the words
 * of its table; a client that lies there loses its own memory, or keeps it.
 */
#include "broker/memory/room.h"

#include "broker/broker.h"
#include "broker/memory/slab_limits.h"
#include "broker/memory/slabs.h"
#include "broker/names/names.h"
#include "broker/memory/reclaim.h"
#include "broker/memory/transit.h"
#include "broker/session/session.h"
#include "shm/blocks/block.h"

#define LOOKS 65536u /* entries of block tables that are read in one call; of one table at most */

/* Does its owner hold a block of it, or is about to? */
static bool owner_holds(struct cwd_slab *slab) {
    struct cwd_session *owner = slab->owner;
    for (uint32_t t = 0; t < owner->tables; t++) {
        struct cw_lease_table *table = cwd_session_table(owner, t);
        for (uint32_t i = 0, count = cw_lease_count(table); i < count; i++)
            if (cw_lease_slab(cw_lease_read(table, i)) == slab->id)
                return true;
    }
    return false;
}

/* Counts what it reads. */
static bool all_free(struct cwd_slab *slab, uint32_t *looked) {
    for (uint32_t i = 0; i < slab->capacity; i++) {
        ++*looked;
        /* B13: after the owner's slots (L2): who carved before has left the block LIVE, or freed it
         * and nobody knew of it. */
        uint64_t word = CW_LOAD(B13, &slab->table->blocks[i].word, acquire);
        if (cw_block_state(word) != CW_BLOCK_FREE)
            return false;
    }
    return true;
}

/* own_process: of others nothing helps, since the asker is at a limit of its own. */
static bool may_go(const struct cwd_broker *b, const struct cwd_slab *slab,
                   const struct cwd_session *asker, bool own_process) {
    return slab->owner && slab->owner != asker &&
           (!own_process || slab->owner->pid == asker->pid) &&
           slab->info.device_kind == CW_DEVICE_HOST && !(slab->info.flags & CW_SLAB_FOREIGN) &&
           slab->refs == 0 && slab->waits == 0 && slab->unsettled != b->sweeps &&
           slab->capacity <= LOOKS;
}

static bool withdraw(struct cwd_slab *slab, uint32_t *looked) {
    if (!all_free(slab, looked) || !cw_table_withdraw(slab->table))
        return false;
    if (!owner_holds(slab) && all_free(slab, looked) && cw_table_commit(slab->table))
        return true;
    cw_table_restore(slab->table);
    return false;
}

/* So many bytes are over the limits of all clients together. */
static uint64_t bytes_over(const struct cwd_broker *b, uint64_t size_bytes) {
    uint64_t most = CWD_LIMIT(b, max_bytes), sum;
    if (CWD_LIMIT(b, max_user_bytes) < most)
        most = CWD_LIMIT(b, max_user_bytes);
    if (__builtin_add_overflow(b->bytes, size_bytes, &sum))
        sum = UINT64_MAX;
    return sum > most ? sum - most : 0;
}

/* May what can be taken be enough? Says yes where that would take long to find out. */
static bool helps(const struct cwd_broker *b, const struct cwd_session *asker, bool own_process,
                  uint64_t size_bytes) {
    uint64_t over_bytes = bytes_over(b, size_bytes), found_bytes = 0;
    struct cwd_slab *slab, *next;
    uint32_t looked = 0;
    if (over_bytes == 0 || b->remote.replicas || b->transits_opened)
        return true;
    HASH_ITER(hh, b->slabs, slab, next) {
        if (may_go(b, slab, asker, own_process) && all_free(slab, &looked))
            found_bytes += slab->charge_bytes;
        if (found_bytes >= over_bytes || looked >= LOOKS)
            return true;
    }
    return false;
}

int cwd_room_make(struct cwd_broker *b, struct cwd_session *asker, const struct cw_room *wish,
                  struct cw_room *out) {
    struct cwd_slab *slab, *next;
    uint32_t looked = 0;
    uint64_t used;
    if (wish->what == CW_ROOM_OPENED) {
        *out = (struct cw_room){.slabs = cwd_transits_end_opened(b)};
        return 0;
    }
    if (wish->what == CW_ROOM_CHECK) {
        *out = (struct cw_room){.size_bytes = 0};
        return cwd_slab_check(b, asker, wish->size_bytes, wish->slabs);
    }
    bool own_process = cwd_slab_share(b, asker, wish->size_bytes, &used) != CW_LIMIT_COUNT;
    *out = (struct cw_room){.turn = wish->turn ? wish->turn : b->turn};
    out->unsettled = cwd_reclaim_unsettled(b, out->turn);
    cwd_reclaim_mark_slabs(b, ++b->sweeps);
    if (!helps(b, asker, own_process, wish->size_bytes))
        return 0;
    HASH_ITER(hh, b->slabs, slab, next) {
        if (out->size_bytes >= wish->size_bytes)
            return 0;
        if (slab->id <= wish->next || !may_go(b, slab, asker, own_process))
            continue;
        if (looked >= LOOKS) {
            out->next = slab->id - 1;
            return 0;
        }
        uint64_t bytes = slab->charge_bytes;
        if (!withdraw(slab, &looked))
            continue;
        cwd_slab_withdraw(b, slab);
        out->size_bytes += bytes;
        out->slabs++;
    }
    if (out->size_bytes < wish->size_bytes && !out->unsettled && !own_process &&
        (cwd_transits_end_opened(b) > 0 ||
         cwd_names_end_unused(b, wish->size_bytes - out->size_bytes) > 0)) {
        out->turn = b->turn; /* their blocks are to be looked at */
        out->unsettled = 1;
    }
    return 0;
}
