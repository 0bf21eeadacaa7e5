/*
 * cw_sum(), only where the processor has AVX2. See sum_avx2.c.
 */
#ifndef CW_IPC_BASE_SUM_AVX2_H
#define CW_IPC_BASE_SUM_AVX2_H

#include <stdint.h>

uint64_t cw_sum_avx2(const void *bytes, uint64_t size_bytes, uint64_t piece);

#endif
