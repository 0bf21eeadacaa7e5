/*
 * Transits: see transit.h. The loop's thread owns them. They have one of two lengths of life, and
 * stand in a list for each; one that lives on goes to the end of its list. So the order of both
 * lists is the order of the limits.
 */
#include "broker/memory/transit.h"

#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/memory/early_ends.h"
#include "broker/memory/slabs.h"
#include "broker/memory/holds.h"
#include "broker/core/monitor.h"
#include "broker/roles/mover.h"
#include "broker/session/session.h"

#define READY           64u   /* so many can a session begin before the broker has read any */
#define READY_AT_FIRST  8u    /* the same of one that never began any */
#define SLICE           1024u /* that end in one turn by their limit, or with what they are tied to */
#define OPENED_LEAST_NS 1000000000 /* that an opened pickle stays, however many bytes there are */
#define OPENED_SLICE    64u        /* of them that end when one more is opened */

struct anchor_key {
    uint32_t slab, block;
    uint64_t gen;
};

struct cwd_transit {
    uint64_t token;
    struct cw_block_ref ref;
    bool is_tied; /* to the block to, with which it ends */
    struct anchor_key to;
    struct cwd_anchor
        *anchor; /* of that block; NULL: there was no memory, and only its limit looks */
    int64_t begun_ns;
    int64_t limit_ns;
    uint32_t openers;      /* openings that are still to come, or CW_OPENERS_ANY */
    bool is_soon;          /* it is in transit_soon, not in transit_first */
    int64_t opened_ns;     /* of CW_OPENERS_ANY, when it was first opened; 0: it was not */
    uint64_t size_bytes;   /* of its block, if it was */
    uint32_t keeper;       /* the session that it ends with; 0: none */
    struct cwd_hold *hold; /* while it is ready for a BEGIN: for its reference; then NULL */
    struct cwd_transit *prev, *next;           /* by limit; of those that are ready, next alone */
    struct cwd_transit *kept_prev, *kept_next; /* in transits_kept, if it has a keeper */
    struct cwd_transit *tied_prev, *tied_next; /* in anchor->tied, if it has one */
    struct cwd_transit *opened_prev, *opened_next; /* in transits_opened, if opened_ns */
    UT_hash_handle hh;
};

/* A block to which transits are tied: there is one as long as one is. */
struct cwd_anchor {
    struct anchor_key key;
    struct cwd_transit *tied;
    UT_hash_handle hh;
};

static uint32_t token_session(uint64_t token) {
    return (uint32_t)(token >> 32);
}

static int64_t transit_life_ns(struct cwd_broker *b) {
    return (int64_t)CWD_LIMIT(b, transit_seconds) * 1000000000;
}

static struct cwd_transit *transit_find(struct cwd_broker *b, uint64_t token) {
    struct cwd_transit *transit;
    HASH_FIND(hh, b->transits, &token, sizeof token, transit);
    return transit == b->transit_floor ? NULL : transit;
}

/* ---- those that are ready ---- */

int cwd_transits_init(struct cwd_broker *b) {
    struct cwd_transit *floor = calloc(1, sizeof *floor); /* its token is no session's */
    if (floor)
        HASH_ADD(hh, b->transits, token, sizeof floor->token, floor);
    if (floor && CWD_ADDED(floor)) {
        b->transit_floor = floor;
        return 0;
    }
    free(floor);
    return cwd_no_memory("what it notes of transits");
}

static bool ready_make(struct cwd_broker *b, struct cwd_session *session) {
    struct cwd_transit *transit = calloc(1, sizeof *transit);
    struct cwd_hold *hold = transit ? cwd_hold_spare() : NULL;
    if (!hold) {
        free(transit);
        return false;
    }
    transit->hold = hold;
    transit->next = session->ready_transits;
    session->ready_transits = transit;
    session->ready_count++;
    b->transits_ready++;
    return true;
}

/* NULL: there is none. */
static struct cwd_transit *ready_take(struct cwd_broker *b, struct cwd_session *session) {
    struct cwd_transit *transit = session->ready_transits;
    if (!transit)
        return NULL;
    session->ready_transits = transit->next;
    session->ready_count--;
    b->transits_ready--;
    return transit;
}

