/*
 * Copies, many at once: put in order as one piece of work, and given to the driver by as few calls
 * as it takes.
 *
 * Invariants
 *   N1  Nothing is given to the driver before all pairs were checked, and all arrays are this
 *       piece of work's (section.h): what is refused then has changed nothing.
 *   N2  Nothing is announced before all was submitted. Where the driver refuses in the midst, some
 *       targets hold new data and some old: all of them are marked as incomplete, so that whoever
 *       reads one is told, until it is written anew.
 *   N3  Copies of one call may run in any order: no target overlaps another pair's bytes.
 *   N4  What runs on a second stream (submit_beside()) begins behind what the first one waits for,
 *       and the first one goes on behind it: to whoever waits for the first stream it is one.
 * No state. If this process dies in the midst the broker takes its turns out, and readers of every
 * target are told.
 */
#include "ipc/array/array.h"
#include "ipc/client.h"
#include "ipc/memory/slab.h"
#include "ipc/array/copy_bytes.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/order/context_failure.h"
#include "ipc/cuda/backend.h"
#include "ipc/cuda/kernel.h"
#include "ipc/order/fence.h"
#include "ipc/array/mover_copy.h"
#include "ipc/order/section.h"

/* From so many bytes on it pays to copy what stays on a GPU beside what comes from others: the
 * calls for a second stream take some 5 us. */
#define BESIDE_BYTES (1ull << 20)

struct range { /* for N3 */
    uintptr_t begin, end;
    uint64_t pair;
};

struct batch {
    const cw_pair *pairs;
    uint64_t count;
    struct cw_gpu *gpu; /* of the stream; NULL: nothing lies on a GPU */
    CUstream stream;
    bool ours; /* the stream: all is done when the call returns */
    /* What one call of the driver takes, and the bytes of its routes: what comes from other GPUs
     * first, what stays on one last. */
    CUdeviceptr *to, *from;
    size_t *sizes;
    size_t peers, same;
    const cw_array *last_to, *last_from; /* of the last pair that was listed */
    uint64_t same_bytes, peer_bytes;
};

/* ---- checks ---- */

static int check_end(const cw_array *array, const cw_client *client, uint64_t at, uint64_t bytes,
                     uint64_t pair) {
    if (!array)
        return cw_fail(-EINVAL, "pair %llu: an array is needed, NULL was given",
                       (unsigned long long)pair);
    if (array->client != client)
        return cw_fail(
            -EINVAL,
            "pair %llu: the two arrays belong to different clients; open both with one client",
            (unsigned long long)pair);
    if (at > array->size_bytes || bytes > array->size_bytes - at)
        return cw_fail(-EINVAL,
                       "pair %llu: %llu bytes at %llu reach beyond the array's end at %llu",
                       (unsigned long long)pair, (unsigned long long)bytes, (unsigned long long)at,
                       (unsigned long long)array->size_bytes);
    return 0;
}

