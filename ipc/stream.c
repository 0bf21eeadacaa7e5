/*
 * Streams and their sections: see stream.h, and fence.h for the rules.
 *
 * State of the process: how many of its streams wait on the GPU; all else is a client's.
 */
#include "ipc/stream.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define END_PATIENCE_NS 10000000000

/* Streams of this process that have a wait on the GPU, in whichever client. */
static pthread_mutex_t waiting_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned waiting_streams;

uint32_t cw_this_thread(void) {
    static __thread uint32_t thread; /* a forked child uses none of this */
    if (!thread)
        thread = (uint32_t)syscall(SYS_gettid);
    return thread;
}

static bool is_default(const void *handle) {
    return (uintptr_t)handle <= 2;
}

static int captured(const struct cw_stream *stream) {
    return cw_fail(-EINVAL,
                   "the stream %p is being captured: put arrays in order before, and for "
                   "each launch of the graph",
                   stream->handle);
}

static int failed(const struct cw_stream *stream, CUresult result, const char *what) {
    if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) /* the driver does not even tell its id */
        return captured(stream);
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
    CUdeviceptr base = 0;
    CUresult result =
        cuda->cuMemHostRegister(page->segment.base, page->segment.size_bytes,
                                CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(cuda, result, "registering a page of fences");
    result = cuda->cuMemHostGetDevicePointer(&base, page->segment.base, 0);
    if (result != CUDA_SUCCESS) {
        cuda->cuMemHostUnregister(page->segment.base); /* no stream waits for it yet */
        return cw_cuda_error(cuda, result, "asking for the address of fences on the GPU");
    }
    page->gpu_base = base;
    page->registered = true;
    return 0;
}

/* The address of a fence's value for a GPU. The context is current, the lock is held. */
static int gpu_address(const struct cw_cuda *cuda, struct cw_page_of_fences *page,
                       struct cw_fence *fence, CUdeviceptr *out) {
    int code = page->registered ? 0 : register_page(cuda, page);
    if (code == 0)
        *out =
            page->gpu_base + (uint64_t)((uint8_t *)&fence->value - (uint8_t *)page->segment.base);
    return code;
}

/* Asked first: most calls about a stream end a capture that is under way. */
static int check_capture(const struct cw_stream *stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    int code = enter(stream);
    if (code)
        return code;
    CUresult result = stream->gpu->cuda->cuStreamIsCapturing(stream->handle, &status);
    leave(stream);
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || status != CU_STREAM_CAPTURE_STATUS_NONE)
        return captured(stream);
    return result == CUDA_SUCCESS ? 0 : failed(stream, result, "asking for a capture in");
}

/* Which GPU, context and id a handle has. gpu: of the array, for default streams. */
static int identify(int gpu, struct cw_stream *stream) {
    int code = cw_gpu_get(gpu, &stream->gpu);
    if (code)
        return code;
    stream->context = stream->gpu->context;
    code = check_capture(stream);
    if (code == 0 && is_default(stream->handle))
        stream->id = (uint64_t)gpu;
    if (code || is_default(stream->handle))
        return code;
    const struct cw_cuda *cuda = stream->gpu->cuda;
    CUdevice device;
    unsigned long long id = 0;
    code = enter(stream); /* asked without any context, the driver refuses */
    if (code)
        return code;
    CUresult result = cuda->cuStreamGetCtx(stream->handle, &stream->context);
    leave(stream);
    if (result == CUDA_SUCCESS)
        result = cuda->cuCtxPushCurrent(stream->context);
    if (result != CUDA_SUCCESS)
        return failed(stream, result, "asking for");
    result = cuda->cuStreamGetId(stream->handle, &id);
    if (result == CUDA_SUCCESS)
        result = cuda->cuCtxGetDevice(&device);
    leave(stream);
    stream->id = id;
    if (result != CUDA_SUCCESS)
        return failed(stream, result, "asking for");
    return device == stream->gpu->device ? 0 : cw_gpu_get(device, &stream->gpu);
}

/* Ours beside a default stream, in which nothing of ours may stand. */
static int make_proxy(struct cw_stream *stream) {
    int code = enter(stream);
    if (code)
        return code;
    CUresult result = stream->gpu->cuda->cuStreamCreate(&stream->proxy, CU_STREAM_NON_BLOCKING);
    leave(stream);
    return result == CUDA_SUCCESS ? 0 : failed(stream, result, "making a stream beside");
}

/* Is nothing of it open or under way? */
static bool is_quiet(const struct cw_stream *stream) {
    for (const struct cw_section *at = stream->sections; at; at = at->next)
        if (at->array || (at->last && cw_fence_poll(at->fence, at->last) <= 0))
            return false;
    return true;
}

/* The stream that had this handle last, if it still has it: the usual case, in two calls of the
 * driver. NULL: to be asked for in full. -EINVAL: a capture. */
