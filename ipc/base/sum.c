/*
 * Sums: see sum.h.
 */
#include "ipc/base/sum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ipc/base/sum_avx2.h"

uint64_t cw_sum(const void *bytes, uint64_t size_bytes, uint64_t piece) {
    const char *at = size_bytes ? bytes : "";
    uint64_t total = 0, some;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        return cw_sum_avx2(at, size_bytes, piece);
#endif
    do {
        some = size_bytes < CW_SUM_PIECE ? size_bytes : CW_SUM_PIECE;
        total += XXH3_64bits_withSeed(at, some, piece++);
        at += some;
    } while (size_bytes -= some);
    return total;
}
