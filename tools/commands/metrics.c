/*
 * cableway metrics: the monitor page and the memory of pools as OpenMetrics text. Nobody is asked:
 * it costs the broker nothing, and one that is stopped or hangs is shown as that. Where none runs,
 * that is all that is said, with success: whoever collects it shall see it fall to 0.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "tools/cli.h"
#include "tools/watch/clients.h"
#include "tools/watch/memory.h"
#include "tools/monitor.h"
#include "tools/watch/openmetrics.h"
#include "tools/watch/pools.h"

#define NAME_MAX_BYTES 80

/* The unit in which a figure's name ends. */
static const char *unit_of(const char *name) {
    static const char *const units[] = {"bytes", "seconds"};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        size_t at = strlen(name), length = strlen(units[i]);
        if (at > length && name[at - length - 1] == '_' && !strcmp(name + at - length, units[i]))
            return units[i];
    }
    return NULL;
}

static void begin(const char *prefix, const char *name, enum openmetrics_type type,
                  const char *help) {
    char full[NAME_MAX_BYTES];
    snprintf(full, sizeof full, "cableway_%s%s", prefix, name);
    openmetrics_family(full, type, unit_of(full), help);
}

/* ---- the broker ---- */

static void write_up(bool up) {
    begin("", "up", OPENMETRICS_GAUGE, "1: the broker answers; 0: none runs, or it does not");
    openmetrics_sample(NULL, up);
}

static void write_broker(const struct monitor *monitor) {
    double still_seconds;
    char protocol[16];
    struct cw_root *root = monitor->root;
    enum monitor_state state = monitor_look(monitor, &still_seconds);
    write_up(state == MONITOR_IDLE || state == MONITOR_RUNNING);
    begin("", "broker_state", OPENMETRICS_GAUGE, "1 for the state in which the broker is");
    for (unsigned i = MONITOR_IDLE; i <= MONITOR_GONE; i++)
        openmetrics_sample((const char *[]){"state", monitor_state_text(i), NULL}, i == state);
    snprintf(protocol, sizeof protocol, "%u", root->protocol);
    begin("", "build", OPENMETRICS_GAUGE, "1, with the version of this command");
    openmetrics_sample((const char *[]){"version", cw_version(), "protocol", protocol, NULL}, 1);
    begin("", "start_time_seconds", OPENMETRICS_GAUGE,
          "when the broker started, in seconds since 1970");
    openmetrics_sample_real(NULL, (double)root->started_ns * 1e-9);
}

static void write_gauges(struct cw_root *root) {
    for (unsigned i = 0; i < CW_GAUGE_COUNT; i++) {
        begin("", i == CW_GAUGE_bytes ? "slab_bytes" : cw_gauge_name(i), OPENMETRICS_GAUGE,
              cw_gauge_what(i));
        openmetrics_sample(NULL, monitor_word(&root->gauges[i]));
    }
}

static bool is_route(unsigned counter) {
    return counter >= CW_COUNTER_bytes_same_gpu && counter <= CW_COUNTER_bytes_staged;
}

static void write_counters(struct cw_root *root) {
    for (unsigned i = 0; i < CW_COUNTER_COUNT; i++) {
        if (is_route(i))
            continue;
        begin("", cw_counter_name(i), OPENMETRICS_COUNTER, cw_counter_what(i));
        openmetrics_sample(NULL, monitor_word(&root->counters[i]));
    }
    begin("", "copied_bytes", OPENMETRICS_COUNTER, "bytes copied to, from or between GPUs");
    for (unsigned i = CW_COUNTER_bytes_same_gpu; i <= CW_COUNTER_bytes_staged; i++)
        openmetrics_sample((const char *[]){"route", cw_counter_name(i) + strlen("bytes_"), NULL},
                           monitor_word(&root->counters[i]));
}

static void write_limits(struct cw_root *root) {
    for (unsigned i = 0; i < CW_LIMIT_COUNT; i++) {
        begin("limit_", cw_limit_name(i), OPENMETRICS_GAUGE, cw_limit_what(i));
        uint64_t limit = monitor_word(&root->limits[i]);
        if (limit == INT64_MAX) /* max_gpu_bytes, unless somebody sets it */
            openmetrics_sample_real(NULL, INFINITY);
        else
            openmetrics_sample(NULL, limit);
    }
}

