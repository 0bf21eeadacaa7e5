/*
 * Allocation: see allocate.h.
 *
 * A GPU is full more often than host memory is, and much of what fills it may be on its way back.
 * So before an allocation there fails the broker is asked, as long as that brings anything; then
 * evictable arrays leave, one at a time; then what others and streams still use is waited for. For
 * an array that could never fit nobody leaves. In host memory the plain allocator does all.
 */
#include <stdio.h>

#include "ipc/array/allocate.h"
#include "ipc/array/evict.h"
#include "ipc/base/name_key.h"
#include "ipc/client.h"
#include "ipc/memory/allocator.h"
#include "ipc/memory/retry.h"
#include "ipc/memory/slab_cache.h"

#define ASKS_MAX    8u
#define APART_BYTES (1u << 16) /* smaller ones get no slab of their own, unless CW_OWN_SLAB */

struct search { /* for room on a full GPU; zeros at first */
    uint32_t asked;
    int64_t until_ns, closed_until_ns; /* of its waits */
};

/* One step of it. 1: there may be room now. Else why there is none: the sentence that stands, or
 * what came between. */
static int find_room(cw_client *client, struct cw_heap *heap, uint64_t size_bytes,
                     struct search *search) {
    char sentence[CW_DETAIL_MAX];
    snprintf(sentence, sizeof sentence, "%s", cw_detail());
    bool in_vain = cw_evict_in_vain(client, heap, size_bytes);
    int found = 0;
    if (!in_vain && search->asked < ASKS_MAX) {
        found = cw_retry_ask(client, heap);
        search->asked = found ? search->asked + 1 : ASKS_MAX; /* as long as it brings anything */
    }
    if (found)
        return found;
    if (!in_vain) {
        int code = cw_evict_one(client, heap);
        if (code != -ENOENT)
            return code ? code : 1;
        found = cw_retry_wait(client, heap, &search->until_ns);
        if (!found)
            found = cw_slab_cache_nap(client, &search->closed_until_ns);
    }
    return found ? found : cw_retry_failed(heap, search->until_ns, sentence);
}

int cw_allocate(cw_client *client, struct cw_heap *heap, uint64_t size_bytes, uint32_t flags,
                struct cw_slab **slab, uint32_t *block, uint64_t *gen, bool *clean) {
    bool large = size_bytes >= APART_BYTES && size_bytes >= heap->granule_bytes / 2;
    struct cw_allocation allocation = {.apart = flags & CW_OWN_SLAB || (flags & CW_APART && large)};
    struct search search = {.asked = 0};
    for (;;) {
        int code = cw_heap_take(client, heap, size_bytes, &allocation, slab, block, gen, clean);
        if (!allocation.refused || heap->backend->device_kind != CW_DEVICE_CUDA)
            return code;
        code = find_room(client, heap, size_bytes, &search);
        if (code < 0)
            return code;
    }
}
