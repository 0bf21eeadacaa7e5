/*
 * Modules, and the kernels of kernels.h in C. A module is any text that names kernels as PTX does;
 * a kernel is one that is known here by its name: those of kernels.h, and reductions.
 */
#include "tests/fakecuda/streams/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fakecuda/driver/fault.h"
#include "tests/fakecuda/memory/memory.h"
#include "tests/fakecuda/streams/reduction.h"

enum kind { FILL, ADD, SPIN, POKE, TRAP, REDUCTION };

struct CUfunc_st {
    const char *name;
    int count;    /* of arguments */
    int bytes[4]; /* of each */
    enum kind kind;
    struct fake_reduction reduction;
    struct CUfunc_st *next; /* of a module's reductions */
};

static struct CUfunc_st kernels[] = {
    [FILL] = {.name = "fill", .count = 3, .bytes = {8, 8, 4}, .kind = FILL},
    [ADD] = {.name = "add", .count = 4, .bytes = {8, 8, 8, 8}, .kind = ADD},
    [SPIN] = {.name = "spin", .count = 2, .bytes = {8, 4}, .kind = SPIN},
    [POKE] = {.name = "poke", .count = 2, .bytes = {8, 4}, .kind = POKE},
    [TRAP] = {.name = "trap", .kind = TRAP},
};

struct CUmod_st {
    char *text;
    struct CUfunc_st *reductions; /* those that were asked for; they go with the module */
};

CUresult cuModuleLoadData(CUmodule *out, const void *image) {
    CALL_IN(context, cuModuleLoadData);
    (void)context;
    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    if (strncmp(image, ".version", 8) != 0)
        return CUDA_ERROR_INVALID_IMAGE; /* a binary */
    CUmodule module = calloc(1, sizeof *module);
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
    while (module->reductions) {
        CUfunction kernel = module->reductions;
        module->reductions = kernel->next;
        free(kernel);
    }
    free(module->text);
    free(module);
    return CUDA_SUCCESS;
}

static CUresult reduction_of(CUmodule module, const char *name, CUfunction *out) {
    struct fake_reduction reduction;
    if (!fake_reduction_named(name, &reduction))
        return CUDA_ERROR_NOT_FOUND;
    CUfunction kernel = malloc(sizeof *kernel);
    if (!kernel)
        abort();
    *kernel = (struct CUfunc_st){.count = 4,
                                 .bytes = {8, 8, 4, FAKE_PARTS_MAX * 8},
                                 .kind = REDUCTION,
                                 .reduction = reduction,
                                 .next = module->reductions};
    *out = module->reductions = kernel;
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
    return strstr(module->text, entry) ? reduction_of(module, name, out) : CUDA_ERROR_NOT_FOUND;
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
    work.launch = (struct fake_launch){.kernel = kernel};
    for (int i = 0; i < kernel->count; i++) {
        const size_t bytes = (size_t)kernel->bytes[i];
        void *to = &work.launch.arguments[i];
        if (bytes > 8 && !(to = work.launch.vector = malloc(bytes)))
            abort();
        memcpy(to, arguments[i], bytes);
    }
    CUresult code = fake_stream_submit(stream, context, work);
    if (code != CUDA_SUCCESS)
        free(work.launch.vector); /* it was not taken */
    return code;
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
    if (launch->kernel->kind == FILL && (good = may(stream, a[0], a[1], true)))
        for (uint64_t i = 0; i < a[1]; i++)
            ((uint32_t *)(uintptr_t)a[0])[i] = (uint32_t)a[2];
    else if (launch->kernel->kind == ADD &&
             (good = may(stream, a[0], a[3], true) && may(stream, a[1], a[3], false) &&
                     may(stream, a[2], a[3], false)))
        for (uint64_t i = 0; i < a[3]; i++)
            ((uint32_t *)(uintptr_t)a[0])[i] =
                ((uint32_t *)(uintptr_t)a[1])[i] + ((uint32_t *)(uintptr_t)a[2])[i];
    else if (launch->kernel->kind == POKE && (good = may(stream, a[0], 1, true)))
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
    switch (launch->kernel->kind) {
    case SPIN:
        return spin(stream, launch->arguments[0], (uint32_t)launch->arguments[1]);
    case TRAP:
        return CUDA_ERROR_LAUNCH_FAILED;
    case REDUCTION:
        return fake_reduction_run(stream, launch->kernel->reduction, launch->arguments,
                                  launch->vector);
    default:
        return compute(stream, launch);
    }
}
