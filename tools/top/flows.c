/*
 * The rows of Pools, and of the routes of bytes to, from and between GPUs: figures that rise. One
 * thread.
 */
#include <math.h>
#include <string.h>

#include "tools/top/look.h"
#include "tools/watch/pools.h"

enum {
    PID,
    COMMAND,
    WORKERS,
    BUSY,
    QUEUED,
    TASKS_RATE,
    SHARE,
    TASKS,
    FAILED,
    REPEATED,
    IN_RATE,
    OUT_RATE,
    POOL
};
enum { ROUTE, ROUTE_RATE, ROUTE_BYTES };

/* ---- pools ---- */

static const char *command_of(const struct top *top, uint32_t pid) {
    for (size_t i = 0; i < top->client_count; i++) {
        if (top->clients[i].row.pid == pid)
            return top->clients[i].row.comm;
    }
    return NULL;
}

static void add_pool(void *context, const struct pool_row *row) {
    struct top *top = context;
    struct top_cell *cells = top_table_add(&top->tables[TOP_POOLS]);
    cells[PID].number = row->pid;
    cells[COMMAND].text = command_of(top, row->pid);
    cells[WORKERS].number = row->workers;
    cells[BUSY].number = row->busy_workers;
    cells[QUEUED].number = (double)row->queued;
    cells[TASKS].number = (double)row->tasks;
    cells[FAILED].number = (double)row->failed;
    cells[REPEATED].number = (double)row->repeated;
    cells[POOL].number = (double)row->pool;
    cells[TASKS_RATE].number =
        top_rate(top, (struct top_figure){TOP_RATE_TASKS, row->pool, 0}, row->tasks);
    cells[IN_RATE].number =
        top_rate(top, (struct top_figure){TOP_RATE_IN, row->pool, 0}, row->bytes_in);
    cells[OUT_RATE].number =
        top_rate(top, (struct top_figure){TOP_RATE_OUT, row->pool, 0}, row->bytes_out);
    /* A task counts when it is done; with those that run it is time that passes. */
    double busy = top_rate(top, (struct top_figure){TOP_RATE_BUSY, row->pool, 0},
                           row->busy_ns + row->running_ns);
    double share = row->workers ? busy * 1e-9 / row->workers : NAN;
    cells[SHARE].number = share > 1 ? 1 : share;
}

void top_add_pools(struct top *top) {
    pools_walk(top->monitor.root, add_pool, top);
}

/* ---- routes ---- */

static const char *const routes[CW_ROUTES] = {
    [CW_ROUTE_SAME] = "within a GPU",
    [CW_ROUTE_PEER] = "GPU to GPU",
    [CW_ROUTE_IN] = "host to GPU",
    [CW_ROUTE_OUT] = "GPU to host",
    [CW_ROUTE_STAGED] = "GPU to GPU through the host",
};

/* The page's counters rise when the broker next hears of a client; the clients' own words at once.
 * So a rate is the sum of theirs. NAN: there was no look before. */
static double route_rate(struct top *top, unsigned route) {
    double sum = 0;
    for (size_t i = 0; i < top->client_count; i++) {
        const struct top_client *client = &top->clients[i];
        struct top_figure figure = {TOP_RATE_ROUTE, client->row.session, route};
        double rate = client->has_session ? top_rate(top, figure, client->routes[route]) : NAN;
        sum += isnan(rate) ? 0 : rate;
    }
    return isnan(top->interval_seconds) ? NAN : sum;
}

void top_add_routes(struct top *top) {
    for (unsigned i = 0; i < CW_ROUTES; i++) {
        struct top_cell *cells = top_table_add(&top->tables[TOP_ROUTES]);
        cells[ROUTE].text = routes[i];
        cells[ROUTE_RATE].number = route_rate(top, i);
        cells[ROUTE_BYTES].number =
            (double)monitor_word(&top->monitor.root->counters[CW_COUNTER_bytes_same_gpu + i]);
    }
}
