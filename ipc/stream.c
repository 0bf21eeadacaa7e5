/*
 * Streams: the fence that each CUDA stream of this process has, and work on arrays put in order.
 * See fence.h for the rules and order.h for the record of a block.
 *
 * A stream's *phase* is the time from its first begin to its last end: work that is begun inside it
 * is complete when one value is reached, which the last end submits. So values rise whatever the
 * order of ends, and a stream may use many arrays at once.
 *
 * What a stream was made to wait for is kept until it has passed: a write tells it in its record
 * (waited), so that whoever reads the result hears of a death behind it.
 *
 * Owner: the fences' lock, never held while anything waits. If this process dies in the middle its
 * stamps stay, its turn too, and the broker takes both out.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/cuda_backend.h"
#include "ipc/fence.h"

#define DEPENDENCIES_MAX 64u /* stamps that one stream keeps; for more, the CPU waits */
#define END_PATIENCE_NS  10000000000

struct cw_stream {
    void *handle; /* CUstream; 0, 1, 2: default streams */
    uint64_t id;  /* of cuStreamGetId; handles are used again */
    struct cw_gpu *gpu;
    CUcontext context;
    CUstream proxy;  /* of a default stream: ours, which waits for its events */
    uint32_t number; /* of its fence */
    struct cw_fence *fence;
    CUdeviceptr address; /* of the fence's value, for the GPU */
    uint64_t last;       /* value submitted */
    uint32_t open;       /* begins without their end */
    bool waits;          /* counted in waiting_streams */
    bool died;           /* of what it waited for: to be told */
    uint32_t dependency_count;
    cw_stamp dependencies[DEPENDENCIES_MAX];
    struct cw_stream *next;
};

/* Streams of this process that have a wait on the GPU, in whichever client. */
static pthread_mutex_t waiting_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned waiting_streams;

static bool is_default(const void *handle) {
    return (uintptr_t)handle <= 2;
}

static int failed(const struct cw_stream *stream, CUresult result, const char *what) {
    return cw_cuda_error(stream->gpu->cuda, result, "%s the stream %p of cuda:%d", what,
                         stream->handle, stream->gpu->ordinal);
}

static int enter(const struct cw_stream *stream) {
    CUresult result = stream->gpu->cuda->cuCtxPushCurrent(stream->context);
    return result == CUDA_SUCCESS ? 0 : failed(stream, result, "entering the context of");
}

static void leave(const struct cw_stream *stream) {
    CUcontext popped;
    stream->gpu->cuda->cuCtxPopCurrent(&popped);
}

/* ---- finding a stream ---- */

