/*
 * Streams: see stream.h.
 */
#include "tests/fakecuda/streams/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/fakecuda/streams/late.h"

static struct fake_stream *streams;
static uint64_t last_id;

void fake_wait_changed(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 20000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&fake_changed, &fake_mutex, &until);
}

static struct fake_stream *make(fake_context *context, unsigned flags) {
    struct fake_stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        abort();
    stream->context = context;
    stream->flags = flags;
    stream->id = ++last_id;
    stream->references = 1;
    stream->next = streams;
    streams = stream;
    fake_late_watch(stream);
    return stream;
}

void fake_stream_unref(struct fake_stream *stream) {
    if (--stream->references)
        return;
    struct fake_stream **at = &streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    fake_late_forget(stream);
    free(stream);
}

static void pop(struct fake_stream *stream, struct fake_work *work) {
    struct fake_work *next = atomic_load(&work->next);
    atomic_store(&stream->current, next);
    if (!next)
        stream->last = NULL;
    stream->completed++;
    fake_work_end(work);
    free(work);
    pthread_cond_broadcast(&fake_changed);
}

static bool frozen(struct fake_stream *stream) {
    return stream->context->waiting >= fake_config.waits && !stream->dropped &&
           !stream->context->error;
}

static void *serve(void *argument) {
    struct fake_stream *stream = argument;
    pthread_mutex_lock(&fake_mutex);
    for (;;) {
        struct fake_work *work = atomic_load(&stream->current);
        if (!work && stream->ended)
            break;
        if (!work) {
            pthread_cond_wait(&fake_changed, &fake_mutex);
            continue;
        }
        while (frozen(stream))
            fake_wait_changed();
        if (!stream->dropped && !fake_context_error(stream->context)) {
            pthread_mutex_unlock(&fake_mutex);
            CUresult code = fake_work_run(stream, work);
            pthread_mutex_lock(&fake_mutex);
            if (code && !stream->dropped)
                fake_context_break(stream->context, code);
        }
        pop(stream, work);
    }
    fake_stream_unref(stream);
    pthread_mutex_unlock(&fake_mutex);
    return NULL;
}

static CUresult start(struct fake_stream *stream) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &attributes, serve, stream);
    pthread_attr_destroy(&attributes);
    if (failed)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream->running = true;
    stream->references++;
    return CUDA_SUCCESS;
}

static CUresult append(struct fake_stream *stream, struct fake_work from) {
    if (!stream->running && start(stream))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct fake_work *work = malloc(sizeof *work);
    if (!work)
        abort();
    *work = from;
    atomic_init(&work->next, NULL);
    if (stream->last)
        atomic_store(&stream->last->next, work);
    else
        atomic_store(&stream->current, work);
    stream->last = work;
    stream->submitted++;
    pthread_cond_broadcast(&fake_changed);
    return CUDA_SUCCESS;
}

/* The work that comes next in stream waits for all that before has now. */
static CUresult order(struct fake_stream *before, struct fake_stream *stream) {
    if (before->completed == before->submitted)
        return CUDA_SUCCESS;
    struct fake_work work = {.kind = FAKE_AFTER};
    work.after.stream = before;
    work.after.number = before->submitted;
    CUresult code = append(stream, work);
    if (!code)
        before->references++;
    return code;
}

static bool blocking(const struct fake_stream *stream) {
    return !(stream->flags & CU_STREAM_NON_BLOCKING);
}

static CUresult order_default(struct fake_stream *stream) {
    struct fake_stream *null = stream->context->null;
    CUresult code = CUDA_SUCCESS;
    if (stream != null)
        return null && blocking(stream) ? order(null, stream) : CUDA_SUCCESS;
    for (struct fake_stream *at = streams; at && !code; at = at->next)
        if (at != null && at->context == stream->context && blocking(at))
            code = order(at, stream);
    return code;
}

CUresult fake_stream_push(struct fake_stream *stream, struct fake_work work) {
    if (stream->capture != CU_STREAM_CAPTURE_STATUS_NONE) {
        bool words = work.kind == FAKE_WAIT || work.kind == FAKE_WRITE;
        return words ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS; /* never run */
    }
    CUresult code = order_default(stream);
    return code ? code : append(stream, work);
}

static struct fake_stream *find(CUstream handle, fake_context *context) {
    pthread_t self = pthread_self();
    if (!handle || handle == CU_STREAM_LEGACY) {
        if (!context->null)
            context->null = make(context, 0);
        return context->null;
    }
    for (struct fake_stream *at = streams; at; at = at->next) {
        if (at->ended)
            continue;
        if (handle == CU_STREAM_PER_THREAD
                ? at->per_thread && at->context == context && pthread_equal(at->owner, self)
                : (CUstream)at == handle)
            return at;
    }
    if (handle != CU_STREAM_PER_THREAD)
        return NULL;
    struct fake_stream *stream = make(context, 0);
    stream->per_thread = true;
    stream->owner = self;
    return stream;
}

