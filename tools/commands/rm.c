/*
 * cableway rm: removes names. All are tried; the first failure decides the exit code.
 */
#include "tools/cli.h"

int cmd_rm(const struct cli *cli) {
    cw_client *client;
    int code = cli_connect_admin(cli->name_space, &client);
    if (code)
        return code;
    for (int i = 0; i < cli->count; i++) {
        int one = cli_result(cw_remove(client, cli->arguments[i]));
        if (code == CLI_OK)
            code = one;
        if (one == CLI_NO_BROKER)
            break;
    }
    cw_client_unref(client);
    return code;
}
