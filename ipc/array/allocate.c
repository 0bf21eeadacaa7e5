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
#include "ipc/array/array.h"
#include "ipc/array/evict.h"
#include "ipc/base/name_key.h"
#include "ipc/client.h"
#include "ipc/memory/allocator.h"
#include "ipc/memory/cow.h"
#include "ipc/memory/retry.h"
#include "ipc/memory/slab_cache.h"
#include "ipc/order/context_failure.h"

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

/* ---- new arrays ---- */

/* An array of a block that was just carved, whose lease it takes over, also on failure. */
static int make_of_block(cw_client *client, struct cw_slab *slab, uint32_t block, uint64_t gen,
                         const struct cw_shape *shape, uint32_t flags, cw_array **out) {
    pthread_mutex_lock(&client->lock);
    struct cw_extent *extent = slab->locals[block].extent;
    const struct cw_range range = {extent->offset_bytes, extent->length_bytes};
    bool own_pages = flags & CW_OWN_PAGES && shape->span_bytes;
    int code = 0;
    extent->pool = flags & CW_POOL;
    if (own_pages)
        code = cw_part_prepare(client, slab);
    if (code == 0)
        code = cw_array_make(client, slab, block, gen, &range, 0, shape->span_bytes, shape, 0, out);
    if (code == 0 && own_pages) {
        (*out)->own_begin_bytes = range.begin_bytes;
        (*out)->own_bytes = range.length_bytes;
    }
    if (code)
        cw_lease_release(client, slab, block, gen);
    pthread_mutex_unlock(&client->lock);
    return code;
}

int cw_array_new_here(cw_client *client, const cw_layout *layout, cw_array **out) {
    struct cw_shape shape;
    struct cw_slab *slab;
    uint32_t block;
    uint64_t gen;
    bool clean;
    int code = cw_client_usable(client);
    if (code)
        return code;
    code = cw_layout_resolve(layout, &shape);
    if (code)
        return code;
    code = cw_heap_take_here(client, &client->heap, shape.span_bytes, false, &slab, &block, &gen,
                             &clean);
    if (code)
        return code;
    return make_of_block(client, slab, block, gen, &shape, 0, out);
}

int cw_array_new(cw_client *client, const char *device, const cw_layout *layout, uint32_t flags,
                 cw_array **out) {
    const struct cw_backend *backend;
    int ordinal;
    struct cw_shape shape;
    if (!client || !out)
        return cw_fail(-EINVAL, "a client and a place for the array are needed, NULL was given");
    if (flags & ~(uint32_t)(CW_ZERO | CW_POOL | CW_EVICTABLE | CW_FILLED | CW_APART | CW_OWN_PAGES |
                            CW_REUSED | CW_OWN_SLAB))
        return cw_fail(-EINVAL,
                       "flags 0x%x: cw_array_new knows CW_ZERO, CW_POOL, CW_EVICTABLE, CW_FILLED, "
                       "CW_APART, CW_OWN_PAGES and CW_REUSED",
                       flags);
    int code = cw_client_usable(client);
    if (code == 0)
        code = cw_backend_find(device, &backend, &ordinal);
    if (code == 0)
        code = cw_layout_resolve(layout, &shape);
    if (code == 0 && flags & CW_EVICTABLE &&
        (flags & CW_POOL || backend->device_kind != CW_DEVICE_CUDA))
        code = cw_fail(-EINVAL, "%s",
                       flags & CW_POOL
                           ? "CW_POOL and CW_EVICTABLE exclude each other: another allocator's "
                             "pool cannot move; give one of them"
                           : "an evictable array moves to host memory when its GPU is full, so it "
                             "must lie on a GPU; choose a GPU, or drop CW_EVICTABLE");
    if (code == 0 && flags & (CW_OWN_PAGES | CW_REUSED) &&
        (backend->device_kind != CW_DEVICE_HOST || shape.span_bytes < CW_LARGE_BYTES))
        code = cw_fail(-EINVAL,
                       "CW_OWN_PAGES and CW_REUSED are for arrays of %llu bytes and more in host "
                       "memory, and this one has %llu on %s: drop them, or choose the device "
                       "\"cpu\"",
                       (unsigned long long)CW_LARGE_BYTES, (unsigned long long)shape.span_bytes,
                       device);
    if (code)
        return code;
    uint64_t size_bytes = shape.span_bytes; /* at most INT64_MAX */
    if (flags & CW_OWN_PAGES)               /* large ones begin with a page */
        size_bytes = (size_bytes + CW_PAGE - 1) / CW_PAGE * CW_PAGE;
    struct cw_heap *heap;
    struct cw_slab *slab;
    uint32_t block;
    uint64_t gen;
    bool clean;
    cw_array *array;
    code = cw_heap_of(client, backend, ordinal, &heap);
    if (code == 0)
        code = flags & CW_REUSED
                   ? cw_heap_take_here(client, heap, size_bytes, true, &slab, &block, &gen, &clean)
                   : cw_allocate(client, heap, size_bytes, flags, &slab, &block, &gen, &clean);
    if (code)
        return cw_context_failure_serve(code);
    code = make_of_block(client, slab, block, gen, &shape, flags, &array);
    if (code)
        return code;
    CW_STORE(K22, &array->fresh, clean && backend->device_kind == CW_DEVICE_HOST, relaxed);
    if (flags & CW_FILLED)
        cw_array_prefault(array);
    if (!clean && flags & CW_ZERO)
        code = cw_context_failure_serve(backend->zero(ordinal, array->bytes, array->size_bytes));
    if (code == 0 && flags & CW_EVICTABLE)
        code = cw_evict_admit(array);
    if (code)
        cw_array_close(array);
    else
        *out = array;
    return code;
}

int cw_array_make_private(cw_array *array) {
    int code = cw_array_ours(array);
    if (code == 0 && array->own_bytes == 0)
        code = cw_fail(-EINVAL, "only an array that was made with CW_OWN_PAGES can become private "
                                "where it lies: open it with CW_PRIVATE, or copy it");
    if (code || array->parted)
        return code;
    code = cw_part_begin(array->home_slab, array->own_begin_bytes, array->own_bytes, array->bytes);
    array->parted = code == 0;
    return code;
}
