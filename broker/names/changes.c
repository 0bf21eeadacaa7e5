/*
 * Changes: see changes.h. The loop's thread owns all.
 */
#include "broker/names/changes.h"

#include <errno.h>

#include "broker/broker.h"
#include "broker/session/session.h"

static uint64_t count_of(const struct cwd_broker *b) {
    return CW_LOAD(D8, &b->root->directory.changes, relaxed);
}

static void answer(struct cwd_broker *b) {
    struct cwd_changes *changes = &b->remote.changes;
    struct cw_changed *told = &changes->told;
    told->seen = count_of(b);
    uint64_t request = changes->request;
    changes->request = 0;
    cwd_session_reply(b, b->remote.session, CW_OP_CHANGES, request, 0, told,
                      (uint32_t)(sizeof *told - sizeof told->ended) +
                          told->count * (uint32_t)sizeof *told->ended);
    told->count = told->all = 0;
}

void cwd_changes_tell(struct cwd_broker *b) {
    struct cwd_changes *changes = &b->remote.changes;
    const struct cw_changed *told = &changes->told;
    if (!changes->request || !cwd_session_has_room(b->remote.session))
        return;
    if (told->count || told->all || (changes->news && changes->seen != count_of(b)))
        answer(b);
}

void cwd_changes_ask(struct cwd_broker *b, uint64_t request, const struct cw_changes *asked) {
    struct cwd_changes *changes = &b->remote.changes;
    if (changes->request)
        answer(b);
    changes->request = request;
    changes->seen = asked->seen;
    changes->news = asked->news;
    cwd_changes_tell(b);
}

void cwd_changes_ended(struct cwd_broker *b, uint64_t entry) {
    struct cw_changed *told = &b->remote.changes.told;
    if (told->count < CW_CHANGES_MAX)
        told->ended[told->count++] = entry;
    else
        told->all = 1;
}

bool cwd_changes_cancel(struct cwd_broker *b, uint64_t request) {
    static const char cancelled[] = "cancelled";
    struct cwd_changes *changes = &b->remote.changes;
    if (!changes->request || changes->request != request)
        return false;
    changes->request = 0;
    cwd_session_reply(b, b->remote.session, CW_OP_CHANGES, request, -ECANCELED, cancelled,
                      sizeof cancelled - 1);
    return true;
}

void cwd_changes_forget(struct cwd_broker *b) {
    b->remote.changes.request = 0;
}
