/*
 * cableway ls: names and what lies under them, here or (//NODE/) on another node, which tells less
 * of them. One namespace, or all of them: which there are is read from the directory itself
 * (monitor.c), each is then asked for as its own clients would. Where the broker does not answer,
 * the directory tells all but the holders.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "tools/cli.h"
#include "tools/monitor.h"
#include "tools/names.h"
#include "tools/output.h"
#include "tools/watch/names.h"

#define DTYPE_COLUMNS 40

struct listing {
    const struct cli *cli;
    json_t *json; /* NULL: a table */
    bool unheard; /* the broker does not answer: holders are not known */
    struct output_table table;
};

/* As the table has it; to be freed. Of a tree the library tells how many leaves it has. */
static char *shape_of(const cw_name_info *info) {
    char *text = NULL;
    if (!*info->dtype) /* who put it described it by what is no description */
        text = strdup("?");
    else if (strcmp(info->dtype, "tree") != 0)
        text = output_shape(info->ndim, info->shape);
    else if (asprintf(&text, "%lld %s", (long long)info->shape[0],
                      info->shape[0] == 1 ? "leaf" : "leaves") < 0)
        text = NULL;
    CW_ASSERT(text);
    return text;
}

/* name: as it is said here, with the node that it is of. */
static void add_row(struct listing *listing, const char *name, const cw_name_info *info,
                    const char *name_space) {
    char size[OUTPUT_SHORT], age[OUTPUT_SHORT];
    if (listing->json) {
        json_array_append_new(listing->json, names_json(name, info, name_space, !listing->unheard));
        return;
    }
    struct output_table *table = &listing->table;
    bool known = *info->dtype;
    char *shape = shape_of(info);
    if (listing->cli->options & CLI_ALL)
        output_table_add(table, *name_space ? name_space : "-");
    bool here = *info->device; /* another node does not tell where it lies and who holds it */
    output_table_add(table, name);
    /* Numbers of GPUs differ between processes; nvidia-smi -L tells which one this is. */
    output_table_addf(table, "%.12s",
                      *info->device_uuid ? info->device_uuid
                      : here             ? info->device
                                         : "-");
    output_table_add(table, shape);
    bool is_long = strlen(info->dtype) > DTYPE_COLUMNS;
    output_table_addf(table, "%.*s%s", is_long ? DTYPE_COLUMNS - 3 : DTYPE_COLUMNS,
                      known ? info->dtype : "?", is_long ? "..." : "");
    output_table_add(table, output_size(info->nbytes, size));
    if (here) {
        output_table_addf(table, "%u", info->owner_pid);
        if (listing->unheard)
            output_table_add(table, "?");
        else
            output_table_addf(table, "%u", info->holders);
    } else {
        output_table_add(table, "-");
        output_table_add(table, "-");
    }
    output_table_add(table, output_span(output_age_seconds(info->created_ns), age));
    free(shape);
}

struct names {
    struct listing *listing;
    const char *node, *name_space; /* "//NODE/" or "" */
};

static int add_name(void *context, const cw_name_info *info) {
    const struct names *names = context;
    char *name;
    CW_ASSERT(asprintf(&name, "%s%s", names->node, info->name) >= 0);
    add_row(names->listing, name, info, names->name_space);
    free(name);
    return 0;
}

/* Adds the names of the client's namespace, sorted. Names that go meanwhile are left out. */
static int add_names(struct listing *listing, cw_client *client) {
    const char *prefix = listing->cli->count ? listing->cli->arguments[0] : "";
    char *node = names_node(prefix);
    struct names names = {listing, node, cw_client_namespace(client)};
    int result = cw_names_stat(client, prefix, add_name, &names);
    free(node);
    return result;
}

static void add_old(struct listing *listing, const cw_version_info *info) {
    char size[OUTPUT_SHORT], age[OUTPUT_SHORT], pids[64 * 11 + 8] = "";
    size_t used = 0;
    if (listing->json) {
        json_t *holders = json_array();
        for (uint32_t i = 0; i < info->listed; i++)
            json_array_append_new(holders, json_integer(info->pids[i]));
        json_array_append_new(
            listing->json,
            json_pack("{s:o, s:I, s:I, s:i, s:o, s:f}", "name", output_json_text(info->name),
                      "version", (json_int_t)info->version, "bytes", (json_int_t)info->total_bytes,
                      "holders", (int)info->holders, "pids", holders, "age_seconds",
                      output_age_seconds(info->created_ns)));
        return;
    }
    for (uint32_t i = 0; i < info->listed; i++)
        used +=
            (size_t)snprintf(pids + used, sizeof pids - used, "%s%u", i ? "," : "", info->pids[i]);
    if (info->holders > info->listed)
        snprintf(pids + used, sizeof pids - used, ",...");
    output_table_add(&listing->table, info->name);
    output_table_addf(&listing->table, "%llu", (unsigned long long)info->version);
    output_table_add(&listing->table, output_size(info->total_bytes, size));
    output_table_add(&listing->table, pids);
    output_table_add(&listing->table, output_span(output_age_seconds(info->created_ns), age));
}

