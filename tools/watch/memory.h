/*
 * Memory of slabs, seen from outside: how much of each is in arrays and how much is free, whose it
 * is and where it lies. From the block tables, which /proc shows among the broker's descriptors:
 * nobody is asked.
 *
 * The tables are what clients and the broker write: each number is copied and bounded, and only
 * shown.
 */
#ifndef CW_TOOLS_WATCH_MEMORY_H
#define CW_TOOLS_WATCH_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/monitor.h"

#define MEMORY_DEVICE_BYTES 41

struct memory_slab {
    uint32_t slab;
    uint32_t owner;                   /* session; 0: an orphan */
    uint64_t orphan_ns;               /* CLOCK_MONOTONIC when it became one; 0: it is none */
    bool gpu;                         /* false: host memory */
    char device[MEMORY_DEVICE_BYTES]; /* "cpu", or the GPU's UUID */
    uint64_t size_bytes, live_bytes;  /* of its data; of these in blocks that are not free */
    uint64_t blocks;                  /* that are not free */
};

/* Reads a mapped segment of kind CW_SEGMENT_BLOCKS. False: it is no table of a slab, or not yet.
 * capacity: how many entries it has, at most as many as are mapped. */
bool memory_read(const struct cw_segment *segment, struct memory_slab *out, uint32_t *capacity);

/* All slabs that the broker has, sorted by their numbers; the caller frees *out. 0; -ECONNRESET:
 * the broker has ended, -EPERM: /proc is closed to us. */
int memory_slabs(const struct monitor *monitor, struct memory_slab **out, size_t *count);

#endif
