/*
 * References and reclaim: see reclaim.h, and shm/blocks/block.h for the protocol of the words.
 *
 * The loop's thread owns all of it. Block words and lease tables can be written by any client at
 * any time: they are read once, checked, and the CAS edges of block.h decide. A damaged word makes
 * an edge fail; the block is then forgotten.
 *
 * When memory is short, blocks are freed later, but none is lost: a block that cannot be noted as
 * waiting stays a suspect, and one that does not fit into the list of suspects is found again by
 * the mark in its word. No slab is closed meanwhile.
 */
#include "broker/memory/reclaim.h"

#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/memory/slabs.h"
#include "broker/memory/holds.h"
#include "broker/core/monitor.h"
#include "broker/session/session.h"
#include "broker/core/table.h"
#include "broker/memory/groups.h"
#include "broker/memory/transit.h"
#include "broker/names/weak_names.h"
#include "shm/blocks/block.h"

/*
 * A turn is one round of the broker's loop. Labels such as B13 and L2 are rows of
 * docs/MEMORY-MODEL.md.
 */
#define SUSPECTS_MAX       65536u   /* above that they are checked at once */
#define PAUSE_FACTOR       4        /* pause after a scan: so many times its duration */
#define PAUSE_MAX_NS       20000000 /* a death is dealt with within 100 ms */
#define RING_TIMEOUT_NS    40000000 /* the wait for a client that reads no replies, */
#define RING_TIMEOUT_TURNS 4        /* but so many turns at least */
#define MISSED_MAX         4        /* runs in a row for which all suspects were too young */
#define MISSED_NS          2000000  /* after more of them, the pause before a run */
#define NO_MEMORY_NS       10000000 /* until the next try */

/* Puts a suspect off until the next run. There is room, since it leaves this run's list. */
static void put_off(struct cwd_reclaim *r, const struct cwd_suspect *suspect) {
    CW_ASSERT(r->later_count < r->later_room);
    r->later[r->later_count] = *suspect;
    r->later[r->later_count++].held = false;
}

/* Somebody holds it. */
static void wait_begin(struct cwd_broker *b, const struct cwd_suspect *suspect) {
    struct cwd_hold *hold = cwd_hold_make(b, suspect->slot, suspect->gen, NULL);
    struct cwd_slab *slab = cwd_slab_find(b, cw_lease_slab(suspect->slot));
    CW_ASSERT(slab);
    if (!hold) {
        put_off(&b->reclaim, suspect);
        return;
    }
    if (!hold->waits) {
        DL_APPEND(b->reclaim.waiting, hold);
        slab->waits++;
    }
    hold->waits = true;
}

static void wait_end(struct cwd_broker *b, struct cwd_hold *hold) {
    if (!hold || !hold->waits)
        return;
    struct cwd_slab *slab = cwd_slab_find(b, cw_lease_slab(hold->key.slot));
    CW_ASSERT(slab && slab->waits > 0);
    DL_DELETE(b->reclaim.waiting, hold);
    hold->waits = false;
    slab->waits--;
    cwd_slab_suspect(b, slab); /* it was perhaps the last block: if it is an orphan */
    cwd_hold_settle(b, hold);
}

int cwd_ref_take(struct cwd_broker *b, struct cwd_slab *slab, uint32_t block, uint64_t gen,
                 struct cwd_hold **spare) {
    if (block >= slab->capacity || cw_block_check(&slab->table->blocks[block], gen) != 0)
        return cw_fail(-ESTALE, "the array is gone: slab %u has no block %u of generation %llu",
                       slab->info.slab, block, (unsigned long long)gen);
    struct cwd_hold *hold = cwd_hold_make(b, cw_lease_slot(slab->info.slab, block), gen, spare);
    if (!hold)
        return cwd_no_memory("a reference to an array");
    hold->refs++;
    slab->refs++;
    wait_end(b, hold);
    (void)cw_block_unwant(&slab->table->blocks[block], gen);
    return 0;
}

