/*
 * CUDA IPC import: a GPU allocation of somebody else (cudaMalloc), shared by a legacy handle.
 *
 * Weaker than memory of ours: the 64 bytes of a legacy handle are no capability (any process of
 * the user may open them), and the memory dies with its owner, who may also free it under
 * everybody's eyes. So it is done only when it is asked for.
 *
 * The whole allocation becomes a foreign slab, whose data descriptor is a sealed memfd with a
 * *ticket*: the handle, and where the memory lies in the owner. Its block 0 is a pool that nobody
 * holds but the suballocations in it (suballocation.c): what was asked for is a suballocation,
 * whose end tells the caller that nobody needs the memory any more.
 *
 * Libraries carve many arrays out of one allocation, and make and drop them: so the slab is *kept*
 * when its last suballocation has ended (a hold of ours on block 0), and with it its mappings in
 * other processes. It is given up when CW_IMPORTS_CACHED_MAX others were imported from since, or
 * when its allocation is gone, which is looked for whenever another slab is made.
 *
 * Invariants
 *   W1  An allocation is known by the driver's number for it (BUFFER_ID), which never comes again,
 *       not by its address, which does. A slab whose allocation is gone is marked so before
 *       anything else lies at its address here: nothing is suballocated of it any more, and it goes
 *       with its last suballocation.
 *   W2  While a suballocation lasts its owner keeps the array, and so the allocation. In an
 *       allocation that nobody has a suballocation of nobody looks, though others may still have it
 *       mapped: what the owner gives back to the driver is free when the last of them has closed
 *       it.
 *   W3  An allocation has one slab, and CW_IMPORTS_CACHED_MAX are kept at most: one thread at a
 *       time makes one (import_lock, taken before client->lock), after it has looked again.
 *
 * The owner dies: who has the memory mapped keeps what the driver leaves there; who opens it later
 * gets -ENODEV. The broker keeps the slab until all have let go; nobody ever adopts it. An importer
 * dies: the driver closes its mapping, its leases go as all leases do. The broker dies:
 * suballocations end as suballocation.c says.
 *
 * Owner: client->lock; the driver is asked without it.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "ipc/array/array.h"
#include "ipc/array/suballocation.h"
#include "ipc/client.h"
#include "ipc/cuda/backend.h"
#include "ipc/memory/adoption.h"
#include "ipc/memory/allocator.h"
#include "ipc/memory/lease.h"
#include "ipc/memory/slab.h"
#include "ipc/order/context_failure.h"
#include "ipc/request/socket.h"
#include "shm/base/fd.h"

#define CW_IMPORTS_CACHED_MAX 64u /* allocations kept that something was imported from */

#define TICKET_MAGIC 0x31746b636974776cull

struct ticket {
    uint64_t magic;
    uint64_t process; /* random, of the owner: it needs no handle */
    uint64_t address; /* in the owner */
    uint64_t size_bytes;
    CUipcMemHandle handle;
};

/* A number that no other process has. 0: there is no chance to be had. */
static uint64_t own_process(void) {
    static cw_a64 number; /* no lock, which a fork could find held */
    uint64_t made, found = CW_LOAD(K21, &number, relaxed); /* K21: it says nothing else */
    if (found || getrandom(&made, sizeof made, 0) != sizeof made)
        return found;
    /* Who was first decides for all. */
    return CW_CAS(K21, &number, &found, made, acquire) ? made : found;
}

