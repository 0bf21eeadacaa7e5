/*
 * Reductions: elements of several members become one, in the order of their ranks, so that the
 * result is the same each time and on every member.
 */
#ifndef CW_IPC_GROUP_REDUCE_H
#define CW_IPC_GROUP_REDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/cuda/kernel.h"

/* Numbers of dtypes that elements may have; 0: bytes that are only moved. */
uint32_t cw_reduce_dtype(const char *dtype);
const char *cw_reduce_dtype_name(uint32_t dtype);
uint32_t cw_reduce_dtype_size(uint32_t dtype);
/* "sum", "max"; "" for none. */
const char *cw_reduce_name(uint32_t reduction);
/* 0, or -EINVAL with the sentence: this dtype is not reduced so. */
int cw_reduce_check(uint32_t dtype, uint32_t reduction);
/*
 * targets[0][i] and all other targets become from[0][i] op from[1][i] op ..., for count elements.
 * Each target may be one of from; else nothing overlaps. float16 and bfloat16 are computed in
 * float32 and rounded once, to even. past_caches: stores go to memory at once.
 */
void cw_reduce(uint32_t dtype, uint32_t reduction, void *const *targets, uint32_t target_count,
               const void *const *from, uint32_t parts, uint64_t count, bool past_caches);

/* The kernel that computes the same on a GPU, element by element of its own, of which one of dtype
 * may be several; CW_KERNEL_NONE: there is none. */
struct cw_kernel cw_reduce_kernel(uint32_t dtype, uint32_t reduction);

#endif
