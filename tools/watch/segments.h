/*
 * Segments: all shared memory that the broker holds, mapped read-only and kept, so that looking
 * again costs no system call, and goes on when the broker has died. Found through /proc: nobody is
 * asked.
 *
 * Mapped are sessions, further lease tables, block tables, and the directory's index and records.
 * What is in them was written by others: whoever reads it copies and bounds.
 */
#ifndef CW_TOOLS_WATCH_SEGMENTS_H
#define CW_TOOLS_WATCH_SEGMENTS_H

#include <stddef.h>
#include <stdint.h>

#include "tools/monitor.h"

struct segments_one {
    uint64_t inode;
    uint32_t kind;  /* enum cw_segment_kind */
    uint64_t which; /* the number in its label: of an index, of a segment of records; else 0 */
    bool seen;      /* by the search that runs */
    struct cw_segment segment; /* no descriptor is kept. base NULL: a directory's reader has it */
};

struct segments { /* zeros are none */
    const struct monitor *monitor;
    struct segments_one *all; /* sorted by inode but while a search runs */
    size_t count, room;
    uint64_t gauges[3]; /* of the monitor page, when it was last searched */
    int64_t searched_ns;
};

/* monitor is borrowed and must stay where it is. */
void segments_init(struct segments *segments, const struct monitor *monitor);
void segments_deinit(struct segments *segments);

/* Looks for what is new and forgets what the broker gave up; does nothing where the page tells that
 * nothing can have changed, or the broker is dead. 0; -ECONNRESET: the broker has ended, -EPERM:
 * /proc is closed to us. What is mapped stays in any case. */
int segments_update(struct segments *segments);

/* How a directory's reader gets its segments here: a cw_directory_fetch, context: the segments. */
int segments_fetch(void *segments, uint32_t kind, uint64_t which, struct cw_segment *out);

#endif