static int by_begin(const void *a, const void *b) {
    const struct range *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Parts of one array mostly come in order. */
static void put_in_order(struct range *ranges, uint64_t count) {
    for (uint64_t i = 1; i < count; i++)
        if (ranges[i].begin < ranges[i - 1].begin) {
            qsort(ranges, count, sizeof *ranges, by_begin);
            return;
        }
}

/* In the order of their begins: who begins before the furthest end of another kind overlaps. */
static int check_overlap(struct range *targets, struct range *sources, uint64_t count) {
    const struct range *target = NULL, *source = NULL; /* that reach furthest */
    put_in_order(targets, count);
    put_in_order(sources, count);
    for (uint64_t t = 0, s = 0; t < count || s < count;) {
        bool of_target = s == count || (t < count && targets[t].begin < sources[s].begin);
        const struct range *at = of_target ? &targets[t++] : &sources[s++], *other = target;
        if (of_target && source && (!other || source->end > other->end))
            other = source;
        if (other && at->begin < other->end)
            return cw_fail(-EINVAL,
                           "the pairs %llu and %llu overlap: copies of one call run in any order, "
                           "so no target may be another's target or source",
                           (unsigned long long)other->pair, (unsigned long long)at->pair);
        const struct range **furthest = of_target ? &target : &source;
        if (!*furthest || at->end > (*furthest)->end)
            *furthest = at;
    }
    return 0;
}

static int check_pairs(const cw_pair *pairs, uint64_t count, struct range *ranges) {
    const cw_client *client = pairs[0].target->client;
    struct range *targets = ranges, *sources = ranges + count;
    uint64_t used = 0;
    for (uint64_t i = 0; i < count; i++) {
        const cw_pair *pair = &pairs[i];
        int code = check_end(pair->target, client, pair->target_bytes, pair->size_bytes, i);
        if (code == 0)
            code = check_end(pair->source, client, pair->source_bytes, pair->size_bytes, i);
        if (code == 0 && pair->target->readonly)
            code = cw_fail(-EINVAL,
                           "pair %llu: the target was opened read-only, so it cannot be written: "
                           "open it without readonly (CW_READONLY), or write to a copy",
                           (unsigned long long)i);
        if (code)
            return code;
        if (pair->size_bytes == 0)
            continue;
        uintptr_t to = (uintptr_t)pair->target->bytes + pair->target_bytes;
        uintptr_t from = (uintptr_t)pair->source->bytes + pair->source_bytes;
        targets[used] = (struct range){to, to + pair->size_bytes, i};
        sources[used++] = (struct range){from, from + pair->size_bytes, i};
    }
    return check_overlap(targets, sources, used);
}

static int check(const cw_pair *pairs, uint64_t count) {
    int code = cw_array_usable(pairs[0].target);
    if (code)
        return code;
    struct range *ranges = malloc(2 * count * sizeof *ranges);
    if (!ranges)
        return cw_fail(-EDQUOT, "no memory to check %llu copies", (unsigned long long)count);
    code = check_pairs(pairs, count, ranges);
    free(ranges);
    return code;
}

/* ---- the stream ---- */

/* The caller's, or ours of the GPU of the first target on one; else of the first source. From
 * another GPU than the targets' what is copied within one would cross the link twice. */
static int choose_stream(struct batch *b, void *stream) {
    int gpu = -1, code = 0;
    for (uint64_t i = 0; i < b->count && gpu < 0; i++)
        gpu = cw_array_gpu(b->pairs[i].target);
    for (uint64_t i = 0; i < b->count && gpu < 0; i++)
        gpu = cw_array_gpu(b->pairs[i].source);
    if (gpu < 0)
        return 0;
    code = cw_gpu_get(gpu, &b->gpu);
    b->ours = stream == NULL;
    b->stream = stream ? stream : code == 0 ? b->gpu->copies : NULL;
    return code;
}

static bool same_block(const cw_array *one, const cw_array *other) {
    return one->slab == other->slab && one->block == other->block;
}

/* Without a stream of the caller's the CPU waits, so that ours holds nobody else up behind it.
 * Parts of one array mostly follow each other. */
static int wait_for_all(const struct batch *b) {
    int code = 0;
    for (uint64_t i = 0; i < b->count && code == 0; i++) {
        const cw_pair *pair = &b->pairs[i], *last = i ? pair - 1 : NULL;
        if (!last || !same_block(pair->source, last->source))
            code = cw_array_wait(pair->source, -1);
        if (code == 0 && (!last || !same_block(pair->target, last->target)))
            code = cw_array_settle(pair->target, -1);
    }
    return code;
}

static int begin(const struct batch *b, cw_work **work) {
    cw_use *uses = malloc(2 * b->count * sizeof *uses);
    if (!uses)
        return cw_fail(-EDQUOT, "no memory to keep track of %llu copies",
                       (unsigned long long)b->count);
    uint32_t used = 0;
    for (uint64_t i = 0; i < b->count; i++) {
        const cw_pair *pair = &b->pairs[i], *last = i ? pair - 1 : NULL;
        if (!last || pair->source != last->source)
            uses[used++] = (cw_use){.array = pair->source};
        if (!last || pair->target != last->target)
            uses[used++] = (cw_use){.array = pair->target, .writing = 1};
    }
    int code = cw_work_begin(uses, used, b->stream, -1, work);
    free(uses);
    return code;
}

/* ---- bytes ---- */

/* Whether both lie on GPUs, in memory that the stream's GPU reaches. */
static bool reaches_both(const struct batch *b, const cw_pair *pair) {
    struct cw_slab *to = pair->target->home_slab, *from = pair->source->home_slab;
    enum cw_wish wish = CW_WISH_NONE;
    if (to->device != from->device && (cw_route_wish(&wish) != 0 || wish != CW_WISH_NONE))
        return false;
    return to->device_kind == CW_DEVICE_CUDA && from->device_kind == CW_DEVICE_CUDA &&
           cw_cuda_admit(b->gpu, cw_array_gpu_mapping(pair->target)) == 0 &&
           cw_cuda_admit(b->gpu, cw_array_gpu_mapping(pair->source)) == 0;
}

/* One of many in one call, if it can be. All are pinned, so that what held for the last pair's
 * arrays does. */
static bool list(struct batch *b, const cw_pair *pair) {
    if ((pair->target != b->last_to || pair->source != b->last_from) && !reaches_both(b, pair))
        return false;
    b->last_to = pair->target;
    b->last_from = pair->source;
    const bool same = pair->target->home_slab->device == pair->source->home_slab->device;
    const size_t at = same ? b->count - ++b->same : b->peers++;
    b->to[at] = (CUdeviceptr)(uintptr_t)pair->target->bytes + pair->target_bytes;
    b->from[at] = (CUdeviceptr)(uintptr_t)pair->source->bytes + pair->source_bytes;
    b->sizes[at] = pair->size_bytes;
    *(same ? &b->same_bytes : &b->peer_bytes) += pair->size_bytes;
    return true;
}

/* One call where the driver has it, else one for each and no wait between. The stream's context is
 * current. */
static CUresult submit_some(const struct batch *b, size_t first, size_t count, CUstream stream) {
    const struct cw_cuda *cuda = b->gpu->cuda;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
#ifdef CW_CUDA_CALLS_LATER
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    size_t all = 0;
    if (count > 1 && cuda->cuMemcpyBatchAsync)
        result = cuda->cuMemcpyBatchAsync(b->to + first, b->from + first, b->sizes + first, count,
                                          &attributes, &all, 1, stream);
#endif
    if (result != CUDA_ERROR_NOT_SUPPORTED && result != CUDA_ERROR_INVALID_VALUE)
        return result;
    /* What was taken of them before is copied again, which is the same. */
    result = CUDA_SUCCESS;
    for (size_t i = first; i < first + count && result == CUDA_SUCCESS; i++)
        result = cuda->cuMemcpyDtoDAsync(b->to[i], b->from[i], b->sizes[i], stream);
    return result;
}

/* Copies within the GPU by its kernels where it has them: its copy engines are slower, and the same
 * ones that carry what comes over the link. */
static CUresult submit_within(const struct batch *b, CUstream stream) {
    const size_t first = b->count - b->same;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = first; i < b->count && result == CUDA_SUCCESS; i++)
        if (!cw_kernel_copy(b->gpu, stream, (void *)(uintptr_t)b->to[i],
                            (const void *)(uintptr_t)b->from[i], b->sizes[i], &result))
            result = submit_some(b, i, 1, stream);
    return result;
}

