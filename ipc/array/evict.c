/*
 * Evictable arrays: see evict.h.
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/array/allocate.h"
#include "ipc/array/array.h"
#include "ipc/array/copy_bytes.h"
#include "ipc/array/evict.h"
#include "ipc/client.h"
#include "ipc/memory/allocator.h"
#include "ipc/memory/lease.h"
#include "ipc/memory/slab.h"
#include "ipc/order/context_failure.h"
#include "ipc/order/fence.h"
#include "ipc/order/unpinned.h"

int cw_evict_admit(cw_array *array) {
    cw_client *client = array->client;
    struct cw_evictable *made = calloc(1, sizeof *made);
    if (!made)
        return cw_fail(-EDQUOT, "no memory to keep track of an evictable array");
    made->array = array;
    made->location.gpu = array->slab->device;
    memcpy(made->location.name, array->slab->device_name, sizeof made->location.name);
    memcpy(made->location.uuid, array->slab->device_uuid, sizeof made->location.uuid);
    pthread_mutex_lock(&client->lock);
    made->used = ++client->uses;
    made->next = client->evictables;
    if (made->next)
        made->next->prev = made;
    client->evictables = made;
    array->evict = made;
    array->location = &made->location;
    pthread_mutex_unlock(&client->lock);
    return 0;
}

/* Waits until nobody moves it. The lock is held, and given up meanwhile. */
static void await_move(cw_client *client, const struct cw_evictable *it) {
    while (it->state == CW_LEAVING || it->state == CW_RETURNING)
        pthread_cond_wait(&client->moved, &client->lock);
}

static void set_state(cw_client *client, struct cw_evictable *it, enum cw_evict_state state) {
    it->state = state;
    pthread_cond_broadcast(&client->moved);
}

/* ---- may it leave? ---- */

/* Is its last write complete, also what that was computed from, and does no stream read it? */
static bool is_settled(cw_client *client, const cw_array *array) {
    struct cw_order *order = cw_order_of(array->slab->table, array->block);
    struct cw_order_seen seen;
    bool whole = true, final;
    if (!cw_order_passed(client, array->slab, array->block))
        return false;
    cw_order_see(order, &seen);
    if (seen.marks & CW_ORDER_POISONED || seen.write == CW_STAMP_DEAD)
        return false;
    if (!client->fences)
        return true; /* no stream ever used anything */
    pthread_mutex_lock(&client->fences->lock);
    for (unsigned i = 0; i < CW_ORDER_WAITED && whole; i++)
        whole = !seen.waited[i] || cw_stamp_known(client->fences, seen.waited[i], &final) > 0;
    pthread_mutex_unlock(&client->fences->lock);
    return whole;
}

static bool may_leave(cw_client *client, const struct cw_evictable *it) {
    const cw_array *array = it->array;
    if (it->state != CW_HERE || it->pins || !array->slab->own)
        return false;
    const struct cw_local *local = &array->slab->locals[array->block];
    const struct cw_extent *extent = local->extent;
    return local->count == 1 && extent && !extent->published && !extent->on_free && !extent->pool &&
           is_settled(client, array);
}

/* The one that was used last the longest time ago. The lock is held. */
static struct cw_evictable *choose(cw_client *client, int device) {
    struct cw_evictable *found = NULL;
    for (struct cw_evictable *at = client->evictables; at; at = at->next)
        if (at->location.gpu == device && (!found || at->used < found->used) &&
            may_leave(client, at))
            found = at;
    return found;
}

/* ---- leaving ---- */

/* As many bytes of host memory, by the plain allocator. */
static int take_host(cw_client *client, uint64_t size_bytes, struct cw_evicted *out) {
    struct cw_allocation allocation = {.tries = 0};
    struct cw_evicted taken;
    bool clean;
    int code = cw_client_usable(client);
    if (code == 0)
        code = cw_heap_take(client, &client->heap, size_bytes, &allocation, &taken.slab,
                            &taken.block, &taken.gen, &clean);
    if (code)
        return code;
    pthread_mutex_lock(&client->lock);
    taken.bytes = (uint8_t *)cw_slab_base(taken.slab, false) +
                  taken.slab->locals[taken.block].extent->offset_bytes;
    pthread_mutex_unlock(&client->lock);
    *out = taken;
    return 0;
}

/* The lock is held. */
static void drop_host(cw_client *client, struct cw_evicted *host) {
    if (host->slab)
        cw_lease_release(client, host->slab, host->block, host->gen);
    host->slab = NULL;
}

