/*
 * A ring of pinned host memory, through which pieces of a file go to GPUs: while some slots are
 * filled from files, others are on their way.
 *
 * A slot a thread, and some more that are on their way. A slot is pinned when it was filled for the
 * first time, by the thread that did: to pin all before the first byte is read would take longer
 * than a tenth of a load. A ring that was closed is kept for the next read of the process, pinned
 * as it is: to end the pinning takes time, too, and files are often read tensor by tensor.
 *
 * Where so much memory cannot be pinned the ring is smaller: a slot that cannot be is sent as it
 * is, by the driver through memory of its own, and then not used any more, unless fewer than four
 * are pinned; so there are always four.
 *
 * Invariants:
 *   - A slot is taken by one thread at a time, and is filled only when the events behind the last
 *     copies from it have passed, of each lane that it was sent to.
 *   - Who has taken a slot waits for nobody before he gives it, so whoever waits for one gets one.
 *   - Nothing is under way in the ring that is kept, and it never failed.
 *
 * Owner: one read of a checkpoint (reading.c), whose threads take and give; the one that is kept
 * belongs to the process. A child that was forked does not have the memory (MADV_DONTFORK), and
 * what it inherited is not touched, since CUDA cannot be used there; so the GPU never reads pages
 * that a fork has made the child's. If the process dies the driver ends the copies, and the memory
 * they go to is freed only when the broker has seen the death on both counts (session.h).
 */
#include "ipc/load/ring.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "ipc/cuda/device.h"
#include "ipc/load/reading.h"
#include "shm/base/error.h"

#define SLOTS_MAX   (CW_READ_THREADS_MAX + SLOTS_AWAY)
#define SLOTS_AWAY  8u /* on their way while all threads fill */
#define SLOTS_LEAST 4u

struct cw_ring_slot {
    uint8_t *bytes;
    bool taken, pinned, retired;
    uint64_t sent_to;               /* lanes, since it was taken last */
    CUevent sent[CW_RING_GPUS_MAX]; /* behind the last copy to a lane; NULL: none yet */
};

struct lane {
    struct cw_gpu *gpu;
    CUstream in, onward; /* from the ring; from this GPU to others */
};

struct cw_ring {
    pthread_mutex_t lock; /* of what is taken, pinned and retired */
    pthread_cond_t given;
    uint8_t *memory;
    unsigned count, next, pinned, lane_count;
    bool failed;
    struct lane lanes[CW_RING_GPUS_MAX];
    struct cw_ring_slot slots[SLOTS_MAX];
};

static pthread_mutex_t keeping = PTHREAD_MUTEX_INITIALIZER; /* never held in a call that blocks */
static struct cw_ring *kept;

static size_t bytes_of(unsigned count) {
    return count * CW_READ_BUFFER_BYTES;
}

static int driver_failed(struct cw_ring *ring, const struct lane *lane, CUresult result) {
    pthread_mutex_lock(&ring->lock);
    ring->failed = true;
    pthread_mutex_unlock(&ring->lock);
    return cw_cuda_error(lane->gpu->cuda, result, "copying a file to cuda:%d", lane->gpu->ordinal);
}

/* ---- made, kept, ended ---- */

static void wait_for(struct lane *lane) {
    if (cw_gpu_enter(lane->gpu))
        return;
    if (lane->in)
        (void)lane->gpu->cuda->cuStreamSynchronize(lane->in); /* the copies read our memory */
    if (lane->onward)
        (void)lane->gpu->cuda->cuStreamSynchronize(lane->onward);
    cw_gpu_leave(lane->gpu);
}

static void end_lane(struct cw_ring *ring, unsigned number) {
    struct lane *lane = &ring->lanes[number];
    const struct cw_cuda *cuda = lane->gpu->cuda;
    if (cw_gpu_enter(lane->gpu))
        return;
    for (unsigned i = 0; i < ring->count; i++)
        if (ring->slots[i].sent[number])
            cuda->cuEventDestroy(ring->slots[i].sent[number]);
    if (lane->in)
        cuda->cuStreamDestroy(lane->in);
    if (lane->onward)
        cuda->cuStreamDestroy(lane->onward);
    for (unsigned i = 0; number == 0 && i < ring->count; i++)
        if (ring->slots[i].pinned)
            cuda->cuMemHostUnregister(ring->slots[i].bytes);
    cw_gpu_leave(lane->gpu);
}