/* What stays on the GPU goes beside what comes over the link, and takes none of its time: that is
 * submitted first, and runs while the calls for the rest are made. */
static CUresult submit_beside(const struct batch *b) {
    const struct cw_cuda *cuda = b->gpu->cuda;
    CUstream beside = b->gpu->departures;
    CUevent event;
    CUresult result = cuda->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), joined;
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda->cuEventRecord(event, b->stream);
    if (result == CUDA_SUCCESS)
        result = submit_some(b, 0, b->peers, b->stream);
    if (result == CUDA_SUCCESS)
        result = cuda->cuStreamWaitEvent(beside, event, 0);
    if (result == CUDA_SUCCESS)
        result = submit_within(b, beside);
    joined = cuda->cuEventRecord(event, beside);
    if (joined == CUDA_SUCCESS)
        joined = cuda->cuStreamWaitEvent(b->stream, event, 0);
    if (joined != CUDA_SUCCESS)
        cuda->cuStreamSynchronize(beside); /* nothing may run on when the call has returned */
    cuda->cuEventDestroy(event);
    return result != CUDA_SUCCESS ? result : joined;
}

static CUresult submit_list(const struct batch *b) {
    if (b->ours && b->peers && b->same_bytes >= BESIDE_BYTES)
        return submit_beside(b);
    CUresult result = submit_some(b, 0, b->peers, b->stream);
    return result != CUDA_SUCCESS || b->same == 0
               ? result
               : submit_some(b, b->count - b->same, b->same, b->stream);
}