void cwd_ref_drop(struct cwd_broker *b, uint32_t slab_id, uint32_t block, uint64_t gen) {
    struct cwd_hold *hold = cwd_hold_find(b, cw_lease_slot(slab_id, block), gen);
    struct cwd_slab *slab = cwd_slab_find(b, slab_id);
    CW_ASSERT(hold && hold->refs > 0 && slab && slab->refs > 0);
    slab->refs--;
    if (--hold->refs > 0)
        return;
    cwd_hold_settle(b, hold);
    cwd_reclaim_suspect(b, slab_id, block);
    if (!slab->owner)
        cwd_slab_suspect(b, slab);
}

uint32_t cwd_ref_count(struct cwd_broker *b, uint32_t slab, uint32_t block, uint64_t gen) {
    struct cwd_hold *hold = cwd_hold_find(b, cw_lease_slot(slab, block), gen);
    return hold ? hold->refs : 0;
}

/* The next run comes when there may be memory again. */
static void pause_for_memory(struct cwd_broker *b) {
    b->reclaim.urgent = false;
    b->reclaim.not_before_ns = cw_now_ns() + NO_MEMORY_NS;
}

static void suspect_push(struct cwd_broker *b, uint64_t slot, uint64_t gen) {
    struct cwd_reclaim *r = &b->reclaim;
    if (r->count == r->room) {
        uint32_t room = r->room ? r->room * 2 : 256;
        struct cwd_suspect *suspects = realloc(r->suspects, room * sizeof *suspects);
        if (!suspects) {
            r->forgot = true;
            pause_for_memory(b);
            return;
        }
        r->suspects = suspects;
        r->room = room;
    }
    if (r->count == 0) {
        r->since_ns = b->now_ns;
        r->since_turn = b->turn;
    }
    r->suspects[r->count++] = (struct cwd_suspect){.slot = slot, .gen = gen, .turn = b->turn};
}

void cwd_reclaim_suspect(struct cwd_broker *b, uint32_t slab_id, uint32_t block) {
    struct cwd_slab *slab = cwd_slab_find(b, slab_id);
    if (!slab || block >= slab->capacity)
        return;
    struct cw_block *place = &slab->table->blocks[block];
    /* B13: a look that decides nothing: the edges below compare the word again. */
    uint64_t word = CW_LOAD(B13, &place->word, acquire), gen = cw_block_gen(word);
    enum cw_block_state state = cw_block_state(word);
    uint64_t slot = cw_lease_slot(slab_id, block);
    if (state != CW_BLOCK_LIVE && state != CW_BLOCK_RETIRING)
        return;
    /* We leave nothing in RETIRING: a client wrote that. */
    if (state == CW_BLOCK_RETIRING && !cw_block_restore(place, gen))
        return;
    struct cwd_hold *hold = cwd_hold_find(b, slot, gen);
    if (hold && hold->refs)
        return;
    if (!cw_block_want(place, gen))
        return;
    suspect_push(b, slot, gen);
    if (b->reclaim.count >= SUSPECTS_MAX && b->reclaim.count >= b->reclaim.crowded)
        cwd_reclaim_run(b);
}

void cwd_reclaim_suspect_waiting(struct cwd_broker *b) {
    struct cwd_hold *hold, *next;
    DL_FOREACH_SAFE(b->reclaim.waiting, hold, next) {
        uint64_t slot = hold->key.slot;
        struct cwd_slab *slab = cwd_slab_find(b, cw_lease_slab(slot));
        CW_ASSERT(slab);
        if (cw_block_want(&slab->table->blocks[cw_lease_block(slot)], hold->key.gen))
            suspect_push(b, slot, hold->key.gen);
        else
            wait_end(b, hold);
    }
}

