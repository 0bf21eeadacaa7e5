/*
 * The hash of what lies in leaves of trees, in parts and in any order.
 *
 * It is the sum, modulo 2^64, of the XXH3 (64 bits) of each CW_SUM_PIECE bytes, the last ones
 * fewer, with their number as the seed; no bytes are one piece without any. So who brings bytes
 * hashes them at once, while they lie in its core's cache, and waits for nobody; bytes in another's
 * place are found. Up to CW_SUM_PIECE bytes it is XXH3 itself (hash.h). The bridge's check is the
 * same function. It guards against damage, not against somebody who makes bytes for it.
 *
 * Pure functions.
 */
#ifndef CW_IPC_BASE_SUM_H
#define CW_IPC_BASE_SUM_H

#include <stdint.h>

#define CW_SUM_PIECE (16ull << 10) /* docs/PROTOCOL.md */

/* What these bytes add, which begin at that piece of the whole and end with a piece or with the
 * whole. NULL without bytes. */
uint64_t cw_sum(const void *bytes, uint64_t size_bytes, uint64_t piece);

#endif
