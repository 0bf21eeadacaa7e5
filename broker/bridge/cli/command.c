/*
 * What the commands of people have in common: see command.h.
 */
#include "broker/bridge/cli/command.h"

#include <stdio.h>

#include "ipc/cableway.h"

int cwb_complain(int exit_code) {
    fprintf(stderr, "cableway: %s\n", cw_error());
    return exit_code;
}
