/*
 * Hashes: see hash.h.
 */
#include "ipc/base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ipc/base/hash_avx2.h"

uint64_t cw_hash(const void *bytes, size_t size_bytes, uint64_t seed) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        return cw_hash_avx2(bytes, size_bytes, seed);
#endif
    return XXH3_64bits_withSeed(bytes, size_bytes, seed);
}
