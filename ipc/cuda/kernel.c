/*
 * Reductions on a GPU: see kernel.h.
 *
 * State of the process: for each GPU its kernels, filled under the lock and then constant. Private
 * memory.
 */
#include "ipc/cuda/kernel.h"

#include <stdlib.h>
#include <string.h>

#define THREADS            512u
#define BLOCKS_A_PROCESSOR 2u
#define BESIDE_PART        4u /* of these blocks, where copy engines need the memory's bandwidth, too */

enum { WIDE, NARROW, WIDTHS };

struct kernels {
    bool loaded;
    int refused;     /* the driver's CUresult: it cannot, and is not asked again */
    unsigned blocks; /* so many are enough for all of the GPU */
    CUfunction functions[CW_KERNEL_ELEMENTS][CW_KERNEL_OPERATIONS][WIDTHS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kernels all[CW_GPUS_MAX];

static uint32_t access_bytes(enum cw_kernel_element element, unsigned width) {
    return width == WIDE ? CW_KERNEL_VECTOR : cw_kernel_size(element);
}

static CUresult launch(const struct cw_gpu *gpu, CUstream stream, CUfunction function,
                       unsigned blocks, void *target, const void *const *from, uint32_t parts,
                       uint64_t count) {
    uint64_t to = (uintptr_t)target, sources[CW_KERNEL_PARTS_MAX];
    void *arguments[] = {&to, &count, &parts, sources};
    for (uint32_t i = 0; i < CW_KERNEL_PARTS_MAX; i++)
        sources[i] = i < parts ? (uintptr_t)from[i] : 0;
    return gpu->cuda->cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments,
                                     NULL);
}

/* Finds a kernel and starts it without elements, since the first start is what may load it. */
static CUresult find(const struct cw_gpu *gpu, CUmodule module, struct cw_kernel kernel,
                     unsigned width, CUfunction *out) {
    char name[CW_KERNEL_NAME_MAX];
    cw_ptx_name(kernel, access_bytes(kernel.element, width), name);
    CUresult result = gpu->cuda->cuModuleGetFunction(out, module, name);
    const void *none = NULL;
    return result == CUDA_SUCCESS ? launch(gpu, gpu->copies, *out, 1, NULL, &none, 1, 0) : result;
}

static CUresult load(const struct cw_gpu *gpu, const char *text, struct kernels *kernels) {
    const struct cw_cuda *cuda = gpu->cuda;
    CUmodule module = NULL;
    int processors = 0;
    CUresult result = cuda->cuDeviceGetAttribute(
        &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu->device);
    if (result == CUDA_SUCCESS)
        result = cuda->cuModuleLoadData(&module, text);
    for (unsigned i = 0; i < CW_KERNEL_ELEMENTS && result == CUDA_SUCCESS; i++)
        for (unsigned j = 0; j < CW_KERNEL_OPERATIONS && result == CUDA_SUCCESS; j++) {
            struct cw_kernel kernel = {(enum cw_kernel_element)i, (enum cw_kernel_operation)j};
            for (unsigned k = 0; cw_kernel_is(kernel) && k < WIDTHS && result == CUDA_SUCCESS; k++)
                result = find(gpu, module, kernel, k, &kernels->functions[i][j][k]);
        }
    if (result == CUDA_SUCCESS)
        result = cuda->cuStreamSynchronize(gpu->copies);
    kernels->blocks = BLOCKS_A_PROCESSOR * (unsigned)(processors > 0 ? processors : 1);
    if (result != CUDA_SUCCESS && module)
        cuda->cuModuleUnload(module);
    return result;
}

static int load_locked(const struct cw_gpu *gpu, struct kernels *kernels) {
    if (kernels->loaded)
        return 0;
    if (kernels->refused)
        return cw_cuda_error(gpu->cuda, (CUresult)kernels->refused,
                             "loading the kernels of reductions on cuda:%d", gpu->ordinal);
    char *text = cw_ptx_write();
    if (!text)
        return cw_fail(-EDQUOT, "no memory for the kernels of reductions");
    int code = cw_gpu_enter(gpu);
    if (code == 0) {
        CUresult result = load(gpu, text, kernels);
        cw_gpu_leave(gpu);
        kernels->loaded = result == CUDA_SUCCESS;
        if (result != CUDA_SUCCESS) {
            code = cw_cuda_error(gpu->cuda, result, "loading the kernels of reductions on cuda:%d",
                                 gpu->ordinal);
            kernels->refused = code == -ENODEV ? (int)result : 0;
        }
    }
    free(text);
    return code;
}

int cw_kernels_load(struct cw_gpu *gpu) {
    pthread_mutex_lock(&lock);
    int code = load_locked(gpu, &all[gpu->ordinal]);
    pthread_mutex_unlock(&lock);
    return code;
}

void cw_kernels_load_started(void) {
    struct cw_gpu *gpu;
    for (int i = 0; cw_cuda_opened() && (gpu = cw_gpu_started(i)) != NULL; i++) {
        pthread_mutex_lock(&gpu->lock);
        const bool started = gpu->context != NULL;
        pthread_mutex_unlock(&gpu->lock);
        if (started)
            (void)cw_kernels_load(gpu); /* who needs them later is told */
    }
}

/* Can all be reached by wide accesses? */
static bool aligned(const void *target, const void *const *from, uint32_t parts) {
    uintptr_t bits = (uintptr_t)target;
    for (uint32_t i = 0; i < parts; i++)
        bits |= (uintptr_t)from[i];
    return bits % CW_KERNEL_VECTOR == 0;
}

static CUresult submit(const struct cw_gpu *gpu, CUstream stream, struct cw_kernel kernel,
                       unsigned width, bool beside, void *target, const void *const *from,
                       uint32_t parts, uint64_t at_bytes, uint64_t count) {
    const struct kernels *kernels = &all[gpu->ordinal];
    const void *sources[CW_KERNEL_PARTS_MAX];
    const uint64_t a_block = THREADS * (width == WIDE ? CW_KERNEL_AT_ONCE : 1);
    const uint64_t blocks = (count + a_block - 1) / a_block;
    const unsigned most = beside ? kernels->blocks / BESIDE_PART + 1 : kernels->blocks;
    if (count == 0)
        return CUDA_SUCCESS;
    for (uint32_t i = 0; i < parts; i++)
        sources[i] = (const uint8_t *)from[i] + at_bytes;
    return launch(gpu, stream, kernels->functions[kernel.element][kernel.operation][width],
                  blocks < most ? (unsigned)blocks : most, (uint8_t *)target + at_bytes, sources,
                  parts, count);
}

int cw_kernel_reduce(const struct cw_gpu *gpu, CUstream stream, struct cw_kernel kernel,
                     bool beside, void *target, const void *const *from, uint32_t parts,
                     uint64_t count) {
    const uint32_t size = cw_kernel_size(kernel.element);
    const uint64_t bytes = count * size;
    const uint64_t wide = aligned(target, from, parts) ? bytes / CW_KERNEL_VECTOR : 0;
    int code = cw_gpu_enter(gpu);
    if (code)
        return code;
    CUresult result = submit(gpu, stream, kernel, WIDE, beside, target, from, parts, 0, wide);
    if (result == CUDA_SUCCESS)
        result = submit(gpu, stream, kernel, NARROW, beside, target, from, parts,
                        wide * CW_KERNEL_VECTOR, count - wide * CW_KERNEL_VECTOR / size);
    cw_gpu_leave(gpu);
    return result == CUDA_SUCCESS ? 0
                                  : cw_cuda_error(gpu->cuda, result,
                                                  "starting the reduction of %llu elements on "
                                                  "cuda:%d",
                                                  (unsigned long long)count, gpu->ordinal);
}

static bool are_loaded(const struct cw_gpu *gpu) {
    pthread_mutex_lock(&lock);
    const bool loaded = all[gpu->ordinal].loaded;
    pthread_mutex_unlock(&lock);
    return loaded;
}

bool cw_kernel_copy(const struct cw_gpu *gpu, CUstream stream, void *target, const void *from,
                    uint64_t bytes, CUresult *out) {
    const struct cw_kernel copy = {CW_KERNEL_BITS, CW_KERNEL_OR}; /* of one vector */
    if (bytes % CW_KERNEL_VECTOR || !aligned(target, &from, 1) || !are_loaded(gpu))
        return false;
    *out = submit(gpu, stream, copy, WIDE, true, target, &from, 1, 0, bytes / CW_KERNEL_VECTOR);
    return true;
}