struct fake_stream *fake_stream_hold(CUstream handle, fake_context *context) {
    pthread_mutex_lock(&fake_mutex);
    struct fake_stream *stream = find(handle, context);
    if (!stream)
        pthread_mutex_unlock(&fake_mutex);
    return stream;
}

CUresult fake_stream_submit(CUstream handle, fake_context *context, struct fake_work work) {
    struct fake_stream *stream = fake_stream_hold(handle, context);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult code = fake_stream_push(stream, work);
    pthread_mutex_unlock(&fake_mutex);
    return code;
}

CUresult fake_stream_wait(struct fake_stream *stream, uint64_t number) {
    stream->references++;
    while (stream->completed < number && !fake_context_error(stream->context))
        fake_wait_changed();
    CUresult code = fake_context_error(stream->context);
    fake_stream_unref(stream);
    return code;
}

void fake_stream_end_all(fake_context *context) {
    struct fake_stream *next;
    for (struct fake_stream *at = streams; at; at = next) {
        next = at->next;
        if (at->context != context || at->ended)
            continue;
        at->ended = at->dropped = true;
        fake_stream_unref(at);
    }
    context->null = NULL;
    pthread_cond_broadcast(&fake_changed);
}

static CUresult drain(fake_context *context) {
    /* Anything may change while one stream is waited for: look at all again. */
    for (struct fake_stream *at = streams; at;) {
        if (at->context == context && !at->dropped && at->completed < at->submitted) {
            CUresult code = fake_stream_wait(at, at->submitted);
            if (code)
                return code;
            at = streams;
        } else
            at = at->next;
    }
    return fake_context_error(context);
}

void fake_context_drain(fake_context *context) {
    pthread_mutex_lock(&fake_mutex);
    drain(context);
    pthread_mutex_unlock(&fake_mutex);
}

/* ---- calls
 * --------------------------------------------------------------------------------------- */

/* A wait for a context with streams that are being captured is refused, and ends the captures. */
static bool end_captures(const fake_context *context) {
    bool found = false;
    for (struct fake_stream *at = streams; at; at = at->next) {
        if (at->context != context || at->dropped || at->capture == CU_STREAM_CAPTURE_STATUS_NONE)
            continue;
        at->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        found = true;
    }
    return found;
}

CUresult cuCtxSynchronize(void) {
    CALL_IN(context, cuCtxSynchronize);
    pthread_mutex_lock(&fake_mutex);
    CUresult code = end_captures(context) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : drain(context);
    pthread_mutex_unlock(&fake_mutex);
    return code;
}

CUresult cuStreamCreate(CUstream *out, unsigned flags) {
    CALL_IN(context, cuStreamCreate);
    if (!out || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_mutex);
    *out = (CUstream)make(context, flags);
    pthread_mutex_unlock(&fake_mutex);
    return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    (void)priority;
    return cuStreamCreate(out, flags);
}

CUresult cuStreamDestroy(CUstream handle) {
    CALL_IN(context, cuStreamDestroy);
    if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    struct fake_stream *stream = fake_stream_hold(handle, context);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    stream->ended = true; /* what it has still runs */
    fake_stream_unref(stream);
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_mutex);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
    CALL_IN(context, cuStreamSynchronize);
    struct fake_stream *stream = fake_stream_hold(handle, context);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult code = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture == CU_STREAM_CAPTURE_STATUS_NONE)
        code = order_default(stream);
    if (!code)
        code = fake_stream_wait(stream, stream->submitted);
    pthread_mutex_unlock(&fake_mutex);
    return code;
}

CUresult cuStreamQuery(CUstream handle) {
    CALL_IN(context, cuStreamQuery);
    struct fake_stream *stream = fake_stream_hold(handle, context);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult code = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture == CU_STREAM_CAPTURE_STATUS_NONE)
        code = order_default(stream);
    if (!code)
        code = fake_context_error(stream->context);
    if (!code && stream->completed < stream->submitted)
        code = CUDA_ERROR_NOT_READY;
    pthread_mutex_unlock(&fake_mutex);
    return code;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *out) {
    CALL_IN(context, cuStreamGetId);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    struct fake_stream *stream = fake_stream_hold(handle, context);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    *out = stream->id;
    pthread_mutex_unlock(&fake_mutex);
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *out) {
    CALL_IN(context, cuStreamGetCtx);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    struct fake_stream *stream = fake_stream_hold(handle, context);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    *out = stream->context;
    pthread_mutex_unlock(&fake_mutex);
    return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream handle, unsigned *out) {
    CALL_IN(context, cuStreamGetFlags);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    struct fake_stream *stream = fake_stream_hold(handle, context);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    *out = stream->flags;
    pthread_mutex_unlock(&fake_mutex);
    return CUDA_SUCCESS;
}
