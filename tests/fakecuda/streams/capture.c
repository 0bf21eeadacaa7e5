/*
 * Stream capture, as far as others must notice it: a capturing stream says so, takes work without
 * doing it, and refuses to be waited for and to write or wait for words. The graph is empty.
 */
#include "tests/fakecuda/streams/stream.h"

static char graph; /* every graph is this one */

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *out) {
    CALL_IN(context, cuStreamIsCapturing);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    struct fake_stream *stream = fake_stream_hold(handle, context);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    *out = stream->capture;
    pthread_mutex_unlock(&fake_mutex);
    return CUDA_SUCCESS;
}

/* A thread's mode says which of its calls end others' captures; here none does. */
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    static __thread CUstreamCaptureMode now = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CALL(cuThreadExchangeStreamCaptureMode);
    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = now;
    now = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
    CALL_IN(context, cuStreamBeginCapture);
    (void)mode;
    if (!handle || handle == CU_STREAM_LEGACY)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct fake_stream *stream = fake_stream_hold(handle, context);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult code =
        stream->capture == CU_STREAM_CAPTURE_STATUS_NONE ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
    stream->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    pthread_mutex_unlock(&fake_mutex);
    return code;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *out) {
    CALL_IN(context, cuStreamEndCapture);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    struct fake_stream *stream = fake_stream_hold(handle, context);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult code = stream->capture == CU_STREAM_CAPTURE_STATUS_NONE ? CUDA_ERROR_ILLEGAL_STATE
                    : stream->capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED
                        ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                        : CUDA_SUCCESS;
    stream->capture = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!code)
        *out = (CUgraph)&graph;
    pthread_mutex_unlock(&fake_mutex);
    return code;
}

CUresult cuGraphDestroy(CUgraph which) {
    CALL(cuGraphDestroy);
    return which == (CUgraph)&graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
