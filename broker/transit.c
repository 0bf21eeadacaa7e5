/*
 * Transits: see transit.h. The loop's thread owns them. All have the same length of life, and one
 * that lives on goes to the end of the list: its order is the order of the limits.
 */
#include "broker/transit.h"

#include <stdlib.h>

#include "broker/broker.h"
#include "broker/custody.h"
#include "broker/monitor.h"
#include "broker/mover.h"
#include "broker/session.h"

#define TRANSITS_MAX      (1u << 20) /* in all, those of dead clients included */
#define EARLY_ENDS_MAX    (1u << 16)
#define EARLY_PER_SESSION 4096u
#define SLICE             1024u /* that end in one turn by their limit, or with what they are tied to */

struct cwd_transit {
    uint64_t token;
    struct cw_block_ref ref;
    struct cwd_anchor *anchor; /* NULL: none */
    int64_t limit_ns;
    uint32_t keeper; /* the session that it ends with; 0: none */
    struct cwd_transit *prev, *next;
    struct cwd_transit *kept_prev, *kept_next; /* in transits_kept, if it has a keeper */
    struct cwd_transit *tied_prev, *tied_next; /* in anchor->tied, if it has one */
    UT_hash_handle hh;
};

struct anchor_key {
    uint32_t slab, block;
    uint64_t gen;
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
    return transit;
}

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
    if (!anchor)
        return;
    DL_DELETE2(anchor->tied, transit, tied_prev, tied_next);
    if (anchor->tied)
        return;
    HASH_DEL(b->anchors, anchor);
    free(anchor);
}

static void tie(struct cwd_broker *b, struct cwd_transit *transit, const struct cw_block_ref *to) {
    struct cwd_anchor *anchor = anchor_find(b, to->slab, to->block, to->gen);
    untie(b, transit);
    if (!anchor) {
        anchor = calloc(1, sizeof *anchor);
        CW_ASSERT(anchor);
        anchor->key = (struct anchor_key){to->slab, to->block, to->gen};
        HASH_ADD(hh, b->anchors, key, sizeof anchor->key, anchor);
    }
    transit->anchor = anchor;
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

int cwd_transit_begin(struct cwd_broker *b, struct cwd_session *session,
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
    if (session->transits >= CWD_LIMIT(b, max_client_transits) ||
        HASH_COUNT(b->transits) >= TRANSITS_MAX) {
        CWD_COUNT(b, limits_hit);
        cwd_reclaim_suspect(b, ref->slab, ref->block); /* its owner need not tell of its end */
        return 0;
    }
    struct cwd_slab *slab = cwd_slab_find(b, ref->slab);
    if (!slab || cwd_ref_take(b, slab, ref->block, ref->gen) != 0)
        return 0;
    struct cwd_transit *transit = calloc(1, sizeof *transit);
    CW_ASSERT(transit);
    transit->token = ref->token;
    transit->ref = *ref;
    transit->limit_ns = b->now_ns + transit_life_ns(b);
    HASH_ADD(hh, b->transits, token, sizeof transit->token, transit);
    DL_APPEND(b->transit_first, transit);
    if (cwd_mover_is(b, session)) {
        transit->keeper = session->id;
        DL_APPEND2(b->transits_kept, transit, kept_prev, kept_next);
    }
    session->transits++;
    session->changed = true;
    CWD_COUNT(b, transits_begun);
    return 0;
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
    CW_ASSERT(early);
    *early =
        (struct cwd_early_end){.token = token, .turn = b->turn, .sender = session->id, .ref = *ref};
    HASH_ADD(hh, b->early_ends, token, sizeof early->token, early);
    session->early_ends++;
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
    if (!is_alive(b, &transit->anchor->key)) /* it went while this was on its way */
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
        if (transit->anchor && is_alive(b, &transit->anchor->key)) {
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
    struct cwd_transit *kept, *following;
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
    return HASH_COUNT(b->transits);
}

void cwd_transits_deinit(struct cwd_broker *b) {
    struct cwd_early_end *early, *next;
    while (b->transit_first)
        transit_free(b, b->transit_first);
    HASH_ITER(hh, b->early_ends, early, next) {
        early_free(b, early);
    }
}
