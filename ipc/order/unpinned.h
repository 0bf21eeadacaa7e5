/*
 * One array's turn on a stream, and waits for it on the CPU, for callers that make sure themselves
 * that the array stays where it is: public.c, which pins it; copies, whose caller has pinned it;
 * and eviction, which moves it (ipc/array/evict.h). None of these calls pins an array, so none
 * brings an array back to its GPU.
 *
 * No state of its own: see section.h.
 */
#ifndef CW_IPC_ORDER_UNPINNED_H
#define CW_IPC_ORDER_UNPINNED_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/cableway.h"

/* As cw_array_writing_begin() and cw_array_reading_begin(). */
int cw_unpinned_begin(cw_array *array, void *stream, bool writing, int64_t timeout_ns);
/* As their ends. failed: what was to be written is not complete. out: NULL where nobody will ask
 * later. *found: there was such a section, which has ended, whatever is returned. */
int cw_unpinned_end(cw_array *array, void *stream, bool writing, bool whole, bool failed,
                    cw_completion *out, bool *found);
/* As cw_array_wait(), or (uses) cw_array_settle(). */
int cw_unpinned_await(cw_array *array, bool uses, int64_t timeout_ns);

#endif
