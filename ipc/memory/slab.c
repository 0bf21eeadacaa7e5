/*
 * Slabs as this process sees them: a cache of mappings by id.
 *
 * A slab is opened once (its block table mapped, its data mapped when first needed, writable and
 * read-only apart) and its descriptors closed, so that many slabs do not exhaust this process's
 * table of descriptors. Slabs that nothing is held of stay mapped, least recently used first to go,
 * until there are CW_IDLE_SLABS_MAX of them or the broker says that they were given up, which is
 * looked at whenever an array of another process is opened or closed, and where a device is full.
 *
 * Owner: client->lock. The block table is shared memory that other processes write: its words are
 * checked when they are used. If the maker dies nothing changes here; if the broker dies mappings
 * stay as they are.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/name_key.h"
#include "ipc/client.h"
#include "ipc/memory/allocator.h"
#include "ipc/memory/cow.h"
#include "ipc/memory/lease.h"
#include "ipc/memory/slab.h"
#include "ipc/request/channel.h"
#include "ipc/request/deferred.h"
#include "ipc/request/socket.h"

static struct cw_slab **bucket(cw_client *client, uint32_t id) {
    return &client->slabs.buckets[(id * 2654435769u) >> 22];
}
_Static_assert(CW_SLAB_BUCKETS == 1u << (32 - 22), "the hash above gives ten bits");

static struct cw_slab *find(cw_client *client, uint32_t id) {
    struct cw_slab *slab = *bucket(client, id);
    while (slab && slab->id != id)
        slab = slab->hash_next;
    return slab;
}

void cw_slab_wake(cw_client *client, struct cw_slab *slab) {
    struct cw_slabs *slabs = &client->slabs;
    if (!slab->idle)
        return;
    *(slab->idle_prev ? &slab->idle_prev->idle_next : &slabs->idle_first) = slab->idle_next;
    *(slab->idle_next ? &slab->idle_next->idle_prev : &slabs->idle_last) = slab->idle_prev;
    slabs->idle_count--;
    slab->idle = false;
}

static bool is_closed(const struct cw_slab *slab) {
    /* S2: advice of the broker, no ordering: nothing of the slab is held. */
    return CW_LOAD(S2, &slab->table->closed, relaxed) != 0;
}

/* Into the list of what may be unmapped. Frees nothing: the caller is about to use the slab. */
static void idle_add(cw_client *client, struct cw_slab *slab) {
    struct cw_slabs *slabs = &client->slabs;
    slab->idle_prev = slabs->idle_last;
    slab->idle_next = NULL;
    *(slabs->idle_last ? &slabs->idle_last->idle_next : &slabs->idle_first) = slab;
    slabs->idle_last = slab;
    slabs->idle_count++;
    slab->idle = true;
}

static uint32_t sweep(cw_client *client) {
    uint32_t count = 0;
    for (struct cw_slab *next, *at = client->slabs.idle_first; at; at = next) {
        next = at->idle_next;
        if (!is_closed(at))
            continue;
        cw_slab_free(client, at);
        count++;
    }
    return count;
}

static void sweep_if_told(cw_client *client) {
    /* S2: advice: the closed words are looked at only when their number moved. */
    uint64_t closed = CW_LOAD(S2, &client->shared->closed_slabs, relaxed);
    if (closed == client->slabs.closed_seen)
        return;
    client->slabs.closed_seen = closed;
    (void)sweep(client);
}

uint32_t cw_slabs_sweep(cw_client *client) {
    pthread_mutex_lock(&client->lock);
    uint32_t count = sweep(client);
    pthread_mutex_unlock(&client->lock);
    return count;
}

void cw_slab_rest(cw_client *client, struct cw_slab *slab) {
    struct cw_slabs *slabs = &client->slabs;
    if (slab->own || slab->held || slab->idle)
        return;
    idle_add(client, slab);
    while (slabs->idle_count > CW_IDLE_SLABS_MAX)
        cw_slab_free(client, slabs->idle_first);
    sweep_if_told(client);
}