static struct cw_copy_end host_end(const struct cw_evicted *host) {
    return (struct cw_copy_end){
        .bytes = host->bytes, .gpu = -1, .mapping = &host->slab->mappings->rw};
}

/* The array's lease on its block ends; it has none now. The lock is held. */
static void forget_block(cw_client *client, cw_array *array) {
    struct cw_slab *slab = array->slab;
    array->slab = array->home_slab = NULL;
    array->bytes = array->data = NULL;
    cw_lease_release(client, slab, array->block, array->gen);
}

bool cw_evict_in_vain(const cw_client *client, const struct cw_heap *heap, uint64_t size_bytes) {
    cw_device_info info;
    /* M1: a figure that stands since the broker started. */
    uint64_t limit = CW_LOAD(M1, &client->root->limits[CW_LIMIT_max_gpu_bytes], relaxed);
    uint64_t slab_bytes =
        (size_bytes + heap->granule_bytes - 1) / heap->granule_bytes * heap->granule_bytes;
    return slab_bytes > limit ||
           (heap->backend->device_stat(heap->device, &info) == 0 && size_bytes > info.memory_bytes);
}

int cw_evict_one(cw_client *client, const struct cw_heap *heap) {
    struct cw_evicted host = {.slab = NULL};
    pthread_mutex_lock(&client->lock);
    struct cw_evictable *it = choose(client, heap->device);
    if (!it) {
        pthread_mutex_unlock(&client->lock);
        return -ENOENT;
    }
    it->state = CW_LEAVING;
    drop_host(client, &it->host); /* its copy has passed: the write is complete */
    pthread_mutex_unlock(&client->lock);
    int code = take_host(client, it->array->size_bytes, &host);
    if (code == 0) {
        const struct cw_copy_end to = host_end(&host), from = cw_copy_end_of(it->array, 0);
        code = cw_context_failure_serve(
            cw_copy_bytes(client, &to, &from, it->array->size_bytes, NULL, false));
    }
    pthread_mutex_lock(&client->lock);
    if (code == 0) {
        it->array->slab->heap->retains = true; /* what it leaves free is about to be used */
        struct cw_heap *own = it->array->slab->heap;
        forget_block(client, it->array);
        own->retains = false;
        it->host = host;
        client->evictions++;
    } else
        drop_host(client, &host);
    set_state(client, it, code ? CW_HERE : CW_AWAY);
    pthread_mutex_unlock(&client->lock);
    return code;
}

/* ---- returning ---- */

/* A block for an array that is away. */
static int take_block(cw_client *client, struct cw_evictable *it) {
    struct cw_heap *heap;
    struct cw_slab *slab;
    uint32_t block;
    uint64_t gen;
    bool clean;
    cw_array *array = it->array;
    int code = cw_heap_of(client, &cw_backend_cuda, it->location.gpu, &heap);
    if (code == 0)
        code = cw_allocate(client, heap, array->size_bytes, 0, &slab, &block, &gen, &clean);
    if (code)
        return code;
    pthread_mutex_lock(&client->lock);
    array->slab = array->home_slab = slab;
    array->block = block;
    array->gen = gen;
    array->bytes = (uint8_t *)slab->rw.base + slab->locals[block].extent->offset_bytes;
    array->data = array->bytes + array->origin_bytes;
    pthread_mutex_unlock(&client->lock);
    return 0;
}

/* The state is RETURNING, by this thread. */
static int bring_back(cw_client *client, struct cw_evictable *it) {
    int code = take_block(client, it);
    if (code)
        return code;
    const struct cw_copy_end to = cw_copy_end_of(it->array, 0), from = host_end(&it->host);
    void *stream;
    code = cw_copy_own_stream(&to, &stream);
    if (code == 0)
        code = cw_copy_ordered(it->array, &to, &from, it->array->size_bytes, stream);
    if (code == 0)
        return 0;
    pthread_mutex_lock(&client->lock);
    forget_block(client, it->array);
    pthread_mutex_unlock(&client->lock);
    return code;
}

/* ---- fixed addresses ---- */

static int pin_fixed(struct cw_fixed *fixed) {
    cw_client *client = fixed->client;
    int code = 0;
    pthread_mutex_lock(&client->lock);
    while (fixed->state == CW_FIXED_CHANGING && !cw_client_forked(client))
        pthread_cond_wait(&client->moved, &client->lock);
    if (fixed->state == CW_FIXED_CHANGING) /* a copy, made while another thread was at it */
        code = cw_fail(-EINVAL, "this process was forked while the tree was being exchanged: get "
                                "the tree again");
    else if (fixed->state == CW_FIXED_EMPTY)
        code = cw_fail(-EINVAL, "the tree is %s: %s it first", fixed->held ? "unmapped" : "parked",
                       fixed->held ? "map" : "unpark");
    else
        fixed->pins++;
    pthread_mutex_unlock(&client->lock);
    return code;
}

