/*
 * Events: see event.h. A wait is for the recording that was the last when it was submitted.
 */
#include "tests/fakecuda/streams/event.h"

#include <stdlib.h>

#include "tests/fakecuda/streams/stream.h"

static CUevent events;

void fake_event_unref(CUevent event) {
    if (--event->references)
        return;
    CUevent *at = &events;
    while (*at != event)
        at = &(*at)->next;
    *at = event->next;
    free(event);
}

/* Under fake_mutex. */
static bool known(CUevent event) {
    for (CUevent at = events; at; at = at->next)
        if (at == event)
            return !at->destroyed;
    return false;
}

CUresult cuEventCreate(CUevent *out, unsigned flags) {
    CALL_IN(context, cuEventCreate);
    const unsigned all = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (!out || (flags & ~all))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_EVENT_INTERPROCESS)
        return CUDA_ERROR_NOT_SUPPORTED; /* the attribute says so too */
    CUevent event = calloc(1, sizeof *event);
    if (!event)
        abort();
    event->context = context;
    event->flags = flags;
    event->references = 1;
    pthread_mutex_lock(&fake_mutex);
    event->next = events;
    events = event;
    pthread_mutex_unlock(&fake_mutex);
    *out = event;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
    CALL(cuEventDestroy);
    pthread_mutex_lock(&fake_mutex);
    bool good = known(event);
    if (good) {
        event->destroyed = true;
        fake_event_unref(event);
    }
    pthread_mutex_unlock(&fake_mutex);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
    CALL_IN(context, cuEventRecord);
    struct fake_stream *stream = fake_stream_hold(handle, context);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult code = CUDA_ERROR_INVALID_HANDLE;
    if (known(event) && event->context == stream->context) {
        struct fake_work work = {.kind = FAKE_RECORD};
        work.event.event = event;
        work.event.number = event->recorded + 1;
        code = fake_stream_push(stream, work);
        if (!code && stream->capture == CU_STREAM_CAPTURE_STATUS_NONE) {
            event->recorded++;
            event->references++;
        }
    }
    pthread_mutex_unlock(&fake_mutex);
    return code;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
    CALL_IN(context, cuStreamWaitEvent);
    (void)flags;
    struct fake_stream *stream = fake_stream_hold(handle, context);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult code = known(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    if (!code && event->done < event->recorded) {
        struct fake_work work = {.kind = FAKE_EVENT};
        work.event.event = event;
        work.event.number = event->recorded;
        code = fake_stream_push(stream, work);
        if (!code && stream->capture == CU_STREAM_CAPTURE_STATUS_NONE)
            event->references++;
    }
    pthread_mutex_unlock(&fake_mutex);
    return code;
}

CUresult cuEventQuery(CUevent event) {
    CALL(cuEventQuery);
    pthread_mutex_lock(&fake_mutex);
    CUresult code = CUDA_ERROR_INVALID_HANDLE;
    if (known(event))
        code = fake_context_error(event->context);
    if (!code && event->done < event->recorded)
        code = CUDA_ERROR_NOT_READY;
    pthread_mutex_unlock(&fake_mutex);
    return code;
}

CUresult cuEventSynchronize(CUevent event) {
    CALL(cuEventSynchronize);
    pthread_mutex_lock(&fake_mutex);
    CUresult code = CUDA_ERROR_INVALID_HANDLE;
    if (known(event)) {
        uint64_t number = event->recorded;
        event->references++;
        while (event->done < number && !fake_context_error(event->context))
            fake_wait_changed();
        code = fake_context_error(event->context);
        fake_event_unref(event);
    }
    pthread_mutex_unlock(&fake_mutex);
    return code;
}

CUresult cuEventElapsedTime(float *out_ms, CUevent from, CUevent to) {
    CALL(cuEventElapsedTime);
    if (!out_ms)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_mutex);
    CUresult code = CUDA_SUCCESS;
    if (!known(from) || !known(to) || ((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING) ||
        !from->recorded || !to->recorded)
        code = CUDA_ERROR_INVALID_HANDLE;
    else if (from->done < from->recorded || to->done < to->recorded)
        code = CUDA_ERROR_NOT_READY;
    else
        *out_ms = (float)(int64_t)(to->done_ns - from->done_ns) / 1e6f;
    pthread_mutex_unlock(&fake_mutex);
    return code;
}
