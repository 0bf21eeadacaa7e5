/*
 * Publishing a tree: wait for the writers, hash, freeze, write the index, GROUP, PUT_TREE.
 *
 * Invariant: only the last step is seen, and the broker does it whole (broker/names/versions.c).
 * Until then nobody but this process knows of any of it.
 *
 * What is left when this process dies, by the step after which it dies:
 *   waited, hashed    its arrays, which end with its session as all arrays do
 *   frozen            the same: the mark is of one generation of a block, and goes with it (not
 *                     taken with CW_TREE_UNSEALED)
 *   index made        the same: its lease ends, the broker frees it
 *   GROUP, some or all   the references of the members end when the index is freed, which is at
 *                     once, since nobody else has it: memory is back within 100 ms
 *   PUT_TREE written  the broker drains a dead client's ring: the version is there, whole, or (the
 *                     record was not whole) nothing is
 * If the broker dies, all of it is over at once; the call says -ECONNRESET. Readers are not met
 * here: those of the version before keep it. A mover has no part in it: its copies into the arrays
 * are waited for, and -EOWNERDEAD says that one died in the midst.
 *
 * State: of the call alone. Any thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/tree/content.h"
#include "ipc/tree/tree.h"
#include "shm/base/error.h"
#include "ipc/request/channel.h"
#include "ipc/client.h"
#include "ipc/array/array.h"
#include "ipc/array/remote_name.h"

struct publication {
    cw_client *client;
    cw_leaf *leaves; /* a copy, with part and offset_bytes in it */
    uint32_t leaf_count;
    struct cw_index_part *parts;
    cw_array **arrays; /* of each part one array on it: the caller's */
    uint32_t part_count, room;
    uint32_t *slots; /* part + 1, by slab and block */
    uint32_t mask;
    bool hashed; /* leaves that say CW_LEAF_HASHED have their hash */
};

/* ---- which parts there are ---- */

static int grow(struct publication *p) {
    uint32_t room = p->room ? 2 * p->room : 16, mask = 4 * room - 1;
    if (p->part_count == CW_PARTS_MAX)
        return cw_fail(-EDQUOT,
                       "the leaves lie in more than %u pieces of memory: copy them "
                       "into fewer",
                       CW_PARTS_MAX);
    struct cw_index_part *parts = realloc(p->parts, room * sizeof *parts);
    p->parts = parts ? parts : p->parts;
    cw_array **arrays = realloc(p->arrays, room * sizeof(void *));
    p->arrays = arrays ? arrays : p->arrays;
    uint32_t *slots = calloc(mask + 1, sizeof *slots);
    if (!parts || !arrays || !slots) {
        free(slots);
        return cw_fail(-EDQUOT, "no memory for a tree of %u leaves", p->leaf_count);
    }
    for (uint32_t i = 0; i < p->part_count; i++) {
        uint32_t slot = (parts[i].slab * 2654435769u ^ parts[i].block * 40503u) & mask;
        while (slots[slot])
            slot = (slot + 1) & mask;
        slots[slot] = i + 1;
    }
    free(p->slots);
    p->slots = slots;
    p->mask = mask;
    p->room = room;
    return 0;
}

static int add_part(struct publication *p, cw_array *array, uint32_t slot) {
    struct cw_block *entry = &array->slab->table->blocks[array->block];
    /* B9: our lease stands on it. */
    uint64_t length = CW_LOAD(B9, &entry->length_bytes, relaxed);
    struct cw_index_part *part = &p->parts[p->part_count];
    *part = (struct cw_index_part){.slab = array->slab->id,
                                   .block = array->block,
                                   .gen = array->gen,
                                   .size_bytes = length,
                                   .device_kind = array->slab->device_kind};
    memcpy(part->device_uuid, array->slab->device_uuid, sizeof part->device_uuid);
    p->arrays[p->part_count++] = array;
    p->slots[slot] = p->part_count;
    return 0;
}

/* The number of the part that an array lies in. A part's array is pinned until the end: what lies
 * at fixed addresses (fixed.h) stays what it is. */
static int find_part(struct publication *p, cw_array *array, uint32_t *number) {
    int code = p->part_count == p->room ? grow(p) : 0;
    if (code == 0)
        code = cw_array_pin(array);
    if (code)
        return code;
    uint32_t slot = (array->slab->id * 2654435769u ^ array->block * 40503u) & p->mask;
    for (; p->slots[slot]; slot = (slot + 1) & p->mask) {
        const struct cw_index_part *part = &p->parts[p->slots[slot] - 1];
        if (part->slab == array->slab->id && part->block == array->block)
            break;
    }
    if (p->slots[slot])
        cw_array_unpin(array);
    else
        add_part(p, array, slot);
    *number = p->slots[slot] - 1;
    return 0;
}

