/*
 * What is to be read, checked before a thread starts. Pure functions.
 */
#include "ipc/load/reads.h"

#include <errno.h>

#include "ipc/array/array.h"
#include "ipc/load/checkpoint.h"
#include "ipc/load/ring.h"
#include "shm/base/error.h"

/* All to host memory, all to one GPU, or all to nowhere; within tensors and arrays. Of one copy. */
static int check_reads(const cw_checkpoint *c, const cw_read *reads, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        const cw_read *what = &reads[i];
        if (what->tensor >= c->tensor_count)
            return cw_fail(-EINVAL, "read %u: tensor %u of %u", i, what->tensor, c->tensor_count);
        uint64_t size = c->tensors[what->tensor].size_bytes;
        if (what->skip_bytes > size || what->size_bytes > size - what->skip_bytes)
            return cw_fail(-EINVAL, "read %u goes beyond its tensor of %llu bytes", i,
                           (unsigned long long)size);
        if (!what->array != !reads->array)
            return cw_fail(-EINVAL, "read %u: either all reads have an array, or none has", i);
        if (!what->array)
            continue;
        int code = cw_array_ours(what->array);
        if (code)
            return code;
        if (what->array->evict || what->array->readonly ||
            what->offset_bytes > what->array->size_bytes ||
            what->size_bytes > what->array->size_bytes - what->offset_bytes)
            return cw_fail(-EINVAL, "read %u does not lie in its array, or cannot be written", i);
        if (cw_array_gpu(what->array) != cw_array_gpu(reads->array))
            return cw_fail(-EINVAL, "read %u: arrays of one read lie on one device", i);
    }
    return 0;
}

/* Copies are of the same, each on a GPU of its own. */
static int check_copies(const cw_read *reads, uint32_t count, uint32_t copies) {
    uint64_t gpus = 0;
    for (uint32_t copy = 0; copy < copies && count; copy++) {
        const cw_read *one = &reads[(uint64_t)copy * count];
        int gpu = one->array ? cw_array_gpu(one->array) : -1;
        if (copies > 1 && (gpu < 0 || gpus >> gpu & 1))
            return cw_fail(-EINVAL, "copies of a read lie on different GPUs");
        gpus |= gpu < 0 ? 0 : 1ull << gpu;
        for (uint32_t i = 0; i < count; i++)
            if (one[i].tensor != reads[i].tensor || one[i].skip_bytes != reads[i].skip_bytes ||
                one[i].size_bytes != reads[i].size_bytes)
                return cw_fail(-EINVAL, "copies of a read are of the same");
    }
    return 0;
}

int cw_reads_check(const cw_checkpoint *checkpoint, const cw_read *reads, uint32_t count,
                   uint32_t copies) {
    if (copies == 0 || copies > CW_RING_GPUS_MAX)
        return cw_fail(-EINVAL, "1 to %u copies can be read at once", CW_RING_GPUS_MAX);
    int code = 0;
    for (uint32_t copy = 0; copy < copies && code == 0; copy++)
        code = check_reads(checkpoint, &reads[(uint64_t)copy * count], count);
    return code ? code : check_copies(reads, count, copies);
}