/* Lets GPUs write a page. The context is current, the lock is held. */
static int register_page(const struct cw_cuda *cuda, struct cw_page_of_fences *page) {
    if (page->registered)
        return 0;
    CUresult result =
        cuda->cuMemHostRegister(page->segment.base, page->segment.size_bytes,
                                CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(cuda, result, "registering a page of fences");
    page->registered = true;
    return 0;
}

/* The address of a fence's value for a GPU. The context is current, the lock is held. */
static int gpu_address(const struct cw_cuda *cuda, struct cw_page_of_fences *page,
                       struct cw_fence *fence, CUdeviceptr *out) {
    int code = register_page(cuda, page);
    if (code)
        return code;
    CUresult result = cuda->cuMemHostGetDevicePointer(out, &fence->value, 0);
    return result == CUDA_SUCCESS
               ? 0
               : cw_cuda_error(cuda, result, "asking for a fence's address on the GPU");
}

/* Which GPU, context and id a handle has. gpu: of the array, for default streams. */
static int identify(int gpu, struct cw_stream *stream) {
    int code = cw_gpu_get(gpu, &stream->gpu);
    if (code)
        return code;
    const struct cw_cuda *cuda = stream->gpu->cuda;
    stream->context = stream->gpu->context;
    if (is_default(stream->handle)) {
        stream->id = (uint64_t)gpu;
        return 0;
    }
    CUdevice device;
    unsigned long long id;
    CUresult result = cuda->cuStreamGetCtx(stream->handle, &stream->context);
    if (result == CUDA_SUCCESS)
        result = cuda->cuCtxPushCurrent(stream->context);
    if (result != CUDA_SUCCESS)
        return failed(stream, result, "asking for");
    result = cuda->cuStreamGetId(stream->handle, &id);
    if (result == CUDA_SUCCESS)
        result = cuda->cuCtxGetDevice(&device);
    leave(stream);
    if (result != CUDA_SUCCESS)
        return failed(stream, result, "asking for");
    stream->id = id;
    return device == stream->gpu->device ? 0 : cw_gpu_get(device, &stream->gpu);
}

static int check_capture(const struct cw_stream *stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    int code = enter(stream);
    if (code)
        return code;
    CUresult result = stream->gpu->cuda->cuStreamIsCapturing(stream->handle, &status);
    leave(stream);
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || status != CU_STREAM_CAPTURE_STATUS_NONE)
        return cw_fail(-EINVAL,
                       "the stream %p is being captured into a graph: arrays are put in order "
                       "before the capture, and for each launch of the graph",
                       stream->handle);
    return result == CUDA_SUCCESS ? 0 : failed(stream, result, "asking for a capture in");
}

/* Gives a stream its fence, and a default stream its proxy. The lock is held. */
static int start_stream(cw_client *client, struct cw_fences *fences, struct cw_stream *stream) {
    struct cw_page_of_fences *page;
    int code = cw_fence_take(client, fences, &stream->number, &page);
    if (code == 0)
        code = enter(stream);
    if (code)
        return code;
    stream->fence = &page->fences[stream->number % CW_FENCES_PER_PAGE];
    code = gpu_address(stream->gpu->cuda, page, stream->fence, &stream->address);
    if (code == 0 && is_default(stream->handle)) {
        CUresult result = stream->gpu->cuda->cuStreamCreate(&stream->proxy, CU_STREAM_NON_BLOCKING);
        if (result != CUDA_SUCCESS)
            code = failed(stream, result, "making a stream beside");
    }
    leave(stream);
    return code;
}

static bool is_spent(const struct cw_stream *stream) {
    return stream->last >= CW_STAMP_VALUE_MAX - 1;
}

/* The stream of a handle. The lock is held. */
static int find_stream(cw_client *client, struct cw_fences *fences, int gpu, void *handle,
                       struct cw_stream **out) {
    struct cw_stream looked = {.handle = handle};
    int code = identify(gpu, &looked);
    if (code == 0)
        code = check_capture(&looked);
    if (code)
        return code;
    struct cw_stream **at = &fences->streams, *found;
    while ((found = *at) &&
           (found->handle != handle || (is_default(handle) && found->id != looked.id)))
        at = &found->next;
    if (found && found->id == looked.id && !is_spent(found)) {
        *out = found;
        return 0;
    }
    if (found && !is_spent(found) && found->open == 0 && found->context == looked.context &&
        cw_fence_poll(found->fence, found->last) > 0) {
        /* Another stream had this handle and is gone, and all that it did has passed: its fence
         * has no writer any more. */
        found->id = looked.id;
        *out = found;
        return 0;
    }
    struct cw_stream *made = malloc(sizeof *made);
    if (!made)
        return cw_fail(-EDQUOT, "no memory for a stream's books");
    *made = looked;
    code = start_stream(client, fences, made);
    if (code) {
        free(made);
        return code;
    }
    /* In front of what it follows: the old one's stamps are still asked for by their numbers. */
    made->next = fences->streams;
    fences->streams = *out = made;
    return 0;
}

/* ---- what a stream waits for ---- */

