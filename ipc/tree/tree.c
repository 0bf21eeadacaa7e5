/*
 * A tree: one version, held by one lease on its index.
 *
 * Invariant: as long as that lease stands, all parts live: the broker holds them for the index
 * (broker/memory/groups.h). A part that is mapped has a lease of its own beside, as any array: it
 * costs a store, and what was taken out of a tree can so be sent, named and kept without it.
 *
 * What becomes of it when somebody dies:
 *   the publisher   nothing: memory is in the broker's custody
 *   the reader      its leases end; what nobody else has comes back within 100 ms
 *   the broker      what is mapped stays readable; a part that is opened later says -ECONNRESET
 *
 * A struct cw_tree does not change after it was made: any thread may look at it. After a fork the
 * child's copy works, too: the parent's lease on the index is doubled, and parts are opened by a
 * client of the child's.
 */
#include "ipc/tree/tree.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/array/remote_name.h"
#include "ipc/base/handle_form.h"
#include "ipc/base/meta.h"
#include "ipc/base/name_key.h"
#include "shm/base/error.h"
#include "ipc/request/socket.h"
#include "ipc/request/channel.h"
#include "ipc/client.h"
#include "ipc/array/array.h"
#include "ipc/tree/fetch.h"

#define GET_TRIES 1000u /* versions that went under us, one after the other */

int cw_tree_make(cw_client *client, cw_array *array, uint64_t version, struct cw_index *index,
                 cw_tree **out) {
    cw_tree *tree = malloc(sizeof *tree);
    if (!tree) {
        cw_index_deinit(index);
        cw_array_close(array);
        return cw_fail(-EDQUOT, "no memory for a tree's description");
    }
    *tree = (cw_tree){.client = client,
                      .array = array,
                      .version = version,
                      .instance = client->instance,
                      .index = *index};
    cw_client_ref(client);
    *out = tree;
    return 0;
}

/* The array of an index. Memory that somebody else may shrink (an adopted file) is none. */
static int attach_index(cw_client *client, const struct cw_version *at, cw_array **out) {
    struct cw_shape shape;
    if (at->size_bytes > CW_INDEX_BYTES_MAX)
        return cw_fail(-EPROTO, "the index of a tree cannot have %llu bytes",
                       (unsigned long long)at->size_bytes);
    cw_shape_bytes(at->size_bytes, &shape);
    pthread_mutex_lock(&client->lock);
    int code = cw_array_attach(client, at->slab, at->block, at->gen, at->offset_bytes,
                               at->size_bytes, &shape, CW_READONLY, out);
    bool plain = code == 0 && (*out)->slab->device_kind == CW_DEVICE_HOST &&
                 !((*out)->slab->flags & CW_SLAB_FOREIGN);
    pthread_mutex_unlock(&client->lock);
    if (code || plain)
        return code;
    cw_array_close(*out);
    return cw_fail(-EPROTO, "the index of a tree lies in memory of its own kind: that of this one "
                            "is a GPU's, or somebody else's");
}

static int open_at(cw_client *client, const struct cw_version *at, cw_tree **out) {
    struct cw_index index;
    cw_array *array;
    int code = attach_index(client, at, &array);
    if (code)
        return code;
    code = cw_index_read(array->bytes, array->size_bytes, &index);
    if (code) {
        cw_array_close(array);
        return code;
    }
    return cw_tree_make(client, array, at->version, &index, out);
}

/* ---- by name ---- */

static int ask_version(cw_client *client, const struct cw_name_key *key, uint64_t version,
                       struct cw_version *out) {
    struct cw_find_version body = {.version = version, .key = {.key_bytes = key->length}};
    struct iovec parts[] = {{&body, sizeof body}, {(void *)(uintptr_t)key->text, key->length}};
    uint32_t bytes = sizeof *out;
    int code =
        cw_channel_call(client, CW_OP_FIND_VERSION, parts, 2, out, &bytes, CW_CALL_SHORT, -1);
    if (code == 0 && (bytes != sizeof *out || out->version != version))
        code = cw_fail(-EPROTO, "the broker answered FIND_VERSION with another version");
    return code;
}

