/*
 * Links: what is known of the ways between GPUs, by their UUIDs, measured once a node and kept for
 * all clients as long as the broker runs. The broker has no driver: a client that asks and finds
 * nothing measures and tells (ipc/cuda/route.c). What it tells is advice for people and for
 * choosing among ways that exist; whether one exists the driver decides, in the process that
 * copies.
 */
#ifndef CW_BROKER_NAMES_ROUTES_H
#define CW_BROKER_NAMES_ROUTES_H

#include "ipc/wire.h"

struct cwd_broker;

/* What is known of the way between wish's UUIDs. -ENOENT: nothing. */
int cwd_link_find(struct cwd_broker *broker, const struct cw_link *wish, struct cw_link *out);
/* Keeps what was measured, in place of what was known. 0; -EBADMSG: it cannot be. Beyond LINKS_MOST
 * pairs nothing is kept. */
int cwd_link_keep(struct cwd_broker *broker, const struct cw_link *link);
void cwd_links_deinit(struct cwd_broker *broker);

#endif