static void end(struct cw_ring *ring) {
    for (unsigned i = 0; i < ring->lane_count; i++)
        wait_for(&ring->lanes[i]);
    while (ring->lane_count)
        end_lane(ring, --ring->lane_count);
    if (ring->memory)
        munmap(ring->memory, bytes_of(ring->count));
    pthread_cond_destroy(&ring->given);
    pthread_mutex_destroy(&ring->lock);
    free(ring);
}

static int add_lane(struct cw_ring *ring, int ordinal) {
    struct lane *lane = &ring->lanes[ring->lane_count];
    *lane = (struct lane){.gpu = NULL};
    int code = cw_gpu_get(ordinal, &lane->gpu);
    if (code == 0)
        code = cw_gpu_enter(lane->gpu);
    if (code)
        return code;
    const struct cw_cuda *cuda = lane->gpu->cuda;
    CUresult result = cuda->cuStreamCreate(&lane->in, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS)
        result = cuda->cuStreamCreate(&lane->onward, CU_STREAM_NON_BLOCKING);
    ring->lane_count++;
    for (unsigned i = 0; i < ring->count && result == CUDA_SUCCESS; i++)
        result = cuda->cuEventCreate(&ring->slots[i].sent[ring->lane_count - 1],
                                     CU_EVENT_DISABLE_TIMING);
    cw_gpu_leave(lane->gpu);
    return result == CUDA_SUCCESS
               ? 0
               : cw_cuda_error(cuda, result, "making a ring for cuda:%d", ordinal);
}

/* Is it for these GPUs, with as many slots? */
static bool fits(const struct cw_ring *ring, const int *gpus, unsigned count, unsigned slots) {
    if (ring->lane_count != count || ring->count < slots)
        return false;
    for (unsigned i = 0; i < count; i++)
        if (ring->lanes[i].gpu->ordinal != gpus[i])
            return false;
    return true;
}

static struct cw_ring *take_kept(const int *gpus, unsigned count, unsigned slots) {
    struct cw_ring *found = NULL;
    pthread_mutex_lock(&keeping);
    if (kept && fits(kept, gpus, count, slots)) {
        found = kept;
        kept = NULL;
    }
    pthread_mutex_unlock(&keeping);
    return found;
}

