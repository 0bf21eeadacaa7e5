/*
 * The hash by AVX2: the Makefile compiles this file, and no other, for processors that have it.
 */
#include "ipc/base/hash_avx2.h"

#if defined(__x86_64__) && defined(__AVX2__)

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t cw_hash_avx2(const void *bytes, size_t size_bytes, uint64_t seed) {
    return XXH3_64bits_withSeed(bytes, size_bytes, seed);
}

#endif
