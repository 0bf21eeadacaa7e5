/*
 * Host functions in a stream. They run on the stream's thread and may not call the driver, as on
 * the real one; here such a call would wait for nobody but itself.
 */
#include "tests/fakecuda/streams/stream.h"

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
    CALL_IN(context, cuLaunchHostFunc);
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    struct fake_work work = {.kind = FAKE_HOST};
    work.host.function = function;
    work.host.data = data;
    return fake_stream_submit(stream, context, work);
}
