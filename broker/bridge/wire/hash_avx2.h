/*
 * The hash by AVX2. See hash_avx2.c.
 */
#ifndef CW_BROKER_BRIDGE_WIRE_HASH_AVX2_H
#define CW_BROKER_BRIDGE_WIRE_HASH_AVX2_H

#include <stddef.h>
#include <stdint.h>

/* cwb_hash(), only where the processor has AVX2. */
uint64_t cwb_hash_avx2(const void *bytes, size_t size_bytes, uint64_t seed);

#endif