static int run_list(struct batch *b, cw_client *client) {
    CUcontext context, popped;
    if (b->peers + b->same == 0)
        return 0;
    const struct cw_cuda *cuda = b->gpu->cuda;
    int code = cw_gpu_enter(b->gpu);
    if (code)
        return code;
    CUresult result = cuda->cuStreamGetCtx(b->stream, &context);
    if (result == CUDA_SUCCESS)
        result = cuda->cuCtxPushCurrent(context);
    if (result == CUDA_SUCCESS) {
        result = submit_list(b);
        cuda->cuCtxPopCurrent(&popped);
    }
    cw_gpu_leave(b->gpu);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(cuda, result, "submitting %zu copies to a stream of cuda:%d",
                             b->peers + b->same, b->gpu->ordinal);
    if (b->same_bytes)
        cw_copy_count(client, CW_ROUTE_SAME, b->same_bytes);
    if (b->peer_bytes)
        cw_copy_count(client, CW_ROUTE_PEER, b->peer_bytes);
    return 0;
}

/* The stream's own GPU decides who reaches what. */
static int find_gpu(struct batch *b) {
    CUcontext context, popped;
    CUdevice device = b->gpu->device;
    if (b->ours)
        return 0;
    int code = cw_gpu_enter(b->gpu);
    if (code)
        return code;
    const struct cw_cuda *cuda = b->gpu->cuda;
    CUresult result = cuda->cuStreamGetCtx(b->stream, &context);
    if (result == CUDA_SUCCESS)
        result = cuda->cuCtxPushCurrent(context);
    if (result == CUDA_SUCCESS) {
        result = cuda->cuCtxGetDevice(&device);
        cuda->cuCtxPopCurrent(&popped);
    }
    cw_gpu_leave(b->gpu);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(cuda, result, "asking for the GPU of the stream %p", b->stream);
    return device == b->gpu->device ? 0 : cw_gpu_get(device, &b->gpu);
}

static void free_lists(struct batch *b) {
    free(b->to);
    free(b->from);
    free(b->sizes);
}

/* Before anything is begun: what fails then has changed nothing. */
static int make_lists(struct batch *b) {
    b->to = calloc(b->count, sizeof *b->to);
    b->from = calloc(b->count, sizeof *b->from);
    b->sizes = calloc(b->count, sizeof *b->sizes);
    if (b->to && b->from && b->sizes)
        return 0;
    free_lists(b);
    return cw_fail(-EDQUOT, "no memory for %llu copies", (unsigned long long)b->count);
}

