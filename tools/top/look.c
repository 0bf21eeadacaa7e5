/*
 * One look: see look.h. One thread. What the broker and the clients write is copied and bounded;
 * that they write meanwhile makes figures of one table a little older than those of another, and
 * nothing else.
 */
#include "tools/top/look.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

#include "shm/base/error.h"
#include "shm/base/wait.h"
#include "shm/names/directory.h"

struct top_rate { /* a figure as it was */
    struct top_figure what;
    uint64_t value, looks; /* of which look */
    UT_hash_handle hh;
};

/* ---- opening ---- */

static void close_broker(struct top *top) {
    if (!top->opened)
        return;
    top_close_data(top);
    cw_directory_reader_deinit(top->directory);
    free(top->directory);
    segments_deinit(&top->segments);
    monitor_close(&top->monitor);
    top->opened = false;
}

static void free_look(struct top *top) {
    for (size_t i = 0; i < top->slab_count; i++)
        free(top->slabs[i].holds);
    top->slab_count = 0;
    top->client_count = 0;
    for (unsigned v = 0; v < TOP_VIEWS; v++)
        top_table_deinit(&top->tables[v]);
    top_texts_free(&top->texts);
}

int top_open(struct top *top) {
    int code = monitor_open(&top->monitor);
    if (code)
        return code;
    top->directory = malloc(sizeof *top->directory);
    CW_ASSERT(top->directory);
    segments_init(&top->segments, &top->monitor);
    cw_directory_reader_init(top->directory, &top->monitor.root->directory, segments_fetch,
                             &top->segments);
    top->opened = true;
    top->state = monitor_look(&top->monitor, &top->still_seconds);
    return 0;
}

void top_close(struct top *top) {
    struct top_rate *rate, *next;
    free_look(top);
    HASH_ITER(hh, top->rates, rate, next) {
        HASH_DELETE(hh, top->rates, rate);
        free(rate);
    }
    waits_close(&top->waits);
    nvml_close(&top->nvml);
    free(top->slabs);
    free(top->arrays);
    top_texts_free(&top->array_texts);
    close_broker(top);
    memset(top, 0, sizeof *top);
}

/* ---- rates ---- */

double top_rate(struct top *top, struct top_figure what, uint64_t value) {
    struct top_rate *rate;
    double a_second = NAN;
    HASH_FIND(hh, top->rates, &what, sizeof what, rate);
    if (!rate) {
        rate = calloc(1, sizeof *rate);
        CW_ASSERT(rate);
        rate->what = what;
        HASH_ADD(hh, top->rates, what, sizeof what, rate);
    } else if (value >= rate->value && top->interval_seconds > 0) {
        a_second = (double)(value - rate->value) / top->interval_seconds;
    }
    rate->value = value;
    rate->looks = top->looks;
    return a_second;
}

/* What was not seen in this look is gone. */
static void forget_rates(struct top *top) {
    struct top_rate *rate, *next;
    HASH_ITER(hh, top->rates, rate, next) {
        if (rate->looks == top->looks)
            continue;
        HASH_DELETE(hh, top->rates, rate);
        free(rate);
    }
}

/* ---- slabs ---- */

static int by_number(const void *a, const void *b) {
    const struct top_slab *first = a, *second = b;
    return (first->memory.slab > second->memory.slab) - (first->memory.slab < second->memory.slab);
}

static void read_slabs(struct top *top) {
    for (size_t i = 0; i < top->segments.count; i++) {
        const struct segments_one *one = &top->segments.all[i];
        struct top_slab slab = {.table = one->segment.base};
        if (one->kind != CW_SEGMENT_BLOCKS ||
            !memory_read(&one->segment, &slab.memory, &slab.capacity))
            continue;
        if (top->slab_count == top->slab_room) {
            top->slab_room = top->slab_room ? 2 * top->slab_room : 64;
            top->slabs = realloc(top->slabs, top->slab_room * sizeof *top->slabs);
            CW_ASSERT(top->slabs);
        }
        top->slabs[top->slab_count++] = slab;
    }
    if (top->slab_count)
        qsort(top->slabs, top->slab_count, sizeof *top->slabs, by_number);
}

