/*
 * cableway cp: the array under one name under another, either of which may be a name of another
 * node. What stays on this node is copied; what goes to another is sent as it is. A tree gets
 * another name for the same memory, since nothing of it ever changes; another node gets a copy.
 */
#include "tools/cli.h"

/* A copy on this node; device NULL: where the source lies. */
static int copy(cw_client *client, cw_array *source, const char *device, cw_array **out) {
    cw_layout layout;
    cw_array_layout(source, &layout);
    int result = cw_array_new(client, device ? device : cw_array_device(source), &layout, 0, out);
    if (result == 0) {
        result = cw_array_copy(*out, 0, source, 0, cw_array_nbytes(source), NULL);
        if (result)
            cw_array_close(*out);
    }
    return result;
}

static uint32_t flags_of(const struct cli *cli) {
    return (cli->options & CLI_KEEP ? CW_KEEP : 0u) |
           (cli->options & CLI_NO_REPLACE ? 0u : CW_REPLACE);
}

static int copy_array(const struct cli *cli, cw_client *client, cw_array *source, bool here) {
    const char *to = cli->arguments[1], *there = here ? NULL : cli->device;
    cw_array *copied = NULL;
    int result = here ? copy(client, source, cli->device, &copied) : 0;
    if (result == 0 && there)
        result = cw_array_put_at(source, to, there, flags_of(cli), NULL, 0);
    else if (result == 0)
        result = cw_array_put(copied ? copied : source, to, flags_of(cli), NULL, 0);
    cw_array_close(copied);
    return cli_result(result);
}

static int name_tree(const struct cli *cli, cw_client *client, const cw_tree *tree, bool here) {
    const char *from = cli->arguments[0], *to = cli->arguments[1];
    uint64_t version;
    if (!here && cli->device)
        return cli_result(cw_tree_name_at(tree, client, to, cli->device, flags_of(cli),
                                          CW_ANY_VERSION, &version));
    if (cli->device)
        return cli_error(CLI_FAILED,
                         "\"%s\" is a tree, which gets another name where it lies: leave out "
                         "--device, or copy it from Python by cableway.put(name, "
                         "cableway.get(tree), device=...)",
                         from);
    return cli_result(cw_tree_name(tree, client, to, flags_of(cli), CW_ANY_VERSION, &version));
}

int cmd_cp(const struct cli *cli) {
    cw_client *client;
    cw_array *source = NULL;
    cw_tree *tree = NULL;
    int code = cli_connect(cli, false, &client);
    if (code)
        return code;
    int here = cw_name_is_here(client, cli->arguments[1]);
    code = cli_result(here < 0 ? here : cli_open(client, cli->arguments[0], &source, &tree));
    if (code == CLI_OK)
        code = tree ? name_tree(cli, client, tree, here) : copy_array(cli, client, source, here);
    cw_tree_close(tree);
    cw_array_close(source);
    cw_client_unref(client);
    return code;
}