void cw_slab_free(cw_client *client, struct cw_slab *slab) {
    CW_ASSERT(slab->held == 0);
    cw_slab_wake(client, slab);
    struct cw_slab **at = bucket(client, slab->id);
    while (*at != slab)
        at = &(*at)->hash_next;
    *at = slab->hash_next;
    if (slab->own) {
        at = &client->slabs.own;
        while (*at != slab)
            at = &(*at)->own_next;
        *at = slab->own_next;
    }
    if (slab->carved)
        cw_arena_deinit(&slab->arena);
    cw_cow_forget(client, slab);
    if (slab->rw.base)
        slab->backend->slab_unmap(&slab->rw);
    if (slab->mappings)
        cw_mappings_release(slab->mappings, slab->backend);
    cw_segment_close(&slab->table_segment);
    free(slab->blocks);
    free(slab->locals);
    free(slab->last_word);
    free(slab);
}

void cw_slabs_deinit(cw_client *client) {
    for (uint32_t i = 0; i < CW_SLAB_BUCKETS; i++)
        for (struct cw_slab *slab; (slab = client->slabs.buckets[i]);) {
            slab->held = 0; /* the session is over: what a child inherited ends too */
            cw_slab_free(client, slab);
        }
}

/* What cw_array_device() says. */
static void name_device(struct cw_slab *slab, int device) {
    slab->device = device;
    if (slab->device_kind == CW_DEVICE_HOST || device < 0)
        snprintf(slab->device_name, sizeof slab->device_name, "%s", slab->backend->name);
    else
        snprintf(slab->device_name, sizeof slab->device_name, "%s:%d", slab->backend->name, device);
}

/* A struct for a slab whose table is mapped; takes table over on success. */
static int slab_new(cw_client *client, const struct cw_slab_info *info, struct cw_segment *table,
                    struct cw_slab **out) {
    struct cw_slab *slab = calloc(1, sizeof *slab);
    struct cw_local *locals = calloc(info->blocks, sizeof *locals);
    struct cw_deferred *last_word = cw_deferred_room(sizeof(struct cw_slab_request));
    if (!slab || !locals || !last_word) {
        free(last_word);
        free(slab);
        free(locals);
        return cw_fail(-EDQUOT, "no memory for a slab of %u blocks", info->blocks);
    }
    slab->backend = cw_backend_of_kind(info->device_kind);
    if (slab->backend->protects) {
        int code = cw_mappings_hold(client->instance, info->slab, info->blocks, &slab->mappings);
        if (code) {
            free(slab);
            free(locals);
            return code;
        }
    }
    slab->id = info->slab;
    slab->own_file = -1;
    slab->capacity = info->blocks;
    slab->size_bytes = info->size_bytes;
    slab->flags = info->flags;
    slab->device_kind = info->device_kind;
    name_device(slab, -1);
    memcpy(slab->device_uuid, info->device_uuid, sizeof slab->device_uuid);
    slab->table_segment = *table;
    slab->table = table->base;
    slab->locals = locals;
    slab->last_word = last_word;
    slab->hash_next = *bucket(client, slab->id);
    *bucket(client, slab->id) = slab;
    *out = slab;
    return 0;
}

static int check_info(const struct cw_slab_info *info, uint32_t id) {
    if (!cw_backend_of_kind(info->device_kind))
        return cw_fail(-ENODEV,
                       "the array lies on a device of kind %u, which this version of "
                       "cableway does not know",
                       info->device_kind);
    if (info->slab != id || info->size_bytes == 0 || info->blocks == 0 ||
        info->blocks > CW_BLOCKS_MAX)
        return cw_fail(-EPROTO, "the broker described slab %u as %u: %llu bytes, %u blocks", id,
                       info->slab, (unsigned long long)info->size_bytes, info->blocks);
    return 0;
}

/* Asks the broker for a slab: what it is, and descriptors of its data and table. Meanwhile the lock
 * is given up. */
static int request_slab(cw_client *client, uint32_t id, struct cw_slab_info *info,
                        struct cw_fds *fds) {
    struct cw_slab_request request = {.slab = id};
    fds->count = 2;
    int code = cw_socket_call_apart(client, &client->lock, CW_OP_SLAB_OPEN, &request,
                                    sizeof request, NULL, info, sizeof *info, fds);
    if (code)
        return code == -ENOENT
                   ? cw_fail(-ESTALE,
                             "the array's memory (slab %u) is gone: keep the array open, or give "
                             "it a name, until the receiver has opened it; then send it again",
                             id)
                   : code;
    code = check_info(info, id);
    if (code)
        cw_fds_close(fds);
    return code;
}