static void set_waits(struct cw_stream *stream, bool waits) {
    if (stream->waits == waits)
        return;
    pthread_mutex_lock(&waiting_lock);
    waiting_streams += waits ? 1 : -1u;
    pthread_mutex_unlock(&waiting_lock);
    stream->waits = waits;
}

/* Forgets what has passed, and notes what died. The lock is held. */
static void prune(cw_client *client, struct cw_fences *fences, struct cw_stream *stream) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < stream->dependency_count; i++) {
        int state = cw_stamp_look(client, fences, stream->dependencies[i]);
        if (state < 0)
            stream->died = true;
        else if (state == 0)
            stream->dependencies[kept++] = stream->dependencies[i];
    }
    stream->dependency_count = kept;
    if (kept == 0)
        set_waits(stream, false);
}

static bool may_wait(cw_client *client, struct cw_fences *fences, struct cw_stream *stream) {
    if (stream->waits)
        return true;
    for (struct cw_stream *other = fences->streams; other; other = other->next)
        if (other->waits)
            prune(client, fences, other);
    pthread_mutex_lock(&waiting_lock);
    bool room = waiting_streams < CW_STREAM_WAITS_MAX;
    waiting_streams += room;
    pthread_mutex_unlock(&waiting_lock);
    stream->waits = room;
    return room;
}

/* Submits a wait. 1: done; 0: the CPU has to wait; negative: failed. The lock is held. */
static int submit_wait(cw_client *client, struct cw_fences *fences, struct cw_stream *stream,
                       cw_stamp stamp) {
    struct cw_page_of_fences *page;
    struct cw_fence *fence;
    CUdeviceptr address;
    if (is_default(stream->handle) || !stream->gpu->stream_ops ||
        stream->dependency_count == DEPENDENCIES_MAX || !may_wait(client, fences, stream))
        return 0;
    int code = cw_fence_find(client, fences, stamp, &page, &fence);
    if (code == 0)
        code = enter(stream);
    if (code)
        return code;
    const struct cw_cuda *cuda = stream->gpu->cuda;
    code = gpu_address(cuda, page, fence, &address);
    if (code == 0) {
        CUresult result = cuda->cuStreamWaitValue64(stream->handle, address, cw_stamp_value(stamp),
                                                    CU_STREAM_WAIT_VALUE_GEQ);
        if (result != CUDA_SUCCESS)
            code = failed(stream, result, "submitting a wait to");
    }
    leave(stream);
    if (code)
        return code;
    stream->dependencies[stream->dependency_count++] = stamp;
    return 1;
}

/* Lets the stream, or the CPU, wait for a stamp. 0, -EOWNERDEAD, -ETIMEDOUT, -EINTR. Without the
 * lock. */
static int stream_wait(cw_client *client, struct cw_fences *fences, struct cw_stream *stream,
                       cw_stamp stamp, struct cw_patience *patience) {
    if (!stamp || cw_stamp_fence(stamp) == stream->number)
        return 0;
    for (;;) {
        struct cw_page_of_fences *page;
        struct cw_fence *fence;
        pthread_mutex_lock(&fences->lock);
        int state = cw_stamp_look(client, fences, stamp);
        if (state == 0 && cw_fence_find(client, fences, stamp, &page, &fence) == 0 &&
            cw_fence_submitted(fence, cw_stamp_value(stamp))) {
            int code = submit_wait(client, fences, stream, stamp);
            pthread_mutex_unlock(&fences->lock);
            if (code)
                return code > 0 ? 0 : code;
            return cw_stamp_await(client, stamp, patience);
        }
        pthread_mutex_unlock(&fences->lock);
        if (state)
            return state > 0 ? 0 : state;
        int code = cw_patience_spend(client, patience, "the submitting of work on the array");
        if (code)
            return code;
    }
}

/* ---- the end of a phase ---- */

struct completion { /* where streams cannot write values: a host function does */
    struct cw_fence *fence;
    uint64_t value;
};