static int make(const int *gpus, unsigned count, unsigned slots, struct cw_ring *ring) {
    void *memory =
        mmap(NULL, bytes_of(slots), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return cw_fail(-EDQUOT, "no memory for a ring of %zu bytes: %m", bytes_of(slots));
    (void)madvise(memory, bytes_of(slots), MADV_HUGEPAGE); /* fewer pages to clear and to pin */
    ring->memory = memory;
    ring->count = slots;
    if (madvise(memory, bytes_of(slots), MADV_DONTFORK))
        return cw_fail(-EDQUOT, "keeping a ring from children failed: %m");
    for (unsigned i = 0; i < slots; i++)
        ring->slots[i].bytes = ring->memory + bytes_of(i);
    int code = 0;
    for (unsigned i = 0; i < count && code == 0; i++)
        code = add_lane(ring, gpus[i]);
    return code;
}

int cw_ring_open(const int *gpus, unsigned count, unsigned threads, struct cw_ring **out) {
    unsigned slots = threads + SLOTS_AWAY < SLOTS_MAX ? threads + SLOTS_AWAY : SLOTS_MAX;
    struct cw_gpu *unused;
    int code = cw_gpu_get(gpus[0], &unused); /* says so in a forked child */
    if (code)
        return code;
    struct cw_ring *ring = take_kept(gpus, count, slots);
    if (ring) {
        *out = ring;
        return 0;
    }
    ring = calloc(1, sizeof *ring);
    if (!ring)
        return cw_fail(-EDQUOT, "no memory for a ring");
    pthread_mutex_init(&ring->lock, NULL);
    pthread_cond_init(&ring->given, NULL);
    code = make(gpus, count, slots, ring);
    if (code)
        end(ring);
    else
        *out = ring;
    return code;
}

void cw_ring_close(struct cw_ring *ring) {
    if (!ring)
        return;
    struct cw_ring *other = ring;
    if (cw_ring_settle(ring) == 0 && !ring->failed) {
        pthread_mutex_lock(&keeping);
        other = kept;
        kept = ring;
        pthread_mutex_unlock(&keeping);
    }
    if (other)
        end(other);
}

/* ---- slots ---- */

/* Waits until the last copies from a slot have passed. */
static int await(struct cw_ring *ring, struct cw_ring_slot *slot) {
    for (unsigned i = 0; i < ring->lane_count; i++) {
        struct lane *lane = &ring->lanes[i];
        if (!(slot->sent_to >> i & 1))
            continue;
        int code = cw_gpu_enter(lane->gpu);
        if (code)
            return code;
        CUresult result = lane->gpu->cuda->cuEventSynchronize(slot->sent[i]);
        cw_gpu_leave(lane->gpu);
        if (result != CUDA_SUCCESS)
            return driver_failed(ring, lane, result);
    }
    slot->sent_to = 0;
    return 0;
}

int cw_ring_take(struct cw_ring *ring, struct cw_ring_slot **out) {
    struct cw_ring_slot *slot = NULL;
    pthread_mutex_lock(&ring->lock);
    while (!slot) { /* the one that was given longest ago, of those that nobody has */
        for (unsigned i = 0; i < ring->count && !slot; i++) {
            struct cw_ring_slot *one = &ring->slots[(ring->next + i) % ring->count];
            slot = one->taken || one->retired ? NULL : one;
        }
        if (!slot)
            pthread_cond_wait(&ring->given, &ring->lock);
    }
    ring->next = (unsigned)(slot - ring->slots) + 1;
    slot->taken = true;
    pthread_mutex_unlock(&ring->lock);
    int code = await(ring, slot);
    if (code)
        cw_ring_give(ring, slot);
    else
        *out = slot;
    return code;
}

uint8_t *cw_ring_bytes(struct cw_ring_slot *slot) {
    return slot->bytes;
}

void cw_ring_pin(struct cw_ring *ring, struct cw_ring_slot *slot) {
    const struct lane *lane = &ring->lanes[0];
    if (slot->pinned || cw_gpu_enter(lane->gpu))
        return;
    bool done = lane->gpu->cuda->cuMemHostRegister(slot->bytes, CW_READ_BUFFER_BYTES,
                                                   CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
    cw_gpu_leave(lane->gpu);
    pthread_mutex_lock(&ring->lock);
    slot->pinned = done;
    ring->pinned += done;
    slot->retired = !done && ring->pinned >= SLOTS_LEAST;
    pthread_mutex_unlock(&ring->lock);
}

int cw_ring_send(struct cw_ring *ring, struct cw_ring_slot *slot, unsigned lane_number,
                 void *target, const void *bytes, uint64_t size_bytes) {
    struct lane *lane = &ring->lanes[lane_number];
    const struct cw_cuda *cuda = lane->gpu->cuda;
    int code = cw_gpu_enter(lane->gpu);
    if (code)
        return code;
    CUresult result =
        cuda->cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)target, bytes, size_bytes, lane->in);
    if (result == CUDA_SUCCESS)
        result = cuda->cuEventRecord(slot->sent[lane_number], lane->in);
    cw_gpu_leave(lane->gpu);
    slot->sent_to |= 1ull << lane_number;
    return result == CUDA_SUCCESS ? 0 : driver_failed(ring, lane, result);
}

int cw_ring_spread(struct cw_ring *ring, const struct cw_ring_slot *slot, unsigned lane_number,
                   void *target, const void *source, uint64_t size_bytes) {
    struct lane *lane = &ring->lanes[lane_number];
    const struct cw_cuda *cuda = lane->gpu->cuda;
    int code = cw_gpu_enter(lane->gpu);
    if (code)
        return code;
    CUresult result = cuda->cuStreamWaitEvent(lane->onward, slot->sent[lane_number], 0);
    if (result == CUDA_SUCCESS)
        result = cuda->cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)target,
                                         (CUdeviceptr)(uintptr_t)source, size_bytes, lane->onward);
    cw_gpu_leave(lane->gpu);
    return result == CUDA_SUCCESS ? 0 : driver_failed(ring, lane, result);
}

void cw_ring_give(struct cw_ring *ring, struct cw_ring_slot *slot) {
    pthread_mutex_lock(&ring->lock);
    slot->taken = false;
    pthread_cond_signal(&ring->given);
    pthread_mutex_unlock(&ring->lock);
}

int cw_ring_settle(struct cw_ring *ring) {
    for (unsigned i = 0; i < ring->lane_count; i++) {
        struct lane *lane = &ring->lanes[i];
        int code = cw_gpu_enter(lane->gpu);
        if (code)
            return code;
        CUresult result = lane->gpu->cuda->cuStreamSynchronize(lane->in);
        if (result == CUDA_SUCCESS)
            result = lane->gpu->cuda->cuStreamSynchronize(lane->onward);
        cw_gpu_leave(lane->gpu);
        if (result != CUDA_SUCCESS)
            return driver_failed(ring, lane, result);
    }
    return 0;
}
