/*
 * What cableway leaks looks for: memory that perhaps nobody needs, as rows of JSON.
 *
 * What processes keep free, and memory whose maker is dead, comes from the monitor page and the
 * block tables: nobody is asked. Names, handles under way, old versions and who holds a dead
 * maker's memory only the broker can tell. Each array is in one part alone: one that nobody has
 * open is listed by its name, and not once more as memory of its dead maker.
 */
#ifndef CW_TOOLS_WATCH_LEAKS_H
#define CW_TOOLS_WATCH_LEAKS_H

#include <jansson.h>
#include <stdint.h>

#include "tools/monitor.h"

enum leaks_part {
    LEAKS_UNHELD,
    LEAKS_TRANSITS,
    LEAKS_CACHES,
    LEAKS_OLD,
    LEAKS_ORPHANS,
    LEAKS_PARTS
};

struct leaks {
    double older_seconds;
    json_t *found[LEAKS_PARTS]; /* arrays; NULL: could not be asked for */
    uint64_t transits;          /* all that there are */
};

/* Looks for all that is older than older_seconds, which is set before. Returns an exit code: what
 * could not be had is NULL, and why was printed. Blocks while the broker is asked. */
int leaks_find(struct leaks *leaks, struct monitor *monitor);
void leaks_deinit(struct leaks *leaks);

#endif