static void complete(void *argument) {
    struct completion *done = argument;
    cw_fence_complete(done->fence, done->value);
    free(done);
}

static CUresult write_value(struct cw_stream *stream, CUstream target, uint64_t value) {
    const struct cw_cuda *cuda = stream->gpu->cuda;
    if (stream->gpu->stream_ops)
        return cuda->cuStreamWriteValue64(target, stream->address, value, 0);
    struct completion *done = malloc(sizeof *done);
    if (!done)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *done = (struct completion){stream->fence, value};
    CUresult result = cuda->cuLaunchHostFunc(target, complete, done);
    if (result != CUDA_SUCCESS)
        free(done);
    return result;
}

/* Lets the proxy wait for what the default stream was given so far. */
static CUresult follow(struct cw_stream *stream) {
    const struct cw_cuda *cuda = stream->gpu->cuda;
    CUevent event;
    CUresult result = cuda->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda->cuEventRecord(event, stream->handle);
    if (result == CUDA_SUCCESS)
        result = cuda->cuStreamWaitEvent(stream->proxy, event, 0);
    cuda->cuEventDestroy(event);
    return result;
}

/* Submits the phase's value. The lock is held. */
static int submit(struct cw_stream *stream) {
    uint64_t value = stream->last + 1;
    int code = enter(stream);
    CUresult result = CUDA_SUCCESS;
    if (code == 0) {
        if (stream->proxy)
            result = follow(stream);
        if (result == CUDA_SUCCESS)
            result = write_value(stream, stream->proxy ? stream->proxy : stream->handle, value);
        leave(stream);
    }
    if (code == 0 && result != CUDA_SUCCESS)
        code = failed(stream, result, "submitting a fence's value to");
    stream->last = value;
    if (code) {
        /* The stream will never reach it: nobody may wait for that. */
        cw_fence_poison(stream->fence);
        stream->last = CW_STAMP_VALUE_MAX; /* its next use takes a new fence */
    } else
        cw_fence_enqueue(stream->fence, value);
    return code;
}

static int end_phase(struct cw_stream *stream) {
    CW_ASSERT(stream->open > 0);
    return --stream->open == 0 ? submit(stream) : 0;
}

/* Ends what was begun and led to no work. Where nothing else is open the value is not used. */
static void cancel(struct cw_stream *stream) {
    CW_ASSERT(stream->open > 0);
    stream->open--;
}

/* Was somebody it waited for found dead? Told once. The lock is held. */
static int tell_death(cw_client *client, struct cw_fences *fences, struct cw_stream *stream) {
    prune(client, fences, stream);
    if (!stream->died)
        return 0;
    stream->died = false;
    return cw_fail(-EOWNERDEAD,
                   "a process died before its work on an array was complete, and the "
                   "stream %p had waited for it: what was computed since is no good",
                   stream->handle);
}

static int poisoned(void) {
    return cw_fail(-EOWNERDEAD, "the process that wrote the array last died before its work was "
                                "complete, or what it computed with came from such a one; write "
                                "the whole array anew");
}

/* ---- public ---- */

/* What every call begins with. *order NULL: a host array, nothing to be done. */
static int open_call(cw_array *array, struct cw_fences **fences, struct cw_order **order) {
    int code = cw_array_usable(array);
    *order = NULL;
    if (code || array->slab->device_kind != CW_DEVICE_CUDA)
        return code;
    code = cw_fences_of(array->client, fences);
    if (code == 0)
        *order = cw_order_of(array->slab->table, array->block);
    return code;
}

static uint64_t own_turn(const cw_array *array) {
    static __thread uint32_t thread; /* 0 after a fork is not needed: nothing of it works there */
    if (!thread)
        thread = (uint32_t)syscall(SYS_gettid);
    return (uint64_t)array->client->session << 32 | thread;
}