static int write_ticket(const struct ticket *ticket, int *out) {
    int fd = cw_fd_above_stdio(memfd_create("cableway-ticket", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd < 0)
        return cw_fail(-EDQUOT, "sharing a library's GPU memory needs a descriptor: %m");
    if (pwrite(fd, ticket, sizeof *ticket, 0) != sizeof *ticket ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0) {
        close(fd);
        return cw_fail(-EDQUOT, "writing the ticket of borrowed memory: %m");
    }
    *out = fd;
    return 0;
}

/* The allocation that an address lies in, and its handle. */
static int look_at(const struct cw_gpu *gpu, const void *address, uint64_t size_bytes,
                   struct ticket *out) {
    CUdeviceptr base = 0, wanted = (CUdeviceptr)(uintptr_t)address;
    size_t length = 0;
    int code = cw_gpu_enter(gpu);
    if (code)
        return code;
    *out = (struct ticket){.magic = TICKET_MAGIC, .process = own_process()};
    CUresult result = gpu->cuda->cuMemGetAddressRange(&base, &length, wanted);
    if (result == CUDA_SUCCESS)
        result = gpu->cuda->cuIpcGetMemHandle(&out->handle, base);
    cw_gpu_leave(gpu);
    if (result != CUDA_SUCCESS)
        return cw_fail(-EINVAL,
                       "the GPU memory at %p cannot be shared without a copy: CUDA IPC needs "
                       "memory of cudaMalloc, not of memory pools or virtual memory; share a copy",
                       address);
    if (wanted - base > length || size_bytes > length - (wanted - base))
        return cw_fail(-EINVAL, "%llu bytes at %p reach beyond their allocation",
                       (unsigned long long)size_bytes, address);
    out->address = base;
    out->size_bytes = (length + CW_CARVE_UNIT - 1) / CW_CARVE_UNIT * CW_CARVE_UNIT;
    return 0;
}

/* ---- slabs that are kept ---- */

/* W1: the number of the allocation that an address lies in; 0: there is none. */
static uint64_t allocation_of(const struct cw_cuda *cuda, CUdeviceptr address) {
    unsigned long long number = 0;
    if (cuda->cuPointerGetAttribute(&number, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) !=
        CUDA_SUCCESS)
        return 0;
    return number;
}

/* The lock is held. */
static void keep_no_more(cw_client *client, struct cw_slab *slab) {
    uint64_t gen = slab->locals[0].extent->gen;
    slab->imported_last = 0;
    cw_lease_release(client, slab, 0, gen); /* the suballocations hold it, or nobody */
}

/* The lock is held. */
static void mark_gone(cw_client *client, struct cw_slab *slab) {
    slab->gone = true;
    if (slab->imported_last)
        keep_no_more(client, slab);
}

/* The slab of an allocation that lies around an address, with the lock held; NULL: none. */
static struct cw_slab *slab_at(cw_client *client, uintptr_t address) {
    for (struct cw_slab *slab = client->slabs.own; slab; slab = slab->own_next)
        if (slab->allocation && !slab->gone && address >= (uintptr_t)slab->rw.base &&
            address - (uintptr_t)slab->rw.base < slab->size_bytes)
            return slab;
    return NULL;
}

/* W1: what is suballocated at an address is of the allocation that is there now. */
static void look_at_slab(cw_client *client, const struct cw_cuda *cuda, const void *address) {
    uint64_t now = allocation_of(cuda, (CUdeviceptr)(uintptr_t)address);
    pthread_mutex_lock(&client->lock);
    struct cw_slab *slab = slab_at(client, (uintptr_t)address);
    if (slab && slab->allocation != now)
        mark_gone(client, slab);
    else if (slab && slab->imported_last)
        slab->imported_last = ++client->imports;
    pthread_mutex_unlock(&client->lock);
}

/* Gives up kept slabs: all whose allocation is gone, and of too many the one that was imported from
 * the longest time ago. */
static void tidy(cw_client *client, const struct cw_cuda *cuda) {
    struct {
        uint32_t id;
        uint64_t allocation;
        CUdeviceptr base;
    } rows[CW_IMPORTS_CACHED_MAX];
    uint32_t count = 0;
    struct cw_slab *oldest = NULL;
    pthread_mutex_lock(&client->lock);
    for (struct cw_slab *slab = client->slabs.own; slab; slab = slab->own_next) {
        if (!slab->imported_last)
            continue;
        CW_ASSERT(count < CW_IMPORTS_CACHED_MAX);
        rows[count].id = slab->id;
        rows[count].allocation = slab->allocation;
        rows[count++].base = (CUdeviceptr)(uintptr_t)slab->rw.base;
        oldest = oldest && oldest->imported_last < slab->imported_last ? oldest : slab;
    }
    if (count == CW_IMPORTS_CACHED_MAX)
        keep_no_more(client, oldest);
    pthread_mutex_unlock(&client->lock);
    for (uint32_t i = 0; i < count; i++)
        if (allocation_of(cuda, rows[i].base) != rows[i].allocation) {
            pthread_mutex_lock(&client->lock);
            for (struct cw_slab *slab = client->slabs.own; slab; slab = slab->own_next)
                if (slab->id == rows[i].id && slab->allocation == rows[i].allocation) {
                    mark_gone(client, slab);
                    break;
                }
            pthread_mutex_unlock(&client->lock);
        }
}

/* Makes a slab of the allocation around an address; it is kept. The caller has import_lock. */
static int adopt(cw_client *client, struct cw_gpu *gpu, const void *address, uint64_t size_bytes) {
    struct cw_heap *heap;
    struct cw_slab *slab;
    struct ticket ticket;
    uint64_t gen, allocation = allocation_of(gpu->cuda, (CUdeviceptr)(uintptr_t)address);
    int fd;
    int code = look_at(gpu, address, size_bytes, &ticket);
    if (code == 0 && !allocation)
        code = cw_fail(-EINVAL,
                       "the GPU memory at %p cannot be shared without a copy: the driver does not "
                       "tell one allocation there from the next; share a copy",
                       address);
    if (code == 0)
        code = cw_heap_of(client, &cw_backend_cuda, gpu->ordinal, &heap);
    if (code == 0)
        code = write_ticket(&ticket, &fd);
    if (code)
        return code;
    tidy(client, gpu->cuda);
    code = cw_heap_adopt_foreign(client, heap, fd, ticket.size_bytes, cw_backend_cuda.large_blocks,
                                 &slab, &gen);
    close(fd);
    if (code)
        return code;
    pthread_mutex_lock(&client->lock);
    slab->locals[0].extent->pool = true;
    slab->locals[0].extent->published = false; /* its handle never leaves */
    slab->allocation = allocation;
    slab->imported_last = ++client->imports;
    pthread_mutex_unlock(&client->lock);
    return 0;
}

int cw_array_borrow(cw_client *client, const void *address, uint64_t size_bytes, cw_array **out,
                    uint64_t *loan) {
    int ordinal = -1;
    struct cw_gpu *gpu;
    if (!client || !out || !loan || size_bytes == 0)
        return cw_fail(-EINVAL, "a client, bytes and places for the answers are needed");
    int code = cw_client_usable(client);
    if (code == 0)
        code = cw_memory_gpu(address, &ordinal);
    if (code == 0 && ordinal < 0)
        code = cw_fail(-EINVAL, "%p is not GPU memory", address);
    if (code == 0)
        code = cw_gpu_get(ordinal, &gpu);
    if (code)
        return code;
    look_at_slab(client, gpu->cuda, address);
    code = cw_suballocation_take(client, address, size_bytes, true, out,
                                 loan); /* of a known allocation */
    if (code != -ENOENT)
        return code;
    struct cw_interruptible wait = {.begun_ns = cw_now_ns()};
    code = cw_interruptible_lock(&client->import_lock, &wait, 0);
    if (code)
        return code;
    code = cw_suballocation_take(client, address, size_bytes, true, out, loan);
    if (code == -ENOENT) {
        code = adopt(client, gpu, address, size_bytes);
        if (code == 0)
            code = cw_suballocation_take(client, address, size_bytes, true, out, loan);
    }
    pthread_mutex_unlock(&client->import_lock);
    return code;
}

/* ---- work that the owner has begun ---- */

/* 1: the stream has nothing to do; 0: it has. A capture that is under way is not ended by asking.
 */
static int is_idle(const struct cw_gpu *gpu, void *stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    int code = cw_gpu_enter(gpu);
    if (code)
        return code;
    CUresult result = gpu->cuda->cuStreamIsCapturing(stream, &status);
    if (result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE)
        result = gpu->cuda->cuStreamQuery(stream);
    cw_gpu_leave(gpu);
    if (result == CUDA_SUCCESS)
        return status == CU_STREAM_CAPTURE_STATUS_NONE; /* a capture: refused further on */
    if (result == CUDA_ERROR_NOT_READY || result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return 0;
    return cw_context_failure_serve(
        cw_cuda_error(gpu->cuda, result, "asking the stream %p of cuda:%d", stream, gpu->ordinal));
}

static int put_behind(cw_array *array, void *stream) {
    struct cw_gpu *gpu;
    int code = cw_array_usable(array);
    if (code || array->slab->device_kind != CW_DEVICE_CUDA)
        return code;
    struct cw_slab *slab = array->slab;
    code = cw_gpu_get(slab->device, &gpu);
    if (code)
        return code;
    if (slab->allocation &&
        allocation_of(gpu->cuda, (CUdeviceptr)(uintptr_t)array->bytes) != slab->allocation) {
        pthread_mutex_lock(&array->client->lock);
        mark_gone(array->client, slab); /* the array holds it: the slab stays until that ends */
        pthread_mutex_unlock(&array->client->lock);
        return cw_fail(-ESTALE,
                       "the GPU memory at %p was freed while it was shared: keep it until the "
                       "receiver is done",
                       (void *)array->bytes);
    }
    code = is_idle(gpu, stream);
    if (code)
        return code < 0 ? code : 0;
    code = cw_array_writing_begin(array, stream, -1);
    return code ? code : cw_array_writing_end(array, stream, 0);
}

int cw_array_behind(cw_array *array, void *stream) {
    int code = cw_array_pin(array); /* an evictable one may be away */
    if (code)
        return code;
    code = put_behind(array, stream);
    cw_array_unpin(array);
    return code;
}

/* ---- at the importer ---- */

static void close_handle(const struct cw_gpu *gpu, CUdeviceptr base) {
    if (cw_gpu_enter(gpu) != 0)
        return; /* the context is lost, and the mapping with it */
    gpu->cuda->cuIpcCloseMemHandle(base);
    cw_gpu_leave(gpu);
}

int cw_import_map(const struct cw_gpu *gpu, int fd, uint64_t size_bytes, struct cw_mapping *out) {
    struct ticket ticket;
    CUdeviceptr base = 0;
    if (pread(fd, &ticket, sizeof ticket, 0) != sizeof ticket || ticket.magic != TICKET_MAGIC ||
        ticket.size_bytes != size_bytes)
        return cw_fail(-EPROTO, "what came for borrowed memory of cuda:%d is no ticket",
                       gpu->ordinal);
    *out = (struct cw_mapping){
        .size_bytes = size_bytes, .device = gpu->ordinal, .reachers = 1ull << gpu->ordinal};
    if (ticket.process == own_process() && ticket.process) {
        out->base = (void *)(uintptr_t)ticket.address;
        out->imported = CW_IMPORT_OWN;
        return 0;
    }
    int code = cw_gpu_enter(gpu);
    if (code)
        return code;
    CUresult result =
        gpu->cuda->cuIpcOpenMemHandle(&base, ticket.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    cw_gpu_leave(gpu);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(gpu->cuda, result,
                             "opening borrowed memory of cuda:%d (it dies with the process that "
                             "allocated it)",
                             gpu->ordinal);
    size_t length = 0;
    result = gpu->cuda->cuMemGetAddressRange(NULL, &length, base);
    if (result == CUDA_SUCCESS && length + CW_CARVE_UNIT <= size_bytes) {
        close_handle(gpu, base);
        return cw_fail(-EPROTO, "borrowed memory of cuda:%d has %zu bytes, and %llu were announced",
                       gpu->ordinal, length, (unsigned long long)size_bytes);
    }
    out->base = (void *)(uintptr_t)base;
    out->imported = CW_IMPORT_OPENED;
    return 0;
}

void cw_import_unmap(const struct cw_gpu *gpu, const struct cw_mapping *mapping) {
    if (mapping->imported == CW_IMPORT_OPENED)
        close_handle(gpu, (CUdeviceptr)(uintptr_t)mapping->base);
}
