/*
 * A GPU as the place of a worker: which one it is, whether its work has passed and its context is
 * whole, and a part of its multiprocessors.
 *
 * State of the process: one part a GPU (a green context and its stream), under a lock; made once,
 * kept to the end, when the driver takes it back. Any thread. In a forked child cw_cuda_open()
 * refuses.
 */
#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "ipc/memory/backend.h"
#include "ipc/cuda/device.h"

/* The ordinal of a "cuda:N". */
static int ordinal_of(const char *device, int *ordinal) {
    const struct cw_backend *backend;
    int code = cw_backend_find(device, &backend, ordinal);
    if (code == 0 && backend->device_kind != CW_DEVICE_CUDA)
        code = cw_fail(-EINVAL, "sms= needs a GPU (\"cuda:N\"); %s is none", device);
    return code;
}

static uint32_t multiprocessors_of(const struct cw_gpu *gpu) {
    int count = 0;
    if (gpu->cuda->cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                        gpu->device) != CUDA_SUCCESS)
        count = 0;
    return (uint32_t)count;
}

int cw_device_place_of(const char *device, cw_device_place *out) {
    const struct cw_gpu *gpu;
    int ordinal;
    if (!out)
        return cw_fail(-EINVAL, "a place for the answer is needed, NULL was given");
    int code = ordinal_of(device, &ordinal);
    if (code == 0)
        code = cw_gpu_peek(ordinal, &gpu);
    if (code)
        return code;
    *out = (cw_device_place){.multiprocessors = multiprocessors_of(gpu)};
    memcpy(out->name, gpu->name, sizeof out->name);
    cw_uuid_text(gpu->uuid, out->uuid);
    if (strstr(gpu->name, " MIG ")) /* the driver tells it nowhere else */
        memcpy(out->uuid, "MIG", 3);
    if (gpu->cuda->cuDeviceGetPCIBusId(out->bus, sizeof out->bus, gpu->device) != CUDA_SUCCESS)
        out->bus[0] = 0;
    for (char *at = out->bus; *at; at++)
        *at = (char)tolower((unsigned char)*at);
    return 0;
}

/* Waits in a context that somebody has opened. Nothing of ours is made there for it: that would
 * fail where a task has filled the GPU, and would look as if it had broken the context. */
static CUresult synchronize(const struct cw_gpu *gpu) {
    const struct cw_cuda *cuda = gpu->cuda;
    CUcontext context, popped;
    CUresult result = cuda->cuDevicePrimaryCtxRetain(&context, gpu->device);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda->cuCtxPushCurrent(context);
    if (result == CUDA_SUCCESS) {
        result = cuda->cuCtxSynchronize();
        cuda->cuCtxPopCurrent(&popped);
    }
    cuda->cuDevicePrimaryCtxRelease(gpu->device);
    return result;
}

int cw_device_settle(int ordinal) {
    const struct cw_gpu *gpu;
    unsigned flags;
    int active = 0;
    int code = cw_gpu_peek(ordinal, &gpu);
    if (code)
        return code;
    CUresult result = gpu->cuda->cuDevicePrimaryCtxGetState(gpu->device, &flags, &active);
    if (result == CUDA_SUCCESS && !active)
        return 0;
    if (result == CUDA_SUCCESS)
        result = synchronize(gpu);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        return 0; /* a capture that the user left open is no fault of the context */
    return cw_cuda_error(gpu->cuda, result, "waiting for the work on cuda:%d", ordinal);
}

/* ---- a part of it ---- */

#if CUDA_VERSION >= 12050

#define VERSIONED(name) SPELLED(name) /* the header's macros may name a version */
#define SPELLED(name)   #name
#define PARTS_MAX       64

struct green_calls {
    __typeof__(&cuDeviceGetDevResource) resource;
    __typeof__(&cuDevSmResourceSplitByCount) split;
    __typeof__(&cuDevResourceGenerateDesc) describe;
    __typeof__(&cuGreenCtxCreate) create;
    __typeof__(&cuGreenCtxDestroy) destroy;
    __typeof__(&cuGreenCtxStreamCreate) stream;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint32_t asked, part, got;
    CUstream stream; /* NULL: none is made */
} parts[CW_GPUS_MAX];

/* They are younger than the calls that everything needs: a driver may lack them. */
static int find_calls(const struct cw_gpu *gpu, struct green_calls *out) {
    const struct {
        const char *name;
        void *place;
    } calls[] = {
        {VERSIONED(cuDeviceGetDevResource), &out->resource},
        {VERSIONED(cuDevSmResourceSplitByCount), &out->split},
        {VERSIONED(cuDevResourceGenerateDesc), &out->describe},
        {VERSIONED(cuGreenCtxCreate), &out->create},
        {VERSIONED(cuGreenCtxDestroy), &out->destroy},
        {VERSIONED(cuGreenCtxStreamCreate), &out->stream},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *found = cw_cuda_symbol(calls[i].name);
        if (!found)
            return cw_fail(-ENODEV,
                           "the CUDA driver (CUDA %d.%d) has no %s, and so cannot give a worker a "
                           "part of cuda:%d; CUDA 12.5 or later can (driver 555)",
                           gpu->cuda->version / 1000, gpu->cuda->version % 1000 / 10, calls[i].name,
                           gpu->ordinal);
        memcpy(calls[i].place, &found, sizeof found);
    }
    return 0;
}

