/*
 * The requests of who administers a broker: see admin_requests.h. The loop's thread alone.
 */
#include "broker/session/admin_requests.h"

#include <errno.h>

#include "broker/broker.h"
#include "broker/memory/transit.h"
#include "broker/session/session.h"

#define TRANSITS_LEAST 14u /* the answer for so many always fits */

int cwd_serve_limit_set(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                        struct result *result) {
    const struct cw_limit_set *set = &r->body.limit_set;
    if (r->body_bytes != sizeof *set + set->name_bytes || set->reserved)
        return -EBADMSG;
    if (s->of_bridge)
        return cw_fail(-EPERM, "limits are this user's programs' to set, not the bridge's");
    result->body_bytes = sizeof result->body.limit;
    return cwd_limits_change(b, (const char *)r->body.bytes + sizeof *set, set->name_bytes,
                             set->value, s->pid, &result->body.limit.before,
                             &result->body.limit.now);
}

int cwd_serve_transits(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                       struct result *result) {
    static struct {
        struct cw_transits_reply head;
        struct cw_transit_told told[CW_TRANSITS_TOLD];
    } found;
    (void)r;
    uint32_t room = cwd_session_fits(s, sizeof found) ? CW_TRANSITS_TOLD : TRANSITS_LEAST;
    found.head = (struct cw_transits_reply){.count = cwd_transits_oldest(b, room, found.told),
                                            .total = cwd_transit_count(b)};
    result->large = &found;
    result->body_bytes =
        (uint32_t)sizeof found.head + found.head.count * (uint32_t)sizeof *found.told;
    return 0;
}
