/*
 * The CUDA driver for tests in C: the real one, or the test double where CABLEWAY_TEST_GPU is not
 * 1. Opened by each process for itself, after its fork: the driver does not survive one.
 */
#ifndef CW_TESTS_GPU_CUDA_H
#define CW_TESTS_GPU_CUDA_H

#include <cuda.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#define TEST_CUDA_CALLS                                                                            \
    X(cuInit)                                                                                      \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuCtxPushCurrent)                                                                            \
    X(cuModuleLoadData)                                                                            \
    X(cuModuleGetFunction)                                                                         \
    X(cuLaunchKernel)                                                                              \
    X(cuStreamCreate)                                                                              \
    X(cuStreamQuery)                                                                               \
    X(cuMemAlloc)                                                                                  \
    X(cuMemGetInfo)                                                                                \
    X(cuMemcpyDtoHAsync)                                                                           \
    X(cuMemcpyDtoDAsync)                                                                           \
    X(cuMemsetD32Async)                                                                            \
    X(cuMemHostAlloc)                                                                              \
    X(cuMemHostRegister)                                                                           \
    X(cuMemHostGetDevicePointer)                                                                   \
    X(cuStreamWriteValue64)                                                                        \
    X(cuStreamWaitValue64)                                                                         \
    X(cuGetErrorName)

struct test_cuda {
#define X(name) __typeof__(&name) name;
    TEST_CUDA_CALLS
#undef X
    CUfunction fill, add, spin;
    int64_t init_us, context_us, kernels_us; /* what the parts of test_cuda_start() took */
};
extern struct test_cuda cuda;

/* Names the driver and, for the double, a folder for its card; before any process is forked.
 * program: argv[0], beside which the build lies. */
void test_cuda_choose(const char *program, const char *folder);
bool test_cuda_is_real(void);
/* Opens the driver, makes device 0 current and loads the kernels, each launched once: a first
 * launch would block behind a stream that waits. */
void test_cuda_start(void);
CUstream test_stream(void);
/* Ends the process with a sentence. */
void test_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
#define CU(call)                                                                                   \
    do {                                                                                           \
        CUresult cu_result = cuda.call;                                                            \
        const char *cu_name = "?";                                                                 \
        if (cu_result != CUDA_SUCCESS) {                                                           \
            cuda.cuGetErrorName(cu_result, &cu_name);                                              \
            test_fail("%s:%d: %s: %s", __FILE__, __LINE__, #call, cu_name);                        \
        }                                                                                          \
    } while (0)
/* Waits until a stream has done its work; more than 60 s is a hang. */
void test_finish(CUstream stream);
/* Kernels of kernels.h. */
void test_fill(CUstream stream, CUdeviceptr at, uint64_t words, uint32_t value);
void test_add(CUstream stream, CUdeviceptr out, CUdeviceptr a, CUdeviceptr b, uint64_t words);
/* Until the word is 2. */
void test_spin(CUstream stream, CUdeviceptr flag);

#endif
