/*
 * Host memory that devices reach: registered, or made by the driver. Its device pointer is its
 * address. Registering never waits for streams; unregistering waits for all of them, as the real
 * driver was seen to.
 */
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fakecuda/memory/memory.h"
#include "tests/fakecuda/streams/stream.h"

#define REGISTER_FLAGS                                                                             \
    (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY |    \
     CU_MEMHOSTREGISTER_READ_ONLY)

static bool mapped(uintptr_t base, size_t size_bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = base & ~(page - 1);
    return msync((void *)from, base + size_bytes - from, MS_ASYNC) == 0;
}

CUresult cuMemHostRegister(void *base, size_t size_bytes, unsigned flags) {
    CALL_IN(context, cuMemHostRegister);
    (void)context;
    if (!base || !size_bytes || (flags & ~(unsigned)REGISTER_FLAGS) ||
        size_bytes > SIZE_MAX - (uintptr_t)base || !mapped((uintptr_t)base, size_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = CUDA_SUCCESS;
    pthread_rwlock_wrlock(&fake_ranges_lock);
    if (fake_range_overlaps((uintptr_t)base, size_bytes))
        code = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    else
        fake_range_add((struct fake_range){
            .kind = FAKE_RANGE_HOST, .base = (uintptr_t)base, .size_bytes = size_bytes});
    pthread_rwlock_unlock(&fake_ranges_lock);
    return code;
}

/* Under the lock: the range that begins there. */
static struct fake_range *find(const void *base, bool ours) {
    struct fake_range *range = fake_range_find((uintptr_t)base);
    bool good = range && range->kind == FAKE_RANGE_HOST && range->base == (uintptr_t)base &&
                range->ours == ours;
    return good ? range : NULL;
}

static CUresult end(void *base, bool ours, CUresult wrong) {
    CUresult code = CUDA_SUCCESS;
    pthread_rwlock_rdlock(&fake_ranges_lock);
    if (!find(base, ours))
        code = wrong;
    pthread_rwlock_unlock(&fake_ranges_lock);
    if (code)
        return code;
    for (int i = 0; i < fake_config.device_count; i++)
        fake_context_drain(fake_context_of(i));
    pthread_rwlock_wrlock(&fake_ranges_lock);
    struct fake_range *range = find(base, ours);
    if (!range)
        code = wrong;
    else {
        if (ours)
            munmap(base, range->size_bytes);
        fake_range_remove(range);
    }
    pthread_rwlock_unlock(&fake_ranges_lock);
    return code;
}

CUresult cuMemHostUnregister(void *base) {
    CALL_IN(context, cuMemHostUnregister);
    (void)context;
    return end(base, false, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUresult cuMemHostAlloc(void **out, size_t size_bytes, unsigned flags) {
    CALL_IN(context, cuMemHostAlloc);
    (void)context;
    (void)flags; /* portable, mapped and write-combined are alike here */
    if (!out || !size_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    void *base = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_rwlock_wrlock(&fake_ranges_lock);
    fake_range_add((struct fake_range){
        .kind = FAKE_RANGE_HOST, .base = (uintptr_t)base, .size_bytes = size_bytes, .ours = true});
    pthread_rwlock_unlock(&fake_ranges_lock);
    *out = base;
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *base) {
    CALL_IN(context, cuMemFreeHost);
    (void)context;
    return end(base, true, CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *out, void *address, unsigned flags) {
    CALL_IN(context, cuMemHostGetDevicePointer);
    (void)context;
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_rdlock(&fake_ranges_lock);
    struct fake_range *range = fake_range_find((uintptr_t)address);
    bool good = range && range->kind == FAKE_RANGE_HOST;
    pthread_rwlock_unlock(&fake_ranges_lock);
    if (good)
        *out = (CUdeviceptr)(uintptr_t)address;
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