static int begin_phase(cw_array *array, struct cw_fences *fences, void *handle,
                       struct cw_stream **stream, cw_stamp *stamp) {
    cw_client *client = array->client;
    pthread_mutex_lock(&fences->lock);
    int code = find_stream(client, fences, array->home_slab->device, handle, stream);
    if (code == 0)
        code = tell_death(client, fences, *stream);
    if (code == 0) {
        (*stream)->open++;
        *stamp = cw_stamp_make((*stream)->number, (*stream)->last + 1);
    }
    pthread_mutex_unlock(&fences->lock);
    return code;
}

static void cancel_phase(struct cw_fences *fences, struct cw_stream *stream) {
    pthread_mutex_lock(&fences->lock);
    cancel(stream);
    pthread_mutex_unlock(&fences->lock);
}

/* Notes the read, when nobody is writing. */
static int note_read(cw_array *array, struct cw_order *order, cw_stamp stamp,
                     struct cw_patience *patience, unsigned *place, cw_stamp *before) {
    struct cw_order_seen seen;
    for (;;) {
        bool noted = cw_order_read_note(order, stamp, place, before);
        if (!noted) {
            cw_order_see(order, &seen);
            for (unsigned i = 0; i < CW_ORDER_READS && !noted; i++)
                if (cw_stamp_poll(array->client, seen.reads[i]) != 0) {
                    noted = cw_order_read_replace(order, i, seen.reads[i], stamp);
                    *place = i;
                    *before = 0;
                }
        }
        uint64_t turn = noted ? cw_order_turn(order) : 0;
        if (noted && !turn)
            return 0;
        if (noted)
            cw_order_read_undo(order, *place, stamp, *before);
        if (turn == own_turn(array))
            return cw_fail(-EINVAL, "this thread is writing the array, and would wait for itself");
        int code = cw_patience_spend(array->client, patience, "another's use of the array");
        if (code)
            return code;
    }
}

static int wait_for_write(cw_array *array, struct cw_fences *fences, struct cw_order *order,
                          struct cw_stream *stream, struct cw_patience *patience) {
    struct cw_order_seen seen;
    cw_client *client = array->client;
    cw_order_see(order, &seen);
    if (seen.marks & CW_ORDER_POISONED)
        return poisoned();
    for (unsigned i = 0; i <= CW_ORDER_WAITED; i++) {
        cw_stamp stamp = i < CW_ORDER_WAITED ? seen.waited[i] : seen.write;
        int code = stream_wait(client, fences, stream, stamp, patience);
        if (code == -EOWNERDEAD)
            return poisoned();
        if (code)
            return code;
    }
    return 0;
}

int cw_array_reading_begin(cw_array *array, void *handle, int64_t timeout_ns) {
    struct cw_fences *fences;
    struct cw_order *order;
    struct cw_stream *stream;
    struct cw_patience patience;
    cw_stamp stamp, before;
    unsigned place;
    int code = open_call(array, &fences, &order);
    if (code || !order)
        return code;
    cw_patience_begin(&patience, timeout_ns);
    code = begin_phase(array, fences, handle, &stream, &stamp);
    if (code)
        return code;
    code = note_read(array, order, stamp, &patience, &place, &before);
    if (code == 0) {
        code = wait_for_write(array, fences, order, stream, &patience);
        if (code)
            cw_order_read_undo(order, place, stamp, before);
    }
    if (code)
        cancel_phase(fences, stream);
    return code;
}

/* The stream of a call's end; it was begun. The lock is held. */
static int find_begun(const cw_array *array, struct cw_fences *fences, void *handle,
                      struct cw_stream **out) {
    for (*out = fences->streams; *out; *out = (*out)->next)
        if ((*out)->handle == handle && (*out)->open &&
            (!is_default(handle) || (*out)->id == (uint64_t)array->home_slab->device))
            return 0;
    return cw_fail(-EINVAL, "nothing was begun on the stream %p", handle);
}