/* Where the version lies that is asked for (0: the one that the name means). */
static int find_version(cw_client *client, const struct cw_name_key *key, const char *name,
                        uint64_t version, struct cw_version *out) {
    struct cw_found found;
    int code = cw_name_key_find(client, key, &found);
    bool here = code == 0 && (version == 0 || found.entry.id == version);
    if (code && (code != -ENOENT || version == 0))
        return code == -ENOENT ? cw_no_such_name(client, name) : code;
    if (!here)
        return ask_version(client, key, version, out);
    if (!(found.entry.flags & CW_ENTRY_TREE))
        return cw_fail(-ENOTDIR, "\"%s\" is an array, not a tree: get it as an array", name);
    *out = (struct cw_version){.version = found.entry.id,
                               .slab = found.entry.slab,
                               .block = found.entry.block,
                               .gen = found.entry.gen,
                               .offset_bytes = found.entry.offset_bytes,
                               .size_bytes = found.entry.size_bytes};
    return 0;
}

int cw_tree_key_of(cw_client *client, const char *name, struct cw_name_key *key) {
    int code = cw_name_key_make(client, name, key);
    if (code || !cw_remote_name(name))
        return code;
    code = cw_name_is_here(client, name);
    if (code == 1)
        return cw_name_key_make(client, cw_remote_local(name), key);
    return code < 0 ? code : 1;
}

int cw_tree_key(cw_client *client, const char *name, struct cw_name_key *key) {
    int code = cw_tree_key_of(client, name, key);
    return code <= 0
               ? code
               : cw_fail(-EREMOTEIO,
                         "\"%s\": files cannot be loaded onto another node; load them under a "
                         "name of this node, and put that tree there",
                         name);
}

static int get_here(cw_client *client, const char *name, uint64_t version, cw_tree **out) {
    struct cw_name_key key;
    struct cw_version at = {.version = 0};
    int code = cw_name_key_make(client, name, &key);
    if (code)
        return code;
    for (unsigned tries = 0; tries < GET_TRIES; tries++) {
        if (tries)
            sched_yield();
        code = find_version(client, &key, name, version, &at);
        if (code)
            return code;
        code = open_at(client, &at, out);
        if (code != -ESTALE)
            return code;
    }
    return cw_fail(
        -ESTALE, "the name \"%s\" was replaced again and again while it was read: try again", name);
}

int cw_tree_get_at(cw_client *client, const char *name, uint64_t version,
                   const char *const *devices, uint32_t count, int64_t timeout_ns, cw_tree **out) {
    struct cw_name_key key;
    if (!out || (count && !devices))
        return cw_needs("devices, and a place for the tree");
    int code = cw_name_key_make(client, name, &key);
    if (code)
        return code;
    if (cw_remote_name(name)) {
        code = cw_tree_fetch(client, &key, version, devices, count, timeout_ns, out);
        if (code != -ELOOP)
            return code;
        name = cw_remote_local(name);
    }
    if (count)
        return cw_fail(-EINVAL, "\"%s\" is a tree of this node: it is opened where it lies", name);
    return get_here(client, name, version, out);
}

int cw_tree_get(cw_client *client, const char *name, uint64_t version, cw_tree **out) {
    return cw_tree_get_at(client, name, version, NULL, 0, -1, out);
}

