/*
 * Queues, seen from outside: the words of each Queue, whose array its maker marks in its slab's
 * table. From the memory that the broker holds: nobody is asked.
 */
#ifndef CW_TOOLS_WATCH_QUEUES_H
#define CW_TOOLS_WATCH_QUEUES_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/monitor.h"

struct queue_row {
    uint64_t items, bytes;     /* in it now */
    uint64_t put, taken, lost; /* since it was made; lost: of the taken */
    uint64_t max_items;        /* 0: no limit */
    uint64_t id;               /* by which traces call it */
};

/* A descriptor of the data of a host slab with this inode, which the caller closes; -ENOENT: the
 * broker does not have it, or has ended; -EPERM. */
int queues_open_data(const struct monitor *monitor, uint64_t inode);
/* The queue whose array begins there. False: it is none, or its words make no sense. */
bool queues_read(int data, uint64_t offset_bytes, struct queue_row *out);

#endif
