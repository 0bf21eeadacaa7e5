/*
 * Clients of the broker: see clients.h. The broker writes the rows, at any time; a row that changes
 * hands meanwhile may be shown with figures of both.
 */
#include "tools/watch/clients.h"

#include <string.h>

#include "tools/monitor.h"

static enum client_role role_of(const char *comm) {
    if (!strcmp(comm, "cableway-mover"))
        return CLIENT_MOVER;
    return strcmp(comm, "cableway-bridge") ? CLIENT_USER : CLIENT_BRIDGE;
}

bool clients_copy(struct cw_root *root, unsigned i, struct client_row *out) {
    struct cw_monitor_client *row = &root->clients[i];
    uint64_t comm[4];
    *out = (struct client_row){.session = CW_LOAD(MON, &row->session, acquire)};
    if (!out->session)
        return false;
    out->pid = CW_LOAD(MON, &row->pid, relaxed);
    out->connected_ns = monitor_word(&row->connected_ns);
    out->heard_ns = monitor_word(&row->heard_ns);
    out->slabs = monitor_word(&row->slabs);
    out->bytes = monitor_word(&row->bytes);
    out->gpu_bytes = monitor_word(&row->gpu_bytes);
    out->transits = monitor_word(&row->transits);
    out->waits = monitor_word(&row->waits);
    out->requests = monitor_word(&row->requests);
    for (int word = 0; word < 4; word++)
        comm[word] = monitor_word(&row->comm[word]);
    memcpy(out->comm, comm, sizeof comm);
    out->role = role_of(out->comm);
    return true;
}

const char *clients_role_text(enum client_role role) {
    static const char *const texts[CLIENT_ROLES] = {"client", "bridge", "mover"};
    return texts[role];
}
