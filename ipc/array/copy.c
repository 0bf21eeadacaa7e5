/*
 * Copies: bytes of arrays, between any two devices of this process, by the route that there is.
 *
 *   host      both ends in host memory
 *   same      within one GPU
 *   peer      GPU to GPU, by the copy engine of the source (a push is 7 us cheaper than a pull)
 *   in, out   between host memory and a GPU. Our slabs are registered with CUDA at the first copy
 *             of REGISTER_BYTES and stay registered: copies are then three times as fast
 *   staged    GPU to GPU where the hardware has no direct route: through host memory (staging.h).
 *             If this process sees both GPUs it copies by itself, since it has contexts and
 *             mappings and can use a stream; else cableway-mover copies (mover_copy.h)
 * CABLEWAY_ROUTE in the environment forces a route between two GPUs, for tests and measurements:
 * "staged", or "mover".
 * The session's segment counts bytes per route, so that an unexpected route can be seen.
 *
 * No state of its own. The caller holds leases on the arrays. If this process dies in a copy, the
 * target has some of the bytes. Others hear of an array only when it is complete.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/array/array.h"
#include "ipc/array/copy_batch.h"
#include "ipc/array/mover_copy.h"
#include "ipc/client.h"
#include "ipc/cuda/backend.h"
#include "ipc/cuda/staging.h"
#include "ipc/array/first_touch.h"
#include "ipc/memory/slab.h"
#include "ipc/order/context_failure.h"
#include "ipc/order/fence.h"
#include "ipc/order/section.h"

#define REGISTER_BYTES (1ull << 20)

/* One end of a copy. */
struct end {
    uint8_t *bytes;
    int gpu;                    /* -1: host memory */
    struct cw_mapping *mapping; /* of a slab of ours; NULL: somebody else's memory */
    cw_array *array;            /* and offset in it: of a mapping, for the mover */
    uint64_t offset_bytes;
};

static int check_range(const cw_array *array, uint64_t offset_bytes, uint64_t size_bytes) {
    if (!array)
        return cw_fail(-EINVAL, "an array is needed, NULL was given");
    if (offset_bytes > array->size_bytes || size_bytes > array->size_bytes - offset_bytes)
        return cw_fail(-EINVAL, "%llu bytes at %llu reach beyond the array's end at %llu",
                       (unsigned long long)size_bytes, (unsigned long long)offset_bytes,
                       (unsigned long long)array->size_bytes);
    return 0;
}

static int check_target(const cw_array *array, uint64_t offset_bytes, uint64_t size_bytes) {
    int code = check_range(array, offset_bytes, size_bytes);
    if (code == 0 && array->readonly)
        return cw_fail(-EINVAL, "the array is mapped read-only");
    return code;
}

static struct end end_of(cw_array *array, uint64_t offset_bytes) {
    struct cw_slab *slab = array->home_slab;
    bool on_gpu = slab->device_kind == CW_DEVICE_CUDA;
    return (struct end){.bytes = array->bytes + offset_bytes,
                        .gpu = on_gpu ? slab->device : -1,
                        .mapping = on_gpu ? &slab->rw : array->mapping,
                        .array = array,
                        .offset_bytes = offset_bytes};
}

/* X1: figures; each process adds its own. */
void cw_copy_count(cw_client *client, enum cw_route route, uint64_t size_bytes) {
    CW_ADD(X1, &client->shared->routes[route], size_bytes, relaxed);
}

/* Where a copy runs: a stream of the caller's, or ours. */
struct copy_stream {
    struct cw_gpu *gpu;
    CUstream stream;
    bool ours; /* then the copy is complete when the call returns */
};

/* Opens the GPU and makes the stream's context current; leave_stream() ends it. A stream of the
 * caller's decides on which GPU the copy runs. */
static int enter_stream(int gpu, void *stream, struct copy_stream *out) {
    CUcontext context;
    CUdevice device;
    struct copy_stream on = {.ours = stream == NULL};
    int code = cw_gpu_get(gpu, &on.gpu);
    if (code)
        return code;
    if (on.ours) {
        on.stream = on.gpu->copies;
        *out = on;
        return cw_gpu_enter(on.gpu);
    }
    const struct cw_cuda *cuda = on.gpu->cuda;
    on.stream = stream;
    code = cw_gpu_enter(on.gpu); /* asked without any context, the driver refuses */
    if (code)
        return code;
    CUresult result = cuda->cuStreamGetCtx(stream, &context);
    cw_gpu_leave(on.gpu);
    if (result == CUDA_SUCCESS)
        result = cuda->cuCtxPushCurrent(context);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(cuda, result, "the stream %p", stream);
    result = cuda->cuCtxGetDevice(&device);
    if (result == CUDA_SUCCESS && device != on.gpu->device)
        code = cw_gpu_get(device, &on.gpu);
    else if (result != CUDA_SUCCESS)
        code = cw_cuda_error(cuda, result, "asking for the GPU of the stream %p", stream);
    if (code)
        cuda->cuCtxPopCurrent(&context);
    *out = on;
    return code;
}

