/*
 * One look at everything: shared memory becomes the tables of `cableway top`. What is mapped stays
 * mapped between two looks, rates are differences between them, and both go on when the broker is
 * stopped or dead.
 */
#ifndef CW_TOOLS_TOP_LOOK_H
#define CW_TOOLS_TOP_LOOK_H

#include <jansson.h>

#include "shm/session/session.h"
#include "tools/monitor.h"
#include "tools/top/table.h"
#include "tools/top/waits.h"
#include "tools/watch/clients.h"
#include "tools/watch/memory.h"
#include "tools/watch/nvml.h"
#include "tools/watch/requests.h"
#include "tools/watch/segments.h"

enum top_views {
    TOP_CLIENTS,
    TOP_ARRAYS,
    TOP_POOLS,
    TOP_QUEUES,
    TOP_MEMORY,
    TOP_ROUTES,
    TOP_PEERS,
    TOP_VIEWS
};
extern const struct top_view top_views[TOP_VIEWS];

/* Who holds a block; of each block of a slab. */
struct top_hold {
    uint32_t holders; /* clients with a lease on it */
    uint32_t last;    /* + 1: the client that was counted last */
};

struct top_slab { /* of this look */
    struct memory_slab memory;
    struct cw_block_table *table;
    uint32_t capacity;
    struct top_hold *holds; /* capacity of them; NULL: nobody holds any */
};

struct top_client { /* of this look */
    struct client_row row;
    const char *user; /* NULL: its process is not seen */
    uint64_t held_arrays, held_bytes;
    const char *devices;
    bool has_session; /* what follows is known */
    struct requests requests;
    uint64_t routes[CW_ROUTES];
};

struct top_array { /* of the directory */
    const char *name_space, *name, *shape, *dtype;
    struct cw_entry entry;
    uint64_t size_bytes;
    const char *device; /* of a tree: "cpu", a UUID or "-"; NULL: where its slab lies */
};

struct top_rate; /* look.c */
struct top_data; /* queues.c */

struct top {
    struct monitor monitor;
    bool opened;
    struct segments segments;
    struct cw_directory_reader *directory;
    /* the directory as it was when it last changed */
    struct top_array *arrays;
    size_t array_count, array_room;
    struct top_texts array_texts;
    uint64_t changes;
    bool arrays_known;
    char arrays_error[CW_DETAIL_MAX]; /* "": none */
    struct top_rate *rates;
    struct top_data *data; /* of slabs with Queues, open */
    struct waits waits;    /* of clients, from their traces */
    struct nvml nvml;
    uint64_t looks;
    int64_t looked_ns;
    /* this look */
    double interval_seconds; /* since the one before; NAN: there was none */
    enum monitor_state state;
    double still_seconds;
    struct top_slab *slabs; /* by number */
    size_t slab_count, slab_room;
    struct top_client clients[CW_MONITOR_CLIENTS];
    size_t client_count;
    struct top_texts texts;
    struct top_table tables[TOP_VIEWS];
};

/* Opens the user's own broker, as monitor_open(). *top is zeros or closed. */
int top_open(struct top *top);
void top_close(struct top *top);
/* Fills the tables anew. 0; -ECONNRESET: the broker has ended, and the tables are what it last
 * said; -EPERM: /proc is closed to us. */
int top_look(struct top *top);

/* Where no broker runs: the table of memory becomes what processes still have of brokers that have
 * ended, the others are empty. *top is zeros or closed, or filled by this. */
void top_look_at_remains(struct top *top);

json_t *top_json(const struct top *top);
void top_print(const struct top *top);

/* ---- the rows of each table ---- */

void top_add_clients(struct top *top);
void top_add_arrays(struct top *top);
void top_add_pools(struct top *top);
void top_add_queues(struct top *top);
void top_add_memory(struct top *top);
void top_add_remains(struct top *top);
void top_add_routes(struct top *top);
void top_add_peers(struct top *top);
/* Closes the data of slabs that it has open. */
void top_close_data(struct top *top);
/* Finds out what the clients hold; before the rows. */
void top_count_holders(struct top *top);
/* Reads the directory again if it has changed; before the rows. */
void top_read_arrays(struct top *top);

struct top_slab *top_find_slab(const struct top *top, uint32_t slab);
/* NULL: no such client. */
const struct top_client *top_find_client(const struct top *top, uint32_t session);
/* What a figure of a thing rises by a second, between two looks. what: which figure, what it is of.
 * NAN: it was not seen before, or fell. */
struct top_figure {
    uint64_t kind, of, part;
};
double top_rate(struct top *top, struct top_figure what, uint64_t value);
enum {
    TOP_RATE_REQUESTS,
    TOP_RATE_TASKS,
    TOP_RATE_BUSY,
    TOP_RATE_IN,
    TOP_RATE_OUT,
    TOP_RATE_PUT,
    TOP_RATE_TAKEN,
    TOP_RATE_ROUTE
};

#endif