/* Those that did not fit into the list: their words were marked before. */
static void suspect_forgotten(struct cwd_broker *b) {
    struct cwd_slab *slab;
    b->reclaim.forgot = false;
    for (slab = b->slabs; slab && !b->reclaim.forgot; slab = slab->hh.next)
        for (uint32_t i = 0; i < slab->capacity && !b->reclaim.forgot; i++)
            /* B13: a look that decides nothing, as in cwd_reclaim_suspect(). */
            if (CW_LOAD(B13, &slab->table->blocks[i].word, acquire) & CW_BLOCK_WANTED)
                cwd_reclaim_suspect(b, slab->id, i);
}

static int compare_suspects(const void *left, const void *right) {
    const struct cwd_suspect *l = left, *r = right;
    if (l->slot != r->slot)
        return l->slot < r->slot ? -1 : 1;
    return l->gen < r->gen ? -1 : l->gen > r->gen;
}

/* Marks what is suspected of this block; of a damaged one there may be several generations. */
static void suspects_mark(struct cwd_reclaim *r, uint64_t slot) {
    uint32_t low = 0, high = r->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (r->suspects[middle].slot < slot)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < r->count && r->suspects[low].slot == slot; low++)
        r->suspects[low].held = true;
}

/* Marks every suspect that some lease table names (L2). */
static void scan(struct cwd_broker *b) {
    struct cwd_reclaim *r = &b->reclaim;
    struct cwd_session *session;
    CWD_COUNT(b, scans);
    for (session = b->sessions; session; session = session->hh.next) {
        for (uint32_t t = 0; t < session->tables && !session->leases_ended; t++) {
            struct cw_lease_table *table = cwd_session_table(session, t);
            for (uint32_t i = 0, count = cw_lease_count(table); i < count; i++) {
                uint64_t slot = cw_lease_read(table, i);
                if (slot)
                    suspects_mark(r, slot);
            }
        }
    }
}

/* Sorts; keeps one entry of each, and none that has references (again). Of one block several
 * generations may stand here, where a client wrote over the word: the edges refuse all but the one
 * that is there now, and which that is the numbers do not tell. */
static void suspects_tidy(struct cwd_broker *b) {
    struct cwd_reclaim *r = &b->reclaim;
    uint32_t kept = 0;
    qsort(r->suspects, r->count, sizeof *r->suspects, compare_suspects);
    for (uint32_t i = 0; i < r->count; i++) {
        struct cwd_suspect *s = &r->suspects[i];
        if (i + 1 < r->count && compare_suspects(s, &r->suspects[i + 1]) == 0) {
            if (r->suspects[i + 1].turn < s->turn)
                r->suspects[i + 1].turn = s->turn; /* it may have had references between */
            continue;
        }
        if (cwd_slab_find(b, cw_lease_slab(s->slot)) &&
            !cwd_ref_count(b, cw_lease_slab(s->slot), cw_lease_block(s->slot), s->gen))
            r->suspects[kept++] = *s;
    }
    r->count = kept;
}

static struct cw_block *suspect_block(struct cwd_broker *b, const struct cwd_suspect *s,
                                      struct cwd_slab **slab) {
    *slab = cwd_slab_find(b, cw_lease_slab(s->slot));
    CW_ASSERT(*slab && cw_lease_block(s->slot) < (*slab)->capacity);
    return &(*slab)->table->blocks[cw_lease_block(s->slot)];
}

/* First look: who is held waits; the others are marked RETIRING, and stay in the list. */
static void retire_unheld(struct cwd_broker *b) {
    struct cwd_reclaim *r = &b->reclaim;
    struct cwd_slab *slab;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        struct cwd_suspect s = r->suspects[i];
        if (s.held) {
            wait_begin(b, &s);
            continue;
        }
        if (cw_block_retire(suspect_block(b, &s, &slab), s.gen))
            r->suspects[kept++] = s;
        else
            wait_end(b, cwd_hold_find(b, s.slot, s.gen));
    }
    r->count = kept;
}

static int compare_keys(const void *one, const void *other) {
    return memcmp(one, other, sizeof(struct cwd_hold_key));
}

