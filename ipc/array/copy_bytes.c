/*
 * Bytes of arrays, copied between any two devices of this process by the route that there is: see
 * copy_bytes.h.
 *
 * CABLEWAY_ROUTE in the environment forces a route between two GPUs, for tests and measurements:
 * "staged", or "mover".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/array/array.h"
#include "ipc/array/copy_bytes.h"
#include "ipc/array/mover_copy.h"
#include "ipc/base/parallel_copy.h"
#include "ipc/client.h"
#include "ipc/cuda/backend.h"
#include "ipc/cuda/staging.h"
#include "ipc/memory/slab.h"
#include "ipc/order/context_failure.h"
#include "ipc/order/unpinned.h"

#define REGISTER_BYTES (1ull << 20)

struct cw_copy_end cw_copy_end_of(cw_array *array, uint64_t offset_bytes) {
    struct cw_slab *slab = array->home_slab;
    bool on_gpu = slab->device_kind == CW_DEVICE_CUDA;
    return (struct cw_copy_end){.bytes = array->bytes + offset_bytes,
                                .gpu = on_gpu ? slab->device : -1,
                                .mapping = on_gpu ? cw_array_gpu_mapping(array) : array->mapping,
                                .array = array,
                                .offset_bytes = offset_bytes};
}

void cw_copy_span(struct cw_trace_span *span, int to, int from, uint64_t size_bytes, void *stream) {
    bool inside = cw_trace_top && cw_trace_top->kind == CW_TRACE_COPY;
    *span = (struct cw_trace_span){.kind = inside ? CW_TRACE_NONE : CW_TRACE_COPY,
                                   .flags = stream ? CW_TRACE_SUBMITTED : 0,
                                   .number = (uint32_t)from | (uint64_t)(uint32_t)to << 32,
                                   .bytes = size_bytes};
    cw_trace_enter(span);
    if (!inside && size_bytes && (to >= 0 || from >= 0 || size_bytes >= CW_COPY_TRACED_BYTES))
        cw_trace_begin(cw_now_ns());
}

/* What the copy that is under way turned out to be. */
static void note(enum cw_trace_flag flag) {
    for (struct cw_trace_span *span = cw_trace_top; span; span = span->outer)
        if (span->kind == CW_TRACE_COPY)
            span->flags |= (uint8_t)flag;
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

static CUdeviceptr address(const struct cw_copy_end *end) {
    return (CUdeviceptr)(uintptr_t)end->bytes;
}

/* Between host memory and a GPU, whichever is the target. */
static int copy_host_gpu(cw_client *client, const struct cw_copy_end *target,
                         const struct cw_copy_end *source, uint64_t size_bytes, void *stream) {
    const struct cw_copy_end *host = target->gpu < 0 ? target : source;
    const struct cw_copy_end *device = target->gpu < 0 ? source : target;
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
static int copy_staged(cw_client *client, const struct cw_copy_end *target,
                       const struct cw_copy_end *source, uint64_t size_bytes, void *stream) {
    struct cw_gpu *from, *to;
    struct copy_stream on = {.ours = true};
    note(CW_TRACE_STAGED);
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
static int copy_by_mover(const struct cw_copy_end *target, const struct cw_copy_end *source,
                         uint64_t size_bytes, void *stream) {
    struct copy_stream on;
    note(CW_TRACE_BY_MOVER);
    int code = enter_stream(source->gpu, stream, &on);
    if (code)
        return code;
    on.ours = true; /* what was given to it before comes first */
    code = leave_stream(&on, CUDA_SUCCESS, size_bytes);
    return code ? code
                : cw_job_copy(target->array, target->offset_bytes, source->array,
                              source->offset_bytes, size_bytes);
}

int cw_copy_gpu(const struct cw_copy_end *target, const struct cw_copy_end *source) {
    if (target->gpu < 0 || source->gpu < 0)
        return target->gpu < 0 ? source->gpu : target->gpu;
    return target->mapping ? source->gpu : target->gpu;
}

static bool admits(const struct cw_gpu *gpu, const struct cw_copy_end *end) {
    const struct cw_gpu *memory;
    if (end->mapping)
        return cw_cuda_admit(gpu, end->mapping) == 0;
    return cw_gpu_peek(end->gpu, &memory) == 0 && cw_gpu_reaches(gpu, memory);
}

static int copy_gpus(cw_client *client, const struct cw_copy_end *target,
                     const struct cw_copy_end *source, uint64_t size_bytes, void *stream,
                     bool in_mover) {
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
    code = enter_stream(cw_copy_gpu(target, source), stream, &on);
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

static int copy_bytes(cw_client *client, const struct cw_copy_end *target,
                      const struct cw_copy_end *source, uint64_t size_bytes, void *stream,
                      bool in_mover) {
    if (size_bytes == 0)
        return 0;
    if (target->gpu < 0 && source->gpu < 0) {
        cw_copy_in_parallel(target->bytes, source->bytes, size_bytes);
        return 0;
    }
    return target->gpu < 0 || source->gpu < 0
               ? copy_host_gpu(client, target, source, size_bytes, stream)
               : copy_gpus(client, target, source, size_bytes, stream, in_mover);
}

int cw_copy_bytes(cw_client *client, const struct cw_copy_end *target,
                  const struct cw_copy_end *source, uint64_t size_bytes, void *stream,
                  bool in_mover) {
    struct cw_trace_span span;
    cw_copy_span(&span, target->gpu, source->gpu, size_bytes, stream);
    int code = copy_bytes(client, target, source, size_bytes, stream, in_mover);
    cw_trace_leave(&span, code < 0);
    return code;
}

int cw_copy_one(cw_array *target, uint64_t target_bytes, cw_array *source, uint64_t source_bytes,
                uint64_t size_bytes, void *stream) {
    const struct cw_copy_end to = cw_copy_end_of(target, target_bytes),
                             from = cw_copy_end_of(source, source_bytes);
    return cw_copy_bytes(target->client, &to, &from, size_bytes, stream, false);
}

int cw_copy_unordered(cw_array *target, cw_array *source, uint64_t size_bytes) {
    const struct cw_copy_end to = cw_copy_end_of(target, 0), from = cw_copy_end_of(source, 0);
    return cw_copy_bytes(target->client, &to, &from, size_bytes, NULL, true);
}

/* ---- in order with the arrays' other users ---- */

int cw_copy_own_stream(const struct cw_copy_end *target, void **stream) {
    struct cw_gpu *gpu;
    *stream = NULL;
    if (target->gpu < 0)
        return 0;
    int code = cw_gpu_get(target->gpu, &gpu);
    if (code == 0)
        *stream = gpu->ahead;
    return code;
}

int cw_copy_ordered(cw_array *target, const struct cw_copy_end *to, const struct cw_copy_end *from,
                    uint64_t size_bytes, void *stream) {
    char text[CW_DETAIL_MAX];
    bool found;
    int code = cw_unpinned_begin(target, stream, true, -1);
    if (code)
        return code;
    code = cw_copy_bytes(target->client, to, from, size_bytes, stream, false);
    if (code)
        snprintf(text, sizeof text, "%s", cw_detail());
    int ended = cw_unpinned_end(target, stream, true, false, code != 0, NULL, &found);
    return cw_context_failure_serve(code ? cw_fail(code, "%s", text) : ended);
}
