/* Host memory that nobody has written yet: its first write, and its first mapping (first_touch.c).
 */
#ifndef CW_IPC_ARRAY_FIRST_TOUCH_H
#define CW_IPC_ARRAY_FIRST_TOUCH_H

#include <stdint.h>

#include "ipc/cableway.h"

/* Less memory than that is written and mapped page by page, as it is touched. */
#define CW_FRESH_PREFAULT_BYTES (64ull << 10)
/* From here on the file is asked of the broker and written, and threads share the work. */
#define CW_FRESH_WRITE_BYTES (4ull << 20)

/* Whether nobody has written the array's memory yet, as far as is known; asked by who is about to:
 * the next one is told no. The caller does NOT hold client->lock. */
bool cw_fresh_take(cw_array *array);

/* Maps all whole pages of so much memory, cleared. Never fails: what is not mapped comes as it is
 * touched. Blocks; uses up to CW_FRESH_THREADS_MAX threads. No lock is needed. */
void cw_fresh_prefault(void *target, uint64_t size_bytes);

/* Copies host memory into an array that nobody has written. target_bytes: where in the array. The
 * memories do not overlap. The caller does NOT hold client->lock. Asks the broker for the slab's
 * file where that pays; without it the bytes go by the mapping. */
void cw_fresh_write(cw_array *target, uint64_t target_bytes, const void *source,
                    uint64_t size_bytes);

#endif
