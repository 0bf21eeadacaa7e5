/*
 * Fixed addresses of one part: see fixed.h.
 *
 * Owner: its client's lock; what is mapped belongs to whoever has set the state CHANGING. If the
 * process dies its lease ends, and with it the memory that nobody else has. If the broker dies, the
 * memory stays: the backend holds it, mapped or not.
 */
#include "ipc/tree/fixed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/name_key.h"
#include "ipc/client.h"
#include "ipc/memory/backend.h"
#include "ipc/memory/slab.h"

/* Where a block begins in its slab. Other processes can write the table: the copy is checked. */
static int find_begin(const cw_array *held, uint64_t *begin_bytes) {
    struct cw_block *entry = &held->slab->table->blocks[held->block];
    /* B9: our lease stands on it. */
    uint64_t begin = CW_LOAD(B9, &entry->offset_bytes, relaxed);
    uint64_t end;
    if (__builtin_add_overflow(begin + held->offset_bytes, held->size_bytes, &end) ||
        begin > held->slab->size_bytes || end > held->slab->size_bytes)
        return cw_fail(-EPROTO, "block %u does not lie in its slab", held->block);
    *begin_bytes = begin + held->offset_bytes;
    return 0;
}

int cw_fixed_has_own_slab(const cw_array *held) {
    struct cw_slab *slab = held->slab;
    uint64_t granule, cache, begin;
    pthread_mutex_lock(&held->client->lock);
    int code = cw_slab_locate(slab);
    pthread_mutex_unlock(&held->client->lock);
    if (code == 0)
        code = find_begin(held, &begin);
    if (code == 0)
        code = slab->backend->device_limits(slab->device, &granule, &cache);
    return code ? code
                : !(slab->flags & CW_SLAB_FOREIGN) && begin == 0 &&
                      slab->size_bytes - held->size_bytes < granule;
}

static int hold_memory(const struct cw_backend *backend, cw_array *held, int device,
                       uint64_t *memory) {
    cw_client *client = held->client;
    int fd;
    if (held->slab->flags & CW_SLAB_FOREIGN)
        return cw_fail(-EINVAL,
                       "a part of the tree lies in memory of another library, which cannot "
                       "be mapped at fixed addresses: put a copy");
    pthread_mutex_lock(&client->lock);
    int code = cw_slab_file(client, held->slab, &fd);
    pthread_mutex_unlock(&client->lock);
    if (code)
        return code;
    code = backend->fixed_hold(device, fd, held->slab->size_bytes, held->slab->flags, memory);
    close(fd);
    return code;
}

/* The last reference was given up: nobody uses the addresses. Where a stream is being captured, the
 * backend unmaps later. */
static void end(struct cw_fixed *fixed) {
    if (fixed->mapping.empty)
        fixed->backend->fixed_give_back(&fixed->mapping);
    else
        fixed->backend->slab_unmap(&fixed->mapping);
    if (fixed->memory)
        fixed->backend->fixed_drop(fixed->memory);
    cw_array_close(fixed->held);
    cw_client_unref(fixed->client);
    free(fixed);
}

static int map_first(struct cw_fixed *made, cw_array *held) {
    struct cw_slab *slab = held->slab;
    int device = slab->device;
    int code = made->backend->fixed_reserve(device, slab->size_bytes, &made->mapping);
    if (code)
        return code;
    code = hold_memory(made->backend, held, device, &made->memory);
    if (code == 0)
        code = made->backend->fixed_map(&made->mapping, made->memory);
    if (code && made->memory)
        made->backend->fixed_drop(made->memory);
    if (code)
        made->backend->fixed_give_back(&made->mapping);
    return code;
}

int cw_fixed_new(cw_client *client, cw_array *held, struct cw_fixed **out) {
    struct cw_slab *slab = held->slab;
    struct cw_fixed *made = calloc(1, sizeof *made);
    if (!made)
        return cw_fail(-EDQUOT, "no memory for a tree's addresses");
    *made = (struct cw_fixed){.client = client,
                              .references = 1,
                              .end = end,
                              .backend = slab->backend,
                              .size_bytes = held->size_bytes};
    pthread_mutex_lock(&client->lock);
    int code = cw_slab_locate(slab);
    pthread_mutex_unlock(&client->lock);
    if (code == 0)
        code = find_begin(held, &made->begin_bytes);
    if (code == 0)
        code = map_first(made, held);
    if (code) {
        free(made);
        return code;
    }
    made->location.gpu = slab->device_kind == CW_DEVICE_CUDA ? slab->device : -1;
    memcpy(made->location.name, slab->device_name, sizeof made->location.name);
    memcpy(made->location.uuid, slab->device_uuid, sizeof made->location.uuid);
    made->held = held;
    made->state = CW_FIXED_MAPPED;
    cw_client_ref(client);
    *out = made;
    return 0;
}

