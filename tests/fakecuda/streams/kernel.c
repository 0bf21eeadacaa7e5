/*
 * Modules, and the kernels of kernels.h in C. A module is any text that names kernels as PTX does;
 * a kernel is one that is known here by its name.
 */
#include "tests/fakecuda/streams/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fakecuda/driver/fault.h"
#include "tests/fakecuda/memory/memory.h"

struct CUfunc_st {
    const char *name;
    int count;    /* of arguments */
    int bytes[4]; /* of each */
};

enum { FILL, ADD, SPIN, POKE, TRAP };

static struct CUfunc_st kernels[] = {
    [FILL] = {"fill", 3, {8, 8, 4}}, [ADD] = {"add", 4, {8, 8, 8, 8}}, [SPIN] = {"spin", 2, {8, 4}},
    [POKE] = {"poke", 2, {8, 4}},    [TRAP] = {"trap", 0, {0}},
};

struct CUmod_st {
    char *text;
};

CUresult cuModuleLoadData(CUmodule *out, const void *image) {
    CALL_IN(context, cuModuleLoadData);
    (void)context;
    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    if (strncmp(image, ".version", 8) != 0)
        return CUDA_ERROR_INVALID_IMAGE; /* a binary */
    CUmodule module = malloc(sizeof *module);
    if (!module || !(module->text = strdup(image)))
        abort();
    *out = module;
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
    CALL_IN(context, cuModuleUnload);
    (void)context;
    if (!module)
        return CUDA_ERROR_INVALID_VALUE;
    free(module->text);
    free(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
    CALL_IN(context, cuModuleGetFunction);
    (void)context;
    char entry[80];
    if (!out || !module || !name || strlen(name) > 40)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(entry, sizeof entry, ".entry %s(", name);
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, name) == 0 && strstr(module->text, entry)) {
            *out = &kernels[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuLaunchKernel(CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void **arguments, void **extra) {
    CALL_IN(context, cuLaunchKernel);
    (void)shared_bytes;
    if (!kernel || extra || (kernel->count && !arguments) || !grid_x || !grid_y || !grid_z ||
        !block_x || !block_y || !block_z || block_x * block_y * block_z > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    struct fake_work work = {.kind = FAKE_KERNEL};
    work.launch = (struct fake_launch){.kernel = (int)(kernel - kernels)};
    for (int i = 0; i < kernel->count; i++)
        memcpy(&work.launch.arguments[i], arguments[i], (size_t)kernel->bytes[i]);
    return fake_stream_submit(stream, context, work);
}

/* ---- what they do
 * ---------------------------------------------------------------------------------- */

static bool may(struct fake_stream *stream, uintptr_t address, uint64_t count, bool write) {
    return count <= SIZE_MAX / 4 &&
           fake_range_allows(stream->context, address, count * 4, write, false);
}

static CUresult compute(struct fake_stream *stream, const struct fake_launch *launch) {
    const uint64_t *a = launch->arguments;
    bool good = true;
    pthread_rwlock_rdlock(&fake_ranges_lock);
    if (launch->kernel == FILL && (good = may(stream, a[0], a[1], true)))
        for (uint64_t i = 0; i < a[1]; i++)
            ((uint32_t *)(uintptr_t)a[0])[i] = (uint32_t)a[2];
    else if (launch->kernel == ADD &&
             (good = may(stream, a[0], a[3], true) && may(stream, a[1], a[3], false) &&
                     may(stream, a[2], a[3], false)))
        for (uint64_t i = 0; i < a[3]; i++)
            ((uint32_t *)(uintptr_t)a[0])[i] =
                ((uint32_t *)(uintptr_t)a[1])[i] + ((uint32_t *)(uintptr_t)a[2])[i];
    else if (launch->kernel == POKE && (good = may(stream, a[0], 1, true)))
        atomic_store((_Atomic uint32_t *)(uintptr_t)a[0], (uint32_t)a[1]);
    pthread_rwlock_unlock(&fake_ranges_lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult spin(struct fake_stream *stream, uintptr_t flag, uint32_t value) {
    for (;;) {
        pthread_rwlock_rdlock(&fake_ranges_lock);
        bool good = may(stream, flag, 1, false);
        bool is = good && atomic_load((_Atomic uint32_t *)flag) == value;
        pthread_rwlock_unlock(&fake_ranges_lock);
        if (!good)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        if (is)
            return CUDA_SUCCESS;
        pthread_mutex_lock(&fake_mutex);
        bool stop = stream->dropped || fake_context_error(stream->context);
        pthread_mutex_unlock(&fake_mutex);
        if (stop)
            return CUDA_SUCCESS;
        fake_delay_us(50);
    }
}

CUresult fake_kernel_run(struct fake_stream *stream, const struct fake_launch *launch) {
    switch (launch->kernel) {
    case SPIN:
        return spin(stream, launch->arguments[0], (uint32_t)launch->arguments[1]);
    case TRAP:
        return CUDA_ERROR_LAUNCH_FAILED;
    default:
        return compute(stream, launch);
    }
}