static int check_array(const cw_client *client, const cw_leaf *leaf, uint32_t number) {
    cw_array *array = leaf->array;
    if (!array)
        return cw_fail(-EINVAL, "leaf %u has bytes, and no array in which they lie", number);
    int code = cw_array_ours(array);
    if (code)
        return code;
    if (array->client != client)
        return cw_fail(-EINVAL, "leaf %u lies in an array of another client", number);
    if (array->evict || array->cow.base)
        return cw_fail(-EINVAL,
                       "leaf %u lies in memory that is this process's alone (%s): copy it first",
                       number, array->evict ? "evictable" : "copy-on-write");
    return 0;
}

/* A leaf's part, and its place in it. */
static int place_leaf(struct publication *p, uint32_t number) {
    cw_leaf *leaf = &p->leaves[number];
    struct cw_shape shape;
    uint32_t known = CW_LEAF_TRANSIENT | (p->hashed ? CW_LEAF_HASHED : 0u);
    if (leaf->kind >= CW_LEAF_KINDS || leaf->flags & ~known)
        return cw_fail(-EINVAL, "leaf %u: kind %u and flags 0x%x are not known", number, leaf->kind,
                       leaf->flags);
    if (leaf->alias > number)
        return cw_fail(-EINVAL, "leaf %u is an alias of leaf %u, which does not stand before it",
                       number, leaf->alias - 1);
    int code = cw_layout_resolve(&leaf->layout, &shape);
    leaf->part = 0;
    if (!(leaf->flags & CW_LEAF_HASHED))
        leaf->hash = 0;
    leaf->size_bytes = shape.span_bytes;
    if (code || shape.span_bytes == 0)
        return code;
    code = check_array(p->client, leaf, number);
    if (code)
        return code;
    cw_array *array = leaf->array;
    if (leaf->offset_bytes > array->size_bytes ||
        shape.span_bytes > array->size_bytes - leaf->offset_bytes)
        return cw_fail(-EINVAL, "leaf %u: %llu bytes at %llu do not lie in an array of %llu",
                       number, (unsigned long long)shape.span_bytes,
                       (unsigned long long)leaf->offset_bytes,
                       (unsigned long long)array->size_bytes);
    return find_part(p, array, &leaf->part);
}

/* ---- the steps ---- */

static bool wants_hash(const cw_leaf *leaf, const struct publication *p, uint32_t flags) {
    if (flags & (CW_TREE_NO_HASH | CW_TREE_UNSEALED))
        return false;
    return flags & CW_TREE_HASH || leaf->size_bytes == 0 ||
           p->parts[leaf->part].device_kind == CW_DEVICE_HOST;
}

static int hash_leaves(struct publication *p, uint32_t flags) {
    int code = 0;
    for (uint32_t i = 0; i < p->leaf_count && code == 0; i++) {
        cw_leaf *leaf = &p->leaves[i];
        if (leaf->flags & CW_LEAF_HASHED || !wants_hash(leaf, p, flags))
            continue;
        leaf->flags |= CW_LEAF_HASHED;
        if (leaf->alias && leaf->alias <= i)
            leaf->hash = p->leaves[leaf->alias - 1].hash;
        else
            code = leaf->size_bytes ? cw_array_hash(leaf->array, leaf->offset_bytes,
                                                    leaf->size_bytes, &leaf->hash)
                                    : cw_bytes_hash(NULL, 0, &leaf->hash);
    }
    return code;
}

/* From the array's lowest byte to its part's: parts are whole blocks. */
static void place_in_parts(struct publication *p) {
    for (uint32_t i = 0; i < p->leaf_count; i++)
        if (p->leaves[i].size_bytes)
            p->leaves[i].offset_bytes += p->leaves[i].array->offset_bytes;
}

int cw_index_make(cw_client *client, const struct cw_index_part *parts, uint32_t part_count,
                  const cw_leaf *leaves, uint32_t leaf_count, const void *meta, uint64_t meta_bytes,
                  struct cw_index *index, cw_array **out) {
    uint8_t *bytes;
    uint64_t size_bytes;
    int code = cw_index_write(parts, part_count, leaves, leaf_count, meta, meta_bytes, &bytes,
                              &size_bytes);
    if (code)
        return code;
    int64_t size = (int64_t)size_bytes;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &size, .dtype = "|u1"};
    code = cw_index_read(bytes, size_bytes, index); /* as each reader will */
    if (code) {
        code = code == -EPROTO ? -EINVAL : code;
    } else {
        code = cw_array_new(client, "cpu", &layout, 0, out);
        if (code == 0)
            code = cw_array_write(*out, 0, bytes, size_bytes);
        else
            *out = NULL;
        if (code && *out)
            cw_array_close(*out);
        if (code)
            cw_index_deinit(index);
    }
    free(bytes);
    return code;
}