static struct cw_stream *recall(struct cw_fences *fences, void *handle, int *code) {
    struct cw_stream *found = is_default(handle) ? NULL : fences->streams;
    while (found && found->handle != handle)
        found = found->next;
    if (!found || enter(found) != 0)
        return NULL;
    const struct cw_cuda *cuda = found->gpu->cuda;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    unsigned long long id = 0;
    CUresult result = cuda->cuStreamIsCapturing(handle, &status);
    if (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE)
        *code = captured(found);
    else if (result == CUDA_SUCCESS)
        result = cuda->cuStreamGetId(handle, &id);
    leave(found);
    return result == CUDA_SUCCESS && id == found->id ? found : NULL;
}

/* The stream of a handle. */
static int find_stream(cw_client *client, struct cw_fences *fences, int gpu, void *handle,
                       struct cw_stream **out) {
    struct cw_stream looked = {.handle = handle};
    int code = 0;
    *out = recall(fences, handle, &code);
    if (*out || code)
        return code;
    code = identify(gpu, &looked);
    if (code)
        return code;
    for (struct cw_stream *at = fences->streams; at; at = at->next)
        if (at->handle == handle && at->id == looked.id) {
            *out = at;
            return 0;
        }
    /* Another stream had this handle and is gone, and all that it did has passed: its fences have
     * no writer any more. */
    for (struct cw_stream *at = fences->streams; at; at = at->next)
        if (at->handle == handle && !is_default(handle) && at->context == looked.context &&
            is_quiet(at)) {
            cw_stream_prune(client, fences, at);
            at->died = false;
            at->id = looked.id;
            *out = at;
            return 0;
        }
    struct cw_stream *made = malloc(sizeof *made);
    if (!made)
        return cw_fail(-EDQUOT, "no memory for a stream's books");
    *made = looked;
    code = is_default(handle) ? make_proxy(made) : 0;
    if (code) {
        free(made);
        return code;
    }
    made->next = fences->streams;
    fences->streams = *out = made;
    return 0;
}

/* ---- sections ---- */

/* A section of the stream that is not open, its fence registered. */
static int free_section(cw_client *client, struct cw_fences *fences, struct cw_stream *stream,
                        struct cw_section **out) {
    struct cw_page_of_fences *page;
    unsigned count = 0;
    for (struct cw_section *at = stream->sections; at; at = at->next) {
        if (!at->array && at->last < CW_STAMP_VALUE_MAX - 1) {
            *out = at;
            return 0;
        }
        count += at->array != NULL;
    }
    if (count >= CW_SECTIONS_MAX)
        return cw_fail(-EINVAL, "the stream %p has %u begins without their end: that is the most",
                       stream->handle, count);
    struct cw_section *made = malloc(sizeof *made);
    if (!made)
        return cw_fail(-EDQUOT, "no memory for the books of a fence");
    *made = (struct cw_section){.stream = stream};
    int code = cw_fence_take(client, fences, &made->number, &page);
    if (code == 0)
        code = enter(stream);
    if (code == 0) {
        made->fence = &page->fences[made->number % CW_FENCES_PER_PAGE];
        code = gpu_address(stream->gpu->cuda, page, made->fence, &made->address);
        leave(stream);
    }
    if (code) {
        free(made);
        return code;
    }
    made->next = stream->sections;
    stream->sections = *out = made;
    return 0;
}

int cw_section_open(cw_client *client, struct cw_fences *fences, cw_array *array, void *handle,
                    bool writing, struct cw_section **out) {
    struct cw_stream *stream;
    int code = find_stream(client, fences, array->home_slab->device, handle, &stream);
    if (code == 0)
        code = cw_stream_tell(client, fences, stream);
    if (code == 0)
        code = free_section(client, fences, stream, out);
    if (code == 0) {
        (*out)->array = array;
        (*out)->writing = writing;
        (*out)->thread = cw_this_thread();
    }
    return code;
}

int cw_section_find(struct cw_fences *fences, const cw_array *array, void *handle, bool writing,
                    struct cw_section **out) {
    for (struct cw_stream *stream = fences->streams; stream; stream = stream->next)
        for (*out = stream->handle == handle ? stream->sections : NULL; *out; *out = (*out)->next)
            if ((*out)->array == array && (*out)->writing == writing)
                return 0;
    return cw_fail(-EINVAL, "no %s of the array was begun on the stream %p",
                   writing ? "writing" : "reading", handle);
}

struct cw_section *cw_section_of(struct cw_fences *fences, uint32_t fence) {
    for (struct cw_stream *stream = fences->streams; stream; stream = stream->next)
        for (struct cw_section *at = stream->sections; at; at = at->next)
            if (at->number == fence && at->array)
                return at;
    return NULL;
}

