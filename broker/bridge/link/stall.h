/*
 * Requests to a peer that is heard, and does not answer them: they fail after --stall. See stall.c.
 */
#ifndef CW_BROKER_BRIDGE_LINK_STALL_H
#define CW_BROKER_BRIDGE_LINK_STALL_H

struct cwb_link;
struct cwb_request;

/* It was sent: from now on its time counts, if it has a limit. */
void cwb_link_time(struct cwb_request *request);
/* It is answered, or gone: no time counts for it any more. May be repeated. */
void cwb_link_untime(struct cwb_request *request);
/* Fails those whose time is over. Once a second. */
void cwb_link_expire(struct cwb_link *link);

#endif
