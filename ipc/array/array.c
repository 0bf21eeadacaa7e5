/*
 * Arrays: one lease on one block, mapped, and how its bytes are to be seen.
 *
 * The structs of closed arrays are kept for the next (ARRAY_POOL_MAX of them), so that a warm get
 * allocates nothing. A struct belongs to whoever opened it; its lease and the pool belong to its
 * client, under the client's lock. In a forked child an array is inherited: data stay readable, no
 * lease is touched (the tables are the parent's) until cw_array_renew() gives it a lease of the
 * child's own client. Its mapping stays with the client that made it (home), which lives as long.
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/array/allocate.h"
#include "ipc/array/array.h"
#include "ipc/array/evict.h"
#include "ipc/base/name_key.h"
#include "ipc/client.h"
#include "ipc/memory/adoption.h"
#include "ipc/memory/allocator.h"
#include "ipc/memory/cow.h"
#include "ipc/array/first_touch.h"
#include "ipc/memory/fork.h"
#include "ipc/memory/lease.h"
#include "ipc/memory/slab.h"
#include "ipc/order/context_failure.h"

#define ARRAY_POOL_MAX 1024u

static bool is_forked(const cw_client *client) {
    /* K4: stored in the child before any other thread is. */
    return CW_LOAD(K4, (cw_a32 *)(uintptr_t)&client->forked, relaxed) != 0;
}

int cw_array_ours(const cw_array *array) {
    if (!array)
        return cw_fail(-EINVAL, "an array is needed, NULL was given");
    if (is_forked(array->client))
        return cw_fail(-EINVAL, "this array was inherited over a fork: renew it with a client of "
                                "this process first");
    return 0;
}

int cw_array_usable(const cw_array *array) {
    int code = cw_array_ours(array);
    return code ? code : cw_client_usable(array->client);
}

/* Where shape, strides and dtype go: into the struct, or beside it. */
static int place_layout(cw_array *array, const struct cw_shape *shape) {
    size_t axes = 2 * shape->ndim * sizeof(int64_t), text = shape->dtype_bytes + 1;
    array->spill = NULL;
    array->shape = array->axes;
    array->dtype = array->text;
    if (axes > sizeof array->axes || text > sizeof array->text) {
        array->spill = malloc(axes + text);
        if (!array->spill)
            return cw_fail(-EDQUOT, "no memory for a layout of %zu bytes", axes + text);
        array->shape = array->spill;
        array->dtype = (char *)array->spill + axes;
    }
    array->ndim = shape->ndim;
    array->itemsize = shape->itemsize;
    array->strides = array->shape + shape->ndim;
    memcpy(array->shape, shape->shape, axes / 2);
    memcpy(array->strides, shape->strides, axes / 2);
    memcpy(array->dtype, shape->dtype, text);
    return 0;
}

int cw_array_make(cw_client *client, struct cw_slab *slab, uint32_t block, uint64_t gen,
                  const struct cw_range *range, uint64_t offset_bytes, uint64_t size_bytes,
                  const struct cw_shape *shape, uint32_t flags, cw_array **out) {
    bool readonly = flags & CW_READONLY, counts = !(flags & (CW_PRIVATE | CW_UNMAPPED));
    struct cw_mapping *mapping = NULL;
    cw_array *array = client->array_pool;
    if (array) {
        client->array_pool = array->next;
        client->array_pool_count--;
    } else {
        array = malloc(sizeof *array);
        if (!array)
            return cw_fail(-EDQUOT, "no memory for an array's description");
    }
    int code = place_layout(array, shape);
    if (code == 0 && slab->mappings && counts) {
        code = cw_mappings_enter(slab->mappings, block, range, readonly, &mapping);
        if (code)
            free(array->spill);
    }
    if (code) {
        free(array);
        return code;
    }
    array->client = array->home = client;
    array->slab = array->home_slab = slab;
    array->block = block;
    array->gen = gen;
    array->offset_bytes = offset_bytes;
    array->size_bytes = size_bytes;
    array->readonly = readonly;
    CW_STORE(K22, &array->fresh, 0, relaxed);
    array->cow = (struct cw_mapping){.base = NULL};
    array->own_bytes = array->parted = 0;
    array->origin_bytes = shape->origin_bytes;
    array->evict = NULL;
    array->fixed = NULL;
    array->location = NULL;
    array->mapping = mapping;
    uint8_t *base = mapping ? mapping->base : cw_slab_base(slab, false);
    array->bytes = base ? base + range->begin_bytes + offset_bytes : NULL; /* NULL: CW_UNMAPPED */
    array->data = base ? array->bytes + shape->origin_bytes : NULL;
    cw_client_ref(client);
    client->arrays++;
    *out = array;
    return 0;
}