/* ---- clients ---- */

struct clients { /* the rows of one moment, so that all families tell of the same clients */
    struct client_row rows[CW_MONITOR_CLIENTS];
    size_t count;
};

struct client_family {
    const char *name;
    enum openmetrics_type type;
    size_t offset; /* of the figure in a row */
    const char *help;
};

static void write_client(const struct client_row *row, uint64_t value) {
    char session[16], pid[16];
    snprintf(session, sizeof session, "%u", row->session);
    snprintf(pid, sizeof pid, "%u", row->pid);
    openmetrics_sample((const char *[]){"session", session, "pid", pid, "command", row->comm,
                                        "role", clients_role_text(row->role), NULL},
                       value);
}

static void write_clients(const struct clients *clients) {
    static const struct client_family families[] = {
#define FIGURE(name) offsetof(struct client_row, name)
        {"slabs", OPENMETRICS_GAUGE, FIGURE(slabs), "slabs that the client made"},
        {"slab_bytes", OPENMETRICS_GAUGE, FIGURE(bytes),
         "bytes of the client's host slabs and block tables"},
        {"gpu_bytes", OPENMETRICS_GAUGE, FIGURE(gpu_bytes), "bytes of the client's GPU slabs"},
        {"transits", OPENMETRICS_GAUGE, FIGURE(transits), "transit leases of the client under way"},
        {"waiting", OPENMETRICS_GAUGE, FIGURE(waits), "names that the client waits for"},
        {"requests", OPENMETRICS_COUNTER, FIGURE(requests), "requests of the client answered"},
#undef FIGURE
    };
    uint64_t counts[CLIENT_ROLES] = {0};
    for (size_t c = 0; c < clients->count; c++)
        counts[clients->rows[c].role]++;
    begin("", "connected", OPENMETRICS_GAUGE, "clients connected, by role");
    for (unsigned role = 0; role < CLIENT_ROLES; role++)
        openmetrics_sample((const char *[]){"role", clients_role_text(role), NULL}, counts[role]);
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        const struct client_family *family = &families[f];
        begin("client_", family->name, family->type, family->help);
        for (size_t c = 0; c < clients->count; c++) {
            const struct client_row *row = &clients->rows[c];
            uint64_t value;
            memcpy(&value, (const char *)row + family->offset, sizeof value);
            write_client(row, value);
        }
    }
}

/* ---- slabs, by device ---- */

enum { OWNED_LIVE, OWNED_FREE, ORPHAN_LIVE, ORPHAN_FREE, SHARES };

static void write_shares(const struct memory_slab *slabs, size_t count, const char *device) {
    static const char *const labels[SHARES][2] = {[OWNED_LIVE] = {"client", "live"},
                                                  [OWNED_FREE] = {"client", "free"},
                                                  [ORPHAN_LIVE] = {"nobody", "live"},
                                                  [ORPHAN_FREE] = {"nobody", "free"}};
    uint64_t shares[SHARES] = {0};
    for (size_t i = 0; i < count; i++) {
        if (strcmp(slabs[i].device, device) != 0)
            continue;
        unsigned at = slabs[i].owner ? OWNED_LIVE : ORPHAN_LIVE;
        shares[at] += slabs[i].live_bytes;
        shares[at + 1] += slabs[i].size_bytes - slabs[i].live_bytes;
    }
    for (unsigned i = 0; i < SHARES; i++)
        openmetrics_sample(
            (const char *[]){"device", device, "owner", labels[i][0], "state", labels[i][1], NULL},
            shares[i]);
}

static void write_memory(const struct monitor *monitor) {
    struct memory_slab *slabs;
    size_t count;
    begin("", "memory_bytes", OPENMETRICS_GAUGE,
          "bytes of slabs without tables: in arrays (live) or kept for the next ones (free)");
    if (memory_slabs(monitor, &slabs, &count))
        return; /* the broker has just ended; nothing of it is left to see */
    for (size_t i = 0; i < count; i++) {
        size_t first = 0;
        while (strcmp(slabs[first].device, slabs[i].device) != 0)
            first++;
        if (first == i)
            write_shares(slabs, count, slabs[i].device);
    }
    free(slabs);
}

