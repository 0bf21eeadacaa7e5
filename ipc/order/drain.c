/*
 * Draining GPUs: see drain.h. Contexts other than a GPU's primary one are their owner's to drain.
 *
 * No state.
 */
#include "ipc/order/drain.h"

#include "ipc/client.h"
#include "ipc/cuda/backend.h"
#include "ipc/order/fence.h"
#include "ipc/order/stream.h"

static int captured(void) {
    return cw_fail(-EINVAL, "a CUDA stream of this process is being captured: exchange a tree's "
                            "memory before the capture or after it, and replay the graph then");
}

/* Asked so, the driver does not end the capture. */
static bool captures(const struct cw_gpu *gpu, CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = gpu->cuda->cuStreamIsCapturing(stream, &status);
    return result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
           (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* The default stream says of all streams that wait for it. */
static bool one_captures(cw_client *client, const struct cw_gpu *gpu, void *stream) {
    bool found = captures(gpu, NULL) || (stream && captures(gpu, stream));
    pthread_mutex_lock(&client->lock);
    struct cw_fences *fences = client->fences; /* once made it stays */
    pthread_mutex_unlock(&client->lock);
    if (!fences || found)
        return found;
    pthread_mutex_lock(&fences->lock);
    for (struct cw_stream *at = fences->streams; at && !found; at = at->next)
        found = at->gpu == gpu && captures(gpu, at->handle);
    pthread_mutex_unlock(&fences->lock);
    return found;
}

int cw_drain(cw_client *client, uint64_t gpus, void *stream) {
    for (int i = 0; i < CW_GPUS_MAX; i++) {
        struct cw_gpu *gpu;
        if (!(gpus >> i & 1) || cw_gpu_get(i, &gpu) != 0 || cw_gpu_enter(gpu) != 0)
            continue; /* a context that is broken has no work */
        bool found = one_captures(client, gpu, stream);
        cw_gpu_leave(gpu);
        if (found)
            return captured();
    }
    return cw_cuda_drain(gpus) ? 0 : captured();
}