/* The block's range, as its table says, if it lies in the slab. */
static int check_range(const struct cw_slab *slab, uint32_t block, uint64_t offset_bytes,
                       uint64_t size_bytes, struct cw_range *range) {
    struct cw_block *entry = &slab->table->blocks[block];
    /* B9: written before B7, whose word we have seen. Other processes can write here: copies are
     * checked. */
    uint64_t start = CW_LOAD(B9, &entry->offset_bytes, relaxed);
    uint64_t length = CW_LOAD(B9, &entry->length_bytes, relaxed);
    if (start > slab->size_bytes || length > slab->size_bytes - start || offset_bytes > length ||
        size_bytes > length - offset_bytes)
        return cw_fail(
            -EPROTO,
            "%llu bytes at %llu do not lie in block %u (%llu bytes at %llu) of a slab of "
            "%llu",
            (unsigned long long)size_bytes, (unsigned long long)offset_bytes, block,
            (unsigned long long)length, (unsigned long long)start,
            (unsigned long long)slab->size_bytes);
    *range = (struct cw_range){.begin_bytes = start, .length_bytes = length};
    return 0;
}

/* An array on a block that is held, in the mapping where the others on it lie. */
static int make_mapped(cw_client *client, struct cw_slab *slab, uint32_t block, uint64_t gen,
                       const struct cw_range *range, uint64_t offset_bytes, uint64_t size_bytes,
                       const struct cw_shape *shape, uint32_t flags, cw_array **out) {
    bool maps =
        !(flags & CW_UNMAPPED) && !(client->host_only && slab->device_kind != CW_DEVICE_HOST);
    bool counts = slab->mappings && !(flags & CW_PRIVATE);
    bool in_ro = flags & CW_READONLY && !slab->mappings;
    int code = maps && !counts ? cw_slab_map(client, slab, in_ro) : 0;
    while (code == 0) {
        code = cw_array_make(client, slab, block, gen, range, offset_bytes, size_bytes, shape,
                             flags, out);
        if (code != -EAGAIN)
            return code;
        /* Once more where another thread was quicker, while the broker was asked for it. */
        code = cw_slab_map(client, slab,
                           cw_mappings_choose(slab->mappings, block, flags & CW_READONLY));
    }
    return code;
}

int cw_array_attach(cw_client *client, uint32_t slab_id, uint32_t block, uint64_t gen,
                    uint64_t offset_bytes, uint64_t size_bytes, const struct cw_shape *shape,
                    uint32_t flags, cw_array **out) {
    struct cw_slab *slab;
    struct cw_range range = {.begin_bytes = 0};
    struct cw_mapping cow = {.base = NULL};
    int code = cw_slab_get_for(client, slab_id, flags, &slab);
    if (code)
        return code;
    if (block >= slab->capacity)
        return cw_fail(-EPROTO, "block %u of a slab of %u blocks", block, slab->capacity);
    code = cw_lease_hold(client, slab, block, gen);
    if (code)
        return code == -ESTALE ? cw_fail(code,
                                         "the array (slab %u, block %u) is gone: its last "
                                         "holder closed it. Keep it open, or give it a name, "
                                         "until the receiver has opened it; then send it again",
                                         slab_id, block)
                               : code;
    if (flags & CW_CURRENT && cw_block_outdated(&slab->table->blocks[block], gen)) {
        cw_lease_release(client, slab, block, gen);
        return -ENOENT;
    }
    flags &= ~CW_CURRENT;
    code = check_range(slab, block, offset_bytes, size_bytes, &range);
    if (!(flags & CW_PRIVATE) && cw_block_frozen(&slab->table->blocks[block], gen))
        flags |= CW_READONLY;
    if (code == 0 && flags & CW_PRIVATE && size_bytes)
        code = cw_cow_take(client, slab, range.begin_bytes + offset_bytes, size_bytes, &cow);
    if (code == 0)
        code = make_mapped(client, slab, block, gen, &range, offset_bytes, size_bytes, shape, flags,
                           out);
    if (code) {
        if (cow.base)
            slab->backend->slab_unmap(&cow);
        cw_lease_release(client, slab, block, gen);
        return code;
    }
    if (cow.base) {
        uint64_t within = (range.begin_bytes + offset_bytes) % CW_PAGE;
        (*out)->cow = cow;
        (*out)->cow_begin_bytes = range.begin_bytes + offset_bytes - within;
        (*out)->bytes = (uint8_t *)cow.base + within;
        (*out)->data = (*out)->bytes + shape->origin_bytes;
    }
    return 0;
}

