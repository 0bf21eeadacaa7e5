/*
 * Ties: see ties.h. The loop's thread alone. Memory for a tie is taken before the name changes, so
 * that no put is done and then said to have failed.
 */
#include "broker/names/ties.h"

#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/names/names.h"
#include "broker/session/session.h"

struct cwd_tie {
    uint64_t entry; /* cw_entry.id of the put: the key of the table */
    struct cwd_session *session;
    struct cwd_tie *prev, *next; /* of the session */
    UT_hash_handle hh;
    size_t key_bytes;
    char key[];
};

int cwd_ties_init(struct cwd_broker *b) {
    struct cwd_tie *floor = calloc(1, sizeof *floor); /* 0 is no put */
    if (floor)
        HASH_ADD(hh, b->ties, entry, sizeof floor->entry, floor);
    if (floor && CWD_ADDED(floor)) {
        b->tie_floor = floor;
        return 0;
    }
    free(floor);
    return cwd_no_memory("names that end with their process");
}

void cwd_ties_deinit(struct cwd_broker *b) {
    if (b->tie_floor)
        HASH_DEL(b->ties, b->tie_floor);
    free(b->tie_floor);
    b->tie_floor = NULL;
    CW_ASSERT(!b->ties);
}

int cwd_tie_make(struct cwd_broker *b, const struct cwd_session *session, const char *key,
                 size_t key_bytes, struct cwd_tie **out) {
    (void)b;
    if (session->of_bridge)
        return cw_fail(-EPERM, "a name that another node puts cannot end with its process");
    if (session->pid_dead)
        return cw_fail(-EPERM, "the process that put a name to end with it is dead");
    struct cwd_tie *tie = calloc(1, sizeof *tie + key_bytes);
    if (!tie)
        return cwd_no_memory("a name that ends with its process");
    tie->key_bytes = key_bytes;
    memcpy(tie->key, key, key_bytes);
    *out = tie;
    return 0;
}

void cwd_tie_discard(struct cwd_tie *tie) {
    free(tie);
}

void cwd_tie_add(struct cwd_broker *b, struct cwd_session *session, struct cwd_tie *tie,
                 uint64_t entry) {
    tie->entry = entry;
    tie->session = session;
    CWD_ADD_SURELY(b->ties, entry, sizeof tie->entry, tie);
    DL_APPEND(session->ties, tie);
}

void cwd_tie_gone(struct cwd_broker *b, uint64_t entry) {
    struct cwd_tie *tie;
    HASH_FIND(hh, b->ties, &entry, sizeof entry, tie);
    CW_ASSERT(tie && tie != b->tie_floor); /* the directory is ours alone */
    HASH_DEL(b->ties, tie);
    DL_DELETE(tie->session->ties, tie);
    free(tie);
}

void cwd_ties_end(struct cwd_broker *b, struct cwd_session *session) {
    while (session->ties) /* cwd_tie_gone() takes it out */
        cwd_name_end(b, session->ties->key, session->ties->key_bytes);
}