void *cw_slab_base(struct cw_slab *slab, bool in_ro) {
    return slab->mappings ? cw_mappings_base(slab->mappings, in_ro) : slab->rw.base;
}

/* A mapping that is there, for who is about to write. */
static int raise_data(struct cw_slab *slab) {
    return slab->rw.base && slab->rw.readonly ? slab->backend->slab_raise(&slab->rw) : 0;
}

int cw_slab_locate(struct cw_slab *slab) {
    int device, code = 0;
    if (slab->device < 0 && (code = slab->backend->device_find(slab->device_uuid, &device)) == 0)
        name_device(slab, device);
    return code;
}

static int map_once(struct cw_slab *slab, int fd, bool in_ro) {
    return slab->mappings ? cw_mappings_map(slab->mappings, slab->backend, fd, slab->size_bytes,
                                            slab->flags, in_ro)
                          : slab->backend->slab_map(slab->device, fd, slab->size_bytes, slab->flags,
                                                    in_ro, &slab->rw);
}

/* Where addresses run out, those of slabs in which nothing is held are given up first. */
static int map_data(cw_client *client, struct cw_slab *slab, int fd, bool in_ro) {
    int code = cw_slab_locate(slab);
    if (code == 0)
        code = map_once(slab, fd, in_ro);
    if (code != -EDQUOT || slab->device_kind != CW_DEVICE_HOST)
        return code;
    bool idle = slab->idle;
    cw_slab_wake(client, slab);
    while (client->slabs.idle_first)
        cw_slab_free(client, client->slabs.idle_first);
    if (idle)
        idle_add(client, slab);
    return map_once(slab, fd, in_ro);
}

/* The slab, which is not in the cache. */
static int open_slab(cw_client *client, uint32_t id, uint32_t flags, struct cw_slab **out) {
    struct cw_slab_info info;
    struct cw_fds fds;
    struct cw_segment table;
    int code = request_slab(client, id, &info, &fds);
    if (code)
        return code;
    *out = find(client, id);
    if (*out) { /* another thread was quicker */
        cw_fds_close(&fds);
        return 0;
    }
    code = cw_segment_open(fds.fd[1], cw_slab_table_bytes(info.device_kind, info.blocks),
                           CW_SEGMENT_BLOCKS, true, 0, &table);
    if (code)
        goto close_data;
    cw_segment_close_fd(&table);
    code = slab_new(client, &info, &table, out);
    if (code) {
        cw_segment_close(&table);
        goto close_data;
    }
    /* Most slabs are opened to be written or read at once: the descriptor is here now. A failure
     * shows when the mapping is needed. */
    if (!(flags & CW_UNMAPPED) && (!client->host_only || info.device_kind == CW_DEVICE_HOST))
        map_data(client, *out, fds.fd[0], flags & CW_READONLY && !(*out)->mappings);
    idle_add(client, *out); /* it may be closed already: that shows when its block is stale */
close_data:
    close(fds.fd[0]);
    return code;
}

void cw_slab_outdate(cw_client *client, uint32_t id, uint32_t block, uint64_t gen) {
    pthread_mutex_lock(&client->lock);
    struct cw_slab *slab = find(client, id);
    if (slab && block < slab->capacity)
        cw_block_outdate(&slab->table->blocks[block], gen);
    pthread_mutex_unlock(&client->lock);
}

int cw_slab_get(cw_client *client, uint32_t id, struct cw_slab **out) {
    return cw_slab_get_for(client, id, 0, out);
}

int cw_slab_get_for(cw_client *client, uint32_t id, uint32_t flags, struct cw_slab **out) {
    sweep_if_told(client);
    for (;;) {
        int code = 0;
        *out = find(client, id);
        if (!*out)
            code = open_slab(client, id, flags, out);
        if (code || client->leases.free_count)
            return code;
        code = cw_leases_room(client, 1); /* the slab may go meanwhile */
        if (code)
            return code;
    }
}

