/*
 * What a pointer is: cuPointerGetAttribute, over the ranges of memory.h.
 */
#include <string.h>

#include "tests/fakecuda/memory/memory.h"

static CUresult put(void *out, const void *value, size_t size_bytes) {
    memcpy(out, value, size_bytes);
    return CUDA_SUCCESS;
}

static CUresult put_int(void *out, unsigned value) {
    return put(out, &value, sizeof value);
}

static CUresult put_bool(void *out, bool value) {
    return put(out, &value, sizeof value);
}

/* Under the lock. */
static CUresult tell(const struct fake_range *range, CUpointer_attribute attribute,
                     CUdeviceptr address, void *out) {
    bool host = range->kind == FAKE_RANGE_HOST;
    CUcontext context =
        host || range->kind == FAKE_RANGE_MAPPED ? NULL : fake_context_of(range->piece->index);
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        return put(out, &context, sizeof context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        return put_int(out, host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        return put(out, &address, sizeof address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        return host ? put(out, &address, sizeof address) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        return put_int(out, 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return put_int(out, host ? 0 : (unsigned)fake_config_ordinal(range->piece->index));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        return put_bool(out, range->kind == FAKE_RANGE_OWN);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: {
        CUdeviceptr base = range->base;
        return put(out, &base, sizeof base);
    }
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        return put(out, &range->size_bytes, sizeof range->size_bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
        return put_bool(out, range->kind != FAKE_RANGE_MAPPED || range->readers || range->writers);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: {
        uint64_t types = !host && range->piece->exportable && range->kind == FAKE_RANGE_MAPPED
                             ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                             : 0;
        return put(out, &types, sizeof types);
    }
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: {
        unsigned long long id = host ? range->base : range->piece->id;
        return put(out, &id, sizeof id);
    }
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr address) {
    CALL(cuPointerGetAttribute);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_rdlock(&fake_ranges_lock);
    const struct fake_range *range = fake_range_find(address);
    CUresult code = range ? tell(range, attribute, address, out) : CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_unlock(&fake_ranges_lock);
    return code;
}
