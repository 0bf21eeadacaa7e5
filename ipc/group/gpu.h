/*
 * What operations on GPUs share: gpu.c chooses the way, gpu_reduce.c computes on GPUs.
 */
#ifndef CW_IPC_GROUP_GPU_H
#define CW_IPC_GROUP_GPU_H

#include "ipc/group/collective.h"

static inline bool on_gpu(cw_group_memory memory) {
    return memory.array && cw_array_gpu(memory.array) >= 0;
}
/* A meeting at which each says something (flags of window.h); *any: what any of them said. As
 * cw_group_await(). */
int cw_gpu_agree(cw_group *group, const struct operation *op, uint64_t flags, uint64_t *any);

/* ---- gpu_reduce.c ---- */

/* Before anybody is met: may this member's part be computed on its GPU, as far as it knows? Its
 * memory was checked, what it sends is an array. Blocks the first time (cw_kernels_load()). */
bool cw_gpu_may_reduce(const cw_group *group, const struct operation *op);
/* After the first meeting, where all may: *done: it was done. Else nothing was, and all know that.
 * 0, or what copies and meetings say. Blocks. */
int cw_gpu_reduce_all(cw_group *group, const struct operation *op, bool *done);

#endif
