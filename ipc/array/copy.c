/*
 * Copies: the public calls. Each keeps evictable arrays where they are, checks what it was given,
 * and then copies bytes in order with the arrays' other users (copy_bytes.h). Many at once:
 * copy_batch.c.
 *
 * No state of its own. The caller holds leases on the arrays. If this process dies in a copy, the
 * target has some of the bytes.
 */
#include "ipc/array/array.h"
#include "ipc/array/copy_bytes.h"
#include "ipc/array/first_touch.h"
#include "ipc/array/mover_copy.h"
#include "ipc/client.h"
#include "ipc/cuda/backend.h"

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

/* A copy by the mover is put in order by a stream of ours: the target is this process's to write
 * until the mover is done, and if this process dies before, it is known to be incomplete. */
static int stream_for_mover(const struct cw_copy_end *target, const struct cw_copy_end *source,
                            void **stream) {
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

static int copy_arrays(cw_array *target, uint64_t target_bytes, cw_array *source,
                       uint64_t source_bytes, uint64_t size_bytes, void *stream) {
    int code = check_target(target, target_bytes, size_bytes);
    if (code == 0)
        code = check_range(source, source_bytes, size_bytes);
    if (code)
        return code;
    const struct cw_copy_end to = cw_copy_end_of(target, target_bytes),
                             from = cw_copy_end_of(source, source_bytes);
    if (stream == CW_STREAM_OWN)
        code = cw_copy_own_stream(&to, &stream);
    if (code == 0 && !stream)
        code = stream_for_mover(&to, &from, &stream);
    return code ? code : cw_copy_ordered(target, &to, source, &from, size_bytes, stream);
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
    const struct cw_copy_end to = cw_copy_end_of(target, target_bytes);
    const struct cw_copy_end from = {.bytes = (uint8_t *)(uintptr_t)source, .gpu = gpu};
    code = cw_copy_begin(target, NULL, stream);
    if (code)
        return code;
    if (to.gpu < 0 && from.gpu < 0 && apart(&to, &from, size_bytes) && cw_fresh_take(target))
        cw_fresh_write(target, target_bytes, source, size_bytes);
    else
        code = cw_copy_bytes(target->client, &to, &from, size_bytes, stream, false);
    return cw_copy_finish(target, NULL, stream, code);
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
    const struct cw_copy_end from = cw_copy_end_of(source, source_bytes);
    const struct cw_copy_end to = {.bytes = target, .gpu = gpu};
    return cw_copy_ordered(NULL, &to, source, &from, size_bytes, stream);
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