int cw_array_reading_end(cw_array *array, void *handle) {
    struct cw_fences *fences;
    struct cw_order *order;
    struct cw_stream *stream;
    int code = open_call(array, &fences, &order);
    if (code || !order)
        return code;
    pthread_mutex_lock(&fences->lock);
    code = find_begun(array, fences, handle, &stream);
    if (code == 0)
        code = end_phase(stream);
    if (code == 0)
        code = tell_death(array->client, fences, stream);
    pthread_mutex_unlock(&fences->lock);
    return code;
}

static int take_turn(cw_array *array, struct cw_order *order, struct cw_patience *patience) {
    uint64_t holder, who = own_turn(array);
    while (!cw_order_turn_take(order, who, &holder)) {
        if (holder == who)
            return cw_fail(-EINVAL, "this thread is writing the array already");
        int code = cw_patience_spend(array->client, patience, "another's writing of the array");
        if (code)
            return code;
    }
    return 0;
}

int cw_array_writing_begin(cw_array *array, void *handle, int64_t timeout_ns) {
    struct cw_fences *fences;
    struct cw_order *order;
    struct cw_stream *stream;
    struct cw_patience patience;
    struct cw_order_seen seen;
    cw_stamp stamp;
    int code = open_call(array, &fences, &order);
    if (code == 0 && array->readonly)
        return cw_fail(-EINVAL, "the array is mapped read-only");
    if (code || !order)
        return code;
    cw_patience_begin(&patience, timeout_ns);
    code = begin_phase(array, fences, handle, &stream, &stamp);
    if (code)
        return code;
    code = take_turn(array, order, &patience);
    if (code) {
        cancel_phase(fences, stream);
        return code;
    }
    cw_order_see(order, &seen);
    for (unsigned i = 0; i <= CW_ORDER_READS && code == 0; i++) {
        cw_stamp earlier = i < CW_ORDER_READS ? seen.reads[i] : seen.write;
        code = stream_wait(array->client, fences, stream, earlier, &patience);
        if (code == -EOWNERDEAD)
            code = 0; /* it does nothing any more, and its result is written over */
    }
    if (code) {
        cw_order_turn_give(order);
        cancel_phase(fences, stream);
    }
    return code;
}

/* What readers of the result must look at besides its own stamp: what the stream still waits for.
 * Where that is more than a record holds the CPU waits for the rest. The lock is held, and given up
 * meanwhile. */
static int settle_dependencies(cw_client *client, struct cw_fences *fences,
                               struct cw_stream *stream) {
    prune(client, fences, stream);
    while (stream->dependency_count > CW_ORDER_WAITED) {
        cw_stamp oldest = stream->dependencies[0];
        pthread_mutex_unlock(&fences->lock);
        int code = cw_stamp_wait(client, oldest, -1);
        pthread_mutex_lock(&fences->lock);
        if (code && code != -EOWNERDEAD)
            return code;
        prune(client, fences, stream);
    }
    return 0;
}

/* Did the block hold incomplete data before this write? The turn is ours. */
static bool was_poisoned(cw_client *client, struct cw_fences *fences, struct cw_order *order) {
    struct cw_order_seen seen;
    cw_order_see(order, &seen);
    bool dead = seen.marks & CW_ORDER_POISONED;
    for (unsigned i = 0; i <= CW_ORDER_WAITED; i++) {
        cw_stamp stamp = i < CW_ORDER_WAITED ? seen.waited[i] : seen.write;
        dead = dead || (stamp && cw_stamp_look(client, fences, stamp) < 0);
    }
    return dead;
}

