/*
 * Links: how bytes get from one GPU to another, and how fast, measured with our own slabs and
 * routes. The broker keeps what was measured (broker/names/routes.h), so that a node is measured
 * once.
 *
 * No state. Measuring takes memory and contexts on both GPUs while it runs; any thread. Two that
 * measure the same way at once both tell, and the last one's word is kept.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/client.h"
#include "ipc/cuda/backend.h"
#include "ipc/cuda/staging.h"
#include "ipc/request/channel.h"
#include "shm/base/wait.h"

#define MEASURE_BYTES (128ull << 20)
#define ROUNDS        8
#define STAGED_ROUNDS 2 /* some 5 ms each on PCIe */

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

static int time_stage(struct cw_gpu *from, const struct cw_mapping *source, struct cw_gpu *to,
                      const struct cw_mapping *target, uint64_t *bytes_per_second) {
    int64_t begun_ns = 0;
    int code = 0;
    for (int i = 0; i <= STAGED_ROUNDS && code == 0; i++) {
        if (i == 1)
            begun_ns = cw_now_ns(); /* the first one makes the stage */
        code = cw_stage_copy(to, (CUdeviceptr)(uintptr_t)target->base, from,
                             (CUdeviceptr)(uintptr_t)source->base, MEASURE_BYTES, NULL);
    }
    int64_t taken_ns = cw_now_ns() - begun_ns;
    if (code == 0)
        *bytes_per_second = (uint64_t)((double)(STAGED_ROUNDS * MEASURE_BYTES) * 1e9 /
                                       (double)(taken_ns > 0 ? taken_ns : 1));
    return code;
}

static int measure(struct cw_gpu *from, struct cw_gpu *to, bool reaches,
                   uint64_t *bytes_per_second) {
    struct cw_mapping source, target;
    int code = make_buffer(from, &source);
    if (code)
        return code;
    code = make_buffer(to, &target);
    if (code == 0) {
        if (reaches)
            code = cw_cuda_admit(from, &target);
        if (code == 0)
            code = reaches ? time_copies(from, &source, &target, bytes_per_second)
                           : time_stage(from, &source, to, &target, bytes_per_second);
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
    info.route = from == to     ? (int)CW_LINK_SAME
                 : info.reaches ? (int)CW_LINK_PEER
                                : (int)CW_LINK_STAGED;
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
    if (measured) {
        struct cw_gpu *first, *second;
        code = cw_gpu_get(from, &first);
        if (code == 0)
            code = cw_gpu_get(to, &second);
        if (code == 0)
            code = measure(first, second, info.reaches, &info.bytes_per_second);
    }
    if (code == 0)
        *out = info;
    return code;
}

/* The UUIDs of both ends. */
static int name_link(int from, int to, struct cw_link *link) {
    const struct cw_gpu *source, *target;
    *link = (struct cw_link){.reserved = 0};
    int code = cw_gpu_peek(from, &source);
    if (code == 0)
        code = cw_gpu_peek(to, &target);
    if (code == 0) {
        memcpy(link->from_uuid, source->uuid, sizeof link->from_uuid);
        memcpy(link->to_uuid, target->uuid, sizeof link->to_uuid);
    }
    return code;
}

int cw_link_known(cw_client *client, int from, int to, cw_link_info *out) {
    struct cw_link link;
    uint32_t bytes = sizeof link;
    struct iovec part = {&link, sizeof link};
    if (!client || !out)
        return cw_fail(-EINVAL, "a client and a place for the answer are needed, NULL was given");
    int code = cw_client_usable(client);
    if (code == 0)
        code = name_link(from, to, &link);
    if (code)
        return code;
    code = cw_channel_call(client, CW_OP_LINK, &part, 1, &link, &bytes, CW_CALL_SHORT, -1);
    if (code == 0 && bytes != sizeof link)
        return cw_fail(-EPROTO, "the broker answered LINK with %u bytes", bytes);
    if (code == 0)
        *out = (cw_link_info){.reaches = link.route != CW_LINK_STAGED,
                              .rank = link.rank,
                              .atomics = (int)link.atomics,
                              .route = (int)link.route,
                              .bytes_per_second = link.bytes_per_second};
    if (code != -ENOENT)
        return code;
    cw_link_info info;
    code = cw_link_stat(from, to, 1, &info);
    if (code)
        return code;
    link.route = (uint32_t)info.route;
    link.rank = info.rank;
    link.atomics = info.atomics != 0;
    link.bytes_per_second = info.bytes_per_second;
    code = cw_channel_post(client, CW_OP_LINK_KEEP, &link, sizeof link);
    if (code == 0)
        *out = info;
    return code;
}