int cw_index_move(cw_client *client, const struct cw_index *from, const struct cw_index_span *spans,
                  const uint32_t *numbers, const struct cw_index_part *parts, uint32_t part_count,
                  struct cw_index *index, cw_array **out) {
    const uint32_t count = from->head->leaves;
    cw_leaf *leaves = calloc(count + 1, sizeof *leaves);
    if (!leaves)
        return cw_fail(-EDQUOT, "no memory for a tree of %u leaves", count);
    for (uint32_t i = 0; i < count; i++) {
        cw_index_leaf(from, i, &leaves[i]);
        if (leaves[i].size_bytes == 0)
            continue;
        leaves[i].offset_bytes -= spans[leaves[i].part].offset_bytes;
        leaves[i].part = numbers[leaves[i].part];
    }
    int code = cw_index_make(client, parts, part_count, leaves, count, from->meta,
                             from->head->meta_bytes, index, out);
    free(leaves);
    return code;
}

struct cw_index_part cw_part_of(const cw_array *array) {
    const struct cw_slab *slab = array->home_slab;
    struct cw_index_part part = {.slab = slab->id,
                                 .block = array->block,
                                 .gen = array->gen,
                                 .offset_bytes = array->offset_bytes,
                                 .size_bytes = array->size_bytes,
                                 .device_kind = slab->device_kind};
    memcpy(part.device_uuid, slab->device_uuid, sizeof part.device_uuid);
    return part;
}

void cw_parts_published(cw_client *client, cw_array *const *arrays, uint32_t count) {
    pthread_mutex_lock(&client->lock);
    for (uint32_t i = 0; i < count; i++) {
        struct cw_extent *extent =
            arrays[i] ? arrays[i]->slab->locals[arrays[i]->block].extent : NULL;
        if (extent)
            extent->published = true;
    }
    pthread_mutex_unlock(&client->lock);
}

int cw_index_group(cw_client *client, cw_array *array, const struct cw_index_part *members,
                   uint32_t part_count) {
    struct cw_block_name names[CW_GROUP_ASKED];
    cw_parts_published(client, &array, 1);
    uint32_t done = 0;
    int code;
    do { /* also without parts: the index is an anchor */
        uint32_t some = part_count - done;
        some = some < CW_GROUP_ASKED ? some : CW_GROUP_ASKED;
        struct cw_block_group head = {
            .anchor = {.slab = array->slab->id, .block = array->block, .gen = array->gen},
            .count = some};
        for (uint32_t i = 0; i < some; i++)
            names[i] = (struct cw_block_name){.slab = members[done + i].slab,
                                              .block = members[done + i].block,
                                              .gen = members[done + i].gen};
        struct iovec parts[] = {{&head, sizeof head}, {names, some * sizeof *names}};
        code = cw_channel_call(client, CW_OP_GROUP, parts, 2, NULL, NULL, CW_CALL_DEED, -1);
        done += some;
    } while (code == 0 && done < part_count);
    return code;
}

static int prepare(struct publication *p, uint32_t flags) {
    int code = 0;
    for (uint32_t i = 0; i < p->leaf_count && code == 0; i++)
        code = place_leaf(p, i);
    for (uint32_t i = 0; i < p->part_count && code == 0; i++)
        code = cw_array_wait(p->arrays[i], -1);
    if (code == 0)
        code = hash_leaves(p, flags);
    if (code)
        return code;
    place_in_parts(p);
    for (uint32_t i = 0; i < p->part_count && !(flags & CW_TREE_UNSEALED); i++)
        cw_array_freeze(p->arrays[i]);
    return 0;
}

int cw_tree_put_remote(cw_array *array, const struct cw_index *index, const struct cw_name_key *key,
                       int gpu, uint32_t flags, uint64_t if_version, uint64_t *instance,
                       uint64_t *version) {
    struct cw_meta_put_tree meta = {.version = CW_META_PUT_TREE_VERSION, .if_version = if_version};
    struct cw_index_span *spans = malloc((index->head->parts + 1u) * sizeof *spans);
    if (!spans)
        return cw_fail(-EDQUOT, "no memory for a tree of %u parts", index->head->parts);
    cw_index_spans(index, spans);
    for (uint32_t i = 0; i < index->head->parts; i++)
        meta.parts_bytes += spans[i].size_bytes;
    free(spans);
    return cw_remote_put_tree(array, key, gpu, flags, &meta, instance, version);
}

/* remote: the key is of another node's name, onto whose GPU it is put (-1: into its host memory).
 */
