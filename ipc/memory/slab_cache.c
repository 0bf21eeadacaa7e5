/*
 * The slab cache: entirely free slabs, kept for the next arrays, since making one costs a second a
 * GiB of host memory and 100 us of a GPU's.
 *
 * heap->cached_bytes of them, cache_limit_bytes at most but for a moment: what comes back while an
 * array is made is looked at for that array first (heap->retains). Who meets a limit, of the broker
 * or of the device, drops them all, and waits until the broker has closed their descriptors:
 * before that their memory is not free.
 *
 * One who is about to be refused takes them, too: the broker then withdraws slabs of which nothing
 * is carved, without a word to their owner (broker/memory/room.h, shm/blocks/block.h). The owner
 * learns of it when it would carve there, or next makes an array, and forgets the slab.
 *
 * Owner: client->lock. The process dies: they are orphans, as all its slabs.
 */
#include <stdlib.h>
#include <time.h>

#include "ipc/client.h"
#include "ipc/memory/allocator.h"
#include "ipc/memory/slab.h"
#include "ipc/memory/slab_cache.h"
#include "ipc/request/channel.h"
#include "shm/base/number.h"
#include "shm/base/wait.h"

#define CLOSE_NS 1000000000

uint64_t cw_slab_cache_closed(const cw_client *client) {
    /* M1: a figure, of which the latest will do. */
    return CW_LOAD(M1, &client->root->counters[CW_COUNTER_fds_closed], relaxed);
}

void cw_slab_close(cw_client *client, struct cw_slab *slab) {
    struct cw_slab_request request = {.slab = slab->id};
    if (slab->cached)
        slab->heap->cached_bytes -= slab->size_bytes;
    if (client->slabs.closing++ == 0)
        client->slabs.closing_from = cw_slab_cache_closed(client);
    client->slabs.closed_ns = cw_now_ns();
    /* A lost broker needs not be told; else it would keep the memory until we end. */
    (void)cw_channel_post_in(client, &slab->last_word, CW_OP_SLAB_CLOSE, &request, sizeof request);
    cw_slab_free(client, slab);
}

/* Its blocks that came back, or were to, are not waited for any more. */
static void forget(cw_client *client, struct cw_slab *slab) {
    struct cw_slab_request request = {.slab = slab->id};
    struct cw_heap *heap = slab->heap;
    for (struct cw_extent *next, *extent = heap->pending; extent; extent = next) {
        next = extent->next;
        if (extent->arena == &slab->arena)
            cw_heap_await_no_more(heap, extent);
    }
    if (slab->cached)
        heap->cached_bytes -= slab->size_bytes;
    /* Nobody's but ours, where somebody wrote into the table who is not the broker. */
    (void)cw_channel_post_in(client, &slab->last_word, CW_OP_SLAB_CLOSE, &request, sizeof request);
    cw_slab_free(client, slab);
}

void cw_slab_cache_forget(cw_client *client) {
    for (struct cw_slab *next, *slab = client->slabs.own; slab; slab = next) {
        next = slab->own_next;
        if (slab->held == 0 && slab->device_kind == CW_DEVICE_HOST && slab->heap &&
            cw_table_withdrawn(slab->table))
            forget(client, slab);
    }
}

void cw_slab_cache_forget_if_told(cw_client *client) {
    /* S2: advice: a slab that is not forgotten here is met when it is carved. */
    uint64_t closed = CW_LOAD(S2, &client->shared->closed_slabs, relaxed);
    if (closed == client->slabs.own_closed_seen)
        return;
    client->slabs.own_closed_seen = closed;
    cw_slab_cache_forget(client);
}

static bool unused(const struct cw_slab *slab) {
    return slab->carved && slab->arena.free_bytes == slab->arena.size_bytes;
}

void cw_heap_settle(cw_client *client, struct cw_slab *slab) {
    struct cw_heap *heap = slab->heap;
    if (!unused(slab) || slab->cached)
        return;
    if (!heap->retains && slab->size_bytes + heap->cached_bytes > heap->cache_limit_bytes) {
        cw_slab_close(client, slab);
        return;
    }
    slab->cached = true;
    heap->cached_bytes += slab->size_bytes;
}

void cw_slab_cache_settle(cw_client *client, uint32_t id) {
    if (!id)
        return;
    pthread_mutex_lock(&client->lock);
    struct cw_slab *slab = client->slabs.own;
    while (slab && slab->id != id)
        slab = slab->own_next;
    if (slab)
        cw_heap_settle(client, slab);
    pthread_mutex_unlock(&client->lock);
}

