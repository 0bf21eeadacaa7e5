/*
 * Requests of the channel: read, checked, served, in the order of the ring.
 */
#ifndef CW_BROKER_SESSION_REQUESTS_H
#define CW_BROKER_SESSION_REQUESTS_H

#include <stdbool.h>

struct cwd_broker;
struct cwd_session;

/* Serves a bounded number of requests while there is room for replies. Returns whether it did
 * anything. */
bool cwd_requests_serve(struct cwd_broker *broker, struct cwd_session *session);
/* Is there something to serve, and room to reply? If room alone is wanting, announces that we wait
 * for it. */
bool cwd_requests_ready(struct cwd_session *session);
/* The client reads no replies any more: takes the whole records that are left, bounded. */
void cwd_requests_drain(struct cwd_broker *broker, struct cwd_session *session);

#endif
