/*
 * Errors of the broker: the rows of the monitor page, each copied before it is used.
 */
#ifndef CW_TOOLS_WATCH_ERRORS_H
#define CW_TOOLS_WATCH_ERRORS_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/session/monitor.h"

struct error_row { /* a private copy of a cw_monitor_error */
    uint64_t count;
    uint64_t first_ns, last_ns; /* CLOCK_REALTIME */
    uint32_t pid;               /* 0: nobody's request */
    char text[CW_ERROR_TEXT_BYTES];
};

/* All rows in use, the one that was met last first. Returns how many. */
unsigned errors_copy(struct cw_root *root, struct error_row out[CW_ERRORS_KEPT]);

#endif
