/*
 * Borrowed memory: a GPU allocation of somebody else (cudaMalloc), shared by a legacy handle.
 *
 * Weaker than memory of ours: the 64 bytes of a legacy handle are no capability (any process of
 * the user may open them), and the memory dies with its owner, who may also free it under
 * everybody's eyes. So it is done only when it is asked for.
 *
 * The whole allocation becomes a foreign slab, whose data descriptor is a sealed memfd with a
 * *ticket*: the handle, and where the memory lies in the owner. Its block 0 is a pool that nobody
 * holds but the loans in it (loan.c): what was asked for is a loan, whose end tells the caller that
 * nobody needs the memory any more; with the last of them the slab is given up.
 *
 * The owner dies: who has the memory mapped keeps what the driver leaves there; who opens it later
 * gets -ENODEV. The broker keeps the slab until all have let go; nobody ever adopts it.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "ipc/client.h"
#include "ipc/cuda_backend.h"

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
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t number;
    pthread_mutex_lock(&lock);
    if (!number && getrandom(&number, sizeof number, 0) != sizeof number)
        number = 0;
    uint64_t found = number;
    pthread_mutex_unlock(&lock);
    return found;
}

static int write_ticket(const struct ticket *ticket, int *out) {
    int fd = memfd_create("causeway-ticket", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return cw_fail(-EDQUOT, "no descriptor for borrowed memory: %m");
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
                       "the memory at %p cannot be borrowed: the driver gives no legacy handle for "
                       "it (memory of cudaMalloc has one; of memory pools and of virtual memory "
                       "there is none); share it with a copy",
                       address);
    if (wanted - base > length || size_bytes > length - (wanted - base))
        return cw_fail(-EINVAL, "%llu bytes at %p reach beyond their allocation",
                       (unsigned long long)size_bytes, address);
    out->address = base;
    out->size_bytes = (length + CW_CARVE_UNIT - 1) / CW_CARVE_UNIT * CW_CARVE_UNIT;
    return 0;
}

int cw_array_borrow(cw_client *client, const void *address, uint64_t size_bytes, cw_array **out,
                    uint64_t *loan) {
    int ordinal = -1, fd;
    struct cw_gpu *gpu;
    struct cw_heap *heap;
    struct cw_slab *slab;
    struct ticket ticket;
    uint64_t gen;
    if (!client || !out || !loan || size_bytes == 0)
        return cw_fail(-EINVAL, "a client, bytes and places for the answers are needed");
    int code = cw_client_usable(client);
    if (code == 0)
        code = cw_array_at(client, address, size_bytes, out, loan); /* of a known allocation */
    if (code != -ENOENT)
        return code;
    code = cw_memory_gpu(address, &ordinal);
    if (code == 0 && ordinal < 0)
        code = cw_fail(-EINVAL, "%p is not GPU memory", address);
    if (code == 0)
        code = cw_gpu_get(ordinal, &gpu);
    if (code == 0)
        code = look_at(gpu, address, size_bytes, &ticket);
    if (code == 0)
        code = cw_heap_of(client, &cw_backend_cuda, ordinal, &heap);
    if (code == 0)
        code = write_ticket(&ticket, &fd);
    if (code)
        return code;
    code = cw_heap_adopt_foreign(client, heap, fd, ticket.size_bytes, cw_backend_cuda.large_blocks,
                                 &slab, &gen);
    close(fd);
    if (code)
        return code;
    pthread_mutex_lock(&client->lock);
    slab->locals[0].extent->pool = true;
    slab->locals[0].extent->published = false; /* its handle never leaves */
    pthread_mutex_unlock(&client->lock);
    code = cw_array_at(client, address, size_bytes, out, loan);
    pthread_mutex_lock(&client->lock);
    cw_lease_release(client, slab, 0, gen); /* from now on the loan holds it, or nobody */
    pthread_mutex_unlock(&client->lock);
    return code;
}

int cw_borrowed_map(const struct cw_gpu *gpu, int fd, uint64_t size_bytes, struct cw_mapping *out) {
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
        out->borrowed = CW_BORROWED_OWN;
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
    out->base = (void *)(uintptr_t)base;
    out->borrowed = CW_BORROWED_OPENED;
    return 0;
}

void cw_borrowed_unmap(const struct cw_gpu *gpu, const struct cw_mapping *mapping) {
    if (mapping->borrowed != CW_BORROWED_OPENED || cw_gpu_enter(gpu) != 0)
        return;
    gpu->cuda->cuIpcCloseMemHandle((CUdeviceptr)(uintptr_t)mapping->base);
    cw_gpu_leave(gpu);
}
