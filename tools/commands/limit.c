/*
 * cableway limit: the broker's limits, and how much of each is in use; sets one while it runs.
 *
 * `show` reads the monitor page alone, so it works when the broker is stopped or full. `set` is a
 * client; the broker lets it in also where max_clients is reached (cli_connect_beyond()).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "shm/base/wait.h"
#include "tools/cli.h"
#include "tools/monitor.h"
#include "tools/output.h"
#include "tools/watch/clients.h"

struct usage {
    bool known;
    uint64_t value;
    uint32_t pid; /* of the client that has most; 0: of all together */
};

static uint64_t of_client(enum cw_limit limit, const struct client_row *row) {
    switch (limit) {
    case CW_LIMIT_max_client_slabs:
        return row->slabs;
    case CW_LIMIT_max_client_transits:
        return row->transits;
    case CW_LIMIT_max_client_bytes:
    case CW_LIMIT_max_pid_bytes:
        return row->bytes;
    case CW_LIMIT_max_pid_clients:
        return 1;
    default:
        return row->waits;
    }
}

static struct usage of_clients(struct cw_root *root, enum cw_limit limit) {
    struct usage usage = {.known = true};
    struct client_row row;
    for (unsigned i = 0; i < CW_MONITOR_CLIENTS; i++) {
        if (!clients_copy(root, i, &row) || of_client(limit, &row) <= usage.value)
            continue;
        usage.value = of_client(limit, &row);
        usage.pid = row.pid;
    }
    return usage;
}

/* Of all clients of the process that has most. */
static struct usage of_processes(struct cw_root *root, enum cw_limit limit) {
    struct client_row *rows = calloc(CW_MONITOR_CLIENTS, sizeof *rows);
    struct usage usage = {.known = true};
    size_t count = 0;
    CW_ASSERT(rows);
    for (unsigned i = 0; i < CW_MONITOR_CLIENTS; i++)
        count += clients_copy(root, i, &rows[count]);
    for (size_t i = 0; i < count; i++) {
        uint64_t sum = 0;
        for (size_t j = 0; j < count; j++)
            sum += rows[j].pid == rows[i].pid ? of_client(limit, &rows[j]) : 0;
        if (sum > usage.value)
            usage = (struct usage){.known = true, .value = sum, .pid = rows[i].pid};
    }
    free(rows);
    return usage;
}

static struct usage usage_of(struct cw_root *root, enum cw_limit limit) {
    static const struct {
        enum cw_limit limit;
        enum cw_gauge gauge;
    } gauges[] = {
        {CW_LIMIT_max_clients, CW_GAUGE_clients},
        {CW_LIMIT_max_names, CW_GAUGE_names},
        {CW_LIMIT_max_slabs, CW_GAUGE_slabs},
        {CW_LIMIT_max_fds, CW_GAUGE_fds},
        {CW_LIMIT_max_bytes, CW_GAUGE_bytes},
        {CW_LIMIT_max_user_bytes, CW_GAUGE_bytes}, /* a broker has one user */
        {CW_LIMIT_max_gpu_bytes, CW_GAUGE_gpu_bytes},
    };
    for (size_t i = 0; i < sizeof gauges / sizeof *gauges; i++) {
        if (gauges[i].limit == limit)
            return (struct usage){.known = true,
                                  .value = monitor_word(&root->gauges[gauges[i].gauge])};
    }
    if (limit == CW_LIMIT_max_client_slabs || limit == CW_LIMIT_max_client_transits ||
        limit == CW_LIMIT_max_client_waits || limit == CW_LIMIT_max_client_bytes)
        return of_clients(root, limit);
    if (limit == CW_LIMIT_max_pid_bytes || limit == CW_LIMIT_max_pid_clients)
        return of_processes(root, limit);
    return (struct usage){.known = false};
}

/* ---- show ---- */

/* text: OUTPUT_SHORT bytes. Returns text. */
static char *in_unit(enum cw_limit limit, uint64_t value, char *text) {
    if (value == INT64_MAX)
        snprintf(text, OUTPUT_SHORT, "none");
    else if (cw_limit_in_bytes(limit))
        output_size(value, text);
    else if (strstr(cw_limit_name(limit), "_seconds"))
        snprintf(text, OUTPUT_SHORT, "%llu s", (unsigned long long)value);
    else
        snprintf(text, OUTPUT_SHORT, "%llu", (unsigned long long)value);
    return text;
}

static const char *default_of(enum cw_limit limit, char *text) {
    unsigned leader = cw_limit_leader(limit);
    if (leader != CW_LIMIT_COUNT) {
        snprintf(text, OUTPUT_SHORT, "as %s", cw_limit_name(leader));
        return text;
    }
    switch (limit) {
    case CW_LIMIT_max_bytes:
        return "half of the memory";
    case CW_LIMIT_max_gpu_bytes:
        return "none";
    default:
        return in_unit(limit, cw_limit_default(limit), text);
    }
}