static int leave_stream(const struct copy_stream *on, CUresult result, uint64_t size_bytes) {
    if (result == CUDA_SUCCESS && on->ours)
        result = on->gpu->cuda->cuStreamSynchronize(on->stream);
    cw_gpu_leave(on->gpu);
    return result == CUDA_SUCCESS
               ? 0
               : cw_cuda_error(on->gpu->cuda, result, "copying %llu bytes on cuda:%d",
                               (unsigned long long)size_bytes, on->gpu->ordinal);
}

static CUdeviceptr address(const struct end *end) {
    return (CUdeviceptr)(uintptr_t)end->bytes;
}

/* Between host memory and a GPU, whichever is the target. */
static int copy_host_gpu(cw_client *client, const struct end *target, const struct end *source,
                         uint64_t size_bytes, void *stream) {
    const struct end *host = target->gpu < 0 ? target : source;
    const struct end *device = target->gpu < 0 ? source : target;
    struct copy_stream on;
    int code = enter_stream(device->gpu, stream, &on);
    if (code)
        return code;
    if (device->mapping && on.gpu->ordinal != device->gpu)
        code = cw_cuda_admit(on.gpu, device->mapping);
    if (code) {
        cw_gpu_leave(on.gpu);
        return code;
    }
    if (on.ours && host == target)
        on.stream = on.gpu->departures;
    if (host->mapping && size_bytes >= REGISTER_BYTES)
        cw_cuda_register_host(on.gpu, host->mapping);
    CUresult result =
        host == source
            ? on.gpu->cuda->cuMemcpyHtoDAsync(address(device), source->bytes, size_bytes, on.stream)
            : on.gpu->cuda->cuMemcpyDtoHAsync(target->bytes, address(device), size_bytes,
                                              on.stream);
    code = leave_stream(&on, result, size_bytes);
    if (code == 0)
        cw_copy_count(client, host == source ? CW_ROUTE_IN : CW_ROUTE_OUT, size_bytes);
    return code;
}

/* Where GPUs cannot reach each other, and this process sees both: staging.h. */
static int copy_staged(cw_client *client, const struct end *target, const struct end *source,
                       uint64_t size_bytes, void *stream) {
    struct cw_gpu *from, *to;
    struct copy_stream on = {.ours = true};
    int code = cw_gpu_get(source->gpu, &from);
    if (code == 0)
        code = cw_gpu_get(target->gpu, &to);
    if (code == 0 && stream) {
        code = enter_stream(source->gpu, stream, &on);
        if (code)
            return code;
    }
    if (code == 0)
        code = cw_stage_copy(to, address(target), from, address(source), size_bytes, on.stream);
    if (!on.ours)
        cw_gpu_leave(on.gpu);
    if (code == 0)
        cw_copy_count(client, CW_ROUTE_STAGED, size_bytes);
    return code;
}

/* By cableway-mover, which counts the bytes itself. Waits for the stream, and for the copy. */
static int copy_by_mover(const struct end *target, const struct end *source, uint64_t size_bytes,
                         void *stream) {
    struct copy_stream on;
    int code = enter_stream(source->gpu, stream, &on);
    if (code)
        return code;
    on.ours = true; /* what was given to it before comes first */
    code = leave_stream(&on, CUDA_SUCCESS, size_bytes);
    return code ? code
                : cw_job_copy(target->array, target->offset_bytes, source->array,
                              source->offset_bytes, size_bytes);
}

static bool admits(const struct cw_gpu *gpu, const struct end *end) {
    const struct cw_gpu *memory;
    if (end->mapping)
        return cw_cuda_admit(gpu, end->mapping) == 0;
    return cw_gpu_peek(end->gpu, &memory) == 0 && cw_gpu_reaches(gpu, memory);
}

