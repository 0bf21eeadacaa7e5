/*
 * Pools, seen from outside: the memory of each pool, mapped read-only, without asking its parent.
 *
 * A parent keeps the descriptor of its pool's memory, and so /proc leads there. Seen are pools
 * whose parent is a client of the broker. What the memory says is its processes' word: sizes are
 * checked against the mapping, figures are only shown.
 */
#ifndef CW_TOOLS_WATCH_POOLS_H
#define CW_TOOLS_WATCH_POOLS_H

#include <stdint.h>

#include "shm/session/monitor.h"

struct pool_row {
    uint32_t pid;  /* of its parent */
    uint64_t pool; /* its memory's number: no two pools have the same at one time */
    uint32_t workers, busy_workers; /* that live; that have a task now */
    uint64_t queued; /* chunks that no worker has taken yet: each is a task, or several of a map */
    /* Of all workers, since the pool began. */
    uint64_t tasks, chunks, busy_ns, bytes_in, bytes_out;
    uint64_t failed;     /* tasks that raised an exception, or went with their worker for good */
    uint64_t repeated;   /* tasks that went with their worker, and were run again */
    uint64_t running_ns; /* since busy workers took the tasks that they have, of all together */
};

typedef void pools_each(void *context, const struct pool_row *row);
/* Calls each() for every pool that can be seen. */
void pools_walk(struct cw_root *root, pools_each *each, void *context);

#endif