static void add_row(struct output_table *table, struct cw_root *root, enum cw_limit limit) {
    char text[OUTPUT_SHORT];
    struct usage usage = usage_of(root, limit);
    output_table_add(table, cw_limit_name(limit));
    output_table_add(table, in_unit(limit, monitor_word(&root->limits[limit]), text));
    output_table_add(table, default_of(limit, text));
    output_table_add(table, usage.known ? in_unit(limit, usage.value, text) : "-");
    if (usage.pid)
        output_table_addf(table, "pid %u", usage.pid);
    else
        output_table_add(table, "");
    output_table_add(table, cw_limit_what(limit));
}

static json_t *json_row(struct cw_root *root, enum cw_limit limit) {
    uint64_t by_default = cw_limit_default(limit);
    struct usage usage = usage_of(root, limit);
    bool computed =
        cw_limit_leader(limit) != CW_LIMIT_COUNT || (by_default == 0 && cw_limit_in_bytes(limit));
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:s}", "name", cw_limit_name(limit), "value",
                     output_json_limit(monitor_word(&root->limits[limit])), "default",
                     computed ? json_null() : json_integer((json_int_t)by_default), "used",
                     usage.known ? json_integer((json_int_t)usage.value) : json_null(),
                     "used_by_pid", usage.pid ? json_integer((json_int_t)usage.pid) : json_null(),
                     "what", cw_limit_what(limit));
}

/* The limit of that name; CW_LIMIT_COUNT: there is none, and the error was printed. */
static unsigned find(const char *name) {
    unsigned limit = cw_limit_find(name, strlen(name));
    if (limit == CW_LIMIT_COUNT)
        cli_error(CLI_USAGE, "there is no limit \"%s\"; cableway limit show lists them", name);
    return limit;
}

static int show(const struct cli *cli) {
    static const char *const titles[] = {"LIMIT",   ">VALUE", ">DEFAULT", ">IN USE",
                                         "MOST BY", "",       NULL};
    const char *name = cli->count > 1 ? cli->arguments[1] : NULL;
    unsigned only = name ? find(name) : 0;
    struct output_table table;
    struct monitor monitor;
    json_t *told = json_array();
    if (only == CW_LIMIT_COUNT)
        return json_decref(told), CLI_USAGE;
    int result = monitor_open(&monitor);
    if (result) {
        json_decref(told);
        return result == -ENOENT ? cli_error(CLI_NO_BROKER, "%s", cw_error()) : cli_result(result);
    }
    output_table_init(&table, titles);
    for (unsigned i = 0; i < CW_LIMIT_COUNT; i++) {
        if (name && i != only)
            continue;
        json_array_append_new(told, json_row(monitor.root, i));
        add_row(&table, monitor.root, i);
    }
    if (cli->options & CLI_JSON)
        output_json(json_incref(told));
    else
        output_table_print(&table, "");
    json_decref(told);
    output_table_deinit(&table);
    monitor_close(&monitor);
    return CLI_OK;
}

/* ---- set ---- */

static int set(const struct cli *cli) {
    const char *name = cli->arguments[1];
    char text[2][OUTPUT_SHORT];
    uint64_t value = 0, before, now;
    cw_client *client;
    unsigned limit = find(name);
    if (limit == CW_LIMIT_COUNT)
        return CLI_USAGE;
    if (cw_limit_parse(limit, cli->arguments[2], "limit set", &value))
        return cli_error(CLI_USAGE, "%s", cw_detail());
    int code = cli_check_broker(false);
    if (code == CLI_OK)
        code = cli_result(cli_connect_beyond(CLI_AS_LIMIT, "", &client));
    if (code)
        return code;
    int result = cw_limit_set(client, name, value, &before, &now);
    cw_client_unref(client);
    if (result == -EINVAL)
        return cli_error(CLI_USAGE, "%s", cw_error());
    if (result)
        return cli_result(result);
    in_unit(limit, now, text[0]);
    in_unit(limit, before, text[1]);
    cli_changed("%s is %s now, and was %s", name, text[0], text[1]);
    if (cli->options & CLI_JSON)
        output_json(json_pack("{s:s, s:o, s:o}", "name", name, "before", output_json_limit(before),
                              "value", output_json_limit(now)));
    else
        printf("%s is %s now, and was %s\n", name, text[0], text[1]);
    return CLI_OK;
}

int cmd_limit(const struct cli *cli) {
    const char *verb = cli->arguments[0];
    if (!strcmp(verb, "show") && cli->count <= 2)
        return show(cli);
    if (!strcmp(verb, "set") && cli->count == 3)
        return set(cli);
    return cli_error(CLI_USAGE, "limit: usage: cableway limit show [NAME], cableway limit set NAME "
                                "VALUE");
}
