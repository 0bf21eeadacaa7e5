/*
 * Sum: the check over all bytes of an array whose pieces come, or go, in any order and by several
 * threads.
 *
 * It is the sum, modulo 2^64, of the XXH3 (64 bits) of each *piece* of CWB_SUM_PIECE bytes, the
 * last one shorter, with the piece's number as its seed: so a piece in another's place is found,
 * and the order in which pieces come is nobody's business. Whoever brings bytes hashes them
 * itself, while they lie in its core's cache; no thread waits for another's, and none has the rest
 * to do. One hash from the first byte to the last would be one thread's work at a time, over bytes
 * that lie in other cores' caches.
 *
 * Invariant: a piece counts once, with the bytes that it had when the first who brought it hashed
 * it; the lock is never held while hashing.
 */
#ifndef CW_BROKER_BRIDGE_WIRE_CHECKSUM_H
#define CW_BROKER_BRIDGE_WIRE_CHECKSUM_H

#include <stdbool.h>
#include <stdint.h>

struct cwb_sum;

#define CWB_SUM_PIECE (16u << 10) /* docs/PROTOCOL.md; CWB_READ_MIN */

/* Byte i lies at bytes[i % ring_bytes] (ring_bytes at least size_bytes: all are there; else whole
 * pieces); they stay until cwb_sum_free(). NULL: there is no memory (cw_detail()). */
struct cwb_sum *cwb_sum_new(const uint8_t *bytes, uint64_t size_bytes, uint64_t ring_bytes);
/* Nobody else uses it. */
void cwb_sum_free(struct cwb_sum *sum);
/* These bytes are there: hashes them; parts of pieces do not count. true: all of the array counts
 * now, which is told once. Any thread. */
bool cwb_sum_add(struct cwb_sum *sum, uint64_t offset_bytes, uint64_t length_bytes);
/* The same of bytes that lie elsewhere. */
bool cwb_sum_add_at(struct cwb_sum *sum, uint64_t offset_bytes, uint64_t length_bytes,
                    const uint8_t *bytes);
/* How many bytes from the first on count without a gap. Any thread. */
uint64_t cwb_sum_prefix(struct cwb_sum *sum);
/* How many bytes do not count yet. Any thread. */
uint64_t cwb_sum_left(struct cwb_sum *sum);
/* Hashes what is left, there or not, or so many bytes of it, to the end of a piece. true: all
 * counts now. Any thread; nobody adds meanwhile what it waits for. */
bool cwb_sum_rest(struct cwb_sum *sum, uint64_t most_bytes);
/* All counts. */
uint64_t cwb_sum_digest(struct cwb_sum *sum);

#endif
