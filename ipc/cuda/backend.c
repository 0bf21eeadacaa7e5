/*
 * CUDA backend: slabs are allocations of the driver's virtual memory management, exported as
 * descriptors; mapping one is importing it.
 *
 * Invariant: what keeps a slab's memory is its descriptor at the broker and the mappings of the
 * processes; the handle through which it was made or imported is released at once. A mapping may be
 * used by the GPU where the memory lies and by the process's first GPU where it can reach it (a
 * library places an array by where its memory lies, and fails when that GPU may not use it); other
 * GPUs of the process are let in when they first copy.
 * Read-only arrays: a slab that is first opened for one is mapped so that no GPU may write there. A
 * kernel that does breaks the context of its own process (error 700), the driver's copies and fills
 * are refused at the call, and nobody else sees anything of it. The first writable array on the
 * slab, whatever its block, makes the mapping writable where it is, and it stays so until it is
 * unmapped: a kernel that was launched may outlive its array, and to take access from under it
 * would break its context. For the same reason slabs that this process made are writable, and read-
 * only arrays there are so by their flag. It stops mistakes, not malice: who has the descriptor can
 * map it as he likes.
 *
 * State of the process: mappings that could not be ended yet, under a lock. Any thread. Death: the
 * driver ends mappings, the broker's descriptor keeps the memory. In a forked child nothing of it
 * is touched: the mappings are the parent's.
 */
#include "ipc/cuda/backend.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/memory/backend.h"
#include "ipc/order/context_failure.h"
#include "ipc/wire.h"

#define CACHE_SHARE 32 /* of a GPU's memory: what one client keeps of entirely free slabs */
#define CACHE_MOST  (1ull << 30)

/* A mapping that was given back while a stream was being captured, which forbids to wait for the
 * GPU: it is ended with the next one. */
struct late {
    struct cw_mapping mapping;
    struct late *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* late_ones; reachers of all mappings */
static struct late *late_ones;

static int cuda_device_uuid(int device, uint8_t uuid[CW_UUID_BYTES]) {
    const struct cw_gpu *gpu;
    int code = cw_gpu_peek(device, &gpu);
    if (code == 0)
        memcpy(uuid, gpu->uuid, CW_UUID_BYTES);
    return code;
}

static int cuda_device_limits(int device, uint64_t *granule_bytes, uint64_t *cache_bytes) {
    struct cw_gpu *gpu;
    size_t total = 0;
    int code = cw_gpu_get(device, &gpu);
    if (code)
        return code;
    CUresult result = gpu->cuda->cuDeviceTotalMem(&total, gpu->device);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(gpu->cuda, result, "asking for the memory of cuda:%d", device);
    *granule_bytes = gpu->granule_bytes;
    *cache_bytes = total / CACHE_SHARE < CACHE_MOST ? total / CACHE_SHARE : CACHE_MOST;
    return 0;
}

static int cuda_device_stat(int device, cw_device_info *out) {
    struct cw_gpu *gpu;
    size_t unused = 0, total = 0;
    int code = cw_gpu_get(device, &gpu);
    if (code == 0)
        code = cw_gpu_enter(gpu);
    if (code)
        return code;
    CUresult result = gpu->cuda->cuMemGetInfo(&unused, &total);
    cw_gpu_leave(gpu);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(gpu->cuda, result, "asking for the memory of cuda:%d", device);
    *out = (cw_device_info){.memory_bytes = total, .free_bytes = unused};
    memcpy(out->name, gpu->name, sizeof out->name);
    cw_uuid_text(gpu->uuid, out->uuid);
    return 0;
}

/* ---- slabs ---- */

static CUmemAllocationProp kind_of_memory(const struct cw_gpu *gpu) {
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->device}};
}

static int no_memory(const struct cw_gpu *gpu, CUresult result, uint64_t size_bytes) {
    size_t unused = 0, total = 0;
    if (result == CUDA_ERROR_OUT_OF_MEMORY && cw_gpu_enter(gpu) == 0) {
        gpu->cuda->cuMemGetInfo(&unused, &total);
        cw_gpu_leave(gpu);
        return cw_cuda_error(gpu->cuda, result,
                             "the memory of cuda:%d is full: %llu bytes were asked for, %zu of %zu "
                             "are free (`cableway status` and nvidia-smi say who has the rest)",
                             gpu->ordinal, (unsigned long long)size_bytes, unused, total);
    }
    return cw_cuda_error(gpu->cuda, result, "making %llu bytes of memory on cuda:%d",
                         (unsigned long long)size_bytes, gpu->ordinal);
}

