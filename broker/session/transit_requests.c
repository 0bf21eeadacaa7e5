/*
 * The requests of transits: see transit_requests.h. The loop's thread alone. None has a reply.
 */
#include "broker/session/transit_requests.h"

#include <errno.h>

#include "broker/memory/transit.h"

int cwd_serve_transit_begin(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                            struct result *result) {
    result->none = true;
    return cwd_transit_begin(b, s, &r->body.ref, 1) ? -EBADMSG : 0;
}

int cwd_serve_transit_share(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                            struct result *result) {
    const struct cw_transit_share *share = &r->body.share;
    result->none = true;
    if (share->reserved || share->openers > CW_TRANSIT_OPENERS_MAX)
        return -EBADMSG;
    return cwd_transit_begin(b, s, &share->ref, share->openers) ? -EBADMSG : 0;
}

int cwd_serve_transit_opened(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                             struct result *result) {
    result->none = true;
    cwd_transit_opened(b, s, &r->body.ref);
    return 0;
}

int cwd_serve_transit_end(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                          struct result *result) {
    result->none = true;
    cwd_transit_end(b, s, &r->body.ref);
    return 0;
}

int cwd_serve_transit_anchor(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                             struct result *result) {
    result->none = true;
    cwd_transit_anchor(b, s, &r->body.ref);
    return 0;
}
