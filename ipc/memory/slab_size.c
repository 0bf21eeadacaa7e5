/*
 * How large the next slab is, and how many block numbers it has.
 *
 * The first slab is small and each further one twice as large; an array larger than a quarter of
 * the next slab gets one of its own, which then serves only arrays of at least a quarter of it. One
 * that is larger than the whole next slab says little about those to come, so that the next one
 * grows only with every fourth of these: what is made is taken from the system whether used or not.
 * Where block numbers ran out before bytes did, arrays are small: a larger slab would lie empty, so
 * the next one has all the numbers, and twice the bytes that so many took.
 *
 * Owner: client->lock. No state but the heap's.
 */
#include "ipc/memory/allocator.h"
#include "ipc/memory/slab_size.h"

#define LARGE_A_STEP 4u /* arrays larger than the next slab, until that grows for their sake */

uint64_t cw_slab_granules(const struct cw_heap *heap, uint64_t size_bytes) {
    return (size_bytes + heap->granule_bytes - 1) / heap->granule_bytes * heap->granule_bytes;
}

uint64_t cw_slab_plan(struct cw_heap *heap, uint64_t size_bytes, uint32_t *capacity) {
    uint64_t next =
        heap->next_slab_bytes > heap->granule_bytes ? heap->next_slab_bytes : heap->granule_bytes;
    uint64_t crowded = 2 * heap->crowded_bytes;
    heap->crowded_bytes = 0;
    if (crowded && crowded < heap->backend->slab_min_bytes)
        crowded = heap->backend->slab_min_bytes;
    if (crowded && crowded < next && size_bytes <= crowded / 16) {
        *capacity = CW_SLAB_BLOCKS_MAX;
        return cw_slab_granules(heap, crowded);
    }
    bool grows = size_bytes <= next || ++heap->large_ones % LARGE_A_STEP == 0;
    if (grows && heap->next_slab_bytes < heap->backend->slab_max_bytes)
        heap->next_slab_bytes *= 2;
    if (size_bytes > next / 4) {
        *capacity = heap->backend->large_blocks;
        return cw_slab_granules(heap, size_bytes);
    }
    uint64_t blocks = next / heap->backend->block_bytes;
    *capacity = blocks < CW_SLAB_BLOCKS_MAX ? (uint32_t)blocks : CW_SLAB_BLOCKS_MAX;
    return next;
}
