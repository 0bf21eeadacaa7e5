/*
 * Fuzzes the metadata of a named array, which one process writes and every other reads: whatever
 * the bytes say, they are refused, or they describe a layout within its block, which encodes to the
 * same bytes again.
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/base/meta.h"
#include "shm/base/error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct cw_shape shape;
    static uint8_t again[CW_META_BYTES_MAX];
    uint64_t size_bytes;
    if (size < sizeof size_bytes)
        return 0;
    memcpy(&size_bytes, data, sizeof size_bytes);
    data += sizeof size_bytes;
    size -= sizeof size_bytes;
    uint8_t *exact = malloc(size ? size : 1); /* so that a byte beyond is noticed */
    CW_ASSERT(exact);
    memcpy(exact, data, size);
    if (size <= UINT32_MAX && cw_meta_decode(exact, (uint32_t)size, size_bytes, &shape) == 0) {
        CW_ASSERT(shape.ndim <= CW_NDIM_MAX && shape.dtype_bytes <= CW_DTYPE_MAX);
        CW_ASSERT(strlen(shape.dtype) == shape.dtype_bytes);
        CW_ASSERT(shape.span_bytes <= size_bytes);
        CW_ASSERT(shape.origin_bytes <= shape.span_bytes);
        CW_ASSERT(cw_meta_encode(&shape, again) == size && memcmp(again, exact, size) == 0);
    }
    free(exact);
    return 0;
}
