/*
 * The requests of claims: see claim_requests.h. The loop's thread alone.
 */
#include "broker/session/claim_requests.h"

#include "broker/names/claims.h"

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