static int copy_gpus(cw_client *client, const struct end *target, const struct end *source,
                     uint64_t size_bytes, void *stream, bool in_mover) {
    struct copy_stream on;
    enum cw_wish wish = CW_WISH_NONE;
    int code = source->gpu == target->gpu ? 0 : cw_route_wish(&wish);
    if (code)
        return code;
    if (wish == CW_WISH_MOVER && in_mover)
        wish = CW_WISH_STAGED;
    if (wish == CW_WISH_MOVER && source->mapping && target->mapping)
        return copy_by_mover(target, source, size_bytes, stream);
    if (wish != CW_WISH_NONE)
        return copy_staged(client, target, source, size_bytes, stream);
    code = enter_stream(source->gpu, stream, &on);
    if (code)
        return code;
    if (!admits(on.gpu, source) || !admits(on.gpu, target)) {
        cw_gpu_leave(on.gpu);
        return copy_staged(client, target, source, size_bytes, stream);
    }
    CUresult result =
        on.gpu->cuda->cuMemcpyDtoDAsync(address(target), address(source), size_bytes, on.stream);
    code = leave_stream(&on, result, size_bytes);
    if (code == 0)
        cw_copy_count(client, target->gpu == source->gpu ? CW_ROUTE_SAME : CW_ROUTE_PEER,
                      size_bytes);
    return code;
}

static int copy(cw_client *client, const struct end *target, const struct end *source,
                uint64_t size_bytes, void *stream, bool in_mover) {
    if (size_bytes == 0)
        return 0;
    if (target->gpu < 0 && source->gpu < 0) {
        memmove(target->bytes, source->bytes, size_bytes);
        return 0;
    }
    return target->gpu < 0 || source->gpu < 0
               ? copy_host_gpu(client, target, source, size_bytes, stream)
               : copy_gpus(client, target, source, size_bytes, stream, in_mover);
}

int cw_copy_one(cw_array *target, uint64_t target_bytes, cw_array *source, uint64_t source_bytes,
                uint64_t size_bytes, void *stream) {
    const struct end to = end_of(target, target_bytes), from = end_of(source, source_bytes);
    return copy(target->client, &to, &from, size_bytes, stream, false);
}

/* ---- in order with the arrays' other users ---- */

/* What a copy waits for, and how others wait for it. Without a stream the CPU waits before, and all
 * is done when the call returns. */
static int begin(cw_array *target, cw_array *source, void *stream) {
    int code = 0;
    if (source)
        code = stream ? cw_array_reading_begin(source, stream, -1) : cw_array_wait(source, -1);
    if (code == 0 && target) {
        code = stream ? cw_array_writing_begin(target, stream, -1) : cw_array_settle(target, -1);
        if (code && stream && source)
            (void)cw_array_reading_end(source, stream); /* nothing was submitted */
    }
    return code;
}

/* code: of the copy. */
static int end(cw_array *target, cw_array *source, void *stream, int code) {
    char text[CW_DETAIL_MAX];
    if (code) {
        snprintf(text, sizeof text, "%s", cw_detail());
        if (stream && target && code != -EINTR) /* -EINTR: it was never begun */
            (void)cw_array_writing_fail(target, stream);
        else if (stream && target)
            (void)cw_array_writing_end(target, stream, 0);
        if (stream && source)
            (void)cw_array_reading_end(source, stream);
        return cw_context_failure_serve(cw_fail(code, "%s", text));
    }
    if (stream && target)
        code = cw_array_writing_end(target, stream, 0);
    if (stream && source) {
        int ended = cw_array_reading_end(source, stream);
        code = code ? code : ended;
    }
    return cw_context_failure_serve(code);
}

/* A copy by the mover is put in order by a stream of ours: the target is this process's to write
 * until the mover is done, and if this process dies before, it is known to be incomplete. */
static int stream_for_mover(const struct end *target, const struct end *source, void **stream) {
    enum cw_wish wish = CW_WISH_NONE;
    struct cw_gpu *gpu;
    if (target->gpu < 0 || source->gpu < 0 || target->gpu == source->gpu || !target->mapping ||
        !source->mapping)
        return 0;
    int code = cw_route_wish(&wish);
    if (code || wish != CW_WISH_MOVER)
        return code;
    code = cw_gpu_get(target->gpu, &gpu);
    if (code == 0)
        *stream = gpu->copies;
    return code;
}

/* CW_STREAM_OWN: a stream of ours on the target's GPU; none where the target is host memory, of
 * which nobody could tell when it is complete. */
static int own_stream(const struct end *target, void **stream) {
    struct cw_gpu *gpu;
    *stream = NULL;
    if (target->gpu < 0)
        return 0;
    int code = cw_gpu_get(target->gpu, &gpu);
    if (code == 0)
        *stream = gpu->ahead;
    return code;
}

int cw_copy_unordered(cw_array *target, cw_array *source, uint64_t size_bytes) {
    const struct end to = end_of(target, 0), from = end_of(source, 0);
    return copy(target->client, &to, &from, size_bytes, NULL, true);
}

