/*
 * Clients: the rows of the monitor page, each copied before it is used.
 */
#ifndef CW_TOOLS_WATCH_CLIENTS_H
#define CW_TOOLS_WATCH_CLIENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/session/monitor.h"

enum client_role { CLIENT_USER, CLIENT_BRIDGE, CLIENT_MOVER, CLIENT_ROLES };

struct client_row { /* a private copy of a cw_monitor_client */
    uint32_t session, pid;
    uint64_t connected_ns; /* CLOCK_REALTIME */
    uint64_t heard_ns;     /* CLOCK_MONOTONIC of its last request */
    uint64_t slabs, bytes, gpu_bytes, transits, waits, requests;
    char comm[33];
    enum client_role role; /* by the name that it gave itself: a word for people */
};

/* Copies row i, below CW_MONITOR_CLIENTS; false if it is empty. */
bool clients_copy(struct cw_root *root, unsigned i, struct client_row *out);
/* "client", "bridge", "mover". */
const char *clients_role_text(enum client_role role);

#endif