/* Of which blocks transits begin in what stands in a session's ring. False: no memory. */
static bool note_begins(struct cwd_reclaim *r, struct cwd_session *session) {
    struct cw_ring_consumer ahead = session->requests; /* a copy: nothing is read in its place */
    uint64_t first = ahead.head;
    uint32_t type, length;
    const void *record;
    ahead.advance = 0;
    while (cw_ring_look_on(&ahead, &type, &record, &length) == 1 &&
           ahead.head - first < CW_CHANNEL_BYTES) {
        struct cw_block_ref ref;
        if (!(type == CW_OP_TRANSIT_BEGIN && length == sizeof(struct cw_message) + sizeof ref) &&
            !(type == CW_OP_TRANSIT_SHARE &&
              length == sizeof(struct cw_message) + sizeof(struct cw_transit_share)))
            continue; /* a share begins with a reference */
        memcpy(&ref, (const uint8_t *)record + sizeof(struct cw_message), sizeof ref);
        if (r->begun_count == r->begun_room) {
            uint32_t room = r->begun_room ? r->begun_room * 2 : 64;
            struct cwd_hold_key *begun = realloc(r->begun, room * sizeof *begun);
            if (!begun)
                return false;
            r->begun = begun;
            r->begun_room = room;
        }
        r->begun[r->begun_count++] =
            (struct cwd_hold_key){cw_lease_slot(ref.slab, ref.block), ref.gen};
    }
    return true;
}

/*
 * Whoever holds a block may begin a transit of it and let go: the BEGIN is in its ring before its
 * slot is empty (R1 before L3). One that let go before the scan just now is not seen by it; its
 * BEGIN is (L2 before R2). After the word is RETIRING nobody new comes to hold the block, so what
 * stands in the rings now is all there is. False: it could not be noted, so nothing may be freed.
 */
static bool hold_what_begins(struct cwd_broker *b) {
    struct cwd_reclaim *r = &b->reclaim;
    r->begun_count = 0;
    for (struct cwd_session *s = b->sessions; s; s = s->hh.next)
        if (s->state == CWD_OPEN && !note_begins(r, s))
            return false;
    if (!r->begun_count)
        return true;
    qsort(r->begun, r->begun_count, sizeof *r->begun, compare_keys);
    for (uint32_t i = 0; i < r->count; i++) {
        struct cwd_hold_key key = {r->suspects[i].slot, r->suspects[i].gen};
        if (bsearch(&key, r->begun, r->begun_count, sizeof key, compare_keys))
            r->suspects[i].held = true;
    }
    return true;
}

/* Second look: who is held after all goes back, the others are free. */
static void commit_unheld(struct cwd_broker *b) {
    struct cwd_reclaim *r = &b->reclaim;
    struct cwd_slab *slab;
    bool known = hold_what_begins(b);
    for (uint32_t i = 0; i < r->count; i++) {
        struct cwd_suspect s = r->suspects[i];
        struct cw_block *block = suspect_block(b, &s, &slab);
        if (s.held || !known) {
            (void)cw_block_restore(block, s.gen); /* false: a taker was quicker, which is as good */
            if (known)
                wait_begin(b, &s);
            else
                put_off(r, &s);
        } else if (cw_block_commit(block, s.gen)) {
            wait_end(b, cwd_hold_find(b, s.slot, s.gen));
            CWD_COUNT(b, blocks_reclaimed);
            cwd_transits_untie(b, slab->id, cw_lease_block(s.slot), s.gen);
            cwd_groups_end(b, slab->id, cw_lease_block(s.slot), s.gen);
            cwd_weak_name_end(b, slab->id, cw_lease_block(s.slot), s.gen);
            cwd_slab_block_freed(b, slab);
        } else {
            wait_begin(b, &s); /* rescued by a taker between the looks */
        }
    }
    r->count = 0;
}

/* Suspects of turns before this one may be looked at. Time alone excuses nobody from being read: it
 * passes also while this process waits for a core. Only who takes no replies, whose ring is not
 * read for that, is not waited for longer than RING_TIMEOUT_NS. */