struct top_slab *top_find_slab(const struct top *top, uint32_t slab) {
    struct top_slab key = {.memory = {.slab = slab}};
    if (!top->slab_count)
        return NULL;
    return bsearch(&key, top->slabs, top->slab_count, sizeof key, by_number);
}

/* ---- a look ---- */

static void begin_look(struct top *top) {
    int64_t now_ns = cw_now_ns();
    free_look(top);
    top->looks++;
    top->interval_seconds = top->looked_ns ? (double)(now_ns - top->looked_ns) * 1e-9 : NAN;
    top->looked_ns = now_ns;
    for (unsigned v = 0; v < TOP_VIEWS; v++)
        top_table_init(&top->tables[v], &top_views[v]);
}

void top_look_at_remains(struct top *top) {
    begin_look(top);
    top_add_remains(top);
}

int top_look(struct top *top) {
    begin_look(top);
    int code = segments_update(&top->segments);
    top->state = monitor_look(&top->monitor, &top->still_seconds);
    read_slabs(top);
    for (unsigned i = 0; i < CW_MONITOR_CLIENTS; i++) {
        struct top_client *client = &top->clients[top->client_count];
        memset(client, 0, sizeof *client);
        top->client_count += clients_copy(top->monitor.root, i, &client->row);
    }
    top_count_holders(top);
    top_read_arrays(top);
    top_add_clients(top);
    top_add_arrays(top);
    top_add_pools(top);
    top_add_queues(top);
    top_add_memory(top);
    top_add_routes(top);
    top_add_peers(top);
    forget_rates(top);
    return code;
}

/* ---- all of it at once ---- */

static json_t *broker_json(const struct top *top) {
    struct cw_root *root = top->monitor.root;
    return json_pack("{s:i, s:s, s:o, s:I, s:f}", "pid", (int)top->monitor.lock.pid, "state",
                     monitor_state_text(top->state), "heartbeat_age_seconds",
                     top->still_seconds < 0 ? json_null() : json_real(top->still_seconds),
                     "started_ns", (json_int_t)root->started_ns, "uptime_seconds",
                     output_age_seconds(root->started_ns));
}

json_t *top_json(const struct top *top) {
    json_t *all = json_pack(
        "{s:o, s:o}", "broker", top->opened ? broker_json(top) : json_null(), "interval_seconds",
        isnan(top->interval_seconds) ? json_null() : json_real(top->interval_seconds));
    for (unsigned v = 0; v < TOP_VIEWS; v++)
        json_object_set_new(all, top_views[v].key,
                            v == TOP_ARRAYS && top->opened && !top->arrays_known
                                ? json_null()
                                : top_table_json(&top->tables[v]));
    return all;
}

void top_print(const struct top *top) {
    char span[OUTPUT_SHORT];
    if (!top->opened) {
        printf("broker: none runs\n");
        if (!top->tables[TOP_MEMORY].rows)
            return;
        printf("\nThese processes still map memory of a broker that has ended, several perhaps the "
               "same:\n");
        top_table_print(&top->tables[TOP_MEMORY]);
        return;
    }
    printf("broker: pid %d, %s", (int)top->monitor.lock.pid, monitor_state_text(top->state));
    if (top->still_seconds >= MONITOR_HANG_SECONDS && top->state != MONITOR_IDLE)
        printf(", its heartbeat has stood still for %s", output_span(top->still_seconds, span));
    printf("\n");
    for (unsigned v = 0; v < TOP_VIEWS; v++) {
        top_table_print(&top->tables[v]);
        if (v == TOP_ARRAYS && *top->arrays_error)
            printf("  not all: %s\n", top->arrays_error);
    }
}
