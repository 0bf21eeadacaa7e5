/*
 * cableway top: everything that runs here, once or again and again. Nobody is asked, so nothing can
 * hang: a broker that is stopped, hangs or has died is shown as that, with what it last said.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "tools/cli.h"
#include "tools/output.h"
#include "tools/top/screen.h"
#include "tools/top/look.h"

#define DELAY_NS 1000000000

/* Looks twice where a delay was given, so that there are rates. */
static int look_once(struct top *top, const struct cli *cli) {
    int result = top_open(top);
    if (result == 0)
        result = top_look(top);
    if (result == 0 && cli->options & CLI_DELAY) {
        struct timespec pause = {.tv_sec = cli->delay_ns / 1000000000,
                                 .tv_nsec = cli->delay_ns % 1000000000};
        while (nanosleep(&pause, &pause) && errno == EINTR)
            continue;
        result = top_look(top);
        if (result == -ECONNRESET) /* it died between: what it last said is mapped */
            result = 0;
    }
    return result;
}

static int run_once(const struct cli *cli) {
    struct top *top = calloc(1, sizeof *top);
    CW_ASSERT(top);
    int result = look_once(top, cli), code;
    bool none = result == -ENOENT || result == -ECONNRESET; /* the latter: ended just now */
    code = none ? cli_error(CLI_NO_BROKER, "%s", cw_error()) : cli_result(result);
    if (none) {
        top_close(top);
        top_look_at_remains(top);
    }
    bool shows = code == CLI_OK || none;
    if (shows && cli->options & CLI_JSON)
        output_json(top_json(top));
    else if (shows)
        top_print(top);
    top_close(top);
    free(top);
    return code;
}

int cmd_top(const struct cli *cli) {
    if (cli->options & (CLI_ONCE | CLI_JSON))
        return run_once(cli);
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return cli_error(CLI_USAGE, "top: stdin and stdout are no terminal; --once prints "
                                    "everything once, --json for programs");
    return top_screen(cli->options & CLI_DELAY ? cli->delay_ns : DELAY_NS);
}
