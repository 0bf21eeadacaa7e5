/*
 * Virtual memory management: memory as handles and descriptors, reserved addresses, mappings, and
 * access for each device. The handle is the piece (memory.h).
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fakecuda/driver/card.h"
#include "tests/fakecuda/memory/memory.h"
#include "tests/fakecuda/memory/share.h"

struct reservation {
    struct reservation *next;
    uintptr_t base;
    size_t size_bytes;
};

static struct reservation *reservations; /* under fake_ranges_lock */

static bool whole(uint64_t bytes) {
    return bytes && bytes % FAKE_GRANULARITY == 0;
}

CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
    CALL(cuMemGetAllocationGranularity);
    if (!out || !prop || (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (fake_device_index(prop->location.id) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    *out = FAKE_GRANULARITY;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size_bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags) {
    CALL(cuMemCreate);
    if (!out || !prop || flags || !whole(size_bytes) || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ||
        (prop->requestedHandleTypes && !fake_config.fd_export))
        return CUDA_ERROR_NOT_SUPPORTED;
    int index = fake_device_index(prop->location.id);
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    struct fake_piece *piece;
    pthread_rwlock_wrlock(&fake_ranges_lock);
    CUresult code = fake_piece_make(index, size_bytes, &piece);
    if (!code) {
        piece->handles = 1;
        piece->exportable = prop->requestedHandleTypes != 0;
        *out = (CUmemGenericAllocationHandle)(uintptr_t)piece;
    }
    pthread_rwlock_unlock(&fake_ranges_lock);
    return code;
}

/* The piece behind a handle, with the lock held. NULL: none, and not held. */
static struct fake_piece *hold(CUmemGenericAllocationHandle handle) {
    pthread_rwlock_wrlock(&fake_ranges_lock);
    struct fake_piece *piece = fake_piece_find((const void *)(uintptr_t)handle);
    if (!piece)
        pthread_rwlock_unlock(&fake_ranges_lock);
    return piece;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    CALL(cuMemRelease);
    struct fake_piece *piece = hold(handle);
    if (!piece)
        return CUDA_ERROR_INVALID_VALUE;
    piece->handles--;
    fake_piece_drop(piece);
    pthread_rwlock_unlock(&fake_ranges_lock);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out,
                                                CUmemGenericAllocationHandle handle) {
    CALL(cuMemGetAllocationPropertiesFromHandle);
    struct fake_piece *piece = out ? hold(handle) : NULL;
    if (!piece)
        return CUDA_ERROR_INVALID_VALUE;
    memset(out, 0, sizeof *out);
    out->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    out->requestedHandleTypes =
        piece->exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    out->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    out->location.id = fake_config_ordinal(piece->index);
    pthread_rwlock_unlock(&fake_ranges_lock);
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address) {
    CALL(cuMemRetainAllocationHandle);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&fake_ranges_lock);
    struct fake_range *range = fake_range_find((uintptr_t)address);
    bool good = range && range->kind == FAKE_RANGE_MAPPED;
    if (good) {
        range->piece->handles++;
        *out = (CUmemGenericAllocationHandle)(uintptr_t)range->piece;
    }
    pthread_rwlock_unlock(&fake_ranges_lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    CALL(cuMemExportToShareableHandle);
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !fake_config.fd_export)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct fake_piece *piece = hold(handle);
    if (!piece)
        return CUDA_ERROR_INVALID_VALUE;
    int fd = -1;
    CUresult code = CUDA_ERROR_INVALID_VALUE;
    if (piece->exportable)
        code = fake_share_export((struct fake_share){.slot = piece->slot, .id = piece->id},
                                 piece->memory_fd, piece->keeper_fd, &fd);
    pthread_rwlock_unlock(&fake_ranges_lock);
    if (!code)
        memcpy(out, &fd, sizeof fd);
    return code;
}

/* What the real driver does with memory of a masked device was not measured; it is refused here. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *shareable,
                                        CUmemAllocationHandleType type) {
    CALL(cuMemImportFromShareableHandle);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !fake_config.fd_export)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct fake_share share;
    struct fake_piece piece = {.handles = 1, .exportable = true};
    CUresult code =
        fake_share_import((int)(intptr_t)shareable, &share, &piece.memory_fd, &piece.keeper_fd);
    if (code)
        return code;
    code = fake_card_piece(piece.keeper_fd, share.slot, share.id, &piece.index, &piece.size_bytes);
    if (!code && fake_config_ordinal(piece.index) < 0)
        code = CUDA_ERROR_INVALID_DEVICE;
    if (code) {
        close(piece.memory_fd);
        close(piece.keeper_fd);
        return code;
    }
    piece.slot = share.slot;
    piece.id = share.id;
    pthread_rwlock_wrlock(&fake_ranges_lock);
    *out = (CUmemGenericAllocationHandle)(uintptr_t)fake_piece_adopt(piece);
    pthread_rwlock_unlock(&fake_ranges_lock);
    return CUDA_SUCCESS;
}

/* ---- addresses ---------------------------------------------------------------------------------
 */

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size_bytes, size_t alignment,
                             CUdeviceptr hint, unsigned long long flags) {
    CALL(cuMemAddressReserve);
    (void)hint; /* it may be ignored */
    if (alignment < FAKE_GRANULARITY)
        alignment = FAKE_GRANULARITY;
    if (!out || flags || !whole(size_bytes) || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    char *at = size_bytes > SIZE_MAX / 2 || alignment > SIZE_MAX / 4
                   ? MAP_FAILED
                   : mmap(NULL, size_bytes + alignment, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct reservation *reservation = malloc(sizeof *reservation);
    if (at == MAP_FAILED || !reservation) {
        free(reservation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uintptr_t base = ((uintptr_t)at + alignment - 1) & ~(alignment - 1);
    size_t before = base - (uintptr_t)at, behind = alignment - before;
    if (before)
        munmap(at, before);
    if (behind)
        munmap((void *)(base + size_bytes), behind);
    pthread_rwlock_wrlock(&fake_ranges_lock);
    *reservation = (struct reservation){reservations, base, size_bytes};
    reservations = reservation;
    pthread_rwlock_unlock(&fake_ranges_lock);
    *out = base;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr base, size_t size_bytes) {
    CALL(cuMemAddressFree);
    CUresult code = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&fake_ranges_lock);
    struct reservation **at = &reservations;
    while (*at && ((*at)->base != base || (*at)->size_bytes != size_bytes))
        at = &(*at)->next;
    if (*at && !fake_range_overlaps(base, size_bytes)) {
        struct reservation *gone = *at;
        *at = gone->next;
        munmap((void *)(uintptr_t)base, size_bytes);
        free(gone);
        code = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&fake_ranges_lock);
    return code;
}

/* Under the lock: do the addresses lie in one reservation? */
static bool reserved(uintptr_t base, size_t size_bytes) {
    for (struct reservation *at = reservations; at; at = at->next)
        if (base >= at->base && size_bytes <= at->size_bytes &&
            base - at->base <= at->size_bytes - size_bytes)
            return true;
    return false;
}

CUresult cuMemMap(CUdeviceptr base, size_t size_bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
    CALL(cuMemMap);
    if (offset || flags || !whole(size_bytes) || base % FAKE_GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    struct fake_piece *piece = hold(handle);
    if (!piece)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = CUDA_ERROR_INVALID_VALUE;
    if (size_bytes <= piece->size_bytes && reserved(base, size_bytes) &&
        !fake_range_overlaps(base, size_bytes)) {
        void *at = mmap((void *)(uintptr_t)base, size_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
                        piece->memory_fd, 0);
        code = at == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    if (!code)
        fake_range_add((struct fake_range){
            .kind = FAKE_RANGE_MAPPED, .base = base, .size_bytes = size_bytes, .piece = piece});
    pthread_rwlock_unlock(&fake_ranges_lock);
    return code;
}

/* Under the lock: do mappings fill the addresses, none of them reaching out? */
static bool filled(uintptr_t base, size_t size_bytes) {
    uintptr_t at = base;
    while (size_bytes && at < base + size_bytes) {
        struct fake_range *range = fake_range_find(at);
        if (!range || range->kind != FAKE_RANGE_MAPPED || range->base != at ||
            range->size_bytes > base + size_bytes - at)
            return false;
        at += range->size_bytes;
    }
    return size_bytes > 0;
}

CUresult cuMemUnmap(CUdeviceptr base, size_t size_bytes) {
    CALL(cuMemUnmap);
    CUresult code = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&fake_ranges_lock);
    void *empty = MAP_FAILED;
    if (filled(base, size_bytes)) {
        empty = mmap((void *)(uintptr_t)base, size_bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        code = empty == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    if (!code) {
        for (uintptr_t at = base; at < base + size_bytes;) {
            struct fake_range *range = fake_range_find(at);
            at += range->size_bytes;
            fake_range_remove(range);
        }
    }
    pthread_rwlock_unlock(&fake_ranges_lock);
    return code;
}

/* One device's access to one mapping. dry: only look whether it can be. */
static CUresult grant(struct fake_range *range, const CUmemAccessDesc *access, bool dry) {
    int index = fake_device_index(access->location.id);
    if (access->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
        access->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    if (access->flags && !fake_config.peer[index][range->piece->index])
        return CUDA_ERROR_INVALID_DEVICE;
    if (dry)
        return CUDA_SUCCESS;
    range->readers &= ~(1u << index);
    range->writers &= ~(1u << index);
    if (access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ)
        range->readers |= 1u << index;
    else if (access->flags)
        range->writers |= 1u << index;
    return CUDA_SUCCESS;
}

static CUresult grant_all(uintptr_t base, size_t size_bytes, const CUmemAccessDesc *access,
                          size_t count, bool dry) {
    for (uintptr_t at = base; at < base + size_bytes;) {
        struct fake_range *range = fake_range_find(at);
        for (size_t i = 0; i < count; i++) {
            CUresult code = grant(range, &access[i], dry);
            if (code)
                return code;
        }
        int protection = range->writers   ? PROT_READ | PROT_WRITE
                         : range->readers ? PROT_READ
                                          : PROT_NONE;
        if (!dry && mprotect((void *)range->base, range->size_bytes, protection) < 0)
            return CUDA_ERROR_OPERATING_SYSTEM;
        at = range->base + range->size_bytes;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr base, size_t size_bytes, const CUmemAccessDesc *access,
                        size_t count) {
    CALL(cuMemSetAccess);
    if (!access || !count)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&fake_ranges_lock);
    if (filled(base, size_bytes))
        code = grant_all(base, size_bytes, access, count, true);
    if (!code)
        code = grant_all(base, size_bytes, access, count, false);
    pthread_rwlock_unlock(&fake_ranges_lock);
    return code;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                        CUdeviceptr address) {
    CALL(cuMemGetAccess);
    if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    int index = fake_device_index(location->id);
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_rwlock_rdlock(&fake_ranges_lock);
    struct fake_range *range = fake_range_find(address);
    bool good = range && range->kind == FAKE_RANGE_MAPPED;
    if (good)
        *flags = range->writers >> index & 1   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                 : range->readers >> index & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                               : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    pthread_rwlock_unlock(&fake_ranges_lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
