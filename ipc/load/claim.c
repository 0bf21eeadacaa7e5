/*
 * Claims: see claim.h. Any thread may call; the broker has the claim, which ends with the process,
 * its session, or by RELEASE. A wait that was given up releases what may have been granted just
 * before.
 */
#include "ipc/load/claim.h"

#include <errno.h>
#include <string.h>

#include "ipc/cableway.h"
#include "ipc/request/channel.h"
#include "ipc/wire.h"
#include "shm/base/atomic.h"
#include "shm/base/error.h"

static uint64_t next_token(void) {
    static cw_a64 tokens;
    /* K23: a number that no other claim of this process has. */
    return CW_ADD(K23, &tokens, 1, relaxed) + 1;
}

void cw_claim_release(cw_client *client, const struct cw_name_key *key, uint64_t *token) {
    uint8_t body[sizeof(struct cw_claim) + CW_KEY_MAX];
    struct cw_claim head = {.token = *token, .key = {.key_bytes = key->length}};
    if (!*token)
        return;
    memcpy(body, &head, sizeof head);
    memcpy(body + sizeof head, key->text, key->length);
    /* Without memory to keep the message it is not sent, and the claim ends with the session. */
    (void)cw_channel_post(client, CW_OP_RELEASE, body, (uint32_t)sizeof head + key->length);
    *token = 0;
}

int cw_claim_ask(cw_client *client, const struct cw_name_key *key, uint64_t after,
                 int64_t timeout_ns, uint64_t *token) {
    *token = next_token();
    struct cw_claim body = {.token = *token, .after = after, .key = {.key_bytes = key->length}};
    struct iovec parts[] = {{&body, sizeof body}, {(void *)(uintptr_t)key->text, key->length}};
    int code = cw_channel_call(client, CW_OP_CLAIM, parts, 2, NULL, NULL, CW_CALL_LOOK, timeout_ns);
    if (code) /* it may have been granted just before the wait for it was given up */
        cw_claim_release(client, key, token);
    return code;
}

static int key_of(cw_client *client, const char *name, struct cw_name_key *key) {
    if (!client || !name)
        return cw_needs("a client and a name");
    int code = cw_local_name_check(name);
    return code ? code : cw_name_key_make(client, name, key);
}

int cw_claim(cw_client *client, const char *name, int64_t timeout_ns, uint64_t *token) {
    struct cw_name_key key;
    if (!token)
        return cw_needs("a place for the claim's number");
    int code = key_of(client, name, &key);
    return code ? code : cw_claim_ask(client, &key, 0, timeout_ns, token);
}

void cw_claim_end(cw_client *client, const char *name, uint64_t token) {
    struct cw_name_key key;
    if (key_of(client, name, &key) == 0)
        cw_claim_release(client, &key, &token);
}