void cw_slab_cache_trim(cw_client *client, struct cw_heap *heap) {
    for (struct cw_slab *next, *slab = client->slabs.own;
         slab && heap->cached_bytes > heap->cache_limit_bytes; slab = next) {
        next = slab->own_next;
        if (slab->cached && slab->heap == heap)
            cw_slab_close(client, slab);
    }
}

static struct cw_slab *largest_kept(const cw_client *client, const struct cw_heap *heap) {
    struct cw_slab *found = NULL;
    for (struct cw_slab *slab = client->slabs.own; slab; slab = slab->own_next)
        if (slab->cached && slab->heap == heap && (!found || slab->size_bytes > found->size_bytes))
            found = slab;
    return found;
}

uint64_t cw_trim(cw_client *client, uint64_t keep_bytes, uint64_t *waiting) {
    if (waiting)
        *waiting = 0;
    if (!waiting || cw_client_usable(client))
        return 0; /* its broker is gone, and the slabs with it */
    pthread_mutex_lock(&client->lock);
    cw_slab_cache_forget(client);
    cw_heap_collect(client, true);
    struct cw_heap *heap = &client->heap; /* the host's */
    uint64_t before = heap->cached_bytes;
    for (struct cw_slab *slab;
         heap->cached_bytes > keep_bytes && (slab = largest_kept(client, heap));)
        cw_slab_close(client, slab);
    uint64_t given = before - heap->cached_bytes;
    *waiting = heap->pending_count;
    pthread_mutex_unlock(&client->lock);
    return given;
}

int cw_collect(cw_client *client) {
    int code = cw_client_usable(client);
    if (code)
        return code;
    pthread_mutex_lock(&client->lock);
    cw_slab_cache_forget(client);
    (void)cw_heap_collect_all(client, NULL);
    pthread_mutex_unlock(&client->lock);
    (void)cw_slabs_sweep(client);
    return 0;
}

/* Waits until the broker has closed so many more descriptors than it had; others' are counted, too,
 * so who finds the device full all the same naps (cw_slab_cache_nap). Gives up after CLOSE_NS. */
void cw_slab_cache_await_closed(cw_client *client, uint64_t before, uint32_t slabs) {
    int64_t end_ns = cw_now_ns() + CLOSE_NS;
    struct timespec nap = {.tv_nsec = 1000000};
    while (cw_slab_cache_closed(client) < before + 2ull * slabs && cw_now_ns() < end_ns &&
           cw_client_usable(client) == 0)
        nanosleep(&nap, NULL);
}

int cw_slab_cache_nap(cw_client *client, int64_t *until_ns) {
    struct timespec nap = {.tv_nsec = 1000000};
    pthread_mutex_lock(&client->lock);
    if (!*until_ns) /* once: other threads may give up slabs for ever */
        *until_ns = client->slabs.closed_ns + CLOSE_NS;
    pthread_mutex_unlock(&client->lock);
    if (cw_now_ns() >= *until_ns || cw_client_usable(client))
        return 0;
    if (nanosleep(&nap, NULL) < 0)
        return cw_fail(-EINTR, "a signal came while waiting for memory of a full GPU");
    return 1;
}

bool cw_slab_cache_drop(cw_client *client) {
    pthread_mutex_lock(&client->lock);
    cw_slab_cache_forget(client);
    for (struct cw_slab *next, *slab = client->slabs.own; slab; slab = next) {
        next = slab->own_next;
        if (slab->cached)
            cw_slab_close(client, slab);
    }
    uint32_t count = client->slabs.closing;
    uint64_t before = client->slabs.closing_from;
    client->slabs.closing = 0;
    pthread_mutex_unlock(&client->lock);
    if (count)
        cw_slab_cache_await_closed(client, before, count);
    return count > 0;
}

int cw_slab_cache_limit(const struct cw_backend *backend, uint64_t suggested_bytes, uint64_t *out) {
    bool host = backend->device_kind == CW_DEVICE_HOST;
    const char *name = host ? "CABLEWAY_CACHE_BYTES" : "CABLEWAY_GPU_CACHE_BYTES";
    const char *text = secure_getenv(name);
    *out = suggested_bytes;
    if (text && *text && !cw_bytes_parse(text, out))
        return cw_fail(-EINVAL, "%s = \"%.64s\" is not %s", name, text, CW_BYTES_FORM);
    return 0;
}
