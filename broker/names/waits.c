/*
 * Waits: see waits.h. The loop's thread owns them. Each wait stands in its session's list of all,
 * and beside it in the group of its key until it is answered, then in its session's list of
 * answers; max_client_waits bounds the first. Who cancels walks that one: what others wait for
 * costs nobody.
 */
#include "broker/names/waits.h"

#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/core/monitor.h"
#include "broker/names/names.h"
#include "broker/session/session.h"
#include "ipc/wire.h"

struct cwd_wait_group;

struct cwd_wait {
    struct cwd_session *session;
    uint64_t id;
    uint64_t after; /* the version that is not waited for any more */
    uint16_t op;    /* WAIT, WAIT_AFTER or CLAIM */
    int status;
    struct cwd_wait_group *group;         /* NULL: answered */
    struct cwd_wait *prev, *next;         /* in the group, or in the session's answers */
    struct cwd_wait *own_prev, *own_next; /* among the session's */
};

struct cwd_wait_group {
    struct cwd_wait *waits;
    UT_hash_handle hh;
    size_t key_bytes;
    char key[];
};

static struct cwd_wait_group *group_find(struct cwd_broker *b, const char *key, size_t key_bytes) {
    struct cwd_wait_group *group;
    HASH_FIND(hh, b->waits, key, key_bytes, group);
    return group;
}

static struct cwd_wait_group *group_make(struct cwd_broker *b, const char *key, size_t key_bytes) {
    struct cwd_wait_group *group = calloc(1, sizeof *group + key_bytes);
    if (!group)
        return NULL;
    memcpy(group->key, key, key_bytes);
    group->key_bytes = key_bytes;
    HASH_ADD_KEYPTR(hh, b->waits, group->key, group->key_bytes, group);
    if (CWD_ADDED(group))
        return group;
    free(group);
    return NULL;
}

static void leave_group(struct cwd_broker *b, struct cwd_wait *wait) {
    struct cwd_wait_group *group = wait->group;
    CW_ASSERT(group->waits);
    DL_DELETE(group->waits, wait);
    wait->group = NULL;
    b->waiting--;
    if (!group->waits) {
        CW_ASSERT(b->waits && group->hh.tbl); /* it is in there */
        HASH_DEL(b->waits, group);
        free(group);
    }
}

static void answer(struct cwd_broker *b, struct cwd_wait *wait, int status) {
    leave_group(b, wait);
    wait->status = status;
    DL_APPEND(wait->session->ready, wait);
    (void)cwd_waits_flush(b, wait->session);
}

/* Is it the next part of a wait that was cancelled a moment ago? */
static bool goes_on(struct cwd_broker *b, struct cwd_session *session, uint32_t hash,
                    uint64_t after) {
    for (unsigned i = 0; i < CWD_WAIT_PARTS; i++) {
        struct cwd_wait_part *part = &session->wait_parts[i];
        if (part->hash != hash || part->after != after || b->now_ns > part->until_ns)
            continue;
        part->until_ns = 0;
        return true;
    }
    return false;
}

int cwd_wait_begin(struct cwd_broker *b, struct cwd_session *session,
                   const struct cw_message *request, uint64_t after, const char *key,
                   size_t key_bytes) {
    int code = cwd_key_check(key, key_bytes);
    if (code)
        return code;
    if (session->waits >= CWD_LIMIT(b, max_client_waits))
        return cwd_limit_refuse(b, CW_LIMIT_max_client_waits,
                                "one more wait than the %u of this client was asked for",
                                session->waits);
    struct cwd_wait *wait = calloc(1, sizeof *wait);
    struct cwd_wait_group *group = group_find(b, key, key_bytes);
    if (!group && wait)
        group = group_make(b, key, key_bytes);
    if (!group || !wait) {
        free(wait);
        return cwd_no_memory("a wait");
    }
    *wait = (struct cwd_wait){
        .session = session, .id = request->id, .after = after, .op = request->op, .group = group};
    DL_APPEND(group->waits, wait);
    DL_APPEND2(session->own_waits, wait, own_prev, own_next);
    session->waits++;
    session->changed = true;
    b->waiting++;
    if (goes_on(b, session, group->hh.hashv, after))
        session->heard_ns = session->heard_before_ns;
    else
        CWD_COUNT(b, waits);
    if (cwd_name_version(b, key, key_bytes) > after)
        answer(b, wait, 0);
    return 0;
}

void cwd_wait_cancel(struct cwd_broker *b, struct cwd_session *session, uint64_t id) {
    struct cwd_wait *wait;
    DL_FOREACH2(session->own_waits, wait, own_next) {
        if (wait->id != id || !wait->group)
            continue;
        session->wait_parts[session->next_part++ % CWD_WAIT_PARTS] = (struct cwd_wait_part){
            wait->group->hh.hashv, wait->after, b->now_ns + CWD_WAIT_PART_NS};
        session->heard_ns = session->heard_before_ns;
        answer(b, wait, -ECANCELED);
        return;
    }
}

/* Those of a key's waits that wait for a version below that one, or (claims) whose op is CLAIM. */
static void answer_group(struct cwd_broker *b, const char *key, size_t key_bytes, bool claims,
                         uint64_t version) {
    struct cwd_wait_group *group = b->waits ? group_find(b, key, key_bytes) : NULL;
    struct cwd_wait *wait = group ? group->waits : NULL, *next;
    for (; wait; wait = next) {
        next = wait->next; /* NULL behind the last one, with whose answer the group goes */
        if (claims ? wait->op == CW_OP_CLAIM : wait->after < version)
            answer(b, wait, 0);
    }
}

void cwd_waits_answer(struct cwd_broker *b, const char *key, size_t key_bytes, uint64_t version) {
    answer_group(b, key, key_bytes, false, version);
}

void cwd_waits_look_again(struct cwd_broker *b, const char *key, size_t key_bytes) {
    answer_group(b, key, key_bytes, true, 0);
}

static void wait_free(struct cwd_wait *wait) {
    DL_DELETE2(wait->session->own_waits, wait, own_prev, own_next);
    wait->session->waits--;
    wait->session->changed = true;
    free(wait);
}

bool cwd_waits_flush(struct cwd_broker *b, struct cwd_session *session) {
    static const char cancelled[] = "the wait for a name was cancelled",
                      look_again[] = "the claim is over or the name was put: look again";
    bool worked = false;
    while (session->ready && session->state == CWD_OPEN && cwd_session_has_room(session)) {
        struct cwd_wait *wait = session->ready;
        DL_DELETE(session->ready, wait);
        uint64_t id = wait->id;
        uint16_t op = wait->op;
        int status = wait->status;
        wait_free(wait); /* before the answer: the figures tell of it */
        if (op == CW_OP_CLAIM && status == 0)
            cwd_session_reply(b, session, op, id, -EAGAIN, look_again, sizeof look_again - 1);
        else
            cwd_session_reply(b, session, op, id, status, status ? cancelled : NULL,
                              status ? sizeof cancelled - 1 : 0);
        worked = true;
    }
    return worked;
}

void cwd_waits_cancel_all(struct cwd_broker *b, struct cwd_session *session) {
    while (session->own_waits) {
        struct cwd_wait *wait = session->own_waits;
        if (wait->group)
            leave_group(b, wait);
        else
            DL_DELETE(session->ready, wait);
        wait_free(wait);
    }
}
