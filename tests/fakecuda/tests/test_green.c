/*
 * The promises of the test double about green contexts: how a device is cut, and that a part's
 * stream works.
 */
#include "tests/fakecuda/scene.h"

#if CUDA_VERSION >= 12050

static void in_parts(int fd) {
    (void)fd;
    CUdevResource whole, parts[64], rest;
    unsigned count = 64;
    OK(cuInit(0));
    OK(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(whole.sm.smCount == 132);
    OK(cuDevSmResourceSplitByCount(parts, &count, &whole, &rest, 0, 20));
    CHECK(count == 5 && parts[0].sm.smCount == 24 && parts[4].sm.smCount == 24);
    CHECK(rest.sm.smCount == 132 - 5 * 24);
    count = 2;
    OK(cuDevSmResourceSplitByCount(parts, &count, &whole, NULL, 0, 1));
    CHECK(count == 2 && parts[1].sm.smCount == 8);
    CUDA(cuDevSmResourceSplitByCount(parts, &count, &whole, NULL, 0, 133),
         CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    CUDA(cuDeviceGetDevResource(7, &whole, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_DEVICE);
}

static void with_a_stream(int fd) {
    (void)fd;
    CUdevResource whole, part;
    CUdevResourceDesc described;
    CUgreenCtx green;
    CUcontext primary;
    CUstream stream;
    CUdeviceptr memory;
    unsigned count = 1;
    unsigned char byte = 0;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxPushCurrent(primary));
    OK(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevSmResourceSplitByCount(&part, &count, &whole, NULL, 0, 16));
    OK(cuDevResourceGenerateDesc(&described, &part, 1));
    CUDA(cuGreenCtxCreate(&green, described, 0, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuGreenCtxCreate(&green, described, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    CUDA(cuGreenCtxStreamCreate(&stream, green, 0, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    OK(cuMemAlloc(&memory, 1000));
    OK(cuMemsetD8Async(memory, 7, 1000, stream));
    OK(cuMemcpyDtoHAsync(&byte, memory + 999, 1, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(byte == 7);
    OK(cuGreenCtxDestroy(green));
}

static void a_device_is_cut_into_equal_parts(void **state) {
    (void)state;
    scene_play("", in_parts);
}

static void a_parts_stream_is_one_of_its_devices(void **state) {
    (void)state;
    scene_play("", with_a_stream);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCENE(a_device_is_cut_into_equal_parts),
        SCENE(a_parts_stream_is_one_of_its_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void) {
    return 0;
}

#endif
