/*
 * Streams and their sections: see stream.h, and fence.h for the rules. dependency.c has what they
 * wait for.
 *
 * State of a client, under its fences' lock.
 */
#include "ipc/client.h"
#include "ipc/order/stream.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/order/context_failure.h"

#define END_TIMEOUT_NS 10000000000

uint32_t cw_this_thread(void) {
    static CW_THREAD_LOCAL uint32_t thread; /* a forked child uses none of this */
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

int cw_stream_failed(const struct cw_stream *stream, CUresult result, const char *what) {
    if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) /* the driver does not even tell its id */
        return captured(stream);
    return cw_cuda_error(stream->gpu->cuda, result, "%s the stream %p of cuda:%d", what,
                         stream->handle, stream->gpu->ordinal);
}

/* Whoever works with a stream mostly has its context current already. */
int cw_stream_enter(const struct cw_stream *stream, bool *pushed) {
    const struct cw_cuda *cuda = stream->gpu->cuda;
    CUcontext now = NULL;
    *pushed = cuda->cuCtxGetCurrent(&now) != CUDA_SUCCESS || now != stream->context;
    CUresult result = *pushed ? cuda->cuCtxPushCurrent(stream->context) : CUDA_SUCCESS;
    return result == CUDA_SUCCESS ? 0 : cw_stream_failed(stream, result, "entering the context of");
}

void cw_stream_leave(const struct cw_stream *stream, bool pushed) {
    CUcontext popped;
    if (pushed)
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

int cw_fence_address(const struct cw_cuda *cuda, struct cw_page_of_fences *page,
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
    bool pushed;
    int code = cw_stream_enter(stream, &pushed);
    if (code)
        return code;
    CUresult result = stream->gpu->cuda->cuStreamIsCapturing(stream->handle, &status);
    cw_stream_leave(stream, pushed);
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || status != CU_STREAM_CAPTURE_STATUS_NONE)
        return captured(stream);
    return result == CUDA_SUCCESS ? 0 : cw_stream_failed(stream, result, "asking for a capture in");
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
    bool pushed; /* asked without any context, the driver refuses */
    code = cw_stream_enter(stream, &pushed);
    if (code)
        return code;
    CUresult result = cuda->cuStreamGetCtx(stream->handle, &stream->context);
    if (pushed)
        cuda->cuCtxPopCurrent(&(CUcontext){NULL});
    if (result == CUDA_SUCCESS)
        result = cuda->cuCtxPushCurrent(stream->context);
    if (result != CUDA_SUCCESS)
        return cw_stream_failed(stream, result, "asking for");
    result = cuda->cuStreamGetId(stream->handle, &id);
    if (result == CUDA_SUCCESS)
        result = cuda->cuCtxGetDevice(&device);
    cw_stream_leave(stream, true);
    stream->id = id;
    if (result != CUDA_SUCCESS)
        return cw_stream_failed(stream, result, "asking for");
    return device == stream->gpu->device ? 0 : cw_gpu_get(device, &stream->gpu);
}

/* Ours beside a default stream, in which nothing of ours may stand. */
static int make_proxy(struct cw_stream *stream) {
    bool pushed;
    int code = cw_stream_enter(stream, &pushed);
    if (code)
        return code;
    CUresult result = stream->gpu->cuda->cuStreamCreate(&stream->proxy, CU_STREAM_NON_BLOCKING);
    cw_stream_leave(stream, pushed);
    return result == CUDA_SUCCESS ? 0 : cw_stream_failed(stream, result, "making a stream beside");
}

bool cw_stream_is_quiet(const struct cw_stream *stream) {
    for (const struct cw_section *at = stream->sections; at; at = at->next)
        if (at->open || (at->last && cw_fence_poll(at->fence, at->last) == 0))
            return false;
    return true;
}

/* The stream that had this handle last, if it still has it: the usual case, in two calls of the
 * driver. NULL: to be asked for in full. -EINVAL: a capture. */
static struct cw_stream *recall(struct cw_fences *fences, void *handle, int *code) {
    struct cw_stream *found = is_default(handle) ? NULL : fences->streams;
    while (found && found->handle != handle)
        found = found->next;
    bool pushed;
    if (!found || cw_stream_enter(found, &pushed) != 0)
        return NULL;
    const struct cw_cuda *cuda = found->gpu->cuda;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    unsigned long long id = 0;
    CUresult result = cuda->cuStreamIsCapturing(handle, &status);
    if (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE)
        *code = captured(found);
    else if (result == CUDA_SUCCESS)
        result = cuda->cuStreamGetId(handle, &id);
    cw_stream_leave(found, pushed);
    return result == CUDA_SUCCESS && id == found->id ? found : NULL;
}