void cw_tree_put_form(const cw_array *array, const struct cw_index_head *head,
                      const struct cw_name_key *key, uint32_t flags, uint64_t if_version,
                      struct cw_put_tree *put, struct cw_meta_tree *meta) {
    const struct cw_index_part *first = (const void *)(head + 1);
    *put = (struct cw_put_tree){.if_version = if_version,
                                .put = {.slab = array->slab->id,
                                        .block = array->block,
                                        .gen = array->gen,
                                        .offset_bytes = array->offset_bytes,
                                        .size_bytes = array->size_bytes,
                                        .flags = cw_put_flags_of(flags),
                                        .key_bytes = (uint16_t)key->length,
                                        .meta_bytes = sizeof(struct cw_meta_tree)}};
    *meta = (struct cw_meta_tree){.version = CW_META_TREE_VERSION,
                                  .leaves = head->leaves,
                                  .parts = head->parts,
                                  .total_bytes = head->total_bytes};
    bool one_device = head->parts > 0;
    for (uint32_t i = 1; i < head->parts; i++)
        one_device = one_device && memcmp(first[i].device_uuid, first->device_uuid, 16) == 0;
    if (one_device) {
        meta->device_kind = first->device_kind;
        memcpy(meta->device_uuid, first->device_uuid, sizeof meta->device_uuid);
    }
}

int cw_tree_put_index(cw_client *client, cw_array *array, const struct cw_index_head *head,
                      const struct cw_name_key *key, uint32_t flags, uint64_t if_version,
                      uint64_t *version) {
    struct cw_put_tree put;
    struct cw_meta_tree meta;
    cw_tree_put_form(array, head, key, flags, if_version, &put, &meta);
    struct iovec parts[] = {
        {&put, sizeof put}, {(void *)(uintptr_t)key->text, key->length}, {&meta, sizeof meta}};
    struct cw_version reply;
    uint32_t bytes = sizeof reply;
    int code = cw_channel_call(client, CW_OP_PUT_TREE, parts, 3, &reply, &bytes, CW_CALL_DEED, -1);
    if (code)
        return code;
    if (bytes != sizeof reply)
        return cw_fail(-EPROTO, "the broker answered PUT_TREE with %u bytes", bytes);
    cw_name_key_replaced(client);
    *version = reply.version;
    return 0;
}

static int check_held(const cw_tree *tree) {
    return tree->array
               ? 0
               : cw_fail(-ESTALE, "this tree was parked and belongs to this process alone by now: "
                                  "put its arrays as a new tree");
}

int cw_tree_stays(const char *name, int gpu) {
    return gpu < 0 ? 0
                   : cw_fail(-EINVAL,
                             "\"%s\" is a name of this node: leaves stay where they lie; copy them "
                             "to cuda:%d, and put the copies",
                             name, gpu);
}

/* gpu: of another node, -1: its host memory. */
static int put_again(const cw_tree *tree, cw_client *client, const char *name, int gpu,
                     uint32_t flags, uint64_t if_version, uint64_t *version) {
    struct cw_name_key key;
    uint64_t instance;
    if (!tree || !version)
        return cw_needs("a tree and a place for the version");
    if (flags & ~(uint32_t)(CW_REPLACE | CW_KEEP | CW_TIED | CW_REMOTE_READ))
        return cw_fail(-EINVAL,
                       "flags 0x%x: cw_tree_name knows CW_REPLACE, CW_KEEP, CW_TIED and "
                       "CW_REMOTE_READ",
                       flags);
    int code = cw_put_flags_check(flags);
    if (code == 0)
        code = check_held(tree);
    if (code == 0)
        code = cw_tree_key_of(client, name, &key);
    const bool remote = code == 1;
    if (code == 0)
        code = cw_tree_stays(name, gpu);
    if (code >= 0 && client->instance != tree->client->instance)
        code = cw_fail(-EINVAL,
                       "the tree belongs to a broker that has ended: put its arrays as a new tree");
    if (code < 0)
        return code;
    return remote ? cw_tree_put_remote(tree->array, &tree->index, &key, gpu, flags, if_version,
                                       &instance, version)
                  : cw_tree_put_index(client, tree->array, tree->index.head, &key, flags,
                                      if_version, version);
}

int cw_tree_name(const cw_tree *tree, cw_client *client, const char *name, uint32_t flags,
                 uint64_t if_version, uint64_t *version) {
    return put_again(tree, client, name, -1, flags, if_version, version);
}

