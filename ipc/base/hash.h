/*
 * Hash: XXH3 with 64 bits and a seed, by the widest vectors that the processor has: what the
 * compiler may take for granted (SSE2) is a third as fast as AVX2. Pure functions.
 */
#ifndef CW_IPC_BASE_HASH_H
#define CW_IPC_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t cw_hash(const void *bytes, size_t size_bytes, uint64_t seed);

#endif
