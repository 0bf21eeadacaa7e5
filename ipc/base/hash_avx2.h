/*
 * The hash by AVX2. See hash_avx2.c.
 */
#ifndef CW_IPC_BASE_HASH_AVX2_H
#define CW_IPC_BASE_HASH_AVX2_H

#include <stddef.h>
#include <stdint.h>

/* cw_hash(), only where the processor has AVX2. */
uint64_t cw_hash_avx2(const void *bytes, size_t size_bytes, uint64_t seed);

#endif
