/*
 * cableway status: broker, clients, counters and limits, from the monitor page alone. Nothing is
 * asked, so nothing can hang: a broker that is stopped or stuck is shown as that, with since when.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/watch/clients.h"
#include "tools/monitor.h"
#include "tools/output.h"

/* ---- JSON ---- */

static json_t *json_words(cw_a64 *words, unsigned count, const char *name(unsigned)) {
    json_t *object = json_object();
    for (unsigned i = 0; i < count; i++)
        json_object_set_new(object, name(i), output_json_limit(monitor_word(&words[i])));
    return object;
}

static const char *limit_name(unsigned i) {
    return cw_limit_name((enum cw_limit)i);
}
static const char *counter_name(unsigned i) {
    return cw_counter_name((enum cw_counter)i);
}
static const char *gauge_name(unsigned i) {
    return cw_gauge_name((enum cw_gauge)i);
}

static json_t *json_clients(struct cw_root *root) {
    json_t *clients = json_array();
    struct client_row row;
    for (unsigned i = 0; i < CW_MONITOR_CLIENTS; i++) {
        if (!clients_copy(root, i, &row))
            continue;
        json_array_append_new(
            clients,
            json_pack("{s:I, s:I, s:o, s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:I}", "session",
                      (json_int_t)row.session, "pid", (json_int_t)row.pid, "command",
                      output_json_text(row.comm), "connected_ns", (json_int_t)row.connected_ns,
                      "connected_seconds", output_age_seconds(row.connected_ns), "slabs",
                      (json_int_t)row.slabs, "bytes", (json_int_t)row.bytes, "gpu_bytes",
                      (json_int_t)row.gpu_bytes, "transits", (json_int_t)row.transits, "waits",
                      (json_int_t)row.waits, "requests", (json_int_t)row.requests));
    }
    return clients;
}

static json_t *json_address(const struct cw_address *address) {
    return json_pack("{s:o, s:o, s:o}", "folder", output_json_text(address->folder), "socket",
                     output_json_text(address->socket_path), "log",
                     output_json_text(address->log_path));
}

static void print_json(const struct monitor *monitor, enum monitor_state state,
                       double still_seconds) {
    struct cw_root *root = monitor->root;
    char instance[32];
    snprintf(instance, sizeof instance, "%llu", (unsigned long long)monitor->lock.instance);
    json_t *broker = json_pack("{s:i, s:s, s:o, s:i, s:s, s:I, s:f}", "pid", (int)monitor->lock.pid,
                               "state", monitor_state_text(state), "heartbeat_age_seconds",
                               still_seconds < 0 ? json_null() : json_real(still_seconds),
                               "protocol", (int)root->protocol, "instance", instance, "started_ns",
                               (json_int_t)root->started_ns, "uptime_seconds",
                               output_age_seconds(root->started_ns));
    output_json(json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "broker", broker, "address",
                          json_address(&monitor->address), "gauges",
                          json_words(root->gauges, CW_GAUGE_COUNT, gauge_name), "limits",
                          json_words(root->limits, CW_LIMIT_COUNT, limit_name), "counters",
                          json_words(root->counters, CW_COUNTER_COUNT, counter_name), "clients",
                          json_clients(root)));
}

/* ---- text ---- */

static void print_state(const struct monitor *monitor, enum monitor_state state,
                        double still_seconds) {
    char span[OUTPUT_SHORT];
    output_span(still_seconds < 0 ? 0 : still_seconds, span);
    printf("broker    pid %d, ", (int)monitor->lock.pid);
    switch (state) {
    case MONITOR_IDLE:
        printf("idle\n");
        break;
    case MONITOR_RUNNING:
        printf("running\n");
        break;
    case MONITOR_HANGS:
        printf("HANGS: its heartbeat has stood still for %s\n", span);
        break;
    case MONITOR_STOPPED:
        printf("STOPPED by a signal (kill -CONT %d lets it go on)", (int)monitor->lock.pid);
        printf(still_seconds < 0 ? "\n" : "; its heartbeat has stood still for %s\n", span);
        break;
    case MONITOR_GONE:
        printf("GONE: it died; what it said last follows\n");
        break;
    }
}

static bool is_bytes(const char *name) {
    return strstr(name, "bytes") != NULL;
}