static void ready_free(struct cwd_transit *transit) {
    free(transit->hold);
    free(transit);
}

void cwd_transits_ready(struct cwd_broker *b, struct cwd_session *session) {
    uint32_t wish = session->last_transit ? READY : READY_AT_FIRST;
    while (session->ready_count < wish &&
           session->transits + session->ready_count < CWD_LIMIT(b, max_client_transits) &&
           cwd_transit_count(b) + b->transits_ready < CW_TRANSITS_MAX && ready_make(b, session))
        ;
    /* S4: a promise about memory of ours; who asked for it looks after our answer. */
    CW_STORE(S4, &session->shared->transits_ready, session->last_transit + session->ready_count,
             relaxed);
}

/* ---- life ---- */

static struct cwd_anchor *anchor_find(struct cwd_broker *b, uint32_t slab, uint32_t block,
                                      uint64_t gen) {
    struct anchor_key key = {slab, block, gen};
    struct cwd_anchor *anchor;
    HASH_FIND(hh, b->anchors, &key, sizeof key, anchor);
    return anchor;
}

static void untie(struct cwd_broker *b, struct cwd_transit *transit) {
    struct cwd_anchor *anchor = transit->anchor;
    transit->anchor = NULL;
    transit->is_tied = false;
    if (!anchor)
        return;
    DL_DELETE2(anchor->tied, transit, tied_prev, tied_next);
    if (anchor->tied)
        return;
    HASH_DEL(b->anchors, anchor);
    free(anchor);
}

static struct cwd_anchor *anchor_make(struct cwd_broker *b, const struct anchor_key *key) {
    struct cwd_anchor *anchor = calloc(1, sizeof *anchor);
    if (!anchor)
        return NULL;
    anchor->key = *key;
    HASH_ADD(hh, b->anchors, key, sizeof anchor->key, anchor);
    if (CWD_ADDED(anchor))
        return anchor;
    free(anchor);
    return NULL;
}

static void tie(struct cwd_broker *b, struct cwd_transit *transit, const struct cw_block_ref *to) {
    untie(b, transit); /* first: an anchor that nobody is tied to goes */
    transit->is_tied = true;
    transit->to = (struct anchor_key){to->slab, to->block, to->gen};
    struct cwd_anchor *anchor = anchor_find(b, to->slab, to->block, to->gen);
    if (!anchor)
        anchor = anchor_make(b, &transit->to);
    transit->anchor = anchor;
    if (anchor)
        DL_APPEND2(anchor->tied, transit, tied_prev, tied_next);
}

/* Out of the list of its length of life. */
static void unlist(struct cwd_broker *b, struct cwd_transit *transit) {
    if (transit->is_soon)
        DL_DELETE(b->transit_soon, transit);
    else
        DL_DELETE(b->transit_first, transit);
    transit->is_soon = false;
}

/* Its limit is over; cwd_transits_expire() ends it. */
static void expire(struct cwd_broker *b, struct cwd_transit *transit) {
    untie(b, transit);
    unlist(b, transit);
    transit->limit_ns = 0;
    DL_PREPEND(b->transit_first, transit);
}

static void transit_free(struct cwd_broker *b, struct cwd_transit *transit) {
    untie(b, transit);
    struct cwd_session *session = cwd_session_find(b, token_session(transit->token));
    if (session) {
        session->transits--;
        session->changed = true;
    }
    HASH_DEL(b->transits, transit);
    unlist(b, transit);
    if (transit->opened_ns) {
        DL_DELETE2(b->transits_opened, transit, opened_prev, opened_next);
        b->transits_opened_bytes -= transit->size_bytes;
    }
    if (transit->keeper)
        DL_DELETE2(b->transits_kept, transit, kept_prev, kept_next);
    cwd_ref_drop(b, transit->ref.slab, transit->ref.block, transit->ref.gen);
    free(transit);
}