/* Cuts the GPU into equal parts and describes one of them. */
static int cut(const struct cw_gpu *gpu, const struct green_calls *calls, uint32_t asked,
               uint32_t part, CUdevResourceDesc *out, uint32_t *got) {
    CUdevResource whole, pieces[PARTS_MAX], rest;
    unsigned count = PARTS_MAX;
    CUresult result = calls->resource(gpu->device, &whole, CU_DEV_RESOURCE_TYPE_SM);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(gpu->cuda, result, "asking for the multiprocessors of cuda:%d",
                             gpu->ordinal);
    result = calls->split(pieces, &count, &whole, &rest, 0, asked);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(gpu->cuda, result,
                             "cutting cuda:%d, of %u multiprocessors, into parts of %u",
                             gpu->ordinal, whole.sm.smCount, asked);
    if (part >= count)
        return cw_fail(-EDQUOT,
                       "cuda:%d has %u multiprocessors, which give %u parts of %u (the driver "
                       "rounds up); part %u was asked for: have fewer workers there, or ask for "
                       "smaller parts",
                       gpu->ordinal, whole.sm.smCount, count, asked, part);
    result = calls->describe(out, &pieces[part], 1);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(gpu->cuda, result, "describing a part of cuda:%d", gpu->ordinal);
    *got = pieces[part].sm.smCount;
    return 0;
}

static int make_part(const struct cw_gpu *gpu, uint32_t asked, uint32_t part, CUstream *stream,
                     uint32_t *got) {
    struct green_calls calls;
    CUdevResourceDesc description;
    CUgreenCtx context;
    int code = find_calls(gpu, &calls);
    if (code == 0)
        code = cut(gpu, &calls, asked, part, &description, got);
    if (code)
        return code;
    CUresult result = calls.create(&context, description, gpu->device, CU_GREEN_CTX_DEFAULT_STREAM);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(gpu->cuda, result, "making a context on a part of cuda:%d",
                             gpu->ordinal);
    result = calls.stream(stream, context, CU_STREAM_NON_BLOCKING, 0);
    if (result != CUDA_SUCCESS) {
        calls.destroy(context);
        return cw_cuda_error(gpu->cuda, result, "making a stream on a part of cuda:%d",
                             gpu->ordinal);
    }
    return 0;
}

static int part_of(const struct cw_gpu *gpu, uint32_t asked, uint32_t part, void **stream,
                   uint32_t *got) {
    int code = 0;
    pthread_mutex_lock(&lock);
    __typeof__(&parts[0]) mine = &parts[gpu->ordinal];
    if (!mine->stream) {
        code = make_part(gpu, asked, part, &mine->stream, &mine->got);
        mine->asked = asked;
        mine->part = part;
    } else if (mine->asked != asked || mine->part != part)
        code = cw_fail(-EINVAL, "this process has part %u of cuda:%d already, in parts of %u",
                       mine->part, gpu->ordinal, mine->asked);
    if (code == 0) {
        *stream = mine->stream;
        *got = mine->got;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

#else

static int part_of(const struct cw_gpu *gpu, uint32_t asked, uint32_t part, void **stream,
                   uint32_t *got) {
    (void)asked, (void)part, (void)stream, (void)got;
    return cw_fail(-ENODEV,
                   "a part of cuda:%d cannot be had: cableway was built with a cuda.h of CUDA "
                   "%d.%d, and parts need 12.5 or later",
                   gpu->ordinal, CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
}

#endif

int cw_device_part(int ordinal, uint32_t multiprocessors, uint32_t part, void **stream,
                   uint32_t *got) {
    struct cw_gpu *gpu;
    CUcontext current = NULL;
    if (!stream || !got || multiprocessors == 0)
        return cw_fail(-EINVAL, "a part of a GPU has one multiprocessor at least, and places for "
                                "the answers are needed");
    int code = cw_gpu_get(ordinal, &gpu);
    if (code == 0)
        code = part_of(gpu, multiprocessors, part, stream, got);
    /* Who uses the stream next may be the first to use CUDA on this thread. */
    if (code == 0 && gpu->cuda->cuCtxGetCurrent(&current) == CUDA_SUCCESS && !current)
        code = cw_gpu_enter(gpu);
    return code;
}
