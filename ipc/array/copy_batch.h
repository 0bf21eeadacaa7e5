/*
 * Copies, many at once: put in order as one piece of work, and given to the driver by as few calls
 * as it takes.
 *
 * Invariants
 *   N1  Nothing is given to the driver before all pairs were checked, and all arrays are this
 *       piece of work's (section.h): what is refused then has changed nothing.
 *   N2  Nothing is announced before all was submitted. Where the driver refuses in the midst, some
 *       targets hold new data and some old: all of them are marked as incomplete, so that whoever
 *       reads one is told, until it is written anew.
 *   N3  Copies of one call may run in any order: no target overlaps another pair's bytes.
 * No state. If this process dies in the midst the broker takes its turns out, and readers of every
 * target are told.
 */
#ifndef CW_IPC_ARRAY_COPY_BATCH_H
#define CW_IPC_ARRAY_COPY_BATCH_H

#include <stdint.h>

#include "ipc/cableway.h"
#include "shm/session/session.h"

/* One copy by whatever route, in no order with anybody (copy.c). stream NULL: blocks until done. */
int cw_copy_one(cw_array *target, uint64_t target_bytes, cw_array *source, uint64_t source_bytes,
                uint64_t size_bytes, void *stream);
/* Adds to the figures of a route. */
void cw_copy_count(cw_client *client, enum cw_route route, uint64_t size_bytes);

#endif