int cw_tree_name_at(const cw_tree *tree, cw_client *client, const char *name, const char *device,
                    uint32_t flags, uint64_t if_version, uint64_t *version) {
    int gpu;
    int code = device ? cw_remote_gpu(device, &gpu) : cw_needs("a device");
    return code ? code : put_again(tree, client, name, gpu, flags, if_version, version);
}

/* ---- what it has ---- */

void cw_tree_close(cw_tree *tree) {
    if (!tree)
        return;
    cw_array_close(tree->array);
    cw_client_unref(tree->client);
    cw_index_deinit(&tree->index);
    free(tree);
}

void cw_tree_look_at(const cw_tree *tree, cw_tree_info *out) {
    if (!out)
        return;
    *out = (cw_tree_info){.version = 0};
    if (!tree)
        return;
    const struct cw_index_head *head = tree->index.head;
    *out = (cw_tree_info){.version = tree->version,
                          .total_bytes = head->total_bytes,
                          .layout_hash = head->layout_hash,
                          .content_hash = head->content_hash,
                          .leaves = head->leaves,
                          .parts = head->parts,
                          .meta = tree->index.meta,
                          .meta_bytes = head->meta_bytes,
                          .index = head,
                          .index_bytes = head->size_bytes};
}

int cw_tree_leaf(const cw_tree *tree, uint32_t number, cw_leaf *out) {
    if (!tree || !out)
        return cw_needs("a tree and a place for the leaf");
    if (number >= tree->index.head->leaves)
        return cw_fail(-EINVAL, "leaf %u of a tree of %u leaves", number, tree->index.head->leaves);
    cw_index_leaf(&tree->index, number, out);
    return 0;
}

int cw_tree_find(const cw_tree *tree, const char *path, uint32_t *number) {
    if (!tree || !path || !number)
        return cw_needs("a tree, a path and a place for the number");
    int code = cw_index_find(&tree->index, path, number);
    return code ? cw_fail(code,
                          "the tree has no leaf \"%.300s\": its list of leaves gives the paths",
                          path)
                : 0;
}

int cw_array_sealed(const cw_array *array) {
    return array ? cw_block_frozen(&array->slab->table->blocks[array->block], array->gen)
                 : cw_needs("an array");
}

/* Does the slab of a part lie where the index says? */
static int check_device(const cw_array *array, const struct cw_index_part *part) {
    const struct cw_slab *slab = array->home_slab;
    return slab->device_kind == part->device_kind &&
                   memcmp(slab->device_uuid, part->device_uuid, sizeof part->device_uuid) == 0
               ? 0
               : cw_fail(-EPROTO, "the index of a tree says another device than its part lies on");
}

int cw_tree_part(const cw_tree *tree, cw_client *client, uint32_t part, cw_array **out) {
    return cw_tree_part_as(tree, client, part, CW_READONLY, out);
}

int cw_tree_part_as(const cw_tree *tree, cw_client *client, uint32_t part, uint32_t flags,
                    cw_array **out) {
    struct cw_shape shape;
    cw_array *array;
    if (!tree || !out)
        return cw_needs("a tree and a place for the array");
    if (part >= tree->index.head->parts)
        return cw_fail(-EINVAL, "part %u of a tree of %u parts", part, tree->index.head->parts);
    int code = client ? cw_client_usable(client) : cw_needs("a client");
    if (code == 0 && client->instance != tree->client->instance)
        code = cw_fail(
            -ESTALE, "the tree's broker has ended, and this part of it was not mapped here: get it "
                     "anew from who has put it again");
    if (code)
        return code;
    const struct cw_index_part *at = &tree->index.parts[part];
    cw_shape_bytes(at->size_bytes, &shape);
    pthread_mutex_lock(&client->lock);
    code = cw_array_attach(client, at->slab, at->block, at->gen, at->offset_bytes, at->size_bytes,
                           &shape, flags, &array);
    pthread_mutex_unlock(&client->lock);
    if (code)
        return code;
    code = check_device(array, at);
    if (code)
        cw_array_close(array);
    else
        *out = array;
    return code;
}

