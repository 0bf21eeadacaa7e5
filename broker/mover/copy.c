/*
 * Work of the mover: see copy.h. Any thread.
 */
#include "ipc/array/array.h"
#include "ipc/memory/slab_cache.h"
#include "ipc/array/mover_copy.h"
#include "ipc/client.h"
#include "broker/mover/copy.h"

#include <stdio.h>
#include <string.h>

#include "ipc/order/context_failure.h"
#include "ipc/cuda/device.h"

/* One end of a copy as an array of bytes; what the place says is checked against the block. */
static int open_end(cw_client *client, const struct cw_block_range *place, uint64_t size_bytes,
                    cw_array **out) {
    const int64_t shape = (int64_t)size_bytes;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &shape, .dtype = "|u1"};
    const cw_handle handle = {.instance = cw_client_instance(client),
                              .slab = place->slab,
                              .block = place->block,
                              .gen = place->gen,
                              .offset_bytes = place->offset_bytes,
                              .size_bytes = size_bytes};
    if (size_bytes > INT64_MAX / 2)
        return cw_fail(-EINVAL, "a copy cannot have %llu bytes", (unsigned long long)size_bytes);
    return cw_array_open(client, &handle, &layout, 0, out);
}

int cw_mover_copy(cw_client *client, const struct cw_copy *copy) {
    cw_array *source, *target;
    int code = open_end(client, &copy->source, copy->size_bytes, &source);
    if (code)
        return code;
    code = open_end(client, &copy->target, copy->size_bytes, &target);
    if (code == 0) {
        code = cw_context_failure_serve(cw_copy_unordered(target, source, copy->size_bytes));
        cw_array_close(target);
    }
    cw_array_close(source);
    return code;
}

/* The GPU that is meant, by its name here. */
static int find_gpu(const struct cw_make *make, char *name, size_t room) {
    static const uint8_t by_number[CW_UUID_BYTES];
    const struct cw_gpu *gpu;
    int count = 0, ordinal = (int)make->device;
    int code = cw_gpu_count(&count);
    if (code == 0 && memcmp(make->device_uuid, by_number, sizeof by_number) != 0)
        code = cw_gpu_find(make->device_uuid, &ordinal);
    else if (code == 0 && (make->device >= (uint32_t)count || cw_gpu_peek(ordinal, &gpu) != 0))
        code = cw_fail(-ENODEV, "there is no cuda:%u: this node has %d GPU%s", make->device, count,
                       count == 1 ? "" : "s");
    snprintf(name, room, "cuda:%d", ordinal);
    return code;
}

int cw_mover_make(cw_client *client, const struct cw_make *make, struct cw_made *out) {
    const int64_t shape = (int64_t)make->size_bytes;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &shape, .dtype = "|u1"};
    char name[16];
    cw_array *array;
    cw_handle handle;
    if (make->size_bytes > INT64_MAX / 2)
        return cw_fail(-EINVAL, "an array cannot have %llu bytes",
                       (unsigned long long)make->size_bytes);
    int code = find_gpu(make, name, sizeof name);
    if (code == 0)
        code = cw_array_new(client, name, &layout, 0, &array);
    if (code)
        return cw_context_failure_serve(code);
    code = cw_array_export(array, 1, &handle);
    if (code == 0)
        *out = (struct cw_made){.token = handle.token,
                                .slab = handle.slab,
                                .block = handle.block,
                                .gen = handle.gen,
                                .offset_bytes = handle.offset_bytes};
    cw_array_close(array); /* the transit holds it */
    return code;
}

void cw_mover_rest(cw_client *client) {
    pthread_mutex_lock(&client->lock);
    cw_heap_collect_all(client, NULL);
    for (struct cw_slab *next, *slab = client->slabs.idle_first; slab; slab = next) {
        next = slab->idle_next;
        if (slab->device_kind != CW_DEVICE_HOST)
            cw_slab_free(client, slab);
    }
    pthread_mutex_unlock(&client->lock);
    (void)cw_slabs_sweep(client);
    (void)cw_slab_cache_drop(client);
}

bool cw_mover_is_sound(void) {
    int count = 0;
    if (!cw_cuda_opened() || cw_gpu_count(&count) != 0)
        return true; /* no driver, no context */
    for (int i = 0; i < count; i++) {
        const struct cw_gpu *gpu;
        if (cw_gpu_peek(i, &gpu) != 0 || !gpu->context)
            continue;
        if (cw_gpu_enter(gpu) != 0)
            return false;
        CUresult result = gpu->cuda->cuCtxSynchronize();
        cw_gpu_leave(gpu);
        if (result != CUDA_SUCCESS)
            return false;
    }
    return true;
}