int cw_array_writing_end(cw_array *array, void *handle, int whole) {
    struct cw_fences *fences;
    struct cw_order *order;
    struct cw_stream *stream;
    int code = open_call(array, &fences, &order);
    if (code || !order)
        return code;
    cw_client *client = array->client;
    if (cw_order_turn(order) != own_turn(array))
        return cw_fail(-EINVAL, "this thread is not writing the array");
    pthread_mutex_lock(&fences->lock);
    code = find_begun(array, fences, handle, &stream);
    if (code) {
        pthread_mutex_unlock(&fences->lock);
        return code;
    }
    cw_stamp stamp = cw_stamp_make(stream->number, stream->last + 1);
    int settled = settle_dependencies(client, fences, stream);
    bool dead = !whole && was_poisoned(client, fences, order);
    cw_stamp waited[CW_ORDER_WAITED];
    unsigned count =
        stream->dependency_count < CW_ORDER_WAITED ? stream->dependency_count : CW_ORDER_WAITED;
    memcpy(waited, stream->dependencies, count * sizeof *waited);
    code = end_phase(stream);
    if (code == 0)
        code = settled;
    if (code == 0)
        code = tell_death(client, fences, stream);
    cw_order_written(order, stamp, waited, count, dead || code ? CW_ORDER_POISONED : 0);
    cw_order_turn_give(order);
    pthread_mutex_unlock(&fences->lock);
    return code;
}

int cw_array_wait(cw_array *array, int64_t timeout_ns) {
    struct cw_fences *fences;
    struct cw_order *order;
    struct cw_order_seen seen;
    struct cw_patience patience;
    int code = open_call(array, &fences, &order);
    if (code || !order)
        return code;
    cw_patience_begin(&patience, timeout_ns);
    while (cw_order_turn(order)) {
        if (cw_order_turn(order) == own_turn(array))
            return cw_fail(-EINVAL, "this thread is writing the array, and would wait for itself");
        code = cw_patience_spend(array->client, &patience, "another's writing of the array");
        if (code)
            return code;
    }
    cw_order_see(order, &seen);
    if (seen.marks & CW_ORDER_POISONED)
        return poisoned();
    for (unsigned i = 0; i <= CW_ORDER_WAITED; i++) {
        cw_stamp stamp = i < CW_ORDER_WAITED ? seen.waited[i] : seen.write;
        code = stamp ? cw_stamp_await(array->client, stamp, &patience) : 0;
        if (code)
            return code == -EOWNERDEAD ? poisoned() : code;
    }
    return 0;
}

int cw_array_settle(cw_array *array, int64_t timeout_ns) {
    struct cw_fences *fences;
    struct cw_order *order;
    struct cw_order_seen seen;
    struct cw_patience patience;
    int code = open_call(array, &fences, &order);
    if (code || !order || cw_order_unused(order))
        return code;
    cw_patience_begin(&patience, timeout_ns);
    while (code == 0 && cw_order_turn(order))
        code = cw_patience_spend(array->client, &patience, "another's writing of the array");
    cw_order_see(order, &seen);
    for (unsigned i = 0; i <= CW_ORDER_READS && code == 0; i++) {
        cw_stamp stamp = i < CW_ORDER_READS ? seen.reads[i] : seen.write;
        code = stamp ? cw_stamp_await(array->client, stamp, &patience) : 0;
        if (code == -EOWNERDEAD)
            code = 0;
    }
    return code;
}

void cw_fences_deinit(cw_client *client) {
    struct cw_fences *fences = client->fences;
    int64_t end_ns = cw_now_ns() + END_PATIENCE_NS;
    if (!fences || cw_client_forked(client))
        return;
    /* The session's end poisons its fences: what was submitted shall have been reached before. */
    for (struct cw_stream *stream = fences->streams; stream; stream = stream->next) {
        struct timespec nap = {.tv_nsec = 100000};
        while (stream->last && cw_fence_poll(stream->fence, stream->last) == 0 &&
               cw_now_ns() < end_ns)
            nanosleep(&nap, NULL);
        set_waits(stream, false);
    }
    for (struct cw_stream *next, *stream = fences->streams; stream; stream = next) {
        next = stream->next;
        free(stream);
    }
    fences->streams = NULL;
}