static int cuda_slab_create(int device, uint64_t size_bytes, int *fd) {
    struct cw_gpu *gpu;
    CUmemGenericAllocationHandle handle;
    int code = cw_gpu_get(device, &gpu), exported = -1;
    if (code)
        return code;
    const CUmemAllocationProp memory = kind_of_memory(gpu);
    CUresult result = gpu->cuda->cuMemCreate(&handle, size_bytes, &memory, 0);
    if (result != CUDA_SUCCESS)
        return no_memory(gpu, result, size_bytes);
    result = gpu->cuda->cuMemExportToShareableHandle(&exported, handle,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    gpu->cuda->cuMemRelease(handle); /* the descriptor keeps it now */
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(gpu->cuda, result, "getting a descriptor for memory of cuda:%d",
                             device);
    fcntl(exported, F_SETFD, FD_CLOEXEC);
    *fd = exported;
    return 0;
}

/* Lets a GPU use a mapping. The lock is held, or nobody else has the mapping yet. */
static CUresult admit(const struct cw_gpu *gpu, struct cw_mapping *mapping) {
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->device},
        .flags =
            mapping->readonly ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUresult result = gpu->cuda->cuMemSetAccess((CUdeviceptr)(uintptr_t)mapping->base,
                                                mapping->size_bytes, &access, 1);
    if (result == CUDA_SUCCESS)
        mapping->reachers |= 1ull << gpu->ordinal;
    return result;
}

/* Is what came as this slab's data memory of that GPU? */
static int check_location(const struct cw_gpu *gpu, CUmemGenericAllocationHandle handle) {
    CUmemAllocationProp found = {.type = CU_MEM_ALLOCATION_TYPE_INVALID};
    CUresult result = gpu->cuda->cuMemGetAllocationPropertiesFromHandle(&found, handle);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(gpu->cuda, result, "asking where imported memory lies");
    if (found.location.type != CU_MEM_LOCATION_TYPE_DEVICE || found.location.id != gpu->device)
        return cw_fail(-EPROTO,
                       "a slab was announced to lie on cuda:%d, its memory is of device %d",
                       gpu->ordinal, found.location.id);
    return 0;
}

