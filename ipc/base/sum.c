/*
 * Sums: see sum.h.
 */
#include "ipc/base/sum.h"

#include "ipc/base/hash.h"

uint64_t cw_sum(const void *bytes, uint64_t size_bytes, uint64_t piece) {
    const char *at = size_bytes ? bytes : "";
    uint64_t total = 0, some;
    do {
        some = size_bytes < CW_SUM_PIECE ? size_bytes : CW_SUM_PIECE;
        total += cw_hash(at, some, piece++);
        at += some;
    } while (size_bytes -= some);
    return total;
}