/* ---- the public calls ---- */

static int copy_arrays(cw_array *target, uint64_t target_bytes, cw_array *source,
                       uint64_t source_bytes, uint64_t size_bytes, void *stream) {
    int code = check_target(target, target_bytes, size_bytes);
    if (code == 0)
        code = check_range(source, source_bytes, size_bytes);
    if (code)
        return code;
    const struct end to = end_of(target, target_bytes), from = end_of(source, source_bytes);
    if (stream == CW_STREAM_OWN)
        code = own_stream(&to, &stream);
    if (code == 0 && !stream)
        code = stream_for_mover(&to, &from, &stream);
    if (code == 0)
        code = begin(target, source, stream);
    if (code)
        return code;
    return end(target, source, stream, copy(target->client, &to, &from, size_bytes, stream, false));
}

int cw_array_copy(cw_array *target, uint64_t target_bytes, cw_array *source, uint64_t source_bytes,
                  uint64_t size_bytes, void *stream) {
    int code = cw_array_pin(target);
    if (code)
        return code;
    code = cw_array_pin(source);
    if (code == 0) {
        code = copy_arrays(target, target_bytes, source, source_bytes, size_bytes, stream);
        cw_array_unpin(source);
    }
    cw_array_unpin(target);
    return code;
}

static bool apart(const struct end *target, const struct end *source, uint64_t size_bytes) {
    return target->bytes + size_bytes <= source->bytes ||
           source->bytes + size_bytes <= target->bytes;
}

static int check_gpu(int gpu) {
    return gpu >= -1
               ? 0
               : cw_fail(-EINVAL, "gpu is -1 for host memory or a GPU's number, %d was given", gpu);
}

static int copy_in(cw_array *target, uint64_t target_bytes, const void *source, int gpu,
                   uint64_t size_bytes, void *stream) {
    int code = check_target(target, target_bytes, size_bytes);
    if (code == 0 && !source && size_bytes)
        code = cw_fail(-EINVAL, "memory to copy from is needed, NULL was given");
    if (code == 0)
        code = check_gpu(gpu);
    if (code)
        return code;
    const struct end to = end_of(target, target_bytes);
    const struct end from = {.bytes = (uint8_t *)(uintptr_t)source, .gpu = gpu};
    code = begin(target, NULL, stream);
    if (code)
        return code;
    if (to.gpu < 0 && from.gpu < 0 && apart(&to, &from, size_bytes) && cw_fresh_take(target))
        cw_fresh_write(target, target_bytes, source, size_bytes);
    else
        code = copy(target->client, &to, &from, size_bytes, stream, false);
    return end(target, NULL, stream, code);
}

int cw_array_copy_in(cw_array *target, uint64_t target_bytes, const void *source, int gpu,
                     uint64_t size_bytes, void *stream) {
    int code = cw_array_pin(target);
    if (code)
        return code;
    code = copy_in(target, target_bytes, source, gpu, size_bytes, stream);
    cw_array_unpin(target);
    return code;
}

static int copy_out(cw_array *source, uint64_t source_bytes, void *target, int gpu,
                    uint64_t size_bytes, void *stream) {
    int code = check_range(source, source_bytes, size_bytes);
    if (code == 0 && !target && size_bytes)
        code = cw_fail(-EINVAL, "memory to copy into is needed, NULL was given");
    if (code == 0)
        code = check_gpu(gpu);
    if (code)
        return code;
    const struct end from = end_of(source, source_bytes);
    const struct end to = {.bytes = target, .gpu = gpu};
    code = begin(NULL, source, stream);
    if (code)
        return code;
    return end(NULL, source, stream, copy(source->client, &to, &from, size_bytes, stream, false));
}

int cw_array_copy_out(cw_array *source, uint64_t source_bytes, void *target, int gpu,
                      uint64_t size_bytes, void *stream) {
    int code = cw_array_pin(source);
    if (code)
        return code;
    code = copy_out(source, source_bytes, target, gpu, size_bytes, stream);
    cw_array_unpin(source);
    return code;
}

int cw_array_write(cw_array *array, uint64_t offset_bytes, const void *source,
                   uint64_t size_bytes) {
    return cw_array_copy_in(array, offset_bytes, source, -1, size_bytes, NULL);
}

int cw_array_read(const cw_array *array, uint64_t offset_bytes, void *destination,
                  uint64_t size_bytes) {
    return cw_array_copy_out((cw_array *)(uintptr_t)array, offset_bytes, destination, -1,
                             size_bytes, NULL);
}
