/*
 * Copies of what is larger than the caches, whose reader is another process.
 *
 * A plain store first reads the line that it is about to write; memcpy() leaves that out only from
 * three quarters of the last cache on, which is 96 MiB and more on a server. These stores leave it
 * out always: 64 MiB take 4.9 ms instead of 7.3, and with a pass over the copy still 5 % less. Of
 * 16 MiB and less the copy would better stay in the caches; of 128 MiB memcpy() is the faster one
 * (13.3 ms against 14.6).
 */
#ifndef CW_BASE_PAST_CACHES_H
#define CW_BASE_PAST_CACHES_H

#include <stddef.h>

#define CW_PAST_CACHES_BYTES (32ull << 20) /* one thread: from here on it pays, */
#define CW_PAST_CACHES_MOST  (96ull << 20) /* and to here */

/* As memcpy(): the two do not overlap. Any alignment. Other threads see all of it once they see
 * what this one stores next. */
void cw_copy_past_caches(void *target, const void *source, size_t size_bytes);

#endif
