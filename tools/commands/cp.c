/*
 * cableway cp: the array under one name under another, either of which may be a name of another
 * node. What stays on this node is copied; what goes to another is sent as it is.
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

int cmd_cp(const struct cli *cli) {
    cw_client *client;
    cw_array *source, *copied = NULL;
    const char *from = cli->arguments[0], *to = cli->arguments[1];
    uint32_t flags = (cli->options & CLI_KEEP ? CW_KEEP : 0u) |
                     (cli->options & CLI_NO_REPLACE ? 0u : CW_REPLACE);
    int code = cli_connect(cli, false, &client);
    if (code)
        return code;
    int here = cw_name_is_here(client, to);
    int result = here < 0 ? here : cw_get(client, from, CW_READONLY, &source);
    if (result == 0) {
        const char *there = here ? NULL : cli->device;
        if (here)
            result = copy(client, source, cli->device, &copied);
        if (result == 0 && there)
            result = cw_array_put_at(source, to, there, flags, NULL, 0);
        else if (result == 0)
            result = cw_array_put(copied ? copied : source, to, flags, NULL, 0);
        cw_array_close(copied);
        cw_array_close(source);
    }
    code = cli_result(result);
    cw_client_unref(client);
    return code;
}
