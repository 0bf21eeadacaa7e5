/*
 * cableway load: the weights of a model as a tree under a name, read from files, or there already.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "shm/base/wait.h"
#include "tools/cli.h"
#include "tools/output.h"

static json_t *row(const char *name, const cw_tree_info *info, int loaded) {
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)info->content_hash);
    return json_pack("{s:o, s:I, s:i, s:I, s:s, s:b}", "name", output_json_text(name), "version",
                     (json_int_t)info->version, "tensors", (int)info->leaves, "bytes",
                     (json_int_t)info->total_bytes, "content_hash", hash, "loaded", loaded);
}

/* One tree: a line, or an element of rows. */
static void report(const char *name, const cw_tree *tree, int loaded, json_t *rows) {
    char size[OUTPUT_SHORT];
    cw_tree_info info;
    cw_tree_look_at(tree, &info);
    if (rows) {
        json_array_append_new(rows, row(name, &info, loaded));
        return;
    }
    char *safe = output_safe(name);
    printf("%s: %u tensors, %s, %s\n", safe, info.leaves, output_size(info.total_bytes, size),
           loaded ? "loaded" : "was there already");
    free(safe);
}

/* The trees' names: NAME, or NAME/cuda:N of several devices, which the library has checked. */
static void name_of(const struct cli *cli, uint32_t number, char *out, size_t out_bytes) {
    const char *device = cli->device_count > 1 ? cli->devices[number] : NULL;
    snprintf(out, out_bytes, device ? "%s/%s" : "%s", cli->arguments[0], device);
}

/* A name that is kept, by whomever, does not go. */
static void note_lifetime(const struct cli *cli, cw_client *client, const char *name) {
    cw_name_info info;
    if (cw_name_stat(client, name, &info) == 0 && !info.keep)
        cli_note_lifetime(cli, name);
}

static void report_all(const struct cli *cli, cw_client *client, cw_tree **trees, uint32_t count,
                       int loaded) {
    json_t *rows = cli->options & CLI_JSON ? json_array() : NULL;
    for (uint32_t i = 0; i < count; i++) {
        char name[CW_NAME_MAX + 1];
        name_of(cli, i, name, sizeof name);
        report(name, trees[i], loaded, rows);
        note_lifetime(cli, client, name);
    }
    if (rows && count == 1)
        output_json(json_incref(json_array_get(rows, 0)));
    else if (rows)
        output_json(json_incref(rows));
    json_decref(rows);
}

static int wait_for(const struct cli *cli, cw_load *load, cw_tree **tree, int *loaded) {
    int64_t end_ns = cw_end_ns(cw_now_ns(), cli->timeout_ns);
    int result;
    do {
        int64_t left_ns = end_ns == INT64_MAX ? -1 : end_ns - cw_now_ns();
        result = cw_load_wait(load, end_ns != INT64_MAX && left_ns < 0 ? 0 : left_ns, tree, loaded);
    } while (result == -EINTR);
    return result;
}

int cmd_load(const struct cli *cli) {
    cw_client *client;
    cw_checkpoint *checkpoint;
    cw_load *load = NULL;
    cw_tree *trees[CLI_DEVICES_MAX] = {NULL};
    uint32_t count = cli->device_count > 1 ? cli->device_count : 1;
    int loaded = 0;
    /* All that can be wrong with name and files is said before a broker is started for them. */
    int result = cw_name_check(cli->arguments[0]);
    if (result == 0)
        result = cw_checkpoint_open(cli->arguments[1], &checkpoint);
    if (result)
        return result == -ENOENT ? cli_error(CLI_FAILED, "%s", cw_error()) : cli_result(result);
    cw_checkpoint_close(checkpoint);
    int code = cli_connect(cli, true, &client);
    if (code)
        return code;
    uint32_t flags =
        (cli->options & CLI_KEEP ? CW_KEEP : 0u) | (cli->options & CLI_REPLACE ? CW_REPLACE : 0u);
    result = count > 1 ? cw_load_begin_all(client, cli->arguments[0], cli->arguments[1],
                                           cli->devices, count, flags, &load)
                       : cw_load_begin(client, cli->arguments[0], cli->arguments[1], cli->device,
                                       flags, &load);
    if (result == -ENOENT) { /* a file went meanwhile: no name is meant */
        code = cli_error(CLI_FAILED, "%s", cw_error());
    } else {
        if (result == 0)
            result = wait_for(cli, load, trees, &loaded);
        code = result == -ETIMEDOUT ? cli_error(CLI_TIMEOUT, "%s (timeout: %g s)", cw_error(),
                                                (double)cli->timeout_ns / 1e9)
                                    : cli_result(result);
    }
    if (code == CLI_OK)
        report_all(cli, client, trees, count, loaded);
    for (uint32_t i = 0; i < count; i++)
        cw_tree_close(trees[i]);
    cw_load_end(load);
    cw_client_unref(client);
    return code;
}
