/*
 * In place of tools/screen, where ncurses was not there when this was built.
 */
#include "tools/cli.h"
#include "tools/top/screen.h"

int top_screen(int64_t delay_ns) {
    (void)delay_ns;
    return cli_error(CLI_FAILED,
                     "this cableway was built without ncurses, so top has no screen: --once prints "
                     "everything once; or install libncurses-dev and build it again");
}