/* The earlier versions of trees that processes still have open. */
static int list_old(struct listing *listing, const char *name_space) {
    const char *prefix = listing->cli->count ? listing->cli->arguments[0] : "";
    cw_version_info info = {.version = 0};
    cw_client *client;
    int code = cli_connect_admin(name_space, &client);
    if (code)
        return code;
    int result = 0;
    while (result == 0) {
        result = cw_version_next(client, prefix, 1, info.version, &info);
        if (result == 0 && !info.latest && info.holders)
            add_old(listing, &info);
    }
    code = result == -ENOENT ? CLI_OK : cli_result(result);
    cw_client_unref(client);
    return code;
}

static int list_one(struct listing *listing, const char *name_space) {
    cw_client *client;
    int code = cli_connect_admin(name_space, &client);
    if (code)
        return code;
    code = cli_result(add_names(listing, client));
    cw_client_unref(client);
    return code;
}

static int list_all(struct listing *listing) {
    struct monitor monitor;
    char **spaces;
    size_t count;
    int result = monitor_open(&monitor);
    if (result)
        return result == -ENOENT ? cli_error(CLI_NO_BROKER, "%s", cw_error()) : cli_result(result);
    result = monitor_namespaces(&monitor, &spaces, &count);
    monitor_close(&monitor);
    int code = cli_result(result);
    if (code)
        return code;
    for (size_t i = 0; i < count; i++) {
        if (code == CLI_OK)
            code = list_one(listing, spaces[i]);
        free(spaces[i]);
    }
    free(spaces);
    return code;
}

static int add_unheard(void *context, const char *name_space, const cw_name_info *info) {
    add_row(context, info->name, info, name_space);
    return 0;
}

/* What the directory tells without the broker, if one is there and does not answer. */
static bool list_unheard(struct listing *listing) {
    const struct cli *cli = listing->cli;
    const char *prefix = cli->count ? cli->arguments[0] : "", *name_space = NULL;
    struct monitor monitor;
    if (strncmp(prefix, "//", 2) == 0 || monitor_open(&monitor))
        return false;
    if (!(cli->options & CLI_ALL))
        name_space = cli->name_space ? cli->name_space : secure_getenv("CABLEWAY_NAMESPACE");
    if (!(cli->options & CLI_ALL) && !name_space)
        name_space = "";
    listing->unheard = true;
    int result = names_walk(&monitor, name_space, prefix, add_unheard, listing);
    monitor_close(&monitor);
    if (result == 0)
        cli_note(
            "cableway: the list is as the directory has it; how many hold each only the broker "
            "could tell");
    return result == 0;
}

int cmd_ls(const struct cli *cli) {
    static const char *const titles[] = {"NAMESPACE", "NAME",   "DEVICE",   "SHAPE", "DTYPE",
                                         ">BYTES",    ">OWNER", ">HOLDERS", ">AGE",  NULL};
    static const char *const old_titles[] = {"NAME", ">VERSION", ">BYTES", "HELD BY", ">AGE", NULL};
    struct listing listing = {.cli = cli};
    bool old = cli->options & CLI_OLD;
    if (old && cli->options & CLI_ALL)
        return cli_error(CLI_USAGE, "ls: --old lists one namespace; leave --all out");
    if (old && cli->count && strncmp(cli->arguments[0], "//", 2) == 0)
        return cli_error(CLI_USAGE, "ls: --old lists versions of this node; leave //NODE/ out");
    if ((cli->options & CLI_ALL) && (cli->options & CLI_NAMESPACE))
        return cli_error(CLI_USAGE, "ls: --all and --namespace exclude each other");
    if ((cli->options & CLI_ALL) && cli->count && strncmp(cli->arguments[0], "//", 2) == 0)
        return cli_error(CLI_USAGE,
                         "ls: --all lists the namespaces of this node; of another node name one "
                         "with --namespace");
    if (cli->options & CLI_JSON)
        listing.json = json_array();
    output_table_init(&listing.table, old                      ? old_titles
                                      : cli->options & CLI_ALL ? titles
                                                               : titles + 1);
    int code = old                      ? list_old(&listing, cli->name_space)
               : cli->options & CLI_ALL ? list_all(&listing)
                                        : list_one(&listing, cli->name_space);
    bool listed = code == CLI_OK || (code == CLI_FAILED && !old && list_unheard(&listing));
    if (listed && listing.json)
        output_json(json_incref(listing.json));
    else if (listed && listing.table.cell_count)
        output_table_print(&listing.table, "");
    json_decref(listing.json);
    output_table_deinit(&listing.table);
    return code;
}