/* Reserves addresses and puts the memory there. */
static int map_handle(const struct cw_gpu *gpu, CUmemGenericAllocationHandle handle,
                      uint64_t size_bytes, bool readonly, struct cw_mapping *out) {
    const struct cw_cuda *cuda = gpu->cuda;
    CUdeviceptr base = 0;
    const struct cw_gpu *first;
    CUresult result = cuda->cuMemAddressReserve(&base, size_bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(cuda, result, "reserving %llu addresses of the GPU",
                             (unsigned long long)size_bytes);
    result = cuda->cuMemMap(base, size_bytes, 0, handle, 0);
    if (result != CUDA_SUCCESS) {
        cuda->cuMemAddressFree(base, size_bytes);
        /* The driver compares with what the descriptor has: a slab that is smaller than was said.
         */
        return cw_cuda_error(cuda, result, "mapping %llu bytes of memory of cuda:%d",
                             (unsigned long long)size_bytes, gpu->ordinal);
    }
    struct cw_mapping mapping = {.base = (void *)(uintptr_t)base,
                                 .size_bytes = size_bytes,
                                 .device = gpu->ordinal,
                                 .readonly = readonly};
    result = admit(gpu, &mapping);
    if (result == CUDA_SUCCESS && gpu->ordinal != 0 && cw_gpu_peek(0, &first) == 0 &&
        cw_gpu_reaches(first, gpu))
        result = admit(first, &mapping);
    if (result != CUDA_SUCCESS) {
        cuda->cuMemUnmap(base, size_bytes);
        cuda->cuMemAddressFree(base, size_bytes);
        return cw_cuda_error(cuda, result, "getting access to memory of cuda:%d", gpu->ordinal);
    }
    *out = mapping;
    return 0;
}

int cw_cuda_import_slab(const struct cw_gpu *gpu, int fd, uint64_t size_bytes,
                        CUmemGenericAllocationHandle *out) {
    CUmemGenericAllocationHandle handle;
    int device = gpu->ordinal;
    if (size_bytes % gpu->granule_bytes)
        return cw_fail(-EPROTO, "a slab of %llu bytes on cuda:%d: they are multiples of %llu",
                       (unsigned long long)size_bytes, device,
                       (unsigned long long)gpu->granule_bytes);
    CUresult result = gpu->cuda->cuMemImportFromShareableHandle(
        &handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(gpu->cuda, result,
                             "the descriptor of a slab on cuda:%d is none of GPU memory", device);
    int code = check_location(gpu, handle);
    if (code)
        gpu->cuda->cuMemRelease(handle);
    else
        *out = handle;
    return code;
}

static int cuda_slab_map(int device, int fd, uint64_t size_bytes, uint32_t slab_flags, int readonly,
                         struct cw_mapping *out) {
    struct cw_gpu *gpu;
    CUmemGenericAllocationHandle handle;
    int code = cw_gpu_get(device, &gpu);
    if (code == 0 && slab_flags & CW_SLAB_FOREIGN)
        return cw_import_map(gpu, fd, size_bytes, out);
    if (code == 0)
        code = cw_cuda_import_slab(gpu, fd, size_bytes, &handle);
    if (code)
        return code;
    code = map_handle(gpu, handle, size_bytes, readonly, out);
    gpu->cuda->cuMemRelease(handle); /* the mapping keeps it now */
    return code;
}

static int cuda_slab_raise(struct cw_mapping *mapping) {
    CUresult result = CUDA_SUCCESS;
    struct cw_gpu *gpu;
    int code = 0;
    pthread_mutex_lock(&lock);
    mapping->readonly = false;
    for (int i = 0; i < CW_GPUS_MAX && code == 0 && result == CUDA_SUCCESS; i++) {
        if (!(mapping->reachers >> i & 1))
            continue;
        code = cw_gpu_get(i, &gpu);
        if (code == 0)
            result = admit(gpu, mapping);
    }
    mapping->readonly = code || result != CUDA_SUCCESS;
    pthread_mutex_unlock(&lock);
    if (code || result == CUDA_SUCCESS)
        return code;
    return cw_cuda_error(gpu->cuda, result, "making memory of cuda:%d writable", mapping->device);
}

/* ---- the end of mappings ---- */

/* The user's kernels that were launched on an array outlive its last view. Ends by itself: streams
 * wait only for what was submitted. */
bool cw_cuda_drain(uint64_t gpus) {
    for (int i = 0; i < CW_GPUS_MAX; i++) {
        const struct cw_gpu *peek;
        unsigned flags;
        int active = 0;
        if (!(gpus >> i & 1) || cw_gpu_peek(i, &peek) != 0 ||
            peek->cuda->cuDevicePrimaryCtxGetState(peek->device, &flags, &active) != CUDA_SUCCESS ||
            !active)
            continue;
        struct cw_gpu *gpu;
        if (cw_gpu_get(i, &gpu) != 0 || cw_gpu_enter(gpu) != 0)
            continue;
        CUresult result = gpu->cuda->cuCtxSynchronize();
        cw_gpu_leave(gpu);
        if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
            return false;
    }
    return true;
}

static bool end_mapping(const struct cw_cuda *cuda, const struct cw_mapping *mapping) {
    struct cw_gpu *gpu;
    if (mapping->imported == CW_IMPORT_OWN)
        return true; /* its owner's own memory */
    if (!cw_cuda_drain(mapping->reachers))
        return false;
    if (mapping->imported) {
        if (cw_gpu_get(mapping->device, &gpu) == 0)
            cw_import_unmap(gpu, mapping);
        return true;
    }
    CUdeviceptr base = (CUdeviceptr)(uintptr_t)mapping->base;
    /* When these fail the context is lost, or the driver has shut down before us: both have ended
     * the mapping already. */
    cuda->cuMemUnmap(base, mapping->size_bytes);
    cuda->cuMemAddressFree(base, mapping->size_bytes);
    return true;
}

static void end_late_ones(const struct cw_cuda *cuda) {
    pthread_mutex_lock(&lock);
    struct late *list = late_ones;
    late_ones = NULL;
    pthread_mutex_unlock(&lock);
    while (list) {
        struct late *next = list->next;
        if (end_mapping(cuda, &list->mapping))
            free(list);
        else {
            pthread_mutex_lock(&lock);
            list->next = late_ones;
            late_ones = list;
            pthread_mutex_unlock(&lock);
        }
        list = next;
    }
}

static void cuda_slab_unmap(struct cw_mapping *mapping) {
    const struct cw_cuda *cuda = cw_cuda_opened();
    if (cuda) {
        end_late_ones(cuda);
        if (!end_mapping(cuda, mapping)) {
            struct late *late = malloc(sizeof *late);
            CW_ASSERT(late);
            pthread_mutex_lock(&lock);
            *late = (struct late){.mapping = *mapping, .next = late_ones};
            late_ones = late;
            pthread_mutex_unlock(&lock);
        }
    }
    *mapping = (struct cw_mapping){.base = NULL};
}

int cw_cuda_admit(const struct cw_gpu *gpu, struct cw_mapping *mapping) {
    CUresult result = CUDA_SUCCESS;
    const struct cw_gpu *memory;
    int code = cw_gpu_peek(mapping->device, &memory);
    if (code)
        return code;
    pthread_mutex_lock(&lock);
    bool known = mapping->reachers >> gpu->ordinal & 1;
    bool can = known || (!mapping->imported && cw_gpu_reaches(gpu, memory));
    if (can && !known)
        result = admit(gpu, mapping);
    pthread_mutex_unlock(&lock);
    if (!can)
        return cw_fail(-ENODEV,
                       "cuda:%d cannot access the memory of cuda:%d directly (no peer access): "
                       "copy the array to a GPU that can, or to host memory",
                       gpu->ordinal, mapping->device);
    return result == CUDA_SUCCESS
               ? 0
               : cw_cuda_error(gpu->cuda, result, "letting cuda:%d use memory of cuda:%d",
                               gpu->ordinal, mapping->device);
}

void cw_cuda_register_host(const struct cw_gpu *gpu, struct cw_mapping *mapping) {
    pthread_mutex_lock(&lock);
    if (!mapping->reachers &&
        gpu->cuda->cuMemHostRegister(mapping->base, mapping->size_bytes,
                                     CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS)
        mapping->reachers = 1;
    pthread_mutex_unlock(&lock);
}

/* A GPU whose context is open; NULL: none is. */
static const struct cw_gpu *any_open(void) {
    const struct cw_gpu *gpu;
    int count = 0;
    if (cw_gpu_count(&count) != 0)
        return NULL;
    for (int i = 0; i < count; i++)
        if (cw_gpu_peek(i, &gpu) == 0 && gpu->context)
            return gpu;
    return NULL;
}

void cw_backend_forget_host(struct cw_mapping *mapping) {
    const struct cw_cuda *cuda = mapping->reachers ? cw_cuda_opened() : NULL;
    const struct cw_gpu *gpu = cuda ? any_open() : NULL;
    if (gpu && cw_gpu_enter(gpu) == 0) { /* without a context the driver refuses */
        cuda->cuMemHostUnregister(mapping->base);
        cw_gpu_leave(gpu);
    }
    mapping->reachers = 0;
}

/* ---- bytes ---- */

static int finish(const struct cw_gpu *gpu, CUresult result, const char *what, size_t size_bytes) {
    if (result == CUDA_SUCCESS)
        result = gpu->cuda->cuStreamSynchronize(gpu->copies);
    cw_gpu_leave(gpu);
    return result == CUDA_SUCCESS ? 0
                                  : cw_cuda_error(gpu->cuda, result, "%s %zu bytes on cuda:%d",
                                                  what, size_bytes, gpu->ordinal);
}

/* Enters a GPU to work on so many bytes: 1, and finish() leaves it; 0: there are none. */
static int begin(int device, size_t size_bytes, struct cw_gpu **gpu) {
    int code = cw_gpu_get(device, gpu);
    if (code || size_bytes == 0)
        return code;
    code = cw_gpu_enter(*gpu);
    return code ? code : 1;
}

static int cuda_copy_in(int device, void *target, const void *host, size_t size_bytes) {
    struct cw_gpu *gpu;
    int code = begin(device, size_bytes, &gpu);
    if (code <= 0)
        return code;
    CUresult result =
        gpu->cuda->cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)target, host, size_bytes, gpu->copies);
    return finish(gpu, result, "copying in", size_bytes);
}

static int cuda_copy_out(int device, void *host, const void *source, size_t size_bytes) {
    struct cw_gpu *gpu;
    int code = begin(device, size_bytes, &gpu);
    if (code <= 0)
        return code;
    CUresult result =
        gpu->cuda->cuMemcpyDtoHAsync(host, (CUdeviceptr)(uintptr_t)source, size_bytes, gpu->copies);
    return finish(gpu, result, "copying out", size_bytes);
}

static int cuda_zero(int device, void *target, size_t size_bytes) {
    struct cw_gpu *gpu;
    int code = begin(device, size_bytes, &gpu);
    if (code <= 0)
        return code;
    CUresult result =
        gpu->cuda->cuMemsetD8Async((CUdeviceptr)(uintptr_t)target, 0, size_bytes, gpu->copies);
    return finish(gpu, result, "zeroing", size_bytes);
}

/* ---- memory and streams of other libraries ---- */

int cw_memory_gpu(const void *address, int *gpu) {
    const struct cw_cuda *cuda;
    CUmemorytype kind = 0;
    int ordinal = -1;
    if (!address || !gpu)
        return cw_needs("an address and a place for the answer");
    int code = cw_cuda_open(&cuda);
    if (code)
        return code;
    /* What the driver does not know is an error to it: ordinary host memory. */
    if (cuda->cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    (CUdeviceptr)(uintptr_t)address) == CUDA_SUCCESS &&
        kind == CU_MEMORYTYPE_DEVICE) {
        CUresult result = cuda->cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                                      (CUdeviceptr)(uintptr_t)address);
        if (result != CUDA_SUCCESS)
            return cw_cuda_error(cuda, result, "asking on which GPU %p lies", address);
    }
    *gpu = ordinal;
    return 0;
}

