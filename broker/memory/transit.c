/*
 * Transits: see transit.h. The loop's thread owns them. All have the same length of life, and one
 * that lives on goes to the end of the list: its order is the order of the limits.
 */
#include "broker/memory/transit.h"

#include <stdlib.h>

#include "broker/broker.h"
#include "broker/memory/slabs.h"
#include "broker/memory/holds.h"
#include "broker/core/monitor.h"
#include "broker/roles/mover.h"
#include "broker/session/session.h"

#define READY             64u /* so many can a session begin before the broker has read any */
#define READY_AT_FIRST    8u  /* the same of one that never began any */
#define EARLY_ENDS_MAX    (1u << 16)
#define EARLY_PER_SESSION 4096u
#define SLICE             1024u /* that end in one turn by their limit, or with what they are tied to */

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
    int64_t limit_ns;
    uint32_t keeper;       /* the session that it ends with; 0: none */
    struct cwd_hold *hold; /* while it is ready for a BEGIN: for its reference; then NULL */
    struct cwd_transit *prev, *next;           /* by limit; of those that are ready, next alone */
    struct cwd_transit *kept_prev, *kept_next; /* in transits_kept, if it has a keeper */
    struct cwd_transit *tied_prev, *tied_next; /* in anchor->tied, if it has one */
    UT_hash_handle hh;
};

/* A block to which transits are tied: there is one as long as one is. */
struct cwd_anchor {
    struct anchor_key key;
    struct cwd_transit *tied;
    UT_hash_handle hh;
};