static int publish(struct publication *p, const struct cw_name_key *key, bool remote, int gpu,
                   const void *meta, uint64_t meta_bytes, uint32_t flags, uint64_t if_version,
                   cw_tree **out) {
    struct cw_index index;
    cw_array *array = NULL;
    uint64_t version, instance = p->client->instance;
    int code = prepare(p, flags);
    if (code == 0)
        code = cw_index_make(p->client, p->parts, p->part_count, p->leaves, p->leaf_count, meta,
                             meta_bytes, &index, &array);
    if (code)
        return code;
    cw_array_freeze(array);
    cw_parts_published(p->client, p->arrays, p->part_count);
    code = cw_index_group(p->client, array, p->parts, p->part_count);
    if (code == 0)
        code = remote ? cw_tree_put_remote(array, &index, key, gpu, flags, if_version, &instance,
                                           &version)
                      : cw_tree_put_index(p->client, array, index.head, key, flags, if_version,
                                          &version);
    if (code == 0 && out) {
        code = cw_tree_make(p->client, array, version, &index, out);
        if (code == 0)
            (*out)->instance = instance;
        return code;
    }
    cw_index_deinit(&index);
    cw_array_close(array);
    return code;
}

static int check_arguments(cw_client *client, const cw_leaf *leaves, uint32_t count,
                           const void *meta, uint64_t meta_bytes, uint32_t flags) {
    const uint32_t known = CW_REPLACE | CW_KEEP | CW_TIED | CW_REMOTE_READ | CW_TREE_NO_HASH |
                           CW_TREE_HASH | CW_TREE_UNSEALED;
    if (!client || (count && !leaves) || (meta_bytes && !meta))
        return cw_needs("a client, leaves and metadata");
    if (flags & ~known)
        return cw_fail(
            -EINVAL,
            "flags 0x%x: cw_tree_put knows CW_REPLACE, CW_KEEP, CW_TIED, CW_REMOTE_READ, "
            "CW_TREE_NO_HASH, CW_TREE_HASH and CW_TREE_UNSEALED",
            flags);
    if (flags & CW_TREE_UNSEALED && flags & (CW_TREE_HASH | CW_REMOTE_READ))
        return cw_fail(-EINVAL, "a tree that is not sealed changes in place: it has no hashes, and "
                                "no other node may read it; leave CW_TREE_HASH and CW_REMOTE_READ "
                                "out");
    if (count > CW_LEAVES_MAX)
        return cw_fail(-EDQUOT,
                       "a tree of %u leaves was asked for, %u are possible: split the tree", count,
                       CW_LEAVES_MAX);
    return cw_put_flags_check(flags);
}

/* gpu: of another node, -1: its host memory. */
static int put(cw_client *client, const char *name, int gpu, const cw_leaf *leaves, uint32_t count,
               const void *meta, uint64_t meta_bytes, uint32_t flags, uint64_t if_version,
               bool hashed, cw_tree **out) {
    struct cw_name_key key;
    int code = check_arguments(client, leaves, count, meta, meta_bytes, flags);
    if (code == 0)
        code = cw_tree_key_of(client, name, &key);
    const bool remote = code == 1;
    if (remote)
        code = cw_remote_put_check(flags);
    else if (code == 0)
        code = cw_tree_stays(name, gpu);
    if (code)
        return code;
    struct publication p = {.client = client, .leaf_count = count, .hashed = hashed};
    p.leaves = malloc((count + 1) * sizeof *p.leaves);
    if (p.leaves) {
        if (count)
            memcpy(p.leaves, leaves, count * sizeof *leaves);
        code = publish(&p, &key, remote, gpu, meta, meta_bytes, flags, if_version, out);
    } else {
        code = cw_fail(-EDQUOT, "no memory for a tree of %u leaves", count);
    }
    for (uint32_t i = 0; i < p.part_count; i++)
        cw_array_unpin(p.arrays[i]);
    free(p.leaves);
    free(p.parts);
    free(p.arrays);
    free(p.slots);
    return code;
}

int cw_tree_put_hashed(cw_client *client, const char *name, const cw_leaf *leaves, uint32_t count,
                       const void *meta, uint64_t meta_bytes, uint32_t flags, uint64_t if_version,
                       bool hashed, cw_tree **out) {
    return put(client, name, -1, leaves, count, meta, meta_bytes, flags, if_version, hashed, out);
}

int cw_tree_put(cw_client *client, const char *name, const cw_leaf *leaves, uint32_t count,
                const void *meta, uint64_t meta_bytes, uint32_t flags, uint64_t if_version,
                cw_tree **out) {
    return put(client, name, -1, leaves, count, meta, meta_bytes, flags, if_version, false, out);
}

int cw_tree_put_at(cw_client *client, const char *name, const char *device, const cw_leaf *leaves,
                   uint32_t count, const void *meta, uint64_t meta_bytes, uint32_t flags,
                   uint64_t if_version, cw_tree **out) {
    int gpu;
    int code = device ? cw_remote_gpu(device, &gpu) : cw_needs("a device");
    return code ? code
                : put(client, name, gpu, leaves, count, meta, meta_bytes, flags, if_version, false,
                      out);
}
