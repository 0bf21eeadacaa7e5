/*
 * Work of the mover: see work.h. Any thread.
 */
#include "broker/mover/work.h"

#include "ipc/broken.h"
#include "ipc/cuda_device.h"

/* One end of a copy as an array of bytes; what the place says is checked against the block. */
static int open_end(cw_client *client, const struct cw_place *place, uint64_t size_bytes,
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
        return cw_fail(-EINVAL, "a copy of %llu bytes cannot be", (unsigned long long)size_bytes);
    return cw_array_open(client, &handle, &layout, 0, out);
}

int cw_mover_copy(cw_client *client, const struct cw_copy *copy) {
    cw_array *source, *target;
    int code = open_end(client, &copy->source, copy->size_bytes, &source);
    if (code)
        return code;
    code = open_end(client, &copy->target, copy->size_bytes, &target);
    if (code == 0) {
        code = cw_broken_serve(cw_copy_unordered(target, source, copy->size_bytes));
        cw_array_close(target);
    }
    cw_array_close(source);
    return code;
}

void cw_mover_rest(cw_client *client) {
    pthread_mutex_lock(&client->lock);
    while (client->slabs.idle_first)
        cw_slab_free(client, client->slabs.idle_first);
    pthread_mutex_unlock(&client->lock);
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
