/*
 * A ring of pinned host memory, through which pieces of a file go to a GPU: while some slots are
 * filled from files, others are on their way.
 *
 * Two slots a thread are asked for. Where so much memory cannot be pinned the ring is halved, down
 * to four slots; where not even these can, they are ordinary memory, and the driver copies through
 * memory of its own.
 *
 * Invariant: a slot is taken by one thread at a time, and is filled only when the event behind the
 * last copy from it has passed. There is a slot for each thread, since there are no more threads
 * with one than slots: a thread has one at a time, and waits while there is none.
 *
 * Owner: one read of a checkpoint (reading.c), whose threads take and give. If the process dies the
 * driver ends the copies, and the memory they go to is freed only when the broker has seen the
 * death on both counts (session.h).
 */
#include "ipc/load/ring.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "ipc/cuda/device.h"
#include "ipc/load/reading.h"
#include "shm/base/error.h"

#define SLOTS_MAX   (2 * CW_READ_THREADS_MAX)
#define SLOTS_LEAST 4u

struct cw_ring_slot {
    uint8_t *bytes;
    CUevent sent; /* behind the last copy */
    bool taken;
};

struct cw_ring {
    struct cw_gpu *gpu;
    CUstream stream;
    pthread_mutex_t lock; /* of what is taken */
    pthread_cond_t given;
    uint8_t *memory;
    unsigned count, next;
    bool pinned;
    struct cw_ring_slot slots[SLOTS_MAX];
};

static size_t bytes_of(unsigned count) {
    return count * CW_READ_PIECE_BYTES;
}

/* Memory for the slots, pinned if it can be. The context is current. */
static int make_memory(struct cw_ring *ring, unsigned wanted) {
    for (unsigned count = wanted;; count /= 2) {
        bool last = count / 2 < SLOTS_LEAST;
        void *memory =
            mmap(NULL, bytes_of(count), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED && last)
            return cw_fail(-EDQUOT, "no memory for a ring of %zu bytes: %m", bytes_of(count));
        if (memory == MAP_FAILED)
            continue;
        ring->pinned = ring->gpu->cuda->cuMemHostRegister(
                           memory, bytes_of(count), CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
        if (ring->pinned || last) {
            ring->memory = memory;
            ring->count = count;
            return 0;
        }
        munmap(memory, bytes_of(count));
    }
}

/* Stream, memory and events. The context is current. */
static int make(struct cw_ring *ring, unsigned wanted) {
    const struct cw_cuda *cuda = ring->gpu->cuda;
    int code = make_memory(ring, wanted);
    if (code)
        return code;
    CUresult result = cuda->cuStreamCreate(&ring->stream, CU_STREAM_NON_BLOCKING);
    for (unsigned i = 0; i < ring->count && result == CUDA_SUCCESS; i++) {
        ring->slots[i].bytes = ring->memory + bytes_of(i);
        result = cuda->cuEventCreate(&ring->slots[i].sent, CU_EVENT_DISABLE_TIMING);
    }
    return result == CUDA_SUCCESS
               ? 0
               : cw_cuda_error(cuda, result, "making a ring for cuda:%d", ring->gpu->ordinal);
}

int cw_ring_open(int gpu, unsigned threads, struct cw_ring **out) {
    struct cw_gpu *place;
    unsigned wanted = 2 * threads < SLOTS_LEAST ? SLOTS_LEAST : 2 * threads;
    int code = cw_gpu_get(gpu, &place);
    if (code)
        return code;
    struct cw_ring *ring = calloc(1, sizeof *ring);
    if (!ring)
        return cw_fail(-EDQUOT, "no memory for a ring");
    ring->gpu = place;
    pthread_mutex_init(&ring->lock, NULL);
    pthread_cond_init(&ring->given, NULL);
    code = cw_gpu_enter(place);
    if (code == 0) {
        code = make(ring, wanted < SLOTS_MAX ? wanted : SLOTS_MAX);
        cw_gpu_leave(place);
    }
    if (code)
        cw_ring_close(ring);
    else
        *out = ring;
    return code;
}

void cw_ring_close(struct cw_ring *ring) {
    if (!ring)
        return;
    const struct cw_cuda *cuda = ring->gpu->cuda;
    if (cw_gpu_enter(ring->gpu) == 0) {
        if (ring->stream) {
            (void)cuda->cuStreamSynchronize(ring->stream); /* the copies read our memory */
            cuda->cuStreamDestroy(ring->stream);
        }
        for (unsigned i = 0; i < ring->count; i++)
            if (ring->slots[i].sent)
                cuda->cuEventDestroy(ring->slots[i].sent);
        if (ring->pinned)
            cuda->cuMemHostUnregister(ring->memory);
        cw_gpu_leave(ring->gpu);
    }
    if (ring->memory)
        munmap(ring->memory, bytes_of(ring->count));
    pthread_cond_destroy(&ring->given);
    pthread_mutex_destroy(&ring->lock);
    free(ring);
}

uint8_t *cw_ring_bytes(struct cw_ring_slot *slot) {
    return slot->bytes;
}

static int driver_failed(const struct cw_ring *ring, CUresult result) {
    return cw_cuda_error(ring->gpu->cuda, result, "copying a file to cuda:%d", ring->gpu->ordinal);
}

int cw_ring_take(struct cw_ring *ring, struct cw_ring_slot **out) {
    struct cw_ring_slot *slot = NULL;
    pthread_mutex_lock(&ring->lock);
    while (!slot) { /* the one that was given longest ago, of those that nobody has */
        for (unsigned i = 0; i < ring->count && !slot; i++) {
            struct cw_ring_slot *one = &ring->slots[(ring->next + i) % ring->count];
            slot = one->taken ? NULL : one;
        }
        if (!slot)
            pthread_cond_wait(&ring->given, &ring->lock);
    }
    ring->next = (unsigned)(slot - ring->slots) + 1;
    slot->taken = true;
    pthread_mutex_unlock(&ring->lock);
    int code = cw_gpu_enter(ring->gpu);
    if (code == 0) {
        CUresult result = ring->gpu->cuda->cuEventSynchronize(slot->sent);
        cw_gpu_leave(ring->gpu);
        code = result == CUDA_SUCCESS ? 0 : driver_failed(ring, result);
    }
    if (code)
        cw_ring_give(ring, slot);
    else
        *out = slot;
    return code;
}

int cw_ring_send(struct cw_ring *ring, struct cw_ring_slot *slot, void *target, const void *bytes,
                 uint64_t size_bytes) {
    const struct cw_cuda *cuda = ring->gpu->cuda;
    int code = cw_gpu_enter(ring->gpu);
    if (code)
        return code;
    CUresult result =
        cuda->cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)target, bytes, size_bytes, ring->stream);
    if (result == CUDA_SUCCESS)
        result = cuda->cuEventRecord(slot->sent, ring->stream);
    cw_gpu_leave(ring->gpu);
    return result == CUDA_SUCCESS ? 0 : driver_failed(ring, result);
}

void cw_ring_give(struct cw_ring *ring, struct cw_ring_slot *slot) {
    pthread_mutex_lock(&ring->lock);
    slot->taken = false;
    pthread_cond_signal(&ring->given);
    pthread_mutex_unlock(&ring->lock);
}

int cw_ring_settle(struct cw_ring *ring) {
    int code = cw_gpu_enter(ring->gpu);
    if (code)
        return code;
    CUresult result = ring->gpu->cuda->cuStreamSynchronize(ring->stream);
    cw_gpu_leave(ring->gpu);
    return result == CUDA_SUCCESS ? 0 : driver_failed(ring, result);
}
