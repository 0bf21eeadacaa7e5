/*
 * Devices: what the driver says about them. No state but the configuration and the card.
 */
#include <stdio.h>
#include <string.h>

#include "tests/fakecuda/driver/card.h"
#include "tests/fakecuda/driver/context.h"

CUresult cuDriverGetVersion(int *out) {
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    /* Before cuInit the environment may not have been read. */
    CUresult code = fake_config.driver ? CUDA_SUCCESS : fake_config_load();
    *out = fake_config.driver;
    return code;
}

CUresult cuDeviceGetCount(int *out) {
    CALL(cuDeviceGetCount);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = fake_config.visible_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *out, int ordinal) {
    CALL(cuDeviceGet);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (fake_device_index(ordinal) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    *out = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int size_bytes, CUdevice device) {
    CALL(cuDeviceGetName);
    if (fake_device_index(device) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!name || size_bytes < 1)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)size_bytes, "Test double%s", fake_config.mig ? " MIG 1g.1gb" : "");
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *out, CUdevice device) {
    CALL(cuDeviceGetUuid);
    int index = fake_device_index(device);
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = fake_config.uuid[index];
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *text, int size_bytes, CUdevice device) {
    CALL(cuDeviceGetPCIBusId);
    int index = fake_device_index(device);
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!text || size_bytes < 13)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(text, (size_t)size_bytes, "0000:%02x:00.0", 0x10 + index);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *out, CUdevice device) {
    CALL(cuDeviceTotalMem);
    if (fake_device_index(device) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = fake_config.memory_bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    CALL_IN(context, cuMemGetInfo);
    if (!free_bytes || !total_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *total_bytes = fake_config.memory_bytes;
    *free_bytes = fake_config.memory_bytes - fake_card_used_bytes(context->index);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *out, CUdevice_attribute attribute, CUdevice device) {
    CALL(cuDeviceGetAttribute);
    int index = fake_device_index(device);
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!out || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        *out = fake_config.fd_export;
        break;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
        *out = fake_config.wait64;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
        *out = fake_config.mode;
        break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
        *out = 1;
        break;
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
        *out = 0;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *out = 9;
        break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        *out = 3;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *out = 0x10 + index;
        break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *out = fake_config.mig ? 16 : 132;
        break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        *out = 32;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *out = 1024;
        break;
    default:
        *out = 0;
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *out, CUdevice device, CUdevice peer) {
    CALL(cuDeviceCanAccessPeer);
    int a = fake_device_index(device), b = fake_device_index(peer);
    if (a < 0 || b < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = a != b && fake_config.peer[a][b];
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *out, CUdevice_P2PAttribute attribute, CUdevice device,
                                 CUdevice peer) {
    CALL(cuDeviceGetP2PAttribute);
    int a = fake_device_index(device), b = fake_device_index(peer);
    if (a < 0 || b < 0 || a == b)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
        *out = 0;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
        *out = fake_config.peer[a][b];
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}