/* ---- by handle ---- */

int cw_tree_export(const cw_tree *tree, int openers, cw_handle *out) {
    int code = tree ? check_held(tree) : cw_needs("a tree");
    return code ? code : cw_array_export(tree->array, openers, out);
}

int cw_tree_describe(const cw_tree *tree, cw_tree **out) {
    struct cw_index index;
    if (!tree || !out)
        return cw_needs("a tree and a place for its description");
    int code = cw_index_read(tree->index.bytes, tree->index.head->size_bytes, &index);
    if (code == 0)
        code = cw_tree_make(tree->client, NULL, tree->version, &index, out);
    if (code == 0)
        (*out)->instance = tree->instance;
    return code;
}

int cw_tree_describe_name(cw_client *client, const char *name, int64_t timeout_ns, cw_tree **out) {
    struct cw_name_key key;
    cw_tree *held;
    if (!out)
        return cw_needs("a place for the tree's description");
    int code = cw_name_key_make(client, name, &key);
    if (code == 0 && cw_remote_name(name)) {
        code = cw_tree_fetch_description(client, &key, timeout_ns, out);
        if (code != -ELOOP)
            return code;
        name = cw_remote_local(name);
    }
    if (code == 0 || code == -ELOOP)
        code = get_here(client, name, 0, &held);
    if (code)
        return code;
    code = cw_tree_describe(held, out);
    cw_tree_close(held);
    return code;
}

int cw_tree_open(cw_client *client, const cw_handle *handle, uint64_t version, cw_tree **out) {
    struct cw_index index;
    cw_array *array;
    int64_t size = 0;
    if (!handle || !out)
        return cw_needs("a handle and a place for the tree");
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &size, .dtype = "|u1"};
    cw_handle copy = *handle;
    if (copy.size_bytes > CW_INDEX_BYTES_MAX)
        return cw_fail(-EPROTO, "the index of a tree cannot have %llu bytes",
                       (unsigned long long)copy.size_bytes);
    size = (int64_t)copy.size_bytes;
    int code = cw_array_open(client, &copy, &layout, CW_READONLY, &array);
    if (code)
        return code;
    if (array->slab->device_kind != CW_DEVICE_HOST || array->slab->flags & CW_SLAB_FOREIGN)
        code = cw_fail(-EPROTO, "the handle does not lead to a tree");
    if (code == 0)
        code = cw_index_read(array->bytes, array->size_bytes, &index);
    if (code) {
        cw_array_close(array);
        return code;
    }
    return cw_tree_make(client, array, version, &index, out);
}

int cw_tree_to_handle(const cw_tree *tree, uint32_t openers, void *out, uint64_t *size_bytes) {
    struct cw_handle_read read;
    if (!tree || !out || !size_bytes)
        return cw_needs("a tree, a place for its handle and one for its size");
    int code = cw_handle_begin(tree->client, openers, CW_READONLY, &read.info);
    if (code == 0)
        code = cw_tree_export(tree, (int)openers, &read.info.handle);
    if (code)
        return code;
    read.info.tree_version = tree->version;
    cw_shape_bytes(read.info.handle.size_bytes, &read.shape);
    *size_bytes = cw_handle_encode(&read, out);
    return 0;
}

int cw_tree_from_handle(cw_client *client, const void *bytes, uint64_t size_bytes, cw_tree **out) {
    struct cw_handle_read read;
    if (!out)
        return cw_needs("a place for the tree");
    int code = cw_handle_accept(client, bytes, size_bytes, &read);
    if (code)
        return code;
    if (!read.info.tree_version)
        return cw_fail(-EPROTO, "this handle leads to an array: open it by cw_from_handle()");
    code = cw_tree_open(client, &read.info.handle, read.info.tree_version, out);
    return code == -ESTALE ? cw_handle_gone(client, &read.info) : code;
}
