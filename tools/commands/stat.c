/*
 * cableway stat: all that is known about one name, here or on another node, which tells less.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "tools/cli.h"
#include "tools/names.h"
#include "tools/output.h"
#include "tools/tree.h"

#define STAT_TRIES 1000u /* versions that come faster than they can be looked at */

static void print_line(const char *title, const char *text) {
    char *safe = output_safe(text);
    printf("%-12s %s\n", title, safe);
    free(safe);
}

/* Of a tree, in place of a device and a shape. */
static void print_tree(const cw_tree *tree) {
    char text[OUTPUT_SHORT];
    cw_tree_info info;
    size_t at;
    json_t *devices = tree_devices(tree), *meta = tree_meta(tree), *device;
    char *about = meta ? json_dumps(meta, JSON_ENCODE_ANY) : NULL;
    cw_tree_look_at(tree, &info);
    snprintf(text, sizeof text, "%llu", (unsigned long long)info.version);
    print_line("version", text);
    snprintf(text, sizeof text, "%u, in %u piece%s of memory", info.leaves, info.parts,
             info.parts == 1 ? "" : "s");
    print_line("leaves", text);
    json_array_foreach(devices, at, device) {
        print_line(at ? "" : "devices", json_string_value(device));
    }
    print_line("meta", about ? about : "(no JSON)");
    free(about);
    json_decref(meta);
    json_decref(devices);
}

/* tree: NULL if it is none. */
static void print_info(const char *name, const cw_name_info *info, const cw_tree *tree,
                       const char *name_space) {
    char text[256], size[OUTPUT_SHORT], age[OUTPUT_SHORT], moment[OUTPUT_SHORT];
    char *shape = output_shape(info->ndim, info->shape);
    bool here = *info->device; /* another node does not tell where it lies and who holds it */
    print_line("name", name);
    print_line("namespace", *name_space ? name_space : "-");
    if (here && !tree)
        print_line("device", *info->device_uuid ? info->device_uuid : info->device);
    if (!tree)
        print_line("shape", shape);
    print_line("dtype", info->dtype);
    if (tree)
        print_tree(tree);
    output_size(info->nbytes, size);
    if (info->nbytes < 1024)
        snprintf(text, sizeof text, "%s", size);
    else
        snprintf(text, sizeof text, "%llu (%s)", (unsigned long long)info->nbytes, size);
    print_line("bytes", text);
    if (here) {
        snprintf(text, sizeof text, "pid %u", info->owner_pid);
        print_line("owner", text);
        snprintf(text, sizeof text, "%u client%s; references of the broker: %u", info->holders,
                 info->holders == 1 ? "" : "s", info->references);
        print_line("holders", text);
    }
    snprintf(text, sizeof text, "%s (%s ago)", output_time(info->created_ns, moment),
             output_span(output_age_seconds(info->created_ns), age));
    print_line("created", text);
    print_line("keep", info->keep   ? "yes: until it is removed"
                       : info->tied ? "no: goes with the process that put it"
                                    : "no: goes with the user's last client");
    snprintf(text, sizeof text, "%u", info->slab);
    if (here)
        print_line("slab", text);
    free(shape);
}

/* What is known about the name, and, if it is a tree, that version of it; of another node's its
 * index alone. */
static int look(cw_client *client, const char *name, cw_name_info *info, cw_tree **tree) {
    int result = -ENOENT;
    *tree = NULL;
    for (unsigned tries = 0; tries < STAT_TRIES; tries++) {
        result = cw_name_stat(client, name, info);
        if (result || strcmp(info->dtype, "tree") != 0)
            return result;
        result = info->version ? cw_tree_get(client, name, info->version, tree)
                               : cw_tree_describe_name(client, name, -1, tree);
        if (result != -ENOENT && result != -ENOTDIR)
            return result; /* else it was replaced between the two */
    }
    return result;
}

static void print_leaves(json_t *leaves) {
    static const char *const titles[] = {"PATH", "DTYPE", "SHAPE", ">BYTES", "TIED TO", NULL};
    struct output_table table;
    json_t *leaf;
    size_t at;
    output_table_init(&table, titles);
    json_array_foreach(leaves, at, leaf) {
        int64_t extents[CW_NDIM_MAX];
        char size[OUTPUT_SHORT];
        const json_t *shape = json_object_get(leaf, "shape");
        const char *tied = json_string_value(json_object_get(leaf, "tied_to"));
        uint32_t ndim = (uint32_t)json_array_size(shape);
        for (uint32_t i = 0; i < ndim; i++)
            extents[i] = json_integer_value(json_array_get(shape, i));
        char *text = output_shape(ndim, extents);
        output_table_add(&table, json_string_value(json_object_get(leaf, "path")));
        output_table_add(&table, json_string_value(json_object_get(leaf, "dtype")));
        output_table_add(&table, text);
        output_table_add(
            &table,
            output_size((uint64_t)json_integer_value(json_object_get(leaf, "bytes")), size));
        output_table_add(&table, tied ? tied : "");
        free(text);
    }
    if (table.cell_count)
        output_table_print(&table, "");
    output_table_deinit(&table);
}

static int show(const struct cli *cli, cw_client *client, const cw_name_info *info,
                const cw_tree *tree) {
    const char *name = cli->arguments[0], *name_space = cw_client_namespace(client);
    bool listed = cli->options & CLI_LEAVES;
    json_t *leaves = NULL;
    if (listed && !tree)
        return cli_error(CLI_FAILED, "\"%s\" is an array: --leaves lists those of a tree", name);
    int code = listed ? cli_result(tree_leaves(tree, &leaves)) : CLI_OK;
    if (code)
        return code;
    if (cli->options & CLI_JSON) {
        json_t *told = names_json(name, info, name_space, true);
        if (tree)
            tree_add_json(tree, told);
        if (leaves)
            json_object_set(told, "paths", leaves);
        output_json(told);
    } else if (leaves) {
        print_leaves(leaves);
    } else {
        print_info(name, info, tree, name_space);
    }
    json_decref(leaves);
    return CLI_OK;
}

int cmd_stat(const struct cli *cli) {
    cw_client *client;
    cw_tree *tree;
    int code = cli_connect(cli, false, &client);
    if (code)
        return code;
    cw_name_info *info = malloc(sizeof *info);
    CW_ASSERT(info);
    code = cli_result(look(client, cli->arguments[0], info, &tree));
    if (code == CLI_OK)
        code = show(cli, client, info, tree);
    cw_tree_close(tree);
    free(info);
    cw_client_unref(client);
    return code;
}
