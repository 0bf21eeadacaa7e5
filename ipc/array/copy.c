/*
 * Copies: the public calls. Each keeps evictable arrays where they are, checks what it was given,
 * and then copies bytes in order with the arrays' other users (copy_bytes.h). Many at once:
 * copy_batch.c.
 *
 * Invariant
 *   C1  A copy from or to an array on a GPU is work in order (section.h), on a stream of ours where
 *       the caller names none and is blocked until it is done. So who writes an array and who reads
 *       it see all of each other's copy or nothing. What is sealed nobody writes: it is read
 *       without.
 *
 * No state of its own. The caller holds leases on the arrays. If this process dies in a copy, the
 * target has some of the bytes.
 */
#include <stdio.h>

#include "ipc/array/array.h"
#include "ipc/array/copy_bytes.h"
#include "ipc/array/first_touch.h"
#include "ipc/client.h"
#include "ipc/cuda/backend.h"
#include "ipc/order/section.h"
#include "ipc/order/unpinned.h"

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
        return cw_fail(-EINVAL, "the array was opened read-only, so it cannot be written: open it "
                                "without readonly (CW_READONLY), or write to a copy");
    return code;
}

/* One copy; an end that is no array of ours is NULL. */
struct job {
    cw_array *target, *source;
    struct cw_copy_end to, from;
    uint64_t size_bytes;
};

static cw_client *client_of(const struct job *job) {
    return (job->target ? job->target : job->source)->client;
}

static bool is_ordered(const struct job *job) {
    return (job->target && job->to.gpu >= 0) ||
           (job->source && job->from.gpu >= 0 && !cw_array_sealed(job->source));
}

/* Both arrays at once, so that nobody who copies the other way meets half of that; unless they are
 * of two clients, each of which has works of its own. waits: nobody closes the source meanwhile. */
static int begin(const struct job *job, void *stream, bool waits, cw_work *works[2]) {
    cw_use uses[2];
    uint32_t count = 0;
    if (job->source && !(waits && cw_array_sealed(job->source)))
        uses[count++] = (cw_use){.array = job->source};
    if (job->target)
        uses[count++] = (cw_use){.array = job->target, .writing = 1};
    bool two = count == 2 && job->source->client != job->target->client;
    works[0] = works[1] = NULL;
    int code = cw_work_begin(uses, two ? 1 : count, stream, -1, &works[0]);
    if (code || !two)
        return code;
    code = cw_work_begin(&uses[1], 1, stream, -1, &works[1]);
    return code ? cw_work_fail(works[0], code) : 0; /* it only reads: nobody is told */
}

/* Also by the mover: the target is this process's to write until that is done. */
static int copy_on(const struct job *job, void *stream, bool waits) {
    cw_work *works[2];
    int code = begin(job, stream, waits, works);
    if (code)
        return code;
    code = cw_copy_bytes(client_of(job), &job->to, &job->from, job->size_bytes, stream, false);
    for (int i = 2; i-- > 0;) {
        if (code && code != -EINTR) { /* EINTR: the mover had not begun */
            code = cw_work_fail(works[i], code);
            continue;
        }
        int ended = cw_work_end(works[i]);
        code = ended ? ended : code;
    }
    return code == -EINTR ? cw_fail(-EINTR, "a signal came before the copy") : code;
}

/* The CPU waits first, so that our stream holds nobody else up. */
static int copy_and_wait(const struct job *job) {
    char text[CW_DETAIL_MAX];
    struct cw_gpu *gpu;
    int code = cw_gpu_get(cw_copy_gpu(&job->to, &job->from), &gpu);
    if (code == 0 && job->source)
        code = cw_unpinned_await(job->source, false, -1);
    if (code == 0 && job->target)
        code = cw_unpinned_await(job->target, true, -1);
    if (code)
        return code;
    CUstream stream = job->to.gpu < 0 ? gpu->departures : gpu->copies;
    code = copy_on(job, stream, true);
    if (code)
        snprintf(text, sizeof text, "%s", cw_detail());
    int waited = cw_stream_wait(gpu->ordinal, stream, 0); /* host memory may go from now on */
    return code ? cw_fail(code, "%s", text) : waited;
}

static int copy_unordered(const struct job *job) {
    int code = job->source ? cw_unpinned_await(job->source, false, -1) : 0;
    if (code == 0 && job->target)
        code = cw_unpinned_await(job->target, true, -1);
    return code ? code
                : cw_copy_bytes(client_of(job), &job->to, &job->from, job->size_bytes, NULL, false);
}

static int run(const struct job *job, void *stream) {
    struct cw_trace_span span;
    cw_copy_span(&span, job->to.gpu, job->from.gpu, job->size_bytes, stream);
    int code = stream                               ? copy_on(job, stream, false)
               : job->size_bytes && is_ordered(job) ? copy_and_wait(job)
                                                    : copy_unordered(job);
    cw_trace_leave(&span, code < 0);
    return code;
}

static int copy_arrays(cw_array *target, uint64_t target_bytes, cw_array *source,
                       uint64_t source_bytes, uint64_t size_bytes, void *stream) {
    int code = check_target(target, target_bytes, size_bytes);
    if (code == 0)
        code = check_range(source, source_bytes, size_bytes);
    if (code)
        return code;
    const struct job job = {target, source, cw_copy_end_of(target, target_bytes),
                            cw_copy_end_of(source, source_bytes), size_bytes};
    if (stream == CW_STREAM_OWN)
        code = cw_copy_own_stream(&job.to, &stream);
    return code ? code : run(&job, stream);
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

static bool apart(const struct cw_copy_end *target, const struct cw_copy_end *source,
                  uint64_t size_bytes) {
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
    const struct job job = {target,
                            NULL,
                            cw_copy_end_of(target, target_bytes),
                            {.bytes = (uint8_t *)(uintptr_t)source, .gpu = gpu},
                            size_bytes};
    if (job.to.gpu >= 0 || gpu >= 0 || !apart(&job.to, &job.from, size_bytes))
        return run(&job, stream);
    code = cw_array_usable(target);
    if (code == 0 && cw_fresh_take(target))
        cw_fresh_write(target, target_bytes, source, size_bytes);
    else if (code == 0)
        code = run(&job, stream);
    return code;
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
    const struct job job = {NULL,
                            source,
                            {.bytes = target, .gpu = gpu},
                            cw_copy_end_of(source, source_bytes),
                            size_bytes};
    return run(&job, stream);
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