int cw_found_read(cw_client *client, const struct cw_found *found, void *buffer) {
    const struct cw_entry *entry = &found->entry;
    struct cw_slab *slab;
    struct cw_range range;
    pthread_mutex_lock(&client->lock);
    int code = cw_slab_get(client, entry->slab, &slab);
    if (code == 0 && slab->device_kind != CW_DEVICE_HOST)
        code = -EOPNOTSUPP;
    if (code == 0 && entry->block >= slab->capacity)
        code = cw_fail(-EPROTO, "block %u of a slab of %u blocks", entry->block, slab->capacity);
    if (code == 0)
        code = cw_lease_hold(client, slab, entry->block, entry->gen);
    if (code == 0) {
        code = check_range(slab, entry->block, entry->offset_bytes, entry->size_bytes, &range);
        if (code == 0)
            code = cw_slab_map(client, slab, true);
        if (code == 0 && entry->size_bytes)
            memcpy(buffer,
                   (uint8_t *)cw_slab_base(slab, true) + range.begin_bytes + entry->offset_bytes,
                   entry->size_bytes);
        cw_lease_release(client, slab, entry->block, entry->gen);
    }
    pthread_mutex_unlock(&client->lock);
    return code;
}

int cw_array_adopt(cw_client *client, int fd, uint64_t offset_bytes, const cw_layout *layout,
                   cw_array **out) {
    struct cw_shape shape;
    uint64_t end_bytes, gen;
    struct cw_slab *slab;
    if (!client || !out)
        return cw_fail(-EINVAL, "a client and a place for the array are needed, NULL was given");
    int code = cw_client_usable(client);
    if (code == 0)
        code = cw_layout_resolve(layout, &shape);
    if (code)
        return code;
    if (__builtin_add_overflow(offset_bytes, shape.span_bytes, &end_bytes) || end_bytes == 0)
        return cw_fail(-EINVAL, "%llu bytes at %llu: nothing to adopt",
                       (unsigned long long)shape.span_bytes, (unsigned long long)offset_bytes);
    code = cw_heap_adopt_foreign(client, &client->heap, fd, end_bytes, 1, &slab, &gen);
    if (code)
        return code;
    pthread_mutex_lock(&client->lock);
    const struct cw_range range = {.length_bytes = end_bytes};
    code =
        cw_array_make(client, slab, 0, gen, &range, offset_bytes, shape.span_bytes, &shape, 0, out);
    if (code)
        cw_lease_release(client, slab, 0, gen);
    pthread_mutex_unlock(&client->lock);
    return code;
}

/* The struct's end: to the pool, or freed. The caller holds the lock of client, whose pool it is.
 */
static void recycle(cw_client *client, cw_array *array) {
    free(array->spill);
    if (client->array_pool_count == ARRAY_POOL_MAX) {
        free(array);
        return;
    }
    array->next = client->array_pool;
    client->array_pool = array;
    client->array_pool_count++;
}

void cw_array_close(cw_array *array) {
    if (!array)
        return;
    cw_client *client = array->client, *home = array->home;
    struct cw_fixed *fixed = array->fixed;
    bool has_lease = fixed ? !cw_fixed_leave(array) : !array->evict || cw_evict_end(array);
    cw_cow_give(client, array->slab, array->cow_begin_bytes, &array->cow);
    bool whole = !array->parted || cw_part_end(array->home_slab, array->own_begin_bytes,
                                               array->own_bytes, array->bytes) == 0;
    pthread_mutex_lock(&client->lock);
    if (array->mapping)
        cw_mappings_leave(array->home_slab->mappings, array->block, array->readonly);
    client->arrays--;
    if (is_forked(client))
        cw_fork_settled(client);
    else if (has_lease && whole)
        cw_lease_release(client, array->slab, array->block, array->gen);
    recycle(client, array);
    pthread_mutex_unlock(&client->lock);
    cw_fixed_release(fixed);
    if (home != client)
        cw_client_unref(home);
    cw_client_unref(client);
}