static void unpin_fixed(struct cw_fixed *fixed) {
    cw_client *client = fixed->client;
    pthread_mutex_lock(&client->lock);
    fixed->pins -= fixed->pins > 0; /* 0: once more than it was pinned */
    pthread_mutex_unlock(&client->lock);
}

bool cw_fixed_leave(cw_array *array) {
    struct cw_fixed *fixed = array->fixed;
    if (!fixed)
        return false;
    pthread_mutex_lock(&fixed->client->lock);
    cw_array **at = &fixed->arrays;
    while (*at != array)
        at = &(*at)->fixed_next;
    *at = array->fixed_next;
    pthread_mutex_unlock(&fixed->client->lock);
    return array->client == fixed->client; /* else it was renewed in a child, with a lease */
}

void cw_fixed_release(struct cw_fixed *fixed) {
    if (!fixed)
        return;
    pthread_mutex_lock(&fixed->client->lock);
    bool last = --fixed->references == 0;
    pthread_mutex_unlock(&fixed->client->lock);
    if (last)
        fixed->end(fixed);
}

struct cw_mapping *cw_array_gpu_mapping(cw_array *array) {
    return array->fixed ? &array->fixed->mapping : &array->home_slab->rw;
}

/* ---- calls under way ---- */

int cw_array_pin(cw_array *array) {
    if (array && array->fixed)
        return pin_fixed(array->fixed);
    if (!array || !array->evict)
        return array ? 0 : cw_fail(-EINVAL, "an array is needed, NULL was given");
    cw_client *client = array->client;
    struct cw_evictable *it = array->evict;
    int code = cw_client_forked(client) ? cw_array_usable(array) : 0;
    if (code)
        return code;
    pthread_mutex_lock(&client->lock);
    await_move(client, it);
    if (it->state == CW_AWAY) {
        it->state = CW_RETURNING;
        pthread_mutex_unlock(&client->lock);
        code = bring_back(client, it);
        pthread_mutex_lock(&client->lock);
        set_state(client, it, code ? CW_AWAY : CW_HERE);
    }
    if (code == 0)
        it->pins++;
    pthread_mutex_unlock(&client->lock);
    return code;
}

void cw_array_unpin(cw_array *array) {
    if (!array)
        return;
    if (array->fixed)
        unpin_fixed(array->fixed);
    struct cw_evictable *it = array->evict;
    cw_client *client = array->client;
    if (!it || cw_client_forked(client))
        return;
    pthread_mutex_lock(&client->lock);
    if (it->pins == 0) { /* once more than it was pinned */
        pthread_mutex_unlock(&client->lock);
        return;
    }
    it->pins--;
    it->used = ++client->uses;
    if (it->state == CW_HERE && it->host.slab &&
        cw_order_passed(client, it->array->slab, it->array->block))
        drop_host(client, &it->host);
    pthread_mutex_unlock(&client->lock);
}

int cw_array_away(const cw_array *array) {
    if (!array)
        return cw_needs("an array");
    struct cw_evictable *it = array->evict;
    if (!it)
        return 0;
    pthread_mutex_lock(&array->client->lock);
    bool away = it->state == CW_AWAY || it->state == CW_RETURNING;
    pthread_mutex_unlock(&array->client->lock);
    return away;
}

bool cw_evict_end(cw_array *array) {
    struct cw_evictable *it = array->evict;
    cw_client *client = array->client;
    if (cw_client_forked(client))
        return true;
    pthread_mutex_lock(&client->lock);
    await_move(client, it);
    *(it->prev ? &it->prev->next : &client->evictables) = it->next;
    if (it->next)
        it->next->prev = it->prev;
    bool here = it->state == CW_HERE;
    pthread_mutex_unlock(&client->lock);
    if (here && it->host.slab)
        (void)cw_unpinned_await(array, true, -1); /* the copy from it may be under way */
    pthread_mutex_lock(&client->lock);
    drop_host(client, &it->host);
    pthread_mutex_unlock(&client->lock);
    array->evict = NULL;
    array->location = NULL;
    free(it);
    return here;
}
