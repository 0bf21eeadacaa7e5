/*
 * The rows of clients, and what they hold: leases, requests and routes from the segments of their
 * sessions. One thread; a client may end, and its slots change, at any moment.
 */
#include <math.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ipc/wire.h"
#include "shm/base/error.h"
#include "shm/base/wait.h"
#include "shm/blocks/block.h"
#include "tools/top/look.h"

enum {
    PID,
    USER,
    COMMAND,
    ROLE,
    DEVICES,
    ARRAYS,
    BYTES,
    REQUESTS,
    UNREAD,
    TRANSITS,
    LAST,
    CALL_AGO,
    WAITING,
    SESSION
};

/* ---- what they hold ---- */

static void add_device(struct top *top, struct top_client *client, const char *device) {
    if (!client->devices)
        client->devices = top_texts_add(&top->texts, device);
    else if (!strstr(client->devices, device))
        client->devices = top_texts_addf(&top->texts, "%s,%s", client->devices, device);
}

/* One slot that was in use. number: of the client, in top->clients. */
static void count_slot(struct top *top, uint32_t number, uint64_t slot, uint32_t *last_slab,
                       struct top_slab **slab) {
    struct top_client *client = &top->clients[number];
    uint32_t block = cw_lease_block(slot);
    bool is_new = cw_lease_slab(slot) != *last_slab;
    if (is_new) {
        *last_slab = cw_lease_slab(slot);
        *slab = top_find_slab(top, *last_slab);
    }
    if (!*slab || block >= (*slab)->capacity)
        return;
    if (is_new)
        add_device(top, client, (*slab)->memory.device);
    if (!(*slab)->holds) {
        (*slab)->holds = calloc((*slab)->capacity, sizeof *(*slab)->holds);
        CW_ASSERT((*slab)->holds);
    }
    struct top_hold *hold = &(*slab)->holds[block];
    if (hold->last == number + 1)
        return; /* it has several leases on it */
    hold->last = number + 1;
    hold->holders++;
    uint64_t bytes = monitor_word(&(*slab)->table->blocks[block].length_bytes);
    client->held_arrays++;
    client->held_bytes += bytes < (*slab)->memory.size_bytes ? bytes : (*slab)->memory.size_bytes;
}

static void count_table(struct top *top, uint32_t number, struct cw_lease_table *table) {
    uint32_t high = CW_LOAD(MON, &table->high, relaxed), last_slab = 0;
    struct top_slab *slab = NULL;
    for (uint32_t i = 0; i < high && i < CW_LEASE_TABLE_SLOTS; i++) {
        uint64_t slot = monitor_word(&table->slots[i]);
        if (slot)
            count_slot(top, number, slot, &last_slab, &slab);
    }
}

static void look_at_session(struct top *top, uint32_t number, struct cw_session *shared) {
    struct top_client *client = &top->clients[number];
    client->has_session = true;
    for (unsigned i = 0; i < CW_ROUTES; i++)
        client->routes[i] = monitor_word(&shared->routes[i]);
    requests_look(shared, &client->requests);
    count_table(top, number, cw_session_leases(shared));
}

static int by_session(const void *a, const void *b) {
    const struct top_client *first = a, *second = b;
    return (first->row.session > second->row.session) - (first->row.session < second->row.session);
}

/* The number of a client in top->clients; as many as there are: none. */
static uint32_t number_of(const struct top *top, uint32_t session) {
    const struct top_client key = {.row = {.session = session}}, *found = NULL;
    if (top->client_count)
        found = bsearch(&key, top->clients, top->client_count, sizeof key, by_session);
    return (uint32_t)(found ? (size_t)(found - top->clients) : top->client_count);
}

const struct top_client *top_find_client(const struct top *top, uint32_t session) {
    uint32_t number = number_of(top, session);
    return number < top->client_count ? &top->clients[number] : NULL;
}