void *cw_array_data(const cw_array *array) {
    return array ? array->data : NULL;
}

uint8_t *cw_array_lowest(const cw_array *array) {
    return array->bytes;
}

uint64_t cw_array_nbytes(const cw_array *array) {
    return array ? array->size_bytes : 0;
}

void cw_array_freeze(cw_array *array) {
    cw_block_freeze(&array->slab->table->blocks[array->block], array->gen);
}

int cw_array_readonly(const cw_array *array) {
    return array ? array->readonly : cw_needs("an array");
}

void cw_array_layout(const cw_array *array, cw_layout *out) {
    if (!out)
        return;
    if (!array)
        *out = (cw_layout){.shape = NULL};
    else
        *out = (cw_layout){.ndim = array->ndim,
                           .itemsize = array->itemsize,
                           .shape = array->shape,
                           .strides = array->strides,
                           .dtype = array->dtype};
}

const char *cw_array_device(const cw_array *array) {
    if (!array)
        return NULL;
    return array->location ? array->location->name : array->home_slab->device_name;
}

void cw_array_device_uuid(const cw_array *array, char uuid[CW_UUID_TEXT]) {
    if (uuid)
        *uuid = 0;
    if (array && uuid)
        cw_uuid_text(array->location ? array->location->uuid : array->home_slab->device_uuid, uuid);
}

int cw_array_gpu(const cw_array *array) {
    if (!array)
        return cw_needs("an array");
    if (array->location)
        return array->location->gpu;
    const struct cw_slab *slab = array->home_slab;
    return slab->device_kind == CW_DEVICE_CUDA ? slab->device : -1;
}

cw_client *cw_array_client(const cw_array *array) {
    return array ? array->client : NULL;
}

int cw_array_inherited(const cw_array *array) {
    return !array ? cw_needs("an array") : is_forked(array->client);
}

int cw_array_renew(cw_array *array, cw_client *client) {
    if (!array || !client)
        return cw_fail(-EINVAL, "an array and a client are needed, NULL was given");
    if (!is_forked(array->client))
        return 0;
    int code = cw_client_usable(client);
    if (code)
        return code;
    CW_STORE(K22, &array->fresh, 0, relaxed); /* its parent may have written it */
    cw_client *old = array->client;
    if (array->evict)
        return cw_fail(-EINVAL,
                       "an evictable array cannot be used in a forked child: start processes with "
                       "\"spawn\", or give them arrays that are not evictable");
    if (array->fixed && !array->slab)
        return cw_fail(-ESTALE, "the tree was parked when this process was forked");
    if (old->instance != client->instance)
        return cw_fail(-ESTALE, "the array belongs to a broker that has ended: put it again");
    struct cw_slab *slab;
    pthread_mutex_lock(&client->lock);
    code = cw_slab_get(client, array->slab->id, &slab);
    if (code == 0 && array->block >= slab->capacity)
        code = cw_fail(-EPROTO, "block %u of a slab of %u blocks", array->block, slab->capacity);
    if (code == 0)
        code = cw_lease_hold(client, slab, array->block, array->gen);
    if (code == 0)
        client->arrays++;
    pthread_mutex_unlock(&client->lock);
    if (code == -ESTALE)
        return cw_fail(code, "the inherited array is gone: its broker did not keep it for this "
                             "forked child; get it again by its name");
    if (code)
        return code;
    cw_client_ref(client);
    pthread_mutex_lock(&old->lock);
    bool first = array->client == old; /* not renewed by another thread meanwhile */
    if (first) {
        array->client = client;
        array->slab = slab;
        old->arrays--;
        cw_fork_settled(old);
    }
    pthread_mutex_unlock(&old->lock);
    if (!first) {
        pthread_mutex_lock(&client->lock);
        client->arrays--;
        cw_lease_release(client, slab, array->block, array->gen);
        pthread_mutex_unlock(&client->lock);
        cw_client_unref(client);
    } else if (old != array->home)
        cw_client_unref(old); /* a fork of a fork: home has its own reference */
    return 0;
}
