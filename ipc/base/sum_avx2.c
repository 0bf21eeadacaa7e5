/*
 * The sum by AVX2: the Makefile compiles this file for processors that have it, and sum.c asks.
 */
#include "ipc/base/sum_avx2.h"

#if defined(__x86_64__) && defined(__AVX2__)

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ipc/base/sum.h"

uint64_t cw_sum_avx2(const void *bytes, uint64_t size_bytes, uint64_t piece) {
    uint64_t total = 0, some;
    const char *at = bytes;
    do {
        some = size_bytes < CW_SUM_PIECE ? size_bytes : CW_SUM_PIECE;
        total += XXH3_64bits_withSeed(at, some, piece++);
        at += some;
    } while (size_bytes -= some);
    return total;
}

#endif
