/*
 * cableway wait: until a name is there, or means a later version than one that is known. No broker
 * is started for it, but one that is not there yet is waited for, too: a script may begin to wait
 * before the program that puts the name.
 */
#include <errno.h>
#include <time.h>

#include "shm/base/wait.h"
#include "tools/cli.h"
#include "tools/monitor.h"

#define LOOK_NS 50000000 /* between two looks for a broker */

static bool broker_runs(int *result) {
    struct monitor monitor;
    *result = monitor_open(&monitor);
    if (*result == 0)
        monitor_close(&monitor);
    return *result == 0;
}

/* What is left of a timeout; < 0 for ever. */
static int64_t left_ns(int64_t until_ns) {
    int64_t left = until_ns - cw_now_ns();
    return until_ns < 0 ? -1 : left > 0 ? left : 0;
}

/* Waits for a broker to run. Returns CLI_OK or the exit code after the error was printed. */
static int wait_for_broker(int64_t until_ns) {
    int result;
    for (bool said = false; !broker_runs(&result); said = true) {
        if (result != -ENOENT)
            return cli_result(result);
        if (left_ns(until_ns) == 0)
            return cli_error(CLI_TIMEOUT, "the timeout ran out: %s", cw_error());
        if (!said)
            cli_note("%s; waiting for one", cw_error());
        struct timespec pause = {.tv_nsec = LOOK_NS};
        nanosleep(&pause, NULL);
    }
    return CLI_OK;
}

int cmd_wait(const struct cli *cli) {
    cw_client *client;
    int64_t until_ns = cli->timeout_ns < 0 ? -1 : cw_now_ns() + cli->timeout_ns;
    int code = cli_result(cw_name_check(cli->arguments[0]));
    if (code == CLI_OK)
        code = wait_for_broker(until_ns);
    if (code == CLI_OK)
        code = cli_connect(cli, false, &client);
    if (code)
        return code;
    int result;
    do
        result = cli->options & CLI_AFTER
                     ? cw_wait_after(client, cli->arguments[0], cli->after, left_ns(until_ns))
                     : cw_wait(client, cli->arguments[0], left_ns(until_ns));
    while (result == -EINTR);
    cw_client_unref(client);
    return cli_result(result);
}
