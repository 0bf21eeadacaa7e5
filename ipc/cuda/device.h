/*
 * GPUs of this process: by ordinal (this process's mask and order) and by UUID (everybody's).
 *
 * Invariant: the list is read once, when the driver is opened, and never changes: the mask is read
 * by the driver at that time too. A context is retained once a device, when memory or a stream of
 * it is first needed (118 ms, 528 MiB of GPU memory), and kept: it is the primary one, which every
 * other library of the process uses as well. It is current only between cw_gpu_enter() and
 * cw_gpu_leave(), so that nobody finds another current context than the one that he left.
 * Owner: the process; any thread. Death: the driver gives all back. In a forked child nothing here
 * may be used, and cw_cuda_open() says so.
 */
#ifndef CW_IPC_CUDA_DEVICE_H
#define CW_IPC_CUDA_DEVICE_H

#include <pthread.h>

#include "ipc/cuda/driver.h"
#include "ipc/base/device.h"
#include "shm/base/atomic.h"

struct cw_gpu {
    /* read at opening, constant */
    const struct cw_cuda *cuda;
    int ordinal;
    CUdevice device;
    uint8_t uuid[CW_UUID_BYTES];
    bool exports_fds; /* memory of it can be shared at all */
    bool stream_ops;  /* its streams can wait for 64-bit values and write them */
    char name[64];
    /* filled when first needed, under lock; then constant */
    pthread_mutex_t lock;
    CUcontext context;
    uint64_t granule_bytes; /* slabs are multiples of it */
    CUstream copies;        /* ours, non-blocking: what has no stream of its own runs here */
    CUstream ahead;         /* the same, for what nobody waits for on the CPU */
    cw_a32 fault;           /* CUresult, 0 none: the driver has given the context up for good
                               (context_failure.h) */
    CUstream departures;    /* but copies to the host here, beside those that come */
};

/* How many GPUs this process sees. Opens the driver. Blocks the first time. 0, or what
 * cw_cuda_open() says. */
int cw_gpu_count(int *out);
/* The GPU with this ordinal, its context retained. -ENODEV (no such one, with what there is; it
 * cannot share memory; its compute mode forbids a second process), -EDQUOT (no GPU memory for the
 * context). Blocks the first time. */
int cw_gpu_get(int ordinal, struct cw_gpu **out);
/* The GPU with this ordinal, or NULL beyond the last. Opens nothing: its context, under its
 * lock, may be NULL. */
struct cw_gpu *cw_gpu_started(int ordinal);
/* -ENODEV: its context in this process is broken, with the driver's name for why. One load. */
int cw_gpu_check(const struct cw_gpu *gpu);
/* What is known of it without a context. */
int cw_gpu_peek(int ordinal, const struct cw_gpu **out);
/* The ordinal of the GPU with this UUID. -ENODEV when this process's mask hides it: says which it
 * is and what to do. */
int cw_gpu_find(const uint8_t uuid[CW_UUID_BYTES], int *ordinal);
/* May device's memory be mapped for that other device? A fact, never an error. */
bool cw_gpu_reaches(const struct cw_gpu *device, const struct cw_gpu *memory);

/* Makes the context current on this thread, above whatever is current, and takes it off again.
 * Nothing between the two may call the user. */
int cw_gpu_enter(const struct cw_gpu *gpu);
void cw_gpu_leave(const struct cw_gpu *gpu);

#endif
