/*
 * Claims: see claims.h. The loop's thread alone. A claim that is over moves to a list of those that
 * are, with the memory that it has: telling others of its end needs none.
 */
#include "broker/names/claims.h"

#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/names/names.h"
#include "broker/names/waits.h"
#include "broker/session/session.h"
#include "ipc/wire.h"

struct cwd_claim {
    struct cwd_session *session;
    uint64_t token;
    struct cwd_claim *prev, *next; /* among the session's; next: among those that are over */
    UT_hash_handle hh;
    size_t key_bytes;
    char key[];
};

static int claim_make(struct cwd_broker *b, struct cwd_session *session, uint64_t token,
                      const char *key, size_t key_bytes) {
    struct cwd_claim *claim = calloc(1, sizeof *claim + key_bytes);
    if (!claim)
        return cwd_no_memory("a claim");
    *claim = (struct cwd_claim){.session = session, .token = token, .key_bytes = key_bytes};
    memcpy(claim->key, key, key_bytes);
    HASH_ADD_KEYPTR(hh, b->claims, claim->key, claim->key_bytes, claim);
    if (!CWD_ADDED(claim)) {
        free(claim);
        return cwd_no_memory("a claim");
    }
    DL_APPEND(session->claims, claim);
    session->claim_count++;
    return 0;
}

static void claim_end(struct cwd_broker *b, struct cwd_session *session, struct cwd_claim *claim) {
    HASH_DEL(b->claims, claim);
    DL_DELETE(session->claims, claim);
    session->claim_count--;
    claim->session = NULL;
    claim->next = b->claims_over;
    b->claims_over = claim;
}

/* The key behind a request's head. */
static const char *key_of(const struct cw_claim *head, const void *body, uint32_t body_bytes) {
    if (head->key.key_bytes > CW_KEY_MAX || head->key.reserved ||
        body_bytes != sizeof *head + head->key.key_bytes)
        return NULL;
    return (const char *)body + sizeof *head;
}

int cwd_claim_begin(struct cwd_broker *b, struct cwd_session *session,
                    const struct cw_message *request, const void *body, uint32_t body_bytes,
                    bool *granted) {
    struct cw_claim head;
    struct cwd_claim *claim;
    memcpy(&head, body, sizeof head);
    const char *key = key_of(&head, body, body_bytes);
    if (!key)
        return -EBADMSG;
    int code = cwd_key_check(key, head.key.key_bytes);
    if (code)
        return code;
    if (session->pid_dead)
        return cw_fail(-EPERM, "the process that asked for a claim is dead");
    HASH_FIND(hh, b->claims, key, head.key.key_bytes, claim);
    *granted = !claim && cwd_name_version(b, key, head.key.key_bytes) <= head.after;
    if (!*granted)
        return cwd_wait_begin(b, session, request, head.after, key, head.key.key_bytes);
    if (session->claim_count >= CWD_LIMIT(b, max_client_waits))
        return cwd_limit_refuse(b, CW_LIMIT_max_client_waits,
                                "one more claim than the %u of this client was asked for",
                                session->claim_count);
    return claim_make(b, session, head.token, key, head.key.key_bytes);
}

int cwd_claim_release(struct cwd_broker *b, struct cwd_session *session, const void *body,
                      uint32_t body_bytes) {
    struct cw_claim head;
    struct cwd_claim *claim;
    memcpy(&head, body, sizeof head);
    const char *key = key_of(&head, body, body_bytes);
    if (!key)
        return -EBADMSG;
    HASH_FIND(hh, b->claims, key, head.key.key_bytes, claim);
    if (claim && claim->session == session && claim->token == head.token)
        claim_end(b, session, claim);
    return 0;
}

void cwd_claims_end(struct cwd_broker *b, struct cwd_session *session) {
    while (session->claims)
        claim_end(b, session, session->claims);
}

void cwd_claims_settle(struct cwd_broker *b) {
    while (b->claims_over) {
        struct cwd_claim *claim = b->claims_over;
        b->claims_over = claim->next;
        cwd_waits_look_again(b, claim->key, claim->key_bytes);
        free(claim);
    }
}

void cwd_claims_deinit(struct cwd_broker *b) {
    CW_ASSERT(!b->claims);
    while (b->claims_over) {
        struct cwd_claim *claim = b->claims_over;
        b->claims_over = claim->next;
        free(claim);
    }
}
