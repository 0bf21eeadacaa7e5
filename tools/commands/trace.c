/*
 * cableway trace: the last events of all processes that use the broker, as JSON for Perfetto. Read
 * from the memory of the processes themselves, through /proc: works while the broker is stopped,
 * and when it is dead.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/wait.h"
#include "tools/cli.h"
#include "tools/trace/find.h"
#include "tools/trace/write.h"

static int write_to(struct traces *traces, const char *path) {
    FILE *file = path ? fopen(path, "we") : stdout;
    if (!file)
        return cli_error(CLI_FAILED, "%s cannot be written: %s", path, strerror(errno));
    bool written = traces_write(traces, file);
    int error = errno;
    if (path && fclose(file) && written) {
        written = false;
        error = errno;
    }
    if (!written && (path || error != EPIPE)) /* a reader that went away had enough */
        return cli_error(CLI_FAILED, "%s cannot be written: %s", path ? path : "standard output",
                         strerror(error));
    return CLI_OK;
}

int cmd_trace(const struct cli *cli) {
    struct traces traces;
    int64_t since_ns = 0;
    if (cli->options & CLI_SECONDS)
        since_ns = cw_now_ns() - cli->seconds_ns;
    int code = traces_find(since_ns, &traces);
    if (code)
        return cli_result(code);
    if (traces.count == 0)
        cli_note("no process has a trace%s that asks %s, or would",
                 cli->options & CLI_SECONDS ? " of so few seconds" : "", traces.address);
    code = write_to(&traces, cli->output);
    traces_free(&traces);
    return code;
}