/* request_slab() for a slab that stays meanwhile, also if nothing of it is held. */
static int request_again(cw_client *client, struct cw_slab *slab, struct cw_slab_info *info,
                         struct cw_fds *fds) {
    bool idle = slab->idle;
    if (slab->held++ == 0)
        cw_slab_wake(client, slab);
    int code = request_slab(client, slab->id, info, fds);
    if (--slab->held == 0 && idle && !slab->own)
        idle_add(client, slab);
    if (code == 0 && info->size_bytes != slab->size_bytes) {
        code = cw_fail(-EPROTO, "slab %u changed its size", slab->id);
        cw_fds_close(fds);
    }
    return code;
}

int cw_slab_map(cw_client *client, struct cw_slab *slab, bool in_ro) {
    if (cw_slab_base(slab, in_ro))
        return in_ro ? 0 : raise_data(slab);
    struct cw_slab_info info;
    struct cw_fds fds;
    int code = request_again(client, slab, &info, &fds);
    if (code)
        return code;
    if (!cw_slab_base(slab, in_ro)) /* another thread may have been quicker */
        code = map_data(client, slab, fds.fd[0], in_ro);
    cw_fds_close(&fds);
    return code || in_ro ? code : raise_data(slab);
}

int cw_slab_file(cw_client *client, struct cw_slab *slab, int *fd) {
    struct cw_slab_info info;
    struct cw_fds fds;
    int code = request_again(client, slab, &info, &fds);
    if (code)
        return code;
    *fd = fds.fd[0];
    fds.fd[0] = fds.fd[--fds.count];
    cw_fds_close(&fds);
    return 0;
}

int cw_slab_map_cow(cw_client *client, struct cw_slab *slab, uint64_t begin_bytes,
                    uint64_t size_bytes, struct cw_mapping *out) {
    int fd = cw_cow_file(client, slab);
    if (fd < 0) {
        int code = cw_slab_file(client, slab, &fd);
        if (code)
            return code;
        cw_cow_keep_file(client, slab, fd);
        fd = cw_cow_file(client, slab);
    }
    return slab->backend->slab_map_cow(fd, slab->size_bytes, slab->flags, begin_bytes, size_bytes,
                                       out);
}

int cw_slab_add(cw_client *client, struct cw_heap *heap, const struct cw_slab_info *info,
                int data_fd, struct cw_segment *table, struct cw_slab **out) {
    const struct cw_backend *backend = heap->backend;
    struct cw_fds fds = {.fd = {data_fd, table->fd}, .count = 2};
    struct cw_slab_info known, mine = *info;
    struct cw_mapping rw;
    /* Mapped first: what cannot be mapped is not worth a place in the registry. */
    int code = backend->slab_map(heap->device, data_fd, info->size_bytes, info->flags, false, &rw);
    if (code)
        return code;
    struct cw_deferred *room = cw_deferred_room(sizeof(struct cw_slab_request));
    code = !room ? cw_fail(-EDQUOT, "no memory to ask for a slab")
                 : cw_socket_call_apart(client, &client->lock, CW_OP_SLAB_ADD, info, sizeof *info,
                                        &fds, &known, sizeof known, NULL);
    if (code)
        goto unmap_data;
    mine.slab = known.slab;
    code = slab_new(client, &mine, table, out);
    if (code) {
        struct cw_slab_request request = {.slab = known.slab};
        (void)cw_channel_post_in(client, &room, CW_OP_SLAB_CLOSE, &request, sizeof request);
        goto unmap_data;
    }
    free(room);
    if ((*out)->mappings)
        cw_mappings_give((*out)->mappings, &rw);
    else
        (*out)->rw = rw;
    name_device(*out, heap->device);
    (*out)->heap = heap;
    (*out)->own = true;
    (*out)->own_next = client->slabs.own;
    client->slabs.own = *out;
    cw_segment_close_fd(&(*out)->table_segment);
    close(data_fd);
    return 0;

unmap_data:
    free(room);
    rw.reachers = 0; /* nobody has used it: there is no work to wait for */
    backend->slab_unmap(&rw);
    return code;
}
