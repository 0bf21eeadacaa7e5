/*
 * Stages: see staging.h. State: a stage for each source GPU, made at its first copy, under its
 * lock.
 */
#include "ipc/cuda/staging.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "shm/base/error.h"

/* The way from a stage to one target GPU. */
struct landing {
    CUstream in;
    CUevent empty[CW_STAGE_CHUNKS];
};

struct stage {
    pthread_mutex_t lock;
    const struct cw_gpu *from;
    uint8_t *memory; /* NULL: not made yet */
    bool registered; /* else the driver copies through memory of its own, and nothing overlaps */
    CUstream out;
    CUevent full[CW_STAGE_CHUNKS];
    CUevent last_empty[CW_STAGE_CHUNKS]; /* of whichever landing used it last; NULL: nobody */
    unsigned next;
    struct landing *landings[CW_GPUS_MAX];
};

static struct stage stages[CW_GPUS_MAX];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init_locks(void) {
    for (unsigned i = 0; i < CW_GPUS_MAX; i++)
        pthread_mutex_init(&stages[i].lock, NULL);
}

/* A stream and events of a GPU's context. */
static int make_stream(const struct cw_gpu *gpu, CUstream *stream, CUevent *events) {
    const struct cw_cuda *cuda = gpu->cuda;
    unsigned made = 0;
    int code = cw_gpu_enter(gpu);
    if (code)
        return code;
    CUresult result = cuda->cuStreamCreate(stream, CU_STREAM_NON_BLOCKING);
    bool has_stream = result == CUDA_SUCCESS;
    while (result == CUDA_SUCCESS && made < CW_STAGE_CHUNKS) {
        result = cuda->cuEventCreate(&events[made], CU_EVENT_DISABLE_TIMING);
        made += result == CUDA_SUCCESS;
    }
    if (result != CUDA_SUCCESS) {
        while (made > 0)
            cuda->cuEventDestroy(events[--made]);
        if (has_stream)
            cuda->cuStreamDestroy(*stream);
        code = cw_cuda_error(cuda, result, "making a stream on cuda:%d", gpu->ordinal);
    }
    cw_gpu_leave(gpu);
    return code;
}