struct cwd_early_end {
    uint64_t token;
    uint64_t turn; /* in which it came: its BEGIN stood in the beginner's ring by then */
    uint32_t sender;
    struct cw_block_ref ref;
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

static struct cwd_early_end *early_find(struct cwd_broker *b, uint64_t token) {
    struct cwd_early_end *early;
    HASH_FIND(hh, b->early_ends, &token, sizeof token, early);
    return early;
}

static void early_free(struct cwd_broker *b, struct cwd_early_end *early) {
    struct cwd_session *sender = cwd_session_find(b, early->sender);
    if (sender)
        sender->early_ends--;
    HASH_DEL(b->early_ends, early);
    free(early);
}

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

/* Its limit is over; cwd_transits_expire() ends it. */
static void expire(struct cwd_broker *b, struct cwd_transit *transit) {
    untie(b, transit);
    transit->limit_ns = 0;
    DL_DELETE(b->transit_first, transit);
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
    DL_DELETE(b->transit_first, transit);
    if (transit->keeper)
        DL_DELETE2(b->transits_kept, transit, kept_prev, kept_next);
    cwd_ref_drop(b, transit->ref.slab, transit->ref.block, transit->ref.gen);
    free(transit);
}

/* Does this END speak of that block? Slab 0: it knows the token alone. */
static bool ends_block(const struct cw_block_ref *end, const struct cw_block_ref *begin) {
    return end->slab == 0 ||
           (end->slab == begin->slab && end->block == begin->block && end->gen == begin->gen);
}

/* An END came before this BEGIN. Did it mean this one? A BEGIN stands in its ring before the handle
 * leaves: so once that ring was read as far as it was filled when the END came, the END was of a
 * token that nobody had handed out, and says nothing of who gets that number later. */
static bool ended_early(const struct cwd_session *beginner, const struct cwd_early_end *early,
                        const struct cw_block_ref *ref) {
    return beginner->read_through <= early->turn && ends_block(&early->ref, ref);
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
    transit->limit_ns = b->now_ns + transit_life_ns(b);
    CWD_ADD_SURELY(b->transits, token, sizeof transit->token, transit);
    DL_APPEND(b->transit_first, transit);
    return transit;
}

static int begin(struct cwd_broker *b, struct cwd_session *session,
                 const struct cw_block_ref *ref) {
    if (token_session(ref->token) != session->id || transit_find(b, ref->token))
        return cw_fail(-EPROTO, "a transit began with a token that is another's or in use");
    struct cwd_early_end *early = early_find(b, ref->token);
    if ((uint32_t)ref->token > session->last_transit)
        session->last_transit = (uint32_t)ref->token;
    bool ended = early && ended_early(session, early, ref);
    if (early)
        early_free(b, early);
    if (ended) { /* before we knew that it began */
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
    return 0;
}

int cwd_transit_begin(struct cwd_broker *b, struct cwd_session *session,
                      const struct cw_block_ref *ref) {
    int code = begin(b, session, ref);
    if (code == 0)
        cwd_transits_ready(b, session);
    return code;
}

void cwd_transit_end(struct cwd_broker *b, struct cwd_session *session,
                     const struct cw_block_ref *ref) {
    uint64_t token = ref->token;
    struct cwd_transit *transit = transit_find(b, token);
    if (transit) {
        if (!ends_block(ref, &transit->ref))
            return; /* a token that is not of this handle */
        transit_free(b, transit);
        CWD_COUNT(b, transits_ended);
        return;
    }
    struct cwd_session *beginner = cwd_session_find(b, token_session(token));
    if (!beginner || beginner->state != CWD_OPEN || (uint32_t)token <= beginner->last_transit)
        return; /* it ended before, by its limit or by another opening */
    if (early_find(b, token) || session->early_ends >= EARLY_PER_SESSION ||
        HASH_COUNT(b->early_ends) >= EARLY_ENDS_MAX)
        return; /* the limit ends it, later */
    struct cwd_early_end *early = calloc(1, sizeof *early);
    if (!early)
        return; /* as well */
    *early =
        (struct cwd_early_end){.token = token, .turn = b->turn, .sender = session->id, .ref = *ref};
    HASH_ADD(hh, b->early_ends, token, sizeof early->token, early);
    if (CWD_ADDED(early))
        session->early_ends++;
    else
        free(early);
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

void cwd_transits_expire(struct cwd_broker *b) {
    for (uint32_t i = 0; i < SLICE && cwd_transits_due(b) <= b->now_ns; i++) {
        struct cwd_transit *transit = b->transit_first;
        if (transit->is_tied && is_alive(b, &transit->to)) {
            transit->limit_ns = b->now_ns + transit_life_ns(b);
            DL_DELETE(b->transit_first, transit);
            DL_APPEND(b->transit_first, transit);
            continue;
        }
        transit_free(b, transit);
        CWD_COUNT(b, transits_expired);
    }
}

int64_t cwd_transits_due(struct cwd_broker *b) {
    return b->transit_first ? b->transit_first->limit_ns : INT64_MAX;
}

void cwd_transits_forget(struct cwd_broker *b, struct cwd_session *session) {
    struct cwd_early_end *early, *next;
    struct cwd_transit *kept, *following, *ready;
    while ((ready = ready_take(b, session)))
        ready_free(ready);
    DL_FOREACH_SAFE2(b->transits_kept, kept, following, kept_next) {
        if (kept->keeper == session->id) {
            transit_free(b, kept);
            CWD_COUNT(b, transits_ended);
        }
    }
    HASH_ITER(hh, b->early_ends, early, next) {
        if (token_session(early->token) == session->id)
            early_free(b, early);
        else if (early->sender != session->id)
            continue;
        else if (HASH_COUNT(b->early_ends) > EARLY_ENDS_MAX / 2)
            early_free(b, early); /* who sends and dies again and again does not fill the table */
        else
            early->sender = 0; /* its BEGIN is still on its way, and else would have no end */
    }
}

uint32_t cwd_transit_count(struct cwd_broker *b) {
    return HASH_COUNT(b->transits) - 1; /* without the floor */
}

void cwd_transits_deinit(struct cwd_broker *b) {
    struct cwd_early_end *early, *next;
    while (b->transit_first)
        transit_free(b, b->transit_first);
    HASH_ITER(hh, b->early_ends, early, next) {
        early_free(b, early);
    }
    if (b->transit_floor)
        HASH_DEL(b->transits, b->transit_floor);
    free(b->transit_floor);
    b->transit_floor = NULL;
}
