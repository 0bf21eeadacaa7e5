/*
 * The calls of the CUDA driver that cableway uses, as an X-macro: CW_CUDA_CALL(NAME) for each.
 *
 * NAME is cuda.h's; include cuda.h first. Its macros turn the names of calls that have versions
 * into the versioned symbol (cuMemAlloc into cuMemAlloc_v2), both where a symbol is looked up and
 * where a table of pointers has its fields, so the list has the version that the build's header
 * describes. The order of the list means nothing. The test double (tests/fakecuda) includes the
 * same list and fails to build when it lacks one.
 *
 * Every call here exists since CUDA 12.0 with these versions of its symbols, or earlier.
 */
#ifndef CW_IPC_CUDA_CALLS_H
#define CW_IPC_CUDA_CALLS_H

#define CW_CUDA_CALLS                                                                              \
    /* the driver and its devices */                                                               \
    CW_CUDA_CALL(cuInit)                                                                           \
    CW_CUDA_CALL(cuDriverGetVersion)                                                               \
    CW_CUDA_CALL(cuGetErrorName)                                                                   \
    CW_CUDA_CALL(cuGetErrorString)                                                                 \
    CW_CUDA_CALL(cuDeviceGetCount)                                                                 \
    CW_CUDA_CALL(cuDeviceGet)                                                                      \
    CW_CUDA_CALL(cuDeviceGetName)                                                                  \
    CW_CUDA_CALL(cuDeviceGetUuid)                                                                  \
    CW_CUDA_CALL(cuDeviceGetPCIBusId)                                                              \
    CW_CUDA_CALL(cuDeviceTotalMem)                                                                 \
    CW_CUDA_CALL(cuDeviceGetAttribute)                                                             \
    CW_CUDA_CALL(cuDeviceCanAccessPeer)                                                            \
    CW_CUDA_CALL(cuDeviceGetP2PAttribute)                                                          \
    /* contexts */                                                                                 \
    CW_CUDA_CALL(cuDevicePrimaryCtxRetain)                                                         \
    CW_CUDA_CALL(cuDevicePrimaryCtxRelease)                                                        \
    CW_CUDA_CALL(cuDevicePrimaryCtxGetState)                                                       \
    CW_CUDA_CALL(cuCtxPushCurrent)                                                                 \
    CW_CUDA_CALL(cuCtxPopCurrent)                                                                  \
    CW_CUDA_CALL(cuCtxGetCurrent)                                                                  \
    CW_CUDA_CALL(cuCtxGetDevice)                                                                   \
    CW_CUDA_CALL(cuCtxSynchronize)                                                                 \
    /* memory as descriptors */                                                                    \
    CW_CUDA_CALL(cuMemGetInfo)                                                                     \
    CW_CUDA_CALL(cuMemGetAllocationGranularity)                                                    \
    CW_CUDA_CALL(cuMemCreate)                                                                      \
    CW_CUDA_CALL(cuMemRelease)                                                                     \
    CW_CUDA_CALL(cuMemExportToShareableHandle)                                                     \
    CW_CUDA_CALL(cuMemImportFromShareableHandle)                                                   \
    CW_CUDA_CALL(cuMemGetAllocationPropertiesFromHandle)                                           \
    CW_CUDA_CALL(cuMemAddressReserve)                                                              \
    CW_CUDA_CALL(cuMemAddressFree)                                                                 \
    CW_CUDA_CALL(cuMemMap)                                                                         \
    CW_CUDA_CALL(cuMemUnmap)                                                                       \
    CW_CUDA_CALL(cuMemSetAccess)                                                                   \
    /* copies */                                                                                   \
    CW_CUDA_CALL(cuMemcpyHtoDAsync)                                                                \
    CW_CUDA_CALL(cuMemcpyDtoHAsync)                                                                \
    CW_CUDA_CALL(cuMemcpyDtoDAsync)                                                                \
    CW_CUDA_CALL(cuMemcpy2DAsync)                                                                  \
    CW_CUDA_CALL(cuMemsetD8Async)                                                                  \
    /* host memory that GPUs reach */                                                              \
    CW_CUDA_CALL(cuMemHostRegister)                                                                \
    CW_CUDA_CALL(cuMemHostUnregister)                                                              \
    CW_CUDA_CALL(cuMemHostGetDevicePointer)                                                        \
    /* streams and events */                                                                       \
    CW_CUDA_CALL(cuStreamCreate)                                                                   \
    CW_CUDA_CALL(cuStreamDestroy)                                                                  \
    CW_CUDA_CALL(cuStreamSynchronize)                                                              \
    CW_CUDA_CALL(cuStreamQuery)                                                                    \
    CW_CUDA_CALL(cuStreamGetId)                                                                    \
    CW_CUDA_CALL(cuStreamGetCtx)                                                                   \
    CW_CUDA_CALL(cuStreamIsCapturing)                                                              \
    CW_CUDA_CALL(cuThreadExchangeStreamCaptureMode)                                                \
    CW_CUDA_CALL(cuStreamWaitEvent)                                                                \
    CW_CUDA_CALL(cuStreamWriteValue64)                                                             \
    CW_CUDA_CALL(cuStreamWaitValue64)                                                              \
    CW_CUDA_CALL(cuStreamBatchMemOp)                                                               \
    CW_CUDA_CALL(cuEventCreate)                                                                    \
    CW_CUDA_CALL(cuEventDestroy)                                                                   \
    CW_CUDA_CALL(cuEventRecord)                                                                    \
    CW_CUDA_CALL(cuEventQuery)                                                                     \
    CW_CUDA_CALL(cuEventSynchronize)                                                               \
    CW_CUDA_CALL(cuLaunchHostFunc)                                                                 \
    /* kernels */                                                                                  \
    CW_CUDA_CALL(cuModuleLoadData)                                                                 \
    CW_CUDA_CALL(cuModuleUnload)                                                                   \
    CW_CUDA_CALL(cuModuleGetFunction)                                                              \
    CW_CUDA_CALL(cuLaunchKernel)                                                                   \
    /* memory of other libraries */                                                                \
    CW_CUDA_CALL(cuPointerGetAttribute)                                                            \
    CW_CUDA_CALL(cuMemGetAddressRange)                                                             \
    CW_CUDA_CALL(cuMemAlloc)                                                                       \
    CW_CUDA_CALL(cuMemFree)                                                                        \
    CW_CUDA_CALL(cuIpcGetMemHandle)                                                                \
    CW_CUDA_CALL(cuIpcOpenMemHandle)                                                               \
    CW_CUDA_CALL(cuIpcCloseMemHandle)

/* Calls that drivers later than 12.0 have: NULL in the table where this one has not. */
#if CUDA_VERSION >= 13000
#define CW_CUDA_CALLS_LATER CW_CUDA_CALL(cuMemcpyBatchAsync)
#endif

#endif