/* The lock is held. */
static int make_stage(struct stage *stage, const struct cw_gpu *from) {
    const size_t bytes = CW_STAGE_CHUNKS * CW_STAGE_CHUNK_BYTES;
    int code = make_stream(from, &stage->out, stage->full);
    if (code)
        return code;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        code = cw_fail(-EDQUOT, "no memory for a staging buffer of %zu bytes: %m", bytes);
    if (code == 0)
        code = cw_gpu_enter(from);
    if (code) {
        from->cuda->cuStreamDestroy(stage->out);
        for (unsigned i = 0; i < CW_STAGE_CHUNKS; i++)
            from->cuda->cuEventDestroy(stage->full[i]);
        if (memory != MAP_FAILED)
            munmap(memory, bytes);
        return code;
    }
    stage->registered =
        from->cuda->cuMemHostRegister(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
    cw_gpu_leave(from);
    stage->from = from;
    stage->memory = memory;
    return 0;
}

static int find_landing(struct stage *stage, const struct cw_gpu *to, struct landing **out) {
    struct landing **place = &stage->landings[to->ordinal];
    if (!*place) {
        struct landing *made = calloc(1, sizeof *made);
        if (!made)
            return cw_fail(-EDQUOT, "no memory to keep track of a staging buffer");
        int code = make_stream(to, &made->in, made->empty);
        if (code) {
            free(made);
            return code;
        }
        *place = made;
    }
    *out = *place;
    return 0;
}

/* Lets the stage's work come after all that a stream was given. Its context is current. */
static CUresult follow(const struct cw_cuda *cuda, const struct stage *stage, CUstream stream) {
    CUevent begun;
    CUresult result = cuda->cuEventCreate(&begun, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda->cuEventRecord(begun, stream);
    if (result == CUDA_SUCCESS)
        result = cuda->cuStreamWaitEvent(stage->out, begun, 0);
    cuda->cuEventDestroy(begun); /* the driver keeps it until it is reached */
    return result;
}

/* Piece i is filled with the next bytes. */
static CUresult fill_piece(struct stage *stage, unsigned i, CUdeviceptr source,
                           uint64_t size_bytes) {
    const struct cw_cuda *cuda = stage->from->cuda;
    CUresult result = cuda->cuCtxPushCurrent(stage->from->context);
    if (result != CUDA_SUCCESS)
        return result;
    if (stage->last_empty[i])
        result = cuda->cuStreamWaitEvent(stage->out, stage->last_empty[i], 0);
    if (result == CUDA_SUCCESS)
        result = cuda->cuMemcpyDtoHAsync(stage->memory + i * CW_STAGE_CHUNK_BYTES, source,
                                         size_bytes, stage->out);
    if (result == CUDA_SUCCESS)
        result = cuda->cuEventRecord(stage->full[i], stage->out);
    if (result == CUDA_SUCCESS && !stage->registered)
        result = cuda->cuStreamSynchronize(stage->out); /* it is read when the next call is made */
    cw_gpu_leave(stage->from);
    return result;
}

static CUresult empty_piece(struct stage *stage, const struct cw_gpu *to, struct landing *landing,
                            unsigned i, CUdeviceptr target, uint64_t size_bytes) {
    const struct cw_cuda *cuda = to->cuda;
    CUresult result = cuda->cuCtxPushCurrent(to->context);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda->cuStreamWaitEvent(landing->in, stage->full[i], 0);
    if (result == CUDA_SUCCESS)
        result = cuda->cuMemcpyHtoDAsync(target, stage->memory + i * CW_STAGE_CHUNK_BYTES,
                                         size_bytes, landing->in);
    if (result == CUDA_SUCCESS)
        result = cuda->cuEventRecord(landing->empty[i], landing->in);
    if (result == CUDA_SUCCESS)
        stage->last_empty[i] = landing->empty[i];
    cw_gpu_leave(to);
    return result;
}

/* How large the pieces of a copy are. */
static uint64_t piece_bytes(uint64_t size_bytes) {
    uint64_t share = (size_bytes / CW_STAGE_SHARE + 0xffff) & ~0xffffull;
    return share < CW_STAGE_LEAST_BYTES   ? CW_STAGE_LEAST_BYTES
           : share > CW_STAGE_CHUNK_BYTES ? CW_STAGE_CHUNK_BYTES
                                          : share;
}

/* Submits all pieces. The lock is held. */
static CUresult submit(struct stage *stage, const struct cw_gpu *to, struct landing *landing,
                       CUdeviceptr target, CUdeviceptr source, uint64_t size_bytes) {
    const uint64_t most = piece_bytes(size_bytes);
    CUresult result = CUDA_SUCCESS;
    for (uint64_t at = 0; at < size_bytes && result == CUDA_SUCCESS; at += most) {
        uint64_t piece = size_bytes - at < most ? size_bytes - at : most;
        unsigned i = stage->next++ % CW_STAGE_CHUNKS;
        result = fill_piece(stage, i, source + at, piece);
        if (result == CUDA_SUCCESS)
            result = empty_piece(stage, to, landing, i, target + at, piece);
    }
    return result;
}

/* An event behind all that the landing was given. */
static CUresult mark_end(const struct cw_gpu *to, struct landing *landing, CUevent *end) {
    const struct cw_cuda *cuda = to->cuda;
    CUresult result = cuda->cuCtxPushCurrent(to->context);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda->cuEventCreate(end, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) {
        result = cuda->cuEventRecord(*end, landing->in);
        if (result != CUDA_SUCCESS)
            cuda->cuEventDestroy(*end);
    }
    cw_gpu_leave(to);
    return result;
}

/* Waits for what was submitted of a copy that failed: the caller may free both ends. */
static void abandon(struct stage *stage, const struct cw_gpu *to, struct landing *landing) {
    const struct cw_cuda *cuda = to->cuda;
    if (cw_gpu_enter(stage->from) == 0) {
        (void)cuda->cuStreamSynchronize(stage->out);
        cw_gpu_leave(stage->from);
    }
    if (cw_gpu_enter(to) == 0) {
        (void)cuda->cuStreamSynchronize(landing->in);
        cw_gpu_leave(to);
    }
}

/* Asks a stage's stream whether its context still works: an event of the target's does not tell
 * that the source's has failed. */
static CUresult ask_source(const struct stage *stage) {
    const struct cw_cuda *cuda = stage->from->cuda;
    CUresult result = cuda->cuCtxPushCurrent(stage->from->context);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda->cuStreamQuery(stage->out);
    cw_gpu_leave(stage->from);
    return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result; /* others' copies go on */
}

/* Waits for a copy. */
static CUresult await(const struct stage *stage, const struct cw_gpu *to, CUevent end) {
    CUresult result = to->cuda->cuCtxPushCurrent(to->context);
    if (result != CUDA_SUCCESS)
        return result;
    result = to->cuda->cuEventSynchronize(end);
    to->cuda->cuEventDestroy(end);
    cw_gpu_leave(to);
    return result == CUDA_SUCCESS ? ask_source(stage) : result;
}

/* Lets a stream, whose context is current, go on behind a copy. */
static CUresult precede(const struct cw_cuda *cuda, CUstream stream, CUevent end) {
    CUresult result = cuda->cuStreamWaitEvent(stream, end, 0);
    cuda->cuEventDestroy(end); /* the driver keeps it until it is reached */
    return result;
}

int cw_stage_copy(struct cw_gpu *to, CUdeviceptr target, struct cw_gpu *from, CUdeviceptr source,
                  uint64_t size_bytes, CUstream stream) {
    const struct cw_cuda *cuda = from->cuda;
    struct stage *stage = &stages[from->ordinal];
    struct landing *landing;
    CUevent end = NULL;
    pthread_once(&once, init_locks);
    pthread_mutex_lock(&stage->lock);
    int code = stage->memory ? 0 : make_stage(stage, from);
    if (code == 0)
        code = find_landing(stage, to, &landing);
    if (code) {
        pthread_mutex_unlock(&stage->lock);
        return code;
    }
    CUresult result = stream ? follow(cuda, stage, stream) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        result = submit(stage, to, landing, target, source, size_bytes);
    if (result == CUDA_SUCCESS)
        result = mark_end(to, landing, &end);
    if (result != CUDA_SUCCESS)
        abandon(stage, to, landing);
    pthread_mutex_unlock(&stage->lock);
    if (result == CUDA_SUCCESS)
        result = stream ? precede(cuda, stream, end) : await(stage, to, end);
    return result == CUDA_SUCCESS
               ? 0
               : cw_cuda_error(cuda, result,
                               "copying %llu bytes from cuda:%d to cuda:%d through "
                               "host memory",
                               (unsigned long long)size_bytes, from->ordinal, to->ordinal);
}
