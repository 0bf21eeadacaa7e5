/*
 * Sum: the XXH3 over all bytes of an array whose pieces come, or go, in any order and by several
 * threads.
 *
 * XXH3 goes from the first byte to the last, so only what is there without a gap can be hashed.
 * Whoever brings a piece marks it, and if nobody is hashing takes the *turn* and hashes on as far
 * as there is no gap: the bytes lie in a cache then, no thread waits for another, and no thread
 * does nothing else. Others mark their pieces meanwhile, and who has the turn sees them.
 *
 * Invariant: hashed bytes are a prefix; a piece is hashed once, by the holder of the turn, after it
 * was marked (under the lock, which is never held while hashing). A thread cannot die alone, so a
 * turn is always given back.
 */
#ifndef CW_BRIDGE_SUM_H
#define CW_BRIDGE_SUM_H

#include <stdbool.h>
#include <stdint.h>

struct cwb_sum;

#define CWB_SUM_PIECE (16u << 10) /* what is marked: whole pieces of so much; CWB_READ_MIN */

/* Byte i lies at bytes[i % ring_bytes] (ring_bytes at least size_bytes: all are there); they stay
 * until cwb_sum_free(). */
struct cwb_sum *cwb_sum_new(const uint8_t *bytes, uint64_t size_bytes, uint64_t ring_bytes);
/* Nobody else uses it. */
void cwb_sum_free(struct cwb_sum *sum);
/* These bytes are there; parts of pieces do not count. Hashes if it is this thread's turn. Any
 * thread. */
void cwb_sum_add(struct cwb_sum *sum, uint64_t offset_bytes, uint32_t length_bytes);
/* How many bytes from the first on are hashed. Any thread. */
uint64_t cwb_sum_prefix(struct cwb_sum *sum);
/* Hashes all that is left, there or not; waits while another has the turn. Any thread. */
void cwb_sum_rest(struct cwb_sum *sum);
/* The hash; all is hashed. */
uint64_t cwb_sum_digest(struct cwb_sum *sum);

#endif