static void add_figure(struct output_table *table, const char *name, uint64_t value) {
    char size[OUTPUT_SHORT];
    if (value == INT64_MAX) /* max_gpu_bytes, unless somebody sets it */
        output_table_add(table, "none");
    else if (is_bytes(name))
        output_table_add(table, output_size(value, size));
    else
        output_table_addf(table, "%llu", (unsigned long long)value);
}

static void print_words(const char *title, cw_a64 *words, unsigned count,
                        const char *name(unsigned), const char *what(unsigned)) {
    static const char *const titles[] = {"", ">", "", NULL};
    struct output_table table;
    output_table_init(&table, titles);
    for (unsigned i = 0; i < count; i++) {
        output_table_add(&table, name(i));
        add_figure(&table, name(i), monitor_word(&words[i]));
        output_table_add(&table, what(i));
    }
    printf("\n%s\n", title);
    output_table_print(&table, "  ");
    output_table_deinit(&table);
}

static const char *limit_what(unsigned i) {
    return cw_limit_what((enum cw_limit)i);
}
static const char *counter_what(unsigned i) {
    return cw_counter_what((enum cw_counter)i);
}
static const char *gauge_what(unsigned i) {
    return cw_gauge_what((enum cw_gauge)i);
}

static void print_clients(struct cw_root *root) {
    static const char *const titles[] = {">SESSION", ">PID",      "COMMAND",    ">CONNECTED",
                                         ">SLABS",   ">BYTES",    ">GPU BYTES", ">TRANSITS",
                                         ">WAITS",   ">REQUESTS", NULL};
    struct output_table table;
    struct client_row row;
    char text[OUTPUT_SHORT];
    output_table_init(&table, titles);
    for (unsigned i = 0; i < CW_MONITOR_CLIENTS; i++) {
        if (!clients_copy(root, i, &row))
            continue;
        output_table_addf(&table, "%u", row.session);
        output_table_addf(&table, "%u", row.pid);
        output_table_add(&table, row.comm);
        output_table_add(&table, output_span(output_age_seconds(row.connected_ns), text));
        output_table_addf(&table, "%llu", (unsigned long long)row.slabs);
        output_table_add(&table, output_size(row.bytes, text));
        output_table_add(&table, output_size(row.gpu_bytes, text));
        output_table_addf(&table, "%llu", (unsigned long long)row.transits);
        output_table_addf(&table, "%llu", (unsigned long long)row.waits);
        output_table_addf(&table, "%llu", (unsigned long long)row.requests);
    }
    printf("\nclients\n");
    if (table.cell_count)
        output_table_print(&table, "  ");
    else
        printf("  none\n");
    output_table_deinit(&table);
}

static void print_text(const struct monitor *monitor, enum monitor_state state,
                       double still_seconds) {
    struct cw_root *root = monitor->root;
    char moment[OUTPUT_SHORT], span[OUTPUT_SHORT];
    char *folder = output_safe(monitor->address.socket_path),
         *log = output_safe(monitor->address.log_path);
    print_state(monitor, state, still_seconds);
    printf("started   %s (%s ago)\n", output_time(root->started_ns, moment),
           output_span(output_age_seconds(root->started_ns), span));
    printf("protocol  %u\nsocket    %s\nlog       %s\n", root->protocol, folder, log);
    free(folder);
    free(log);
    print_words("now", root->gauges, CW_GAUGE_COUNT, gauge_name, gauge_what);
    print_clients(root);
    print_words("counters", root->counters, CW_COUNTER_COUNT, counter_name, counter_what);
    print_words("limits", root->limits, CW_LIMIT_COUNT, limit_name, limit_what);
}

int cmd_status(const struct cli *cli) {
    struct monitor monitor;
    int result = monitor_open(&monitor);
    if (result == -ENOENT) {
        if (cli->options & CLI_JSON)
            output_json(
                json_pack("{s:n, s:o}", "broker", "address", json_address(&monitor.address)));
        return cli_error(CLI_NO_BROKER, "%s", cw_error());
    }
    if (result)
        return cli_result(result);
    double still_seconds;
    enum monitor_state state = monitor_look(&monitor, &still_seconds);
    if (cli->options & CLI_JSON)
        print_json(&monitor, state, still_seconds);
    else
        print_text(&monitor, state, still_seconds);
    monitor_close(&monitor);
    return CLI_OK;
}