/* The stream of a handle. */
static int find_stream(struct cw_fences *fences, int gpu, void *handle, struct cw_stream **out) {
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
            cw_stream_is_quiet(at)) {
            cw_stream_stop_waiting(at); /* the other one did */
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

/* A new one, its fence registered. */
static int make_section(cw_client *client, struct cw_fences *fences, struct cw_stream *stream,
                        struct cw_section **out) {
    struct cw_page_of_fences *page;
    bool pushed;
    struct cw_section *made = malloc(sizeof *made);
    if (!made)
        return cw_fail(-EDQUOT, "no memory for the books of a fence");
    *made = (struct cw_section){.stream = stream};
    int code = cw_fence_take(client, fences, stream->gpu->ordinal, &made->number, &page);
    if (code == 0)
        code = cw_stream_enter(stream, &pushed);
    if (code == 0) {
        made->fence = &page->fences[made->number % CW_FENCES_PER_PAGE];
        code = cw_fence_address(stream->gpu->cuda, page, made->fence, &made->address);
        cw_stream_leave(stream, pushed);
    }
    if (code) {
        free(made);
        return code;
    }
    made->next = stream->sections;
    stream->sections = *out = made;
    return 0;
}

/* A section of the stream that is not open. */
static int free_section(cw_client *client, struct cw_fences *fences, struct cw_stream *stream,
                        struct cw_section **out) {
    unsigned count = 0;
    for (struct cw_section *at = stream->sections; at; at = at->next) {
        if (!at->open && at->last < CW_STAMP_VALUE_MAX - 1) {
            *out = at;
            return 0;
        }
        count += at->open;
    }
    if (count >= CW_SECTIONS_MAX && !cw_stream_is_shared(stream))
        return cw_fail(-EINVAL,
                       "the stream %p has %u open sections, which is the most: end some first",
                       stream->handle, count);
    return make_section(client, fences, stream, out);
}

static int make_room(struct cw_section *section, uint32_t arrays) {
    if (arrays <= section->held_room)
        return 0;
    struct cw_section_array *held = realloc(section->held, arrays * sizeof *held);
    if (!held)
        return cw_fail(-EDQUOT, "no memory for the books of %u arrays", arrays);
    section->held = held;
    section->held_room = arrays;
    return 0;
}

int cw_section_open(cw_client *client, struct cw_fences *fences, int gpu, void *handle,
                    uint32_t arrays, struct cw_section **out) {
    struct cw_stream *stream;
    int code = find_stream(fences, gpu, handle, &stream);
    if (code == 0)
        code = cw_gpu_check(stream->gpu);
    if (code == 0)
        code = cw_stream_tell(client, fences, stream, NULL);
    if (code == 0)
        code = free_section(client, fences, stream, out);
    if (code == 0)
        code = cw_gpu_check(stream->gpu); /* the lock was given up for a new fence */
    if (code == 0)
        code = make_room(*out, arrays);
    if (code == 0) {
        (*out)->open = true;
        (*out)->several = false;
        (*out)->incomplete = false;
        (*out)->thread = cw_this_thread();
        (*out)->held_count = 0;
    }
    return code;
}

int cw_section_find(struct cw_fences *fences, const cw_array *array, void *handle, bool writing,
                    struct cw_section **out) {
    for (struct cw_stream *stream = fences->streams; stream; stream = stream->next) {
        for (*out = stream->handle == handle ? stream->sections : NULL; *out; *out = (*out)->next)
            if ((*out)->open && !(*out)->several && (*out)->held_count == 1 &&
                (*out)->held->array == array && (*out)->held->writing == writing)
                return 0;
        int code = stream->handle == handle ? cw_gpu_check(stream->gpu) : 0;
        if (code)
            return code; /* the context broke, and its sections with it */
    }
    return cw_fail(-EINVAL, "no section for %s the array is open on the stream %p: begin one first",
                   writing ? "writing" : "reading", handle);
}

struct cw_section *cw_section_of(struct cw_fences *fences, uint32_t fence) {
    for (struct cw_stream *stream = fences->streams; stream; stream = stream->next)
        for (struct cw_section *at = stream->sections; at; at = at->next)
            if (at->number == fence && at->open)
                return at;
    return NULL;
}

void cw_section_cancel(struct cw_section *section) {
    CW_ASSERT(section->open);
    section->open = false;
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
    bool pushed;
    int code = cw_stream_enter(stream, &pushed);
    CUresult result = CUDA_SUCCESS;
    CW_ASSERT(section->open);
    if (code == 0) {
        if (stream->proxy)
            result = follow(stream);
        if (result == CUDA_SUCCESS)
            result = write_value(section, stream->proxy ? stream->proxy : stream->handle, value);
        cw_stream_leave(stream, pushed);
    }
    if (code == 0 && result != CUDA_SUCCESS)
        code = cw_stream_failed(stream, result, "submitting a fence's value to");
    section->open = false;
    section->last = value;
    if (code) {
        /* The stream will never reach it: nobody may wait for that. */
        cw_fence_poison(section->fence);
        section->last = CW_STAMP_VALUE_MAX; /* the next section takes a new fence */
    } else
        cw_fence_enqueue(section->fence, value);
    return code;
}

/* ---- the end ---- */

bool cw_fences_deinit(cw_client *client) {
    struct cw_fences *fences = client->fences;
    int64_t end_ns = cw_now_ns() + END_TIMEOUT_NS;
    if (!fences)
        return true;
    if (cw_client_forked(client)) {
        cw_context_failure_forget(fences);
        return true;
    }
    for (struct cw_stream *stream = fences->streams; stream; stream = stream->next) {
        struct timespec nap = {.tv_nsec = 100000};
        while (!cw_stream_is_quiet(stream)) {
            if (cw_client_check(client) == -ECONNRESET)
                break; /* the session ended with its broker: nobody takes this for a dead one's */
            if (cw_now_ns() >= end_ns)
                return false;
            cw_context_failure_look();
            nanosleep(&nap, NULL);
        }
        cw_stream_stop_waiting(stream);
    }
    for (struct cw_stream *next, *stream = fences->streams; stream; stream = next) {
        next = stream->next;
        if (!cw_stream_is_quiet(stream))
            continue; /* its sections' holders may still say that they end */
        for (struct cw_section *following, *at = stream->sections; at; at = following) {
            following = at->next;
            free(at->held);
            free(at);
        }
        free(stream); /* a proxy stays: the driver's, as all that belongs to a context */
    }
    fences->streams = NULL;
    cw_context_failure_forget(fences);
    return true;
}
