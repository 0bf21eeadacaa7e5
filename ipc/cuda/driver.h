/*
 * The CUDA driver, opened at run time: one build runs with and without a GPU.
 *
 * libcuda.so.1 (or the file that $CABLEWAY_CUDA_DRIVER names: a test double, or a driver in an odd
 * place) is opened when the first call needs a GPU, never earlier: cuInit takes half a second, and
 * who uses host memory alone must not pay it. This is the one file that names <cuda.h>.
 *
 * Invariant: the table is complete or there is none. It is filled under a lock, published once, and
 * never changes or closes; a failure leaves nothing and the next call tries again.
 * Owner: the process. A forked child of a process that has called cuInit cannot use CUDA (the
 * driver does not survive a fork): every call there fails with the remedy, and none reaches the
 * driver. If the process dies the driver frees all that no descriptor keeps.
 */
#ifndef CW_IPC_CUDA_DRIVER_H
#define CW_IPC_CUDA_DRIVER_H

#include <cuda.h>
#include <stdbool.h>

#include "ipc/cuda/calls.h"
#include "shm/base/error.h"

#define CW_CUDA_DRIVER_MIN 12000 /* as cuDriverGetVersion says it: 12.0, driver 525 */

struct cw_cuda { /* the driver's calls: fields have cuda.h's names */
#define CW_CUDA_CALL(name) __typeof__(&name) name;
    CW_CUDA_CALLS
#ifdef CW_CUDA_CALLS_LATER
    CW_CUDA_CALLS_LATER
#endif
#undef CW_CUDA_CALL
    int version; /* of the driver: 13000 is CUDA 13.0 */
};

/*
 * The driver, opened and initialised (cuInit). Blocks half a second the first time, then costs one
 * load. -ENODEV: no driver, too old, no GPU visible, or CUDA was initialised before a fork. The
 * text says what to do. *out lives as long as the process.
 */
int cw_cuda_open(const struct cw_cuda **out);
/* The driver if this process has opened it and may use it, else NULL. For those that give back what
 * they got: in a forked child there is nothing to give back. Never blocks. */
const struct cw_cuda *cw_cuda_opened(void);
/* A call of the driver's that not all have, by its name; NULL: this one lacks it. After
 * cw_cuda_open(). */
void *cw_cuda_symbol(const char *name);

/* Has any call of ours failed so that a context may have failed for good? One load. */
bool cw_cuda_suspected(void);
/* Is this an error after which nothing in that context works any more? */
bool cw_cuda_is_fatal(CUresult result);

/*
 * Turns a failed call into our code and this thread's text: "WHAT: CUDA_ERROR_NAME, sentence".
 * Out of memory: -EDQUOT; all else: -ENODEV. A macro, so that analysers see that it is negative.
 */
#define cw_cuda_error(cuda, result, ...)                                                           \
    ({                                                                                             \
        int cw_cuda_code = cw_cuda_tell((cuda), (result), __VA_ARGS__);                            \
        cw_cuda_code < 0 ? cw_cuda_code : -ENODEV;                                                 \
    })
int cw_cuda_tell(const struct cw_cuda *cuda, CUresult result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