/* ---- pools ---- */

struct pools {
    struct pool_row *rows;
    size_t count;
};

static void keep_pool(void *context, const struct pool_row *row) {
    struct pools *pools = context;
    pools->rows = realloc(pools->rows, (pools->count + 1) * sizeof *pools->rows);
    CW_ASSERT(pools->rows);
    pools->rows[pools->count++] = *row;
}

enum pool_figure {
    WORKERS,
    QUEUED,
    TASKS,
    CHUNKS,
    FAILED,
    REPEATED,
    BUSY,
    BYTES_IN,
    BYTES_OUT,
    POOL_FIGURES
};

static void write_pool(const struct pool_row *row, enum pool_figure figure) {
    char pid[16], pool[24];
    const uint64_t values[POOL_FIGURES] = {
        [WORKERS] = row->workers, [QUEUED] = row->queued,     [TASKS] = row->tasks,
        [CHUNKS] = row->chunks,   [FAILED] = row->failed,     [REPEATED] = row->repeated,
        [BUSY] = row->busy_ns,    [BYTES_IN] = row->bytes_in, [BYTES_OUT] = row->bytes_out};
    const char *labels[] = {"pid", pid, "pool", pool, NULL};
    snprintf(pid, sizeof pid, "%u", row->pid);
    snprintf(pool, sizeof pool, "%llu", (unsigned long long)row->pool);
    if (figure == BUSY)
        openmetrics_sample_real(labels, (double)values[figure] * 1e-9);
    else
        openmetrics_sample(labels, values[figure]);
}

static void write_pools(const struct pools *pools) {
    static const struct {
        const char *name;
        enum openmetrics_type type;
        const char *help;
    } families[POOL_FIGURES] = {
        [WORKERS] = {"workers", OPENMETRICS_GAUGE, "workers of the pool that live"},
        [QUEUED] = {"queued_chunks", OPENMETRICS_GAUGE, "chunks that no worker has taken yet"},
        [TASKS] = {"tasks", OPENMETRICS_COUNTER, "tasks done: calls of functions"},
        [CHUNKS] = {"chunks", OPENMETRICS_COUNTER,
                    "chunks done, which workers take at once: one task, or several of a map"},
        [FAILED] = {"failed", OPENMETRICS_COUNTER,
                    "tasks that raised an exception, or whose worker died"},
        [REPEATED] = {"repeated", OPENMETRICS_COUNTER, "tasks run again after their worker died"},
        [BUSY] = {"busy_seconds", OPENMETRICS_COUNTER, "time in tasks, of all workers together"},
        [BYTES_IN] = {"in_bytes", OPENMETRICS_COUNTER, "bytes of tasks that went to workers"},
        [BYTES_OUT] = {"out_bytes", OPENMETRICS_COUNTER, "bytes of answers that came from workers"},
    };
    for (unsigned f = 0; f < POOL_FIGURES; f++) {
        begin("pool_", families[f].name, families[f].type, families[f].help);
        for (size_t i = 0; i < pools->count; i++)
            write_pool(&pools->rows[i], f);
    }
}

static void write_all(const struct monitor *monitor) {
    struct clients *clients = calloc(1, sizeof *clients);
    struct pools pools = {.rows = NULL};
    CW_ASSERT(clients);
    for (unsigned i = 0; i < CW_MONITOR_CLIENTS; i++)
        clients->count += clients_copy(monitor->root, i, &clients->rows[clients->count]);
    pools_walk(monitor->root, keep_pool, &pools);
    write_broker(monitor);
    write_gauges(monitor->root);
    write_counters(monitor->root);
    write_limits(monitor->root);
    write_memory(monitor);
    write_clients(clients);
    write_pools(&pools);
    free(pools.rows);
    free(clients);
}

int cmd_metrics(const struct cli *cli) {
    struct monitor monitor;
    (void)cli;
    int result = monitor_open(&monitor);
    if (result && result != -ENOENT)
        return cli_result(result);
    if (result == 0) {
        write_all(&monitor);
        monitor_close(&monitor);
    } else {
        write_up(false);
    }
    openmetrics_end();
    return CLI_OK;
}
