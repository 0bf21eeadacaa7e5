/*
 * The hash of what lies in an array: the sum of its bytes (ipc/base/sum.h), in host memory in
 * place, else by pieces that are copied out. No state; any thread.
 */
#include "ipc/tree/content.h"

#include <errno.h>
#include <stdlib.h>

#include "ipc/base/sum.h"
#include "shm/base/error.h"
#include "ipc/array/array.h"

#define PIECE_BYTES (8ull << 20) /* whole pieces of the sum */

int cw_bytes_hash(const void *bytes, uint64_t size_bytes, uint64_t *hash) {
    *hash = cw_sum(bytes, size_bytes, 0);
    return 0;
}

static int hash_pieces(const cw_array *array, uint64_t offset_bytes, uint64_t size_bytes,
                       uint64_t *hash) {
    void *piece = malloc(size_bytes < PIECE_BYTES ? size_bytes + 1 : PIECE_BYTES);
    uint64_t total = size_bytes ? 0 : cw_sum(NULL, 0, 0);
    int code = piece ? 0 : cw_fail(-EDQUOT, "no memory to hash an array on a GPU");
    for (uint64_t at = 0, some; at < size_bytes && code == 0; at += some) {
        some = size_bytes - at < PIECE_BYTES ? size_bytes - at : PIECE_BYTES;
        code = cw_array_read(array, offset_bytes + at, piece, some);
        if (code == 0)
            total += cw_sum(piece, some, at / CW_SUM_PIECE);
    }
    free(piece);
    if (code == 0)
        *hash = total;
    return code;
}

int cw_array_hash(const cw_array *array, uint64_t offset_bytes, uint64_t size_bytes,
                  uint64_t *hash) {
    if (!array || !hash)
        return cw_needs("an array and a place for the hash");
    if (offset_bytes > array->size_bytes || size_bytes > array->size_bytes - offset_bytes)
        return cw_fail(-EINVAL, "%llu bytes at %llu do not lie in an array of %llu",
                       (unsigned long long)size_bytes, (unsigned long long)offset_bytes,
                       (unsigned long long)array->size_bytes);
    if (cw_array_gpu(array) < 0 && array->bytes) {
        cw_array *pinned = (cw_array *)(uintptr_t)array;
        int code = cw_array_pin(pinned);
        if (code)
            return code;
        code = cw_bytes_hash(array->bytes + offset_bytes, size_bytes, hash);
        cw_array_unpin(pinned);
        return code;
    }
    return hash_pieces(array, offset_bytes, size_bytes, hash);
}