int cw_stream_wait(int gpu, void *stream, int whole) {
    struct cw_gpu *place;
    int code = cw_gpu_get(gpu, &place);
    if (code == 0)
        code = cw_gpu_enter(place);
    if (code)
        return code;
    CUresult result =
        whole ? place->cuda->cuCtxSynchronize() : place->cuda->cuStreamSynchronize(stream);
    cw_gpu_leave(place);
    return result == CUDA_SUCCESS
               ? 0
               : cw_context_failure_serve(cw_cuda_error(
                     place->cuda, result, "waiting for the stream %p of cuda:%d", stream, gpu));
}

const struct cw_backend cw_backend_cuda = {
    .name = "cuda",
    .device_kind = CW_DEVICE_CUDA,
    .slab_min_bytes = 32ull << 20,
    .slab_max_bytes = 1ull << 30,
    .align_bytes = 512,
    .block_bytes = 8192,
    .large_blocks = 1024,
    .protects = false,
    .device_count = cw_gpu_count,
    .device_uuid = cuda_device_uuid,
    .device_find = cw_gpu_find,
    .device_limits = cuda_device_limits,
    .device_stat = cuda_device_stat,
    .slab_create = cuda_slab_create,
    .slab_map = cuda_slab_map,
    .slab_raise = cuda_slab_raise,
    .slab_unmap = cuda_slab_unmap,
    .fixed_reserve = cw_cuda_fixed_reserve,
    .fixed_give_back = cw_cuda_fixed_give_back,
    .fixed_hold = cw_cuda_fixed_hold,
    .fixed_drop = cw_cuda_fixed_drop,
    .fixed_map = cw_cuda_fixed_map,
    .fixed_unmap = cw_cuda_fixed_unmap,
    .copy_in = cuda_copy_in,
    .copy_out = cuda_copy_out,
    .zero = cuda_zero,
};
