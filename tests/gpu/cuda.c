/*
 * The CUDA driver for tests in C: see cuda.h.
 */
#include "tests/gpu/cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/fakecuda/streams/kernels.h"
#include "tests/support.h"

#define HANG_NS       60000000000
#define SPELL(name)   SPELLED(name)
#define SPELLED(name) #name

struct test_cuda cuda;

void test_fail(const char *format, ...) {
    va_list arguments;
    char text[600];
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "pid %d: %s\n", (int)getpid(), text);
    _exit(1);
}

bool test_cuda_is_real(void) {
    const char *text = getenv("CABLEWAY_TEST_GPU");
    return text && strcmp(text, "1") == 0;
}

void test_cuda_choose(const char *program, const char *folder) {
    char path[4096], build[4096];
    if (!realpath(program, build))
        test_fail("%s: %m", program);
    for (int up = 0; up < 3; up++) /* BUILD/tests/gpu/PROGRAM */
        *strrchr(build, '/') = 0;
    snprintf(path, sizeof path, "%.4000s/cablewayd", build);
    setenv("CABLEWAY_BROKER", path, 0);
    if (test_cuda_is_real())
        return;
    snprintf(path, sizeof path, "%.4000s/tests/fakecuda/libcuda-double.so", build);
    setenv("CABLEWAY_CUDA_DRIVER", path, 1);
    setenv("CABLEWAY_FAKECUDA_DIR", folder, 1);
}

static int64_t since_us(int64_t *began_ns) {
    int64_t now_ns = test_now_ns(), us = (now_ns - *began_ns) / 1000;
    *began_ns = now_ns;
    return us;
}

void test_cuda_start(void) {
    const char *path = getenv("CABLEWAY_CUDA_DRIVER");
    CUcontext context;
    CUmodule module;
    CUdeviceptr words;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW);
    if (!library)
        test_fail("no CUDA driver: %s", dlerror());
#define X(name)                                                                                    \
    if (!(*(void **)&cuda.name = dlsym(library, SPELL(name))))                                     \
        test_fail("the driver has no %s", SPELL(name));
    TEST_CUDA_CALLS
#undef X
    int64_t began_ns = test_now_ns();
    CU(cuInit(0));
    cuda.init_us = since_us(&began_ns);
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxPushCurrent(context));
    cuda.context_us = since_us(&began_ns);
    CU(cuModuleLoadData(&module, kernels_ptx));
    CU(cuModuleGetFunction(&cuda.fill, module, "fill"));
    CU(cuModuleGetFunction(&cuda.add, module, "add"));
    CU(cuModuleGetFunction(&cuda.spin, module, "spin"));
    CU(cuMemAlloc(&words, 4096));
    CUstream stream = test_stream();
    test_fill(stream, words, 1024, 1);
    test_add(stream, words, words, words, 1024);
    test_spin(stream, words);
    test_finish(stream);
    cuda.kernels_us = since_us(&began_ns);
}

CUstream test_stream(void) {
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

void test_finish(CUstream stream) {
    int64_t end_ns = test_now_ns() + HANG_NS;
    CUresult result;
    while ((result = cuda.cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) {
        if (test_now_ns() > end_ns)
            test_fail("a stream hangs");
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    CU(cuStreamQuery(stream));
}

void test_fill(CUstream stream, CUdeviceptr at, uint64_t words, uint32_t value) {
    void *arguments[] = {&at, &words, &value};
    CU(cuLaunchKernel(cuda.fill, 32, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
}

void test_add(CUstream stream, CUdeviceptr out, CUdeviceptr a, CUdeviceptr b, uint64_t words) {
    void *arguments[] = {&out, &a, &b, &words};
    CU(cuLaunchKernel(cuda.add, 32, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
}

void test_spin(CUstream stream, CUdeviceptr flag) {
    uint32_t value = 2;
    void *arguments[] = {&flag, &value};
    CU(cuLaunchKernel(cuda.spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}