static int run(struct batch *b, cw_client *client) {
    int code = 0;
    for (uint64_t i = 0; i < b->count && code == 0; i++) {
        const cw_pair *pair = &b->pairs[i];
        if (pair->size_bytes && !list(b, pair))
            code = cw_copy_one(pair->target, pair->target_bytes, pair->source, pair->source_bytes,
                               pair->size_bytes, b->stream);
    }
    return code ? code : run_list(b, client);
}

static int begin_and_end(struct batch *b, cw_client *client) {
    cw_work *work;
    int code = begin(b, &work);
    if (code)
        return code;
    code = run(b, client);
    if (code ==
        -EINTR) { /* while the mover had not begun with a pair: each is as it was, or done */
        code = cw_work_end(work);
        return code ? code : cw_fail(-EINTR, "a signal came between two copies");
    }
    return code ? cw_work_fail(work, code) : cw_work_end(work);
}

/* ---- the public call ---- */

static int run_on_host(const struct batch *b) {
    int code = 0;
    for (uint64_t i = 0; i < b->count && code == 0; i++) {
        const cw_pair *pair = &b->pairs[i];
        code = cw_copy_one(pair->target, pair->target_bytes, pair->source, pair->source_bytes,
                           pair->size_bytes, NULL);
    }
    return code;
}

/* All of a batch is one copy in the trace, of the first pair's route. */
static void enter_span(struct cw_trace_span *span, const cw_pair *pairs, uint64_t count,
                       void *stream) {
    const struct cw_copy_end to = cw_copy_end_of(pairs[0].target, 0),
                             from = cw_copy_end_of(pairs[0].source, 0);
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < count; i++)
        bytes += pairs[i].size_bytes;
    cw_copy_span(span, to.gpu, from.gpu, bytes, stream);
}

static int copy_checked(const cw_pair *pairs, uint64_t count, void *stream) {
    struct batch b = {.pairs = pairs, .count = count};
    int code = choose_stream(&b, stream);
    if (code)
        return code;
    if (!b.gpu)
        return run_on_host(&b);
    code = find_gpu(&b);
    if (code == 0 && b.ours)
        code = wait_for_all(&b);
    if (code == 0)
        code = make_lists(&b);
    if (code)
        return code;
    code = begin_and_end(&b, pairs[0].target->client);
    free_lists(&b);
    if (b.ours && code == 0)
        code = cw_stream_wait(b.gpu->ordinal, b.stream, 0);
    return cw_context_failure_serve(code);
}

static int copy_many(const cw_pair *pairs, uint64_t count, void *stream) {
    struct cw_trace_span span;
    int code = check(pairs, count);
    if (code)
        return code;
    enter_span(&span, pairs, count, stream);
    code = copy_checked(pairs, count, stream);
    cw_trace_leave(&span, code < 0);
    return code;
}

/* Ends the pins of both ends of so many pairs. */
static void unpin(const cw_pair *pairs, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        cw_array_unpin(pairs[i].target);
        cw_array_unpin(pairs[i].source);
    }
}

int cw_array_copy_many(const cw_pair *pairs, uint64_t count, void *stream) {
    int code = 0;
    if (count == 0)
        return 0;
    if (!pairs)
        return cw_fail(-EINVAL, "pairs of arrays are needed, NULL was given");
    if (count > CW_PAIRS_MAX)
        return cw_fail(-EINVAL, "%llu copies in one call, %u are the most: make several calls",
                       (unsigned long long)count, CW_PAIRS_MAX);
    for (uint64_t i = 0; i < count && code == 0; i++) {
        code = cw_array_pin(pairs[i].target);
        if (code == 0 && (code = cw_array_pin(pairs[i].source)) != 0)
            cw_array_unpin(pairs[i].target);
        if (code)
            unpin(pairs, i);
    }
    if (code)
        return code;
    code = copy_many(pairs, count, stream);
    unpin(pairs, count);
    return code;
}
