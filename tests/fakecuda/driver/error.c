/*
 * Errors of CUDA: names and texts of those that this test double or a fault can give.
 */
#include "tests/fakecuda/driver/error.h"

#include <string.h>

#define ERRORS(X)                                                                                  \
    X(CUDA_SUCCESS, "no error")                                                                    \
    X(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                                \
    X(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                   \
    X(CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                          \
    X(CUDA_ERROR_DEINITIALIZED, "driver shutting down")                                            \
    X(CUDA_ERROR_DEVICE_UNAVAILABLE, "device(s) is/are busy or unavailable")                       \
    X(CUDA_ERROR_NO_DEVICE, "no device is detected")                                               \
    X(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                         \
    X(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid")                                  \
    X(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                        \
    X(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed")                                    \
    X(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped")                                        \
    X(CUDA_ERROR_NOT_MAPPED, "resource not mapped")                                                \
    X(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered")                         \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,                                                          \
      "peer access is not supported between these two devices")                                    \
    X(CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error detected")                      \
    X(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS")         \
    X(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                        \
    X(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state")          \
    X(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                              \
    X(CUDA_ERROR_NOT_READY, "device not ready")                                                    \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                      \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch")               \
    X(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated")                        \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled")                    \
    X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled")                      \
    X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process")      \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")                                     \
    X(CUDA_ERROR_ASSERT, "device-side assert triggered")                                           \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,                                                   \
      "part or all of the requested memory range is already mapped")                               \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,                                                       \
      "pointer does not correspond to a registered memory region")                                 \
    X(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error")                                     \
    X(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered")                    \
    X(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address")                                         \
    X(CUDA_ERROR_INVALID_ADDRESS_SPACE, "operation not supported on this address space")           \
    X(CUDA_ERROR_INVALID_PC, "invalid program counter")                                            \
    X(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")                                      \
    X(CUDA_ERROR_NOT_PERMITTED, "operation not permitted")                                         \
    X(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                         \
    X(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized")                                   \
    X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,                                                           \
      "system has unsupported display driver / cuda driver combination")                           \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")   \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,                                                       \
      "operation failed due to a previous error during capture")                                   \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,                                                          \
      "operation would make the legacy stream depend on a capturing blocking stream")              \
    X(CUDA_ERROR_TIMEOUT, "wait operation timed out")                                              \
    X(CUDA_ERROR_UNKNOWN, "unknown error")

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
#define ENTRY(code, text) {code, #code, text},
    ERRORS(ENTRY)
#undef ENTRY
};

#define COUNT (sizeof errors / sizeof *errors)

CUresult fake_error_find(const char *name) {
    for (size_t i = 0; i < COUNT; i++)
        if (strcmp(errors[i].name, name) == 0)
            return errors[i].code;
    return CUDA_SUCCESS;
}

bool fake_error_sticky(CUresult code) {
    switch (code) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_UNKNOWN:
        return true;
    default:
        return false;
    }
}

CUresult cuGetErrorName(CUresult code, const char **name) {
    for (size_t i = 0; name && i < COUNT; i++)
        if (errors[i].code == code) {
            *name = errors[i].name;
            return CUDA_SUCCESS;
        }
    if (name)
        *name = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult code, const char **text) {
    for (size_t i = 0; text && i < COUNT; i++)
        if (errors[i].code == code) {
            *text = errors[i].text;
            return CUDA_SUCCESS;
        }
    if (text)
        *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}
