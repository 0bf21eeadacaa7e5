/*
 * Memory of cuMemAlloc, and the legacy handles by which another process opens it.
 *
 * A legacy handle names the maker's process and its memfd there; whoever knows the 64 bytes and may
 * look into the process can open it, while the maker has not freed it. Opening it again gives the
 * same address. Freeing waits for all work of the process on the device, and the next allocation of
 * that size has the same address, as often on the real driver: here always, so that tests may count
 * on it.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fakecuda/driver/card.h"
#include "tests/fakecuda/memory/memory.h"
#include "tests/fakecuda/streams/stream.h"

#define MAGIC 0x69706366u

struct handle {
    uint32_t magic;
    int32_t pid;
    int32_t fd;
    int32_t slot;
    uint64_t id;
    uint64_t inode;
};
_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "a handle has 64 bytes");

/* Where the piece that was freed last lay: nothing else is put there, until another one is freed.
 * Under the lock. */
static struct {
    uintptr_t base;
    size_t size_bytes;
} freed;

/* Under the lock, shared by both kinds. */
static CUresult map(struct fake_piece *piece, enum fake_range_kind kind, CUdeviceptr *out) {
    const int rights = PROT_READ | PROT_WRITE;
    void *at = MAP_FAILED;
    if (kind == FAKE_RANGE_OWN && piece->size_bytes == freed.size_bytes) {
        at = mmap((void *)freed.base, piece->size_bytes, rights, MAP_SHARED | MAP_FIXED,
                  piece->memory_fd, 0);
        if (at != MAP_FAILED)
            freed.size_bytes = 0;
    }
    if (at == MAP_FAILED)
        at = mmap(NULL, piece->size_bytes, rights, MAP_SHARED, piece->memory_fd, 0);
    if (at == MAP_FAILED) {
        fake_piece_drop(piece);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fake_range_add((struct fake_range){.kind = kind,
                                       .base = (uintptr_t)at,
                                       .size_bytes = piece->size_bytes,
                                       .piece = piece,
                                       .opened = 1});
    *out = (CUdeviceptr)(uintptr_t)at;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr *out, size_t size_bytes) {
    CALL_IN(context, cuMemAlloc);
    if (!out || !size_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (size_bytes > fake_config.memory_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_bytes = (size_bytes + FAKE_GRANULARITY - 1) / FAKE_GRANULARITY * FAKE_GRANULARITY;
    struct fake_piece *piece;
    pthread_rwlock_wrlock(&fake_ranges_lock);
    CUresult code = fake_piece_make(context->index, size_bytes, &piece);
    if (!code)
        code = map(piece, FAKE_RANGE_OWN, out);
    pthread_rwlock_unlock(&fake_ranges_lock);
    return code;
}

/* The range that begins at address, of this kind, with the lock held; NULL: none, not held. */
static struct fake_range *hold(CUdeviceptr address, enum fake_range_kind kind) {
    pthread_rwlock_wrlock(&fake_ranges_lock);
    struct fake_range *range = fake_range_find(address);
    if (range && range->kind == kind && range->base == address)
        return range;
    pthread_rwlock_unlock(&fake_ranges_lock);
    return NULL;
}

static void unmap(struct fake_range *range) {
    munmap((void *)range->base, range->size_bytes);
    fake_range_remove(range);
}

/* The same, and keeps the addresses for the next allocation of this size. */
static void unmap_freed(struct fake_range *range) {
    if (freed.size_bytes)
        munmap((void *)freed.base, freed.size_bytes);
    freed.base = range->base;
    freed.size_bytes = range->size_bytes;
    if (mmap((void *)freed.base, freed.size_bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
        munmap((void *)freed.base, freed.size_bytes);
        freed.size_bytes = 0;
    }
    fake_range_remove(range);
}

CUresult cuMemFree(CUdeviceptr address) {
    CALL_IN(context, cuMemFree);
    if (!address)
        return CUDA_SUCCESS;
    struct fake_range *range = hold(address, FAKE_RANGE_OWN);
    if (!range)
        return CUDA_ERROR_INVALID_VALUE;
    fake_context *owner = fake_context_of(range->piece->index);
    pthread_rwlock_unlock(&fake_ranges_lock);
    fake_context_drain(owner);
    range = hold(address, FAKE_RANGE_OWN);
    if (!range)
        return CUDA_ERROR_INVALID_VALUE;
    unmap_freed(range);
    pthread_rwlock_unlock(&fake_ranges_lock);
    return fake_context_error(context);
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size_bytes, CUdeviceptr address) {
    CALL(cuMemGetAddressRange);
    pthread_rwlock_rdlock(&fake_ranges_lock);
    struct fake_range *range = fake_range_find(address);
    bool good = range && range->piece;
    if (good && base)
        *base = range->base;
    if (good && size_bytes)
        *size_bytes = range->size_bytes;
    pthread_rwlock_unlock(&fake_ranges_lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address) {
    CALL_IN(context, cuIpcGetMemHandle);
    (void)context;
    struct stat status;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_rdlock(&fake_ranges_lock);
    struct fake_range *range = fake_range_find(address);
    bool good =
        range && range->kind == FAKE_RANGE_OWN && fstat(range->piece->memory_fd, &status) == 0;
    if (good) {
        struct handle handle = {
            MAGIC,        getpid(), range->piece->memory_fd, range->piece->slot, range->piece->id,
            status.st_ino};
        memset(out, 0, sizeof *out);
        memcpy(out, &handle, sizeof handle);
    }
    pthread_rwlock_unlock(&fake_ranges_lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The piece behind a handle of another process. */
static CUresult open_piece(const struct handle *handle, struct fake_piece *out) {
    char path[64];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle->pid, handle->fd);
    out->memory_fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (out->memory_fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = fstat(out->memory_fd, &status) < 0 || status.st_ino != handle->inode
                        ? CUDA_ERROR_INVALID_VALUE
                        : fake_card_join(handle->slot, handle->id, &out->keeper_fd);
    if (code) {
        close(out->memory_fd);
        return code;
    }
    out->slot = handle->slot;
    out->id = handle->id;
    return fake_card_piece(out->keeper_fd, out->slot, out->id, &out->index, &out->size_bytes);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle bytes, unsigned flags) {
    CALL_IN(context, cuIpcOpenMemHandle);
    struct handle handle;
    struct fake_piece piece = {0};
    memcpy(&handle, &bytes, sizeof handle);
    if (!out || (flags & ~CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) || handle.magic != MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_rwlock_wrlock(&fake_ranges_lock);
    struct fake_range *range = fake_range_of(handle.id, FAKE_RANGE_OPENED);
    CUresult code = CUDA_SUCCESS;
    if (range) {
        range->opened++;
        *out = range->base;
    } else if ((code = open_piece(&handle, &piece)) == CUDA_SUCCESS) {
        struct fake_piece *kept = fake_piece_adopt(piece);
        if (fake_config_ordinal(piece.index) < 0)
            code = CUDA_ERROR_INVALID_DEVICE;
        else if (!fake_config.peer[context->index][piece.index])
            code = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
        if (code)
            fake_piece_drop(kept);
        else
            code = map(kept, FAKE_RANGE_OPENED, out);
    }
    pthread_rwlock_unlock(&fake_ranges_lock);
    return code;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    CALL_IN(context, cuIpcCloseMemHandle);
    (void)context;
    struct fake_range *range = hold(address, FAKE_RANGE_OPENED);
    if (!range)
        return CUDA_ERROR_INVALID_VALUE;
    if (--range->opened == 0)
        unmap(range);
    pthread_rwlock_unlock(&fake_ranges_lock);
    return CUDA_SUCCESS;
}
