/*
 * Green contexts: parts of a device's multiprocessors. A part is its number of multiprocessors, and
 * its streams are the primary context's: the double computes on none.
 *
 * Parts are of 8 at least, in multiples of 8, as the driver cuts devices of compute capability 9.
 */
#include <stdlib.h>

#include "tests/fakecuda/driver/context.h"

#if CUDA_VERSION >= 12050

#define LEAST 8u

struct CUdevResourceDesc_st {
    unsigned count;
};

struct CUgreenCtx_st {
    CUcontext context;
    CUdevice device;
};

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *out, CUdevResourceType type) {
    CALL(cuDeviceGetDevResource);
    int count;
    if (fake_device_index(device) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!out || type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_VALUE;
    cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    *out = (CUdevResource){.type = type};
    out->sm.smCount = (unsigned)count;
    return CUDA_SUCCESS;
}

CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned *groups,
                                     const CUdevResource *input, CUdevResource *remaining,
                                     unsigned flags, unsigned least) {
    CALL(cuDevSmResourceSplitByCount);
    if (!groups || !input || flags || input->type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned each = least < LEAST ? LEAST : (least + LEAST - 1) / LEAST * LEAST;
    unsigned most = input->sm.smCount / each;
    if (most == 0)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    if (result && *groups < most)
        most = *groups;
    *groups = most;
    for (unsigned i = 0; result && i < most; i++) {
        result[i] = *input;
        result[i].sm.smCount = each;
    }
    if (remaining) {
        *remaining = *input;
        remaining->sm.smCount = input->sm.smCount - most * each;
    }
    return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources,
                                   unsigned count) {
    CALL(cuDevResourceGenerateDesc);
    if (!out || !resources || count != 1 || resources->sm.smCount == 0)
        return CUDA_ERROR_INVALID_VALUE;
    *out = malloc(sizeof **out); /* as with the driver, nothing gives it back */
    if (!*out)
        abort();
    (*out)->count = resources->sm.smCount;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc described, CUdevice device,
                          unsigned flags) {
    CALL(cuGreenCtxCreate);
    if (!out || !described || flags != CU_GREEN_CTX_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    CUgreenCtx made = malloc(sizeof *made);
    if (!made)
        abort();
    made->device = device;
    CUresult code = cuDevicePrimaryCtxRetain(&made->context, device);
    if (code)
        free(made);
    else
        *out = made;
    return code;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    CALL(cuGreenCtxDestroy);
    if (!green)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = cuDevicePrimaryCtxRelease(green->device);
    free(green);
    return code;
}

CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx green, unsigned flags, int priority) {
    CALL(cuGreenCtxStreamCreate);
    if (!out || !green || flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = cuCtxPushCurrent(green->context);
    if (code)
        return code;
    code = cuStreamCreateWithPriority(out, flags, priority);
    CUcontext popped;
    cuCtxPopCurrent(&popped);
    return code;
}

#endif