void top_count_holders(struct top *top) {
    qsort(top->clients, top->client_count, sizeof *top->clients, by_session);
    for (size_t i = 0; i < top->segments.count; i++) {
        const struct segments_one *one = &top->segments.all[i];
        struct cw_session *shared = one->segment.base;
        if (one->kind != CW_SEGMENT_SESSION || one->segment.size_bytes < CW_SESSION_BYTES)
            continue;
        uint32_t number = number_of(top, *(volatile uint32_t *)&shared->session);
        if (number < top->client_count)
            look_at_session(top, number, shared);
    }
    for (size_t i = 0; i < top->segments.count; i++) {
        const struct segments_one *one = &top->segments.all[i];
        if (one->kind != CW_SEGMENT_LEASES ||
            one->segment.size_bytes < CW_PAGE + sizeof(struct cw_lease_table))
            continue;
        uint64_t session = ((struct cw_segment_header *)one->segment.base)->session;
        uint32_t number = number_of(top, (uint32_t)session);
        if (number < top->client_count)
            count_table(top, number, (void *)((uint8_t *)one->segment.base + CW_PAGE));
    }
}

/* ---- rows ---- */

/* Who runs a process; NULL: it has ended, or is not seen from here. */
static const char *user_of(struct top *top, uint32_t pid) {
    static struct { /* of the user that was looked up last: nearly all have the same */
        bool known;
        uid_t uid;
        char name[64];
    } last;
    char path[32];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%u", pid);
    if (stat(path, &status))
        return NULL;
    if (!last.known || last.uid != status.st_uid) {
        const struct passwd *entry = getpwuid(status.st_uid);
        last.known = true;
        last.uid = status.st_uid;
        if (entry)
            snprintf(last.name, sizeof last.name, "%s", entry->pw_name);
        else
            snprintf(last.name, sizeof last.name, "%u", status.st_uid);
    }
    return top_texts_add(&top->texts, last.name);
}

static const char *request_text(struct top *top, const struct requests_one *one) {
    char text[16];
    const char *op = requests_text(one->op, text);
    return *one->key ? top_texts_addf(&top->texts, "%s %s", op, one->key)
                     : top_texts_add(&top->texts, op);
}

/* What a client waits for: of the broker the first of these, then what its trace tells; NULL:
 * nothing that is seen there. */
static const char *waiting_for(struct top *top, const struct top_client *client) {
    bool answers = top->state == MONITOR_IDLE || top->state == MONITOR_RUNNING;
    if (!answers && client->requests.unread)
        return "the broker";
    if (client->row.waits == 1 && *client->requests.wait.key)
        return top_texts_addf(&top->texts, "name %s", client->requests.wait.key);
    if (client->row.waits)
        return client->row.waits == 1 ? "a name"
                                      : top_texts_addf(&top->texts, "%llu names",
                                                       (unsigned long long)client->row.waits);
    char text[WAITS_TEXT];
    return waits_of(&top->waits, client->row.pid, client->row.session, text)
               ? top_texts_add(&top->texts, text)
               : NULL;
}

static void add_client(struct top *top, const struct top_client *client) {
    const struct client_row *row = &client->row;
    struct top_cell *cells = top_table_add(&top->tables[TOP_CLIENTS]);
    struct top_figure figure = {TOP_RATE_REQUESTS, row->session, 0};
    cells[PID].number = row->pid;
    cells[USER].text = client->user;
    cells[COMMAND].text = top_texts_add(&top->texts, row->comm);
    cells[ROLE].text = clients_role_text(row->role);
    cells[REQUESTS].number = top_rate(top, figure, row->requests);
    cells[TRANSITS].number = (double)row->transits;
    cells[SESSION].number = row->session;
    double ago_seconds = (double)(cw_now_ns() - (int64_t)row->heard_ns) * 1e-9;
    cells[CALL_AGO].number = ago_seconds > 0 ? ago_seconds : 0;
    cells[WAITING].text = waiting_for(top, client);
    if (!client->has_session)
        return; /* it has just come, or just gone */
    cells[DEVICES].text = client->devices;
    cells[ARRAYS].number = (double)client->held_arrays;
    cells[BYTES].number = (double)client->held_bytes;
    cells[UNREAD].number = client->requests.unread;
    if (client->requests.last.op)
        cells[LAST].text = request_text(top, &client->requests.last);
}

void top_add_clients(struct top *top) {
    for (size_t i = 0; i < top->client_count; i++) {
        top->clients[i].user = user_of(top, top->clients[i].row.pid);
        add_client(top, &top->clients[i]);
    }
    waits_looked(&top->waits);
}