/* As its table says, which its maker can write to: no more than its slab has. */
static uint64_t block_bytes(struct cwd_broker *b, const struct cw_block_ref *ref) {
    struct cwd_slab *slab = cwd_slab_find(b, ref->slab);
    if (!slab || ref->block >= slab->capacity)
        return 0;
    /* B13: a number to weigh it by; one that a client damaged ends pickles earlier, or later. */
    uint64_t bytes = CW_LOAD(B13, &slab->table->blocks[ref->block].length_bytes, relaxed);
    return bytes < slab->info.size_bytes ? bytes : slab->info.size_bytes;
}

/* From now on it lives for pickle_seconds. */
static void end_soon(struct cwd_broker *b, struct cwd_transit *transit) {
    if (transit->is_soon)
        return;
    unlist(b, transit);
    transit->limit_ns = b->now_ns + (int64_t)CWD_LIMIT(b, pickle_seconds) * 1000000000;
    transit->is_soon = true;
    DL_APPEND(b->transit_soon, transit);
}

/* It was opened, and stays for others who may come; its_maker: by whoever began it. */
static void stays_opened(struct cwd_broker *b, struct cwd_transit *transit, bool its_maker) {
    if (!transit->opened_ns) {
        transit->opened_ns = b->now_ns;
        transit->size_bytes = block_bytes(b, &transit->ref);
        b->transits_opened_bytes += transit->size_bytes;
        DL_APPEND2(b->transits_opened, transit, opened_prev, opened_next);
        for (uint32_t i = 0;
             i < OPENED_SLICE && b->transits_opened_bytes > CWD_LIMIT(b, max_pickle_bytes) &&
             b->now_ns - b->transits_opened->opened_ns > OPENED_LEAST_NS;
             i++) {
            transit_free(b, b->transits_opened);
            CWD_COUNT(b, transits_ended);
        }
    }
    if (!its_maker)
        end_soon(b, transit);
}

uint32_t cwd_transits_end_opened(struct cwd_broker *b) {
    uint32_t count = 0;
    for (; b->transits_opened && count < SLICE; count++) {
        transit_free(b, b->transits_opened);
        CWD_COUNT(b, transits_ended);
    }
    return count;
}

/* NULL: the session was promised no more, or the block is gone. */
static struct cwd_transit *transit_make(struct cwd_broker *b, struct cwd_session *session,
                                        const struct cw_block_ref *ref) {
    struct cwd_slab *slab = cwd_slab_find(b, ref->slab);
    if (!session->ready_transits)
        cwd_transits_ready(b, session);
    if (!slab || !session->ready_transits)
        return NULL;
    if (cwd_ref_take(b, slab, ref->block, ref->gen, &session->ready_transits->hold) != 0)
        return NULL;
    struct cwd_transit *transit = ready_take(b, session);
    free(transit->hold); /* the block had one already */
    transit->hold = NULL;
    transit->token = ref->token;
    transit->ref = *ref;
    transit->begun_ns = b->now_ns;
    transit->limit_ns = b->now_ns + transit_life_ns(b);
    CWD_ADD_SURELY(b->transits, token, sizeof transit->token, transit);
    DL_APPEND(b->transit_first, transit);
    return transit;
}

static int begin(struct cwd_broker *b, struct cwd_session *session, const struct cw_block_ref *ref,
                 uint32_t openers) {
    if (token_session(ref->token) != session->id || transit_find(b, ref->token))
        return cw_fail(-EPROTO, "a transit began with a token that is another's or in use");
    if ((uint32_t)ref->token > session->last_transit)
        session->last_transit = (uint32_t)ref->token;
    uint32_t openings = cwd_early_take(b, session, ref);
    if (openings == CWD_EARLY_ALL || (openers != CW_OPENERS_ANY && openings >= openers)) {
        /* It ended before we knew that it began. */
        CWD_COUNT(b, transits_begun);
        CWD_COUNT(b, transits_ended);
        cwd_reclaim_suspect(b, ref->slab, ref->block);
        return 0;
    }
    struct cwd_transit *transit = transit_make(b, session, ref);
    if (!transit) {
        if (cwd_slab_find(b, ref->slab))
            CWD_COUNT(b, limits_hit);
        cwd_reclaim_suspect(b, ref->slab, ref->block); /* its owner need not tell of its end */
        return 0;
    }
    if (cwd_mover_is(b, session)) {
        transit->keeper = session->id;
        DL_APPEND2(b->transits_kept, transit, kept_prev, kept_next);
    }
    session->transits++;
    session->changed = true;
    CWD_COUNT(b, transits_begun);
    if (openers != CW_OPENERS_ANY)
        transit->openers = openers - openings;
    else if (openings > 0)
        stays_opened(b, transit, false);
    return 0;
}