void cw_section_cancel(struct cw_section *section) {
    CW_ASSERT(section->array);
    section->array = NULL;
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

void cw_stream_prune(cw_client *client, struct cw_fences *fences, struct cw_stream *stream) {
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
            cw_stream_prune(client, fences, other);
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
        stream->dependency_count == CW_DEPENDENCIES_MAX || !may_wait(client, fences, stream))
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

bool cw_stream_owns(const struct cw_stream *stream, uint32_t fence) {
    for (const struct cw_section *at = stream->sections; at; at = at->next)
        if (at->number == fence)
            return true;
    return false;
}

/* Is it this thread that would have to end what the stamp stands for? */
static int check_own_wait(struct cw_fences *fences, cw_stamp stamp) {
    const struct cw_section *section = cw_section_of(fences, cw_stamp_fence(stamp));
    if (!section || section->thread != cw_this_thread() || cw_section_stamp(section) != stamp)
        return 0;
    return cw_fail(-EINVAL,
                   "this thread is %s the array on the stream %p, and would wait for itself: end "
                   "that first, or use the same stream",
                   section->writing ? "writing" : "reading", section->stream->handle);
}

int cw_stream_wait_for(cw_client *client, struct cw_fences *fences, struct cw_stream *stream,
                       cw_stamp stamp, struct cw_patience *patience) {
    for (;;) {
        struct cw_page_of_fences *page;
        struct cw_fence *fence;
        pthread_mutex_lock(&fences->lock);
        if (!stamp || cw_stream_owns(stream, cw_stamp_fence(stamp))) {
            pthread_mutex_unlock(&fences->lock);
            return 0;
        }
        int state = cw_stamp_look(client, fences, stamp);
        bool submitted = state == 0 && cw_fence_find(client, fences, stamp, &page, &fence) == 0 &&
                         cw_fence_submitted(fence, cw_stamp_value(stamp));
        int code = submitted    ? submit_wait(client, fences, stream, stamp)
                   : state == 0 ? check_own_wait(fences, stamp)
                                : 0;
        pthread_mutex_unlock(&fences->lock);
        if (state || code)
            return state > 0 || code > 0 ? 0 : state ? state : code;
        if (submitted)
            return cw_stamp_await(client, stamp, patience);
        code = cw_patience_spend(client, patience, "the submitting of work on the array");
        if (code)
            return code;
    }
}

/* ---- the end of a section ---- */

struct completion { /* where streams cannot write values: a host function does */
    struct cw_fence *fence;
    uint64_t value;
};

static void complete(void *argument) {
    struct completion *done = argument;
    cw_fence_complete(done->fence, done->value);
    free(done);
}

static CUresult write_value(const struct cw_section *section, CUstream target, uint64_t value) {
    const struct cw_cuda *cuda = section->stream->gpu->cuda;
    if (section->stream->gpu->stream_ops)
        return cuda->cuStreamWriteValue64(target, section->address, value, 0);
    struct completion *done = malloc(sizeof *done);
    if (!done)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *done = (struct completion){section->fence, value};
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

int cw_section_submit(struct cw_section *section) {
    struct cw_stream *stream = section->stream;
    uint64_t value = section->last + 1;
    int code = enter(stream);
    CUresult result = CUDA_SUCCESS;
    CW_ASSERT(section->array);
    if (code == 0) {
        if (stream->proxy)
            result = follow(stream);
        if (result == CUDA_SUCCESS)
            result = write_value(section, stream->proxy ? stream->proxy : stream->handle, value);
        leave(stream);
    }
    if (code == 0 && result != CUDA_SUCCESS)
        code = failed(stream, result, "submitting a fence's value to");
    section->array = NULL;
    section->last = value;
    if (code) {
        /* The stream will never reach it: nobody may wait for that. */
        cw_fence_poison(section->fence);
        section->last = CW_STAMP_VALUE_MAX; /* the next section takes a new fence */
    } else
        cw_fence_enqueue(section->fence, value);
    return code;
}

int cw_stream_tell(cw_client *client, struct cw_fences *fences, struct cw_stream *stream) {
    cw_stream_prune(client, fences, stream);
    if (!stream->died)
        return 0;
    stream->died = false;
    return cw_fail(-EOWNERDEAD,
                   "a process died before its work on an array was complete, and the "
                   "stream %p had waited for it: what was computed since is no good",
                   stream->handle);
}

/* ---- the end ---- */

bool cw_fences_deinit(cw_client *client) {
    struct cw_fences *fences = client->fences;
    int64_t end_ns = cw_now_ns() + END_PATIENCE_NS;
    if (!fences || cw_client_forked(client))
        return true;
    for (struct cw_stream *stream = fences->streams; stream; stream = stream->next) {
        struct timespec nap = {.tv_nsec = 100000};
        while (!is_quiet(stream)) {
            if (cw_now_ns() >= end_ns)
                return false;
            nanosleep(&nap, NULL);
        }
        cw_stream_prune(client, fences, stream);
        set_waits(stream, false);
    }
    for (struct cw_stream *next, *stream = fences->streams; stream; stream = next) {
        next = stream->next;
        for (struct cw_section *following, *at = stream->sections; at; at = following) {
            following = at->next;
            free(at);
        }
        free(stream); /* a proxy stays: the driver's, as all that belongs to a context */
    }
    fences->streams = NULL;
    return true;
}
