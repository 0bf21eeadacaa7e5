/*
 * Reductions on a GPU: elements of several vectors become one, by kernels of ours; and copies
 * within a GPU by one of them, which leave its copy engines to what crosses a link.
 *
 * The kernels are PTX (ISA 7.0, compute capability 7.0 and later) that ptx.c writes and the driver
 * compiles. All of a GPU are loaded and started once, without elements, when the first is asked for
 * (cw_kernels_load): the load and the first launch of a kernel wait for streams that wait for a
 * value, so they must come before this process waits for anybody.
 *
 * Invariant: a GPU has all of its kernels, or none; they never change and stay as long as the
 * process. Owner: the process, under a lock of its own. A forked child never gets here.
 */
#ifndef CW_IPC_CUDA_KERNEL_H
#define CW_IPC_CUDA_KERNEL_H

#include "ipc/cuda/device.h"

#define CW_KERNEL_PARTS_MAX 64

enum cw_kernel_element { /* what is computed with */
                         CW_KERNEL_NONE,
                         CW_KERNEL_BITS, /* bytes: and, or, xor */
                         CW_KERNEL_I4,
                         CW_KERNEL_U4,
                         CW_KERNEL_I8,
                         CW_KERNEL_U8,
                         CW_KERNEL_F2, /* computed in float32, rounded once, to even */
                         CW_KERNEL_BF16,
                         CW_KERNEL_F4,
                         CW_KERNEL_F8,
                         CW_KERNEL_ELEMENTS
};

enum cw_kernel_operation {
    CW_KERNEL_SUM,
    CW_KERNEL_PROD,
    CW_KERNEL_MIN,
    CW_KERNEL_MAX,
    CW_KERNEL_AND,
    CW_KERNEL_OR,
    CW_KERNEL_XOR,
    CW_KERNEL_OPERATIONS
};

struct cw_kernel {
    enum cw_kernel_element element; /* CW_KERNEL_NONE: there is none */
    enum cw_kernel_operation operation;
};

/* Is there such a kernel? I4 and U4, I8 and U8 share sum and prod: those are I4's and I8's. */
bool cw_kernel_is(struct cw_kernel kernel);
/* Bytes of an element. */
uint32_t cw_kernel_size(enum cw_kernel_element element);
/* Of this GPU, whose context is open: -ENODEV where its driver or its hardware cannot. Blocks the
 * first time: some milliseconds where the driver has compiled them before, else a quarter second,
 * and until no stream of the process waits for a value. */
int cw_kernels_load(struct cw_gpu *gpu);
/* The same of all GPUs that this process uses already, as far as they can. */
void cw_kernels_load_started(void);
/*
 * Submits: target[i] = from[0][i] op from[1][i] op ..., for count elements, in this order. target
 * may be one of from; else nothing overlaps. All in memory that the GPU reaches, whole elements
 * from their own size's multiples on. beside: on a part of the GPU, so that copy engines which work
 * at the same time are not slowed (by a kernel on all of it, by 15 %). After cw_kernels_load().
 * -ENODEV.
 */
int cw_kernel_reduce(const struct cw_gpu *gpu, CUstream stream, struct cw_kernel kernel,
                     bool beside, void *target, const void *const *from, uint32_t parts,
                     uint64_t count);

/* Copies without a copy engine: submits target[i] = from[i] and sets *out, or false, where the
 * kernels of this GPU are not loaded yet or bytes are no multiple of CW_KERNEL_VECTOR from and to
 * such addresses. The context is current. Nothing overlaps. */
bool cw_kernel_copy(const struct cw_gpu *gpu, CUstream stream, void *target, const void *from,
                    uint64_t bytes, CUresult *out);

/* ---- ptx.c ---- */

#define CW_KERNEL_NAME_MAX 32
#define CW_KERNEL_VECTOR   16 /* bytes of an access of the wide ones */
#define CW_KERNEL_AT_ONCE  4u /* wide accesses of a thread in a round; others come one by one */

/* "sum_f4_16": the kernel, and the bytes of an access. */
void cw_ptx_name(struct cw_kernel kernel, uint32_t access_bytes, char name[CW_KERNEL_NAME_MAX]);
/* A module with all kernels, each for accesses of CW_KERNEL_VECTOR bytes and of one element. The
 * caller frees it. NULL: no memory. */
char *cw_ptx_write(void);

#endif