int cwd_transit_begin(struct cwd_broker *b, struct cwd_session *session,
                      const struct cw_block_ref *ref, uint32_t openers) {
    int code = begin(b, session, ref, openers);
    if (code == 0)
        cwd_transits_ready(b, session);
    return code;
}

void cwd_transit_opened(struct cwd_broker *b, struct cwd_session *session,
                        const struct cw_block_ref *ref) {
    struct cwd_transit *transit = transit_find(b, ref->token);
    if (!transit)
        cwd_early_note(b, session, ref, 1);
    else if (!cwd_ref_means(ref, &transit->ref))
        return; /* a token that is not of this handle */
    else if (transit->openers == CW_OPENERS_ANY)
        stays_opened(b, transit, token_session(ref->token) == session->id);
    else if (--transit->openers == 0) {
        transit_free(b, transit);
        CWD_COUNT(b, transits_ended);
    }
}

void cwd_transit_end(struct cwd_broker *b, struct cwd_session *session,
                     const struct cw_block_ref *ref) {
    struct cwd_transit *transit = transit_find(b, ref->token);
    if (!transit) {
        cwd_early_note(b, session, ref, CWD_EARLY_ALL);
    } else if (cwd_ref_means(ref, &transit->ref)) {
        transit_free(b, transit);
        CWD_COUNT(b, transits_ended);
    }
}

static bool is_alive(struct cwd_broker *b, const struct anchor_key *key) {
    struct cwd_slab *slab = cwd_slab_find(b, key->slab);
    if (!slab || key->block >= slab->capacity)
        return false;
    /* B13: a look at the word; one that a client damaged keeps what that client could hold anyway.
     */
    uint64_t word = CW_LOAD(B13, &slab->table->blocks[key->block].word, acquire);
    return cw_block_gen(word) == key->gen && cw_block_state(word) != CW_BLOCK_FREE;
}

void cwd_transit_anchor(struct cwd_broker *b, struct cwd_session *session,
                        const struct cw_block_ref *ref) {
    struct cwd_transit *transit = transit_find(b, ref->token);
    bool itself = transit && transit->ref.slab == ref->slab && transit->ref.block == ref->block;
    if (!transit || token_session(ref->token) != session->id || itself)
        return;
    tie(b, transit, ref);
    if (!is_alive(b, &transit->to)) /* it went while this was on its way */
        expire(b, transit);
}

void cwd_transits_untie(struct cwd_broker *b, uint32_t slab, uint32_t block, uint64_t gen) {
    for (struct cwd_anchor *anchor; (anchor = anchor_find(b, slab, block, gen));)
        expire(b, anchor->tied);
}

void cwd_transit_keep(struct cwd_broker *b, uint64_t token, struct cwd_session *client) {
    struct cwd_transit *transit = transit_find(b, token);
    if (transit && transit->keeper)
        transit->keeper = client->id;
}

/* The one whose limit comes next. */
static struct cwd_transit *next_due(struct cwd_broker *b) {
    struct cwd_transit *first = b->transit_first, *soon = b->transit_soon;
    return !soon || (first && first->limit_ns <= soon->limit_ns) ? first : soon;
}

void cwd_transits_expire(struct cwd_broker *b) {
    for (uint32_t i = 0; i < SLICE && cwd_transits_due(b) <= b->now_ns; i++) {
        struct cwd_transit *transit = next_due(b);
        if (transit->is_tied && is_alive(b, &transit->to)) {
            unlist(b, transit);
            transit->limit_ns = b->now_ns + transit_life_ns(b);
            DL_APPEND(b->transit_first, transit);
            continue;
        }
        transit_free(b, transit);
        CWD_COUNT(b, transits_expired);
    }
}

