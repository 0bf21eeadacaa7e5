/*
 * Names, seen from outside: what the directory tells of each, without asking the broker. Who has an
 * array open it does not tell.
 */
#ifndef CW_TOOLS_WATCH_NAMES_H
#define CW_TOOLS_WATCH_NAMES_H

#include "ipc/cableway.h"
#include "tools/monitor.h"

/* As monitor_names(). holders and references of what is told are 0: they are not known. */
typedef int names_each(void *context, const char *name_space, const cw_name_info *info);
int names_walk(struct monitor *monitor, const char *name_space, const char *prefix,
               names_each *each, void *context);

#endif
