/*
 * Early ends: see early_ends.h.
 */
#include "broker/memory/early_ends.h"

#include <stdlib.h>

#include "broker/broker.h"
#include "broker/session/session.h"

#define MOST        (1u << 16)
#define PER_SESSION 4096u

struct cwd_early_end {
    uint64_t token;
    uint64_t turn; /* in which the first came: its BEGIN stood in the beginner's ring by then */
    uint32_t sender;
    uint32_t openings; /* that came; CWD_EARLY_ALL: an END */
    struct cw_block_ref ref;
    UT_hash_handle hh;
};

static uint32_t beginner_of(uint64_t token) {
    return (uint32_t)(token >> 32);
}

bool cwd_ref_means(const struct cw_block_ref *said, const struct cw_block_ref *block) {
    return said->slab == 0 ||
           (said->slab == block->slab && said->block == block->block && said->gen == block->gen);
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

static void early_make(struct cwd_broker *b, struct cwd_session *session,
                       const struct cw_block_ref *ref, uint32_t openings) {
    if (session->early_ends >= PER_SESSION || HASH_COUNT(b->early_ends) >= MOST)
        return; /* the limit ends it, later */
    struct cwd_early_end *early = calloc(1, sizeof *early);
    if (!early)
        return; /* as well */
    *early = (struct cwd_early_end){.token = ref->token,
                                    .turn = b->turn,
                                    .sender = session->id,
                                    .openings = openings,
                                    .ref = *ref};
    HASH_ADD(hh, b->early_ends, token, sizeof early->token, early);
    if (CWD_ADDED(early))
        session->early_ends++;
    else
        free(early);
}

void cwd_early_note(struct cwd_broker *b, struct cwd_session *session,
                    const struct cw_block_ref *ref, uint32_t openings) {
    struct cwd_session *beginner = cwd_session_find(b, beginner_of(ref->token));
    if (!beginner || beginner->state != CWD_OPEN || (uint32_t)ref->token <= beginner->last_transit)
        return; /* it ended before, by its limit or by another opening */
    struct cwd_early_end *early = early_find(b, ref->token);
    if (!early)
        early_make(b, session, ref, openings);
    else if (cwd_ref_means(ref, &early->ref) && openings == CWD_EARLY_ALL)
        early->openings = CWD_EARLY_ALL;
    else if (cwd_ref_means(ref, &early->ref) && early->openings < CW_TRANSIT_OPENERS_MAX)
        early->openings += openings;
}

uint32_t cwd_early_take(struct cwd_broker *b, const struct cwd_session *beginner,
                        const struct cw_block_ref *ref) {
    struct cwd_early_end *early = early_find(b, ref->token);
    if (!early)
        return 0;
    bool meant = beginner->read_through <= early->turn && cwd_ref_means(&early->ref, ref);
    uint32_t openings = meant ? early->openings : 0;
    early_free(b, early);
    return openings;
}

void cwd_early_forget(struct cwd_broker *b, struct cwd_session *session) {
    struct cwd_early_end *early, *next;
    HASH_ITER(hh, b->early_ends, early, next) {
        if (beginner_of(early->token) == session->id)
            early_free(b, early);
        else if (early->sender != session->id)
            continue;
        else if (HASH_COUNT(b->early_ends) > MOST / 2)
            early_free(b, early); /* who sends and dies again and again does not fill the table */
        else
            early->sender = 0; /* its BEGIN is still on its way, and else would have no end */
    }
}

void cwd_early_deinit(struct cwd_broker *b) {
    struct cwd_early_end *early, *next;
    HASH_ITER(hh, b->early_ends, early, next) {
        early_free(b, early);
    }
}
