/*
 * Fixed addresses in GPU memory: a reservation of the driver's, in which one slab after the other
 * is mapped, whole and read-only.
 *
 * Invariant: a reservation is as long as a slab, and one slab fills it or nothing is there; the
 * driver maps no part of an imported allocation. Which GPUs may use it does not change with the
 * memory: those that were let in before are let in again with the call that maps.
 *
 * The caller has waited for the GPUs (cw_cuda_drain()), and nobody uses the addresses. Death: the
 * driver ends mappings, reservation and handles. In a forked child nothing here is called but what
 * finds no driver open.
 */
#include "ipc/cuda/backend.h"
#include "ipc/wire.h"

/* Those that may use a mapping that is made: its GPU, and the first one where that reaches it. */
static uint64_t first_reachers(const struct cw_gpu *gpu) {
    const struct cw_gpu *first;
    uint64_t reachers = 1ull << gpu->ordinal;
    if (gpu->ordinal != 0 && cw_gpu_peek(0, &first) == 0 && cw_gpu_reaches(first, gpu))
        reachers |= 1;
    return reachers;
}

int cw_cuda_fixed_reserve(int device, uint64_t size_bytes, struct cw_mapping *out) {
    struct cw_gpu *gpu;
    CUdeviceptr base = 0;
    int code = cw_gpu_get(device, &gpu);
    if (code)
        return code;
    CUresult result = gpu->cuda->cuMemAddressReserve(&base, size_bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(gpu->cuda, result, "reserving %llu addresses of the GPU",
                             (unsigned long long)size_bytes);
    *out = (struct cw_mapping){.base = (void *)(uintptr_t)base,
                               .size_bytes = size_bytes,
                               .device = device,
                               .reachers = first_reachers(gpu),
                               .readonly = true,
                               .empty = true};
    return 0;
}

void cw_cuda_fixed_give_back(struct cw_mapping *mapping) {
    const struct cw_cuda *cuda = cw_cuda_opened();
    if (cuda)
        cuda->cuMemAddressFree((CUdeviceptr)(uintptr_t)mapping->base, mapping->size_bytes);
    *mapping = (struct cw_mapping){.base = NULL};
}

int cw_cuda_fixed_hold(int device, int fd, uint64_t size_bytes, uint32_t slab_flags,
                       uint64_t *memory) {
    struct cw_gpu *gpu;
    CUmemGenericAllocationHandle handle;
    int code = cw_gpu_get(device, &gpu);
    if (code == 0 && slab_flags & CW_SLAB_FOREIGN)
        code = cw_fail(-EINVAL, "the memory belongs to another library: put a copy of it");
    if (code == 0)
        code = cw_cuda_import_slab(gpu, fd, size_bytes, &handle);
    if (code == 0)
        *memory = handle;
    return code;
}

void cw_cuda_fixed_drop(uint64_t memory) {
    const struct cw_cuda *cuda = cw_cuda_opened();
    if (cuda)
        cuda->cuMemRelease(memory);
}

int cw_cuda_fixed_unmap(struct cw_mapping *mapping) {
    const struct cw_cuda *cuda;
    int code = cw_cuda_open(&cuda);
    if (code || mapping->empty)
        return code;
    CUresult result = cuda->cuMemUnmap((CUdeviceptr)(uintptr_t)mapping->base, mapping->size_bytes);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(cuda, result, "unmapping %zu bytes of memory of cuda:%d",
                             mapping->size_bytes, mapping->device);
    mapping->empty = true;
    return 0;
}

static CUresult admit_all(const struct cw_cuda *cuda, const struct cw_mapping *mapping) {
    CUmemAccessDesc access[CW_GPUS_MAX];
    size_t count = 0;
    for (int i = 0; i < CW_GPUS_MAX; i++) {
        const struct cw_gpu *gpu;
        if (mapping->reachers >> i & 1 && cw_gpu_peek(i, &gpu) == 0)
            access[count++] = (CUmemAccessDesc){
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->device},
                .flags = CU_MEM_ACCESS_FLAGS_PROT_READ};
    }
    return cuda->cuMemSetAccess((CUdeviceptr)(uintptr_t)mapping->base, mapping->size_bytes, access,
                                count);
}

int cw_cuda_fixed_map(struct cw_mapping *mapping, uint64_t memory) {
    const struct cw_cuda *cuda;
    CUdeviceptr base = (CUdeviceptr)(uintptr_t)mapping->base;
    int code = cw_cuda_fixed_unmap(mapping);
    if (code == 0)
        code = cw_cuda_open(&cuda);
    if (code)
        return code;
    CUresult result = cuda->cuMemMap(base, mapping->size_bytes, 0, memory, 0);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(cuda, result, "mapping %zu bytes of memory of cuda:%d",
                             mapping->size_bytes, mapping->device);
    result = admit_all(cuda, mapping);
    if (result != CUDA_SUCCESS) {
        cuda->cuMemUnmap(base, mapping->size_bytes);
        return cw_cuda_error(cuda, result, "getting access to memory of cuda:%d", mapping->device);
    }
    mapping->empty = false;
    return 0;
}
