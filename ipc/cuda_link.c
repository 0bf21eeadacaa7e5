/*
 * Links: how one GPU reaches another's memory, and how fast, measured with our own slabs and
 * routes.
 *
 * No state. It takes memory on both GPUs while it runs, and contexts; any thread.
 */
#include <stdlib.h>
#include <unistd.h>

#include "ipc/cuda_backend.h"
#include "shm/wait.h"

#define MEASURE_BYTES (128ull << 20)
#define ROUNDS        8

/* A slab of this process alone, mapped. */
static int make_buffer(const struct cw_gpu *gpu, struct cw_mapping *out) {
    int fd;
    int code = cw_backend_cuda.slab_create(gpu->ordinal, MEASURE_BYTES, &fd);
    if (code)
        return code;
    code = cw_backend_cuda.slab_map(gpu->ordinal, fd, MEASURE_BYTES, 0, 0, out);
    close(fd);
    return code;
}

static CUresult copy_once(const struct cw_gpu *from, const struct cw_mapping *source,
                          const struct cw_mapping *target) {
    return from->cuda->cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)target->base,
                                         (CUdeviceptr)(uintptr_t)source->base, MEASURE_BYTES,
                                         from->copies);
}

static int time_copies(const struct cw_gpu *from, const struct cw_mapping *source,
                       const struct cw_mapping *target, uint64_t *bytes_per_second) {
    int code = cw_gpu_enter(from);
    if (code)
        return code;
    CUresult result = copy_once(from, source, target); /* the first one is slower */
    if (result == CUDA_SUCCESS)
        result = from->cuda->cuStreamSynchronize(from->copies);
    int64_t begun_ns = cw_now_ns();
    for (int i = 0; i < ROUNDS && result == CUDA_SUCCESS; i++)
        result = copy_once(from, source, target);
    if (result == CUDA_SUCCESS)
        result = from->cuda->cuStreamSynchronize(from->copies);
    int64_t taken_ns = cw_now_ns() - begun_ns;
    cw_gpu_leave(from);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(from->cuda, result, "copying on cuda:%d", from->ordinal);
    *bytes_per_second =
        (uint64_t)((double)(ROUNDS * MEASURE_BYTES) * 1e9 / (double)(taken_ns > 0 ? taken_ns : 1));
    return 0;
}

static int measure(const struct cw_gpu *from, const struct cw_gpu *to, uint64_t *bytes_per_second) {
    struct cw_mapping source, target;
    int code = make_buffer(from, &source);
    if (code)
        return code;
    code = make_buffer(to, &target);
    if (code == 0) {
        code = cw_cuda_admit(from, &target);
        if (code == 0)
            code = time_copies(from, &source, &target, bytes_per_second);
        cw_backend_cuda.slab_unmap(&target);
    }
    cw_backend_cuda.slab_unmap(&source);
    return code;
}

int cw_link_stat(int from, int to, int measured, cw_link_info *out) {
    const struct cw_gpu *source, *target;
    cw_link_info info = {.rank = -1};
    if (!out)
        return cw_fail(-EINVAL, "a place for the answer is needed, NULL was given");
    int code = cw_gpu_peek(from, &source);
    if (code == 0)
        code = cw_gpu_peek(to, &target);
    if (code)
        return code;
    info.reaches = cw_gpu_reaches(source, target);
    if (info.reaches && from != to) {
        int value;
        if (source->cuda->cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK,
                                                  source->device, target->device) == CUDA_SUCCESS)
            info.rank = value;
        if (source->cuda->cuDeviceGetP2PAttribute(&value,
                                                  CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                                                  source->device, target->device) == CUDA_SUCCESS)
            info.atomics = value;
    }
    if (measured && info.reaches) {
        struct cw_gpu *opened;
        code = cw_gpu_get(from, &opened);
        if (code == 0)
            code = cw_gpu_get(to, &opened);
        if (code == 0)
            code = measure(source, target, &info.bytes_per_second);
    }
    if (code == 0)
        *out = info;
    return code;
}