int64_t cwd_transits_due(struct cwd_broker *b) {
    struct cwd_transit *next = next_due(b);
    return next ? next->limit_ns : INT64_MAX;
}

/* All of a list by as much: it stays in order. 0 is over already. */
static void move_limits(struct cwd_transit *list, int64_t more_ns) {
    for (; list; list = list->next)
        list->limit_ns = list->limit_ns ? list->limit_ns + more_ns : 0;
}

void cwd_transits_move_limits(struct cwd_broker *b, int64_t more_ns, int64_t soon_more_ns) {
    move_limits(b->transit_first, more_ns);
    move_limits(b->transit_soon, soon_more_ns);
}

void cwd_transits_forget(struct cwd_broker *b, struct cwd_session *session) {
    struct cwd_transit *kept, *opened, *following, *ready;
    while ((ready = ready_take(b, session)))
        ready_free(ready);
    DL_FOREACH_SAFE2(b->transits_kept, kept, following, kept_next) {
        if (kept->keeper == session->id) {
            transit_free(b, kept);
            CWD_COUNT(b, transits_ended);
        }
    }
    if (session->transits > 0)
        DL_FOREACH2(b->transits_opened, opened, opened_next) {
            if (token_session(opened->token) == session->id)
                end_soon(b, opened);
        }
    cwd_early_forget(b, session);
}

/* ---- for who looks ---- */

#define OLDEST_LOOKS 4096 /* of each list: they are nearly in the order in which they began */

static struct cw_transit_told tell(struct cwd_broker *b, const struct cwd_transit *transit) {
    const struct cwd_slab *slab = cwd_slab_find(b, transit->ref.slab); /* it has a reference */
    const struct cwd_session *maker = cwd_session_find(b, token_session(transit->token));
    int64_t left_ns = transit->limit_ns - b->now_ns;
    struct cw_transit_told told = {.slab = transit->ref.slab,
                                   .block = transit->ref.block,
                                   .session = token_session(transit->token),
                                   .pid = maker ? (uint32_t)maker->pid : 0,
                                   .size_bytes = block_bytes(b, &transit->ref),
                                   .age_ns = (uint64_t)(b->now_ns - transit->begun_ns),
                                   .left_ns = left_ns > 0 ? (uint64_t)left_ns : 0,
                                   .openers = transit->openers,
                                   .flags = (transit->opened_ns ? CW_TRANSIT_IS_OPENED : 0) |
                                            (transit->is_tied ? CW_TRANSIT_IS_TIED : 0),
                                   .device_kind = slab ? slab->info.device_kind : 0};
    if (slab)
        memcpy(told.device_uuid, slab->info.device_uuid, sizeof told.device_uuid);
    return told;
}

uint32_t cwd_transits_oldest(struct cwd_broker *b, uint32_t room, struct cw_transit_told *out) {
    struct cwd_transit *const lists[] = {b->transit_first, b->transit_soon};
    uint32_t count = 0;
    for (unsigned list = 0; list < 2; list++) {
        uint32_t looks = 0;
        for (const struct cwd_transit *transit = lists[list]; transit && looks < OLDEST_LOOKS;
             transit = transit->next, looks++) {
            uint64_t age_ns = (uint64_t)(b->now_ns - transit->begun_ns);
            uint32_t at = count;
            while (at > 0 && out[at - 1].age_ns < age_ns)
                at--;
            if (at == room)
                continue;
            count += count < room;
            memmove(&out[at + 1], &out[at], (count - at - 1) * sizeof *out);
            out[at] = tell(b, transit);
        }
    }
    return count;
}

uint32_t cwd_transit_count(struct cwd_broker *b) {
    return HASH_COUNT(b->transits) - 1; /* without the floor */
}

void cwd_transits_deinit(struct cwd_broker *b) {
    while (b->transit_first)
        transit_free(b, b->transit_first);
    while (b->transit_soon)
        transit_free(b, b->transit_soon);
    cwd_early_deinit(b);
    if (b->transit_floor)
        HASH_DEL(b->transits, b->transit_floor);
    free(b->transit_floor);
    b->transit_floor = NULL;
}