static uint64_t turn_read(const struct cwd_broker *b) {
    uint64_t turn = UINT64_MAX;
    bool in_time = b->now_ns - b->reclaim.since_ns <= RING_TIMEOUT_NS ||
                   b->turn - b->reclaim.since_turn <= RING_TIMEOUT_TURNS;
    for (struct cwd_session *s = b->sessions; s; s = s->hh.next)
        if (s->state == CWD_OPEN && s->read_through < turn && (in_time || cwd_session_has_room(s)))
            turn = s->read_through;
    return turn;
}

/* Room for all suspects to be put off. */
static bool later_begin(struct cwd_reclaim *r) {
    r->later_count = 0;
    if (r->later_room >= r->count)
        return true;
    struct cwd_suspect *later = realloc(r->later, r->room * sizeof *later);
    if (!later)
        return false;
    r->later = later;
    r->later_room = r->room;
    return true;
}

/* Puts those off that are too young. */
static void set_aside(struct cwd_broker *b) {
    struct cwd_reclaim *r = &b->reclaim;
    uint64_t turn = turn_read(b);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        if (r->suspects[i].turn < turn)
            r->suspects[kept++] = r->suspects[i];
        else
            put_off(r, &r->suspects[i]);
    }
    r->count = kept;
}

static void look_at_suspects(struct cwd_broker *b) {
    struct cwd_reclaim *r = &b->reclaim;
    scan(b);
    retire_unheld(b);
    if (r->count) {
        scan(b);
        commit_unheld(b);
    }
    r->count = 0;
}

void cwd_reclaim_run(struct cwd_broker *b) {
    struct cwd_reclaim *r = &b->reclaim;
    int64_t begun_ns = cw_now_ns();
    if (r->forgot)
        suspect_forgotten(b);
    suspects_tidy(b);
    if (!r->count) {
        r->urgent = false;
        return;
    }
    if (!later_begin(r)) {
        r->crowded = 2 * r->count;
        pause_for_memory(b);
        return;
    }
    set_aside(b);
    uint32_t young = r->later_count;
    r->missed = r->count ? 0 : r->missed + 1;
    if (r->count) {
        r->urgent = false;
        look_at_suspects(b);
        r->since_ns = b->now_ns;
        r->since_turn = b->turn;
    }
    r->count = r->later_count; /* they were in there before */
    memcpy(r->suspects, r->later, r->count * sizeof *r->suspects);
    r->crowded = 2 * r->count;
    int64_t ended_ns = cw_now_ns(), pause_ns = (ended_ns - begun_ns) * PAUSE_FACTOR;
    r->not_before_ns = ended_ns + (pause_ns < PAUSE_MAX_NS ? pause_ns : PAUSE_MAX_NS);
    if (r->missed > MISSED_MAX) {
        r->urgent = false;
        r->not_before_ns = ended_ns + MISSED_NS;
    }
    if (r->count > young)
        pause_for_memory(b);
}

int64_t cwd_reclaim_due(const struct cwd_broker *b) {
    if (!b->reclaim.count && !b->reclaim.forgot)
        return INT64_MAX;
    return b->reclaim.urgent ? 0 : b->reclaim.not_before_ns;
}

bool cwd_reclaim_unsettled(const struct cwd_broker *b, uint64_t turn) {
    for (uint32_t i = 0; i < b->reclaim.count; i++)
        if (b->reclaim.suspects[i].turn <= turn)
            return true;
    return false;
}

void cwd_reclaim_mark_slabs(struct cwd_broker *b, uint64_t sweep) {
    for (uint32_t i = 0; i < b->reclaim.count; i++) {
        struct cwd_slab *slab = cwd_slab_find(b, cw_lease_slab(b->reclaim.suspects[i].slot));
        if (slab)
            slab->unsettled = sweep;
    }
}

void cwd_reclaim_deinit(struct cwd_broker *b) {
    cwd_holds_deinit(b);
    free(b->reclaim.suspects);
    free(b->reclaim.begun);
    free(b->reclaim.later);
    b->reclaim = (struct cwd_reclaim){0};
}
