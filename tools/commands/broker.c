/*
 * cableway broker: becomes cablewayd, with the arguments as they are. It is looked for where
 * clients look for it: $CABLEWAY_BROKER, beside this program, ../bin, then PATH.
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

static bool is_program(const char *path) {
    return access(path, X_OK) == 0;
}

/* Beside this program, or in the bin beside its folder. */
static bool find_neighbour(char *path, size_t path_bytes) {
    static const char *const places[] = {"", "../bin/"};
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0)
        return false;
    self[length] = 0;
    char *slash = strrchr(self, '/');
    if (!slash)
        return false;
    slash[1] = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int count = snprintf(path, path_bytes, "%s%scablewayd", self, places[i]);
        if (count > 0 && (size_t)count < path_bytes && is_program(path))
            return true;
    }
    return false;
}

static bool find_in_path(char *path, size_t path_bytes) {
    const char *at = secure_getenv("PATH");
    while (at && *at) {
        int length = (int)strcspn(at, ":");
        int count = snprintf(path, path_bytes, "%.*s/cablewayd", length, at);
        if (length > 0 && count > 0 && (size_t)count < path_bytes && is_program(path))
            return true;
        at += length;
        at += *at == ':';
    }
    return false;
}

int cli_broker_path(char *path, size_t path_bytes) {
    const char *chosen = secure_getenv("CABLEWAY_BROKER");
    if (chosen && *chosen) {
        int count = snprintf(path, path_bytes, "%s", chosen);
        if (count > 0 && (size_t)count < path_bytes && is_program(path))
            return 0;
        return cw_fail(-ENOENT, "CABLEWAY_BROKER names %.300s, which is no program", chosen);
    }
    if (find_neighbour(path, path_bytes) || find_in_path(path, path_bytes))
        return 0;
    return cw_fail(-ENOENT, "there is no cablewayd, neither beside this program nor in PATH: set "
                            "CABLEWAY_BROKER to its path");
}

int cmd_broker(const struct cli *cli) {
    static char name[] = "cablewayd";
    char path[PATH_MAX];
    if (cli_broker_path(path, sizeof path))
        return cli_error(CLI_FAILED, "%s", cw_error());
    char **arguments = calloc((size_t)cli->count + 2, sizeof *arguments);
    CW_ASSERT(arguments);
    arguments[0] = name;
    memcpy(arguments + 1, cli->arguments, (size_t)cli->count * sizeof *arguments);
    signal(SIGPIPE, SIG_DFL); /* main ignores it; that would be inherited */
    execv(path, arguments);
    int error = errno;
    free(arguments);
    return cli_error(CLI_FAILED, "running %s failed: %s", path, strerror(error));
}
