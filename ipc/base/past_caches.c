/* Copies past the caches: see past_caches.h. Pure functions over memory. */
#include "ipc/base/past_caches.h"

#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>

#define LINE_BYTES 64u
#define STEP_BYTES 128u /* two lines at a time */

__attribute__((target("avx2"))) static void by_avx2(void *target, const void *source,
                                                    size_t size_bytes) {
    char *to = target;
    const char *from = source;
    size_t at = -(size_t)to % LINE_BYTES;
    at = at < size_bytes ? at : size_bytes;
    memcpy(to, from, at);
    for (; size_bytes - at >= STEP_BYTES; at += STEP_BYTES) {
        const __m256i *in = (const __m256i *)(const void *)(from + at);
        __m256i *out = (__m256i *)(void *)(to + at);
        __m256i a = _mm256_loadu_si256(in), b = _mm256_loadu_si256(in + 1);
        __m256i c = _mm256_loadu_si256(in + 2), d = _mm256_loadu_si256(in + 3);
        _mm256_stream_si256(out, a);
        _mm256_stream_si256(out + 1, b);
        _mm256_stream_si256(out + 2, c);
        _mm256_stream_si256(out + 3, d);
    }
    memcpy(to + at, from + at, size_bytes - at);
    _mm_sfence(); /* these stores are ordered with no others but by this */
}
#endif

void cw_copy_past_caches(void *target, const void *source, size_t size_bytes) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) {
        by_avx2(target, source, size_bytes);
        return;
    }
#endif
    memcpy(target, source, size_bytes);
}