int cw_fixed_array(struct cw_fixed *fixed, cw_array **out) {
    cw_client *client = fixed->client;
    struct cw_shape shape = {.ndim = 1, .itemsize = 1, .dtype_bytes = 3, .strides = {1}};
    memcpy(shape.dtype, "|u1", 4);
    shape.shape[0] = (int64_t)fixed->size_bytes;
    shape.span_bytes = fixed->size_bytes;
    pthread_mutex_lock(&client->lock);
    const cw_array *held = fixed->held;
    const struct cw_range range = {.begin_bytes = 0};
    cw_array *array;
    int code =
        held ? cw_array_make(client, held->slab, held->block, held->gen, &range, held->offset_bytes,
                             fixed->size_bytes, &shape, CW_READONLY | CW_UNMAPPED, &array)
             : cw_fail(-EINVAL, "the tree is parked: unpark it first");
    if (code == 0) {
        array->fixed = fixed;
        array->location = &fixed->location;
        array->bytes = array->data = (uint8_t *)fixed->mapping.base + fixed->begin_bytes;
        array->fixed_next = fixed->arrays;
        fixed->arrays = array;
        fixed->references++;
        *out = array;
    }
    pthread_mutex_unlock(&client->lock);
    return code;
}

/* ---- what follows ---- */

static int check_fit(const struct cw_fixed *fixed, const cw_array *held) {
    const struct cw_slab *slab = held->slab;
    uint64_t begin;
    int code = find_begin(held, &begin);
    if (code)
        return code;
    if (slab->device_kind != fixed->backend->device_kind ||
        memcmp(slab->device_uuid, fixed->location.uuid, sizeof fixed->location.uuid) != 0 ||
        held->size_bytes != fixed->size_bytes)
        return cw_fail(-EBADE, "a part of the new version has another size, or lies on another "
                               "device");
    if (slab->size_bytes != fixed->mapping.size_bytes || begin != fixed->begin_bytes)
        return cw_fail(-EPROTO,
                       "a part of %llu bytes begins at byte %llu of %llu bytes of memory, and in "
                       "the new version at byte %llu of %llu",
                       (unsigned long long)fixed->size_bytes,
                       (unsigned long long)fixed->begin_bytes,
                       (unsigned long long)fixed->mapping.size_bytes, (unsigned long long)begin,
                       (unsigned long long)slab->size_bytes);
    return 0;
}

int cw_fixed_prepare(const struct cw_fixed *fixed, struct cw_next *next) {
    const cw_array *now = fixed->held, *held = next->held;
    next->memory = 0;
    next->same =
        now && now->slab == held->slab && now->block == held->block && now->gen == held->gen;
    int code = next->same ? 0 : check_fit(fixed, held);
    if (code || next->same)
        return code;
    int device = fixed->location.gpu < 0 ? 0 : fixed->location.gpu;
    pthread_mutex_lock(&held->client->lock);
    code = cw_slab_locate(held->slab); /* sections on it ask where it lies */
    pthread_mutex_unlock(&held->client->lock);
    return code ? code : hold_memory(fixed->backend, next->held, device, &next->memory);
}

void cw_next_drop(const struct cw_fixed *fixed, struct cw_next *next) {
    if (next->memory)
        fixed->backend->fixed_drop(next->memory);
    cw_array_close(next->held);
    *next = (struct cw_next){.held = NULL};
}

void cw_fixed_adopt(struct cw_fixed *fixed, struct cw_next *next) {
    const struct cw_next before = {.held = fixed->held, .memory = next->same ? 0 : fixed->memory};
    fixed->held = next->held;
    if (!next->same)
        fixed->memory = next->memory;
    *next = before;
    for (cw_array *array = fixed->arrays; array; array = array->fixed_next) {
        array->slab = array->home_slab = fixed->held ? fixed->held->slab : NULL;
        array->block = fixed->held ? fixed->held->block : 0;
        array->gen = fixed->held ? fixed->held->gen : 0;
    }
}
