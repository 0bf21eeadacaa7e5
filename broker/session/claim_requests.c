/*
 * The requests of claims and versions: see claim_requests.h. The loop's thread alone.
 */
#include "broker/session/claim_requests.h"

#include "broker/names/claims.h"
#include "broker/names/versions.h"

int cwd_serve_claim(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                    struct result *result) {
    bool granted = false;
    int code = cwd_claim_begin(b, s, &r->head, r->body.bytes, r->body_bytes, &granted);
    result->none = code == 0 && !granted; /* waits.c answers */
    return code;
}

int cwd_serve_release(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                      struct result *result) {
    result->none = true;
    return cwd_claim_release(b, s, r->body.bytes, r->body_bytes);
}

int cwd_serve_next_version(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                           struct result *result) {
    (void)s;
    int code = cwd_version_next(b, r->body.bytes, r->body_bytes, &result->body.next.head,
                                result->body.next.key);
    result->body_bytes =
        code ? 0 : (uint32_t)sizeof result->body.next.head + result->body.next.head.key_bytes;
    return code;
}
