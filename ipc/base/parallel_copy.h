/*
 * Large copies of host memory, by several threads at once: one core does not use up the memory's
 * bandwidth. 64 MiB take 3.0 to 4.3 ms with two threads, 7.2 to 8.2 with one
 * (docs/benchmarks/2026-11-28-copies.md).
 */
#ifndef CW_BASE_PARALLEL_COPY_H
#define CW_BASE_PARALLEL_COPY_H

#include <stdint.h>

/* As memmove(), and from CW_PAST_CACHES_BYTES on with up to three helpers: threads of this process
 * on the processors that the caller may use, which end with the call. Where there is one alone, or
 * no thread can be made, the caller copies by itself. Blocks until all is copied. Other threads see
 * all of it once they see what this one stores next. */
void cw_copy_in_parallel(void *target, const void *source, uint64_t size_bytes);

#endif
