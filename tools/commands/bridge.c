/*
 * cableway keygen, cableway peers: become cableway-bridge, which has OpenSSL and the list of peers,
 * with the subcommand and the arguments as they are. It is looked for in $CABLEWAY_BRIDGE, then
 * beside the cablewayd that this command would run.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "tools/cli.h"

int cli_bridge_path(char *path) {
    const char *chosen = secure_getenv("CABLEWAY_BRIDGE");
    if (chosen && *chosen) {
        snprintf(path, PATH_MAX, "%s", chosen);
    } else {
        int code = cli_broker_path(path, PATH_MAX - NAME_MAX);
        if (code)
            return code;
        char *slash = strrchr(path, '/');
        strcpy(slash ? slash + 1 : path, "cableway-bridge");
    }
    if (access(path, X_OK) == 0)
        return 0;
    return cw_fail(
        -ENOENT,
        "%s cannot be run: %m; it is built where the headers of liburing and OpenSSL are "
        "(liburing-dev, libssl-dev)",
        path);
}

static int become(const char *subcommand, const struct cli *cli) {
    static char name[] = "cableway-bridge";
    char path[PATH_MAX];
    if (cli_bridge_path(path) != 0)
        return cli_error(CLI_FAILED, "%s", cw_detail());
    char **arguments = calloc((size_t)cli->count + 3, sizeof *arguments);
    CW_ASSERT(arguments);
    arguments[0] = name;
    arguments[1] = (char *)(uintptr_t)subcommand;
    memcpy(arguments + 2, cli->arguments, (size_t)cli->count * sizeof *arguments);
    signal(SIGPIPE, SIG_DFL); /* main ignores it; that would be inherited */
    execv(path, arguments);
    int error = errno;
    free(arguments);
    return cli_error(CLI_FAILED, "running %s failed: %s", path, strerror(error));
}

int cmd_keygen(const struct cli *cli) {
    return become("keygen", cli);
}

int cmd_peers(const struct cli *cli) {
    return become("peers", cli);
}
