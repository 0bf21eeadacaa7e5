/*
 * GPUs of this process: see device.h.
 *
 * State of the process: the list, read once under a lock and then constant, and each GPU's context
 * under its own lock. Any thread. A forked child never gets past cw_cuda_open().
 */
#include "ipc/cuda/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cw_gpu gpus[CW_GPUS_MAX];
static int gpu_count = -1; /* under list_lock */

static bool attribute(const struct cw_cuda *cuda, CUdevice device, CUdevice_attribute which) {
    int value = 0;
    return cuda->cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS && value != 0;
}

static int read_gpu(const struct cw_cuda *cuda, int ordinal, struct cw_gpu *out) {
    CUuuid uuid;
    CUresult result = cuda->cuDeviceGet(&out->device, ordinal);
    if (result == CUDA_SUCCESS)
        result = cuda->cuDeviceGetUuid(&uuid, out->device);
    if (result == CUDA_SUCCESS)
        result = cuda->cuDeviceGetName(out->name, sizeof out->name, out->device);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(cuda, result, "asking about cuda:%d", ordinal);
    out->cuda = cuda;
    out->ordinal = ordinal;
    memcpy(out->uuid, uuid.bytes, sizeof out->uuid);
    out->exports_fds =
        attribute(cuda, out->device,
                  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) &&
        attribute(cuda, out->device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    out->stream_ops =
        attribute(cuda, out->device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
    pthread_mutex_init(&out->lock, NULL);
    return 0;
}

static int read_list(const struct cw_cuda *cuda) {
    int count;
    CUresult result = cuda->cuDeviceGetCount(&count);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(cuda, result, "counting the GPUs");
    if (count > CW_GPUS_MAX)
        return cw_fail(-EDQUOT,
                       "this process sees %d GPUs; it can work with %d (CW_GPUS_MAX): name fewer "
                       "in CUDA_VISIBLE_DEVICES",
                       count, CW_GPUS_MAX);
    for (int i = 0; i < count; i++) {
        int code = read_gpu(cuda, i, &gpus[i]);
        if (code)
            return code;
    }
    gpu_count = count;
    return 0;
}

int cw_gpu_count(int *out) {
    const struct cw_cuda *cuda;
    int code = cw_cuda_open(&cuda);
    if (code)
        return code;
    pthread_mutex_lock(&list_lock);
    if (gpu_count < 0)
        code = read_list(cuda);
    int count = gpu_count;
    pthread_mutex_unlock(&list_lock);
    if (code == 0)
        *out = count;
    return code;
}

int cw_gpu_peek(int ordinal, const struct cw_gpu **out) {
    int count;
    int code = cw_gpu_count(&count);
    if (code)
        return code;
    if (ordinal < 0 || ordinal >= count) {
        const char *mask = getenv("CUDA_VISIBLE_DEVICES");
        return cw_fail(-ENODEV,
                       "there is no cuda:%d: this process sees %d GPU%s, cuda:0%s "
                       "(CUDA_VISIBLE_DEVICES is %s%s%s)",
                       ordinal, count, count == 1 ? "" : "s", count > 1 ? " and up" : "",
                       mask ? "\"" : "", mask ? mask : "not set", mask ? "\"" : "");
    }
    *out = &gpus[ordinal];
    return 0;
}

/* Retains the context and makes our streams. The GPU's lock is held. */
static int start_context(struct cw_gpu *gpu) {
    const struct cw_cuda *cuda = gpu->cuda;
    CUmemAllocationProp memory = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->device}};
    CUcontext context;
    CUstream copies = NULL, departures = NULL, ahead = NULL;
    size_t granule = 0;
    CUresult result = cuda->cuMemGetAllocationGranularity(&granule, &memory,
                                                          CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (result != CUDA_SUCCESS || granule == 0)
        return cw_cuda_error(cuda, result, "asking how memory of cuda:%d can be divided",
                             gpu->ordinal);
    result = cuda->cuDevicePrimaryCtxRetain(&context, gpu->device);
    if (result == CUDA_ERROR_DEVICE_UNAVAILABLE)
        return cw_cuda_error(cuda, result,
                             "cuda:%d (%s) lets no further process in: its compute mode is "
                             "exclusive or prohibited, and sharing needs the default mode",
                             gpu->ordinal, gpu->name);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(cuda, result, "making a context on cuda:%d", gpu->ordinal);
    result = cuda->cuCtxPushCurrent(context);
    if (result == CUDA_SUCCESS) {
        result = cuda->cuStreamCreate(&copies, CU_STREAM_NON_BLOCKING);
        if (result == CUDA_SUCCESS)
            result = cuda->cuStreamCreate(&departures, CU_STREAM_NON_BLOCKING);
        if (result == CUDA_SUCCESS)
            result = cuda->cuStreamCreate(&ahead, CU_STREAM_NON_BLOCKING);
        if (result != CUDA_SUCCESS && departures)
            cuda->cuStreamDestroy(departures);
        if (result != CUDA_SUCCESS && copies)
            cuda->cuStreamDestroy(copies);
        cuda->cuCtxPopCurrent(&(CUcontext){NULL});
    }
    if (result != CUDA_SUCCESS) {
        cuda->cuDevicePrimaryCtxRelease(gpu->device);
        return cw_cuda_error(cuda, result, "making a stream on cuda:%d", gpu->ordinal);
    }
    gpu->granule_bytes = granule;
    gpu->copies = copies;
    gpu->ahead = ahead;
    gpu->departures = departures;
    gpu->context = context;
    return 0;
}

int cw_gpu_get(int ordinal, struct cw_gpu **out) {
    const struct cw_gpu *found;
    int code = cw_gpu_peek(ordinal, &found);
    if (code)
        return code;
    struct cw_gpu *gpu = &gpus[ordinal];
    if (!gpu->exports_fds)
        return cw_fail(-ENODEV,
                       "cuda:%d (%s) cannot hand its memory out as descriptors, which sharing "
                       "needs (it may be a virtual GPU, or a driver without memory management); "
                       "use device=\"cpu\"",
                       ordinal, gpu->name);
    pthread_mutex_lock(&gpu->lock);
    if (!gpu->context)
        code = start_context(gpu);
    pthread_mutex_unlock(&gpu->lock);
    if (code == 0)
        *out = gpu;
    return code;
}

struct cw_gpu *cw_gpu_started(int ordinal) {
    pthread_mutex_lock(&list_lock);
    bool known = ordinal < gpu_count;
    pthread_mutex_unlock(&list_lock);
    return known ? &gpus[ordinal] : NULL;
}

int cw_gpu_check(const struct cw_gpu *gpu) {
    /* V3: a fact about this process, no order is needed. */
    CUresult fault = (CUresult)CW_LOAD(V3, (cw_a32 *)(uintptr_t)&gpu->fault, relaxed);
    const char *name = NULL;
    if (fault == CUDA_SUCCESS)
        return 0;
    if (gpu->cuda->cuGetErrorName(fault, &name) != CUDA_SUCCESS || !name)
        name = "an error without a name";
    return cw_fail(-ENODEV,
                   "this process's context on cuda:%d is broken by %s: nothing on that GPU works "
                   "here any more, start the process anew",
                   gpu->ordinal, name);
}

int cw_gpu_find(const uint8_t uuid[CW_UUID_BYTES], int *ordinal) {
    int count;
    int code = cw_gpu_count(&count);
    if (code)
        return code;
    for (int i = 0; i < count; i++)
        if (memcmp(gpus[i].uuid, uuid, CW_UUID_BYTES) == 0) {
            *ordinal = i;
            return 0;
        }
    char text[CW_UUID_TEXT];
    const char *mask = getenv("CUDA_VISIBLE_DEVICES");
    cw_uuid_text(uuid, text);
    return cw_fail(
        -ENODEV,
        "the array lies on the GPU %s, which this process does not see "
        "(CUDA_VISIBLE_DEVICES is %s%s%s): get(name, device=\"cpu\") copies it, and so does "
        ".to(\"cpu\") in a process that sees it; or name both GPUs in "
        "CUDA_VISIBLE_DEVICES here",
        text, mask ? "\"" : "", mask ? mask : "not set", mask ? "\"" : "");
}

bool cw_gpu_reaches(const struct cw_gpu *device, const struct cw_gpu *memory) {
    int can = 0;
    return device == memory || (device->cuda->cuDeviceCanAccessPeer(
                                    &can, device->device, memory->device) == CUDA_SUCCESS &&
                                can);
}

int cw_gpu_enter(const struct cw_gpu *gpu) {
    CUresult result = gpu->cuda->cuCtxPushCurrent(gpu->context);
    return result == CUDA_SUCCESS
               ? 0
               : cw_cuda_error(gpu->cuda, result, "entering the context of cuda:%d", gpu->ordinal);
}

void cw_gpu_leave(const struct cw_gpu *gpu) {
    CUcontext popped;
    gpu->cuda->cuCtxPopCurrent(&popped);
}
