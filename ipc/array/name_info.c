/*
 * What is known about a name: its record in the directory, who holds its block as the broker counts
 * them; of another node's name what that node tells. Any thread may call; nothing is kept.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/array/remote_name.h"
#include "ipc/base/meta.h"
#include "ipc/base/name_key.h"
#include "ipc/client.h"
#include "ipc/request/admin.h"
#include "ipc/request/channel.h"

#define STAT_TRIES 1000u /* names replaced under us, one after the other */

/* Of a tree's record: its leaves and their bytes, as a list of them would have. */
static void describe_tree(const struct cw_found *found, cw_name_info *out) {
    struct cw_meta_tree tree;
    if (!(found->entry.flags & CW_ENTRY_TREE) ||
        cw_meta_tree_decode(found->meta, found->entry.meta_bytes, &tree) != 0)
        return;
    out->nbytes = tree.total_bytes;
    out->ndim = 1;
    out->shape[0] = tree.leaves;
    out->version = found->entry.id;
    out->parts = tree.parts;
    strcpy(out->dtype, "tree");
    strcpy(out->device, tree.device_kind == CW_DEVICE_CUDA ? "cuda"
                        : tree.device_kind                 ? "cpu"
                                                           : "");
    cw_uuid_text(tree.device_uuid, out->device_uuid);
}

/* What the record says, and where the slab lies. shape NULL: its metadata cannot be read. */
static void describe(const char *name, const struct cw_found *found, const struct cw_shape *shape,
                     cw_name_info *out) {
    memset(out, 0, sizeof *out);
    strcpy(out->name, name);
    out->owner_pid = found->entry.owner_pid;
    out->created_ns = found->entry.created_ns;
    out->nbytes = found->entry.size_bytes;
    out->keep = (found->entry.flags & CW_ENTRY_KEEP) != 0;
    out->tied = (found->entry.flags & CW_ENTRY_TIED) != 0;
    out->slab = found->entry.slab;
    if (!shape) {
        describe_tree(found, out);
        return;
    }
    out->ndim = shape->ndim;
    memcpy(out->shape, shape->shape, shape->ndim * sizeof *shape->shape);
    memcpy(out->dtype, shape->dtype, shape->dtype_bytes + 1);
}

void cw_name_describe(const char *name, const struct cw_found *found, cw_name_info *out) {
    struct cw_shape shape;
    /* Who put it may have written anything there: that is no reason to hide it, or others. */
    int code =
        cw_meta_decode(found->meta, found->entry.meta_bytes, found->entry.size_bytes, &shape);
    describe(name, found, code ? NULL : &shape, out);
}

static void describe_holders(uint32_t holders, uint32_t references, uint32_t device_kind,
                             const uint8_t *device_uuid, cw_name_info *out) {
    out->holders = holders;
    out->references = references;
    if (strcmp(out->dtype, "tree") == 0)
        return; /* its index lies in host memory, wherever its leaves do */
    strcpy(out->device, device_kind == CW_DEVICE_CUDA ? "cuda" : "cpu");
    cw_uuid_text(device_uuid, out->device_uuid);
}

/* Of a name of another node: what that node tells. What it does not tell stays 0 or empty. */
static int stat_there(cw_client *client, const char *name, const struct cw_name_key *key,
                      cw_name_info *out) {
    memset(out, 0, sizeof *out);
    int code = cw_remote_about(client, key, out);
    if (code == -ELOOP)
        return cw_name_stat(client, cw_remote_local(name), out);
    strcpy(out->name, cw_remote_local(name));
    return code;
}

int cw_no_such_name(cw_client *client, const char *name) {
    return cw_fail(-ENOENT,
                   "no array has the name \"%s\"%s%s%s at the broker %.120s: `cableway ls --all` "
                   "lists all names; a get with a timeout waits for one",
                   name, *client->name_space ? " in the namespace \"" : "", client->name_space,
                   *client->name_space ? "\"" : "", client->address);
}

int cw_name_stat(cw_client *client, const char *name, cw_name_info *out) {
    struct cw_name_key key;
    struct cw_found found;
    struct cw_shape shape;
    struct cw_holders holders = {.holders = 0};
    bool tree = false;
    if (!out)
        return cw_fail(-EINVAL, "a place for the answer is needed, NULL was given");
    int code = cw_name_key_make(client, name, &key);
    if (code == 0 && cw_remote_name(name))
        return stat_there(client, name, &key, out);
    for (unsigned tries = 0; code == 0 && tries < STAT_TRIES; tries++) {
        code = cw_name_key_find(client, &key, &found);
        if (code == -ENOENT)
            return cw_no_such_name(client, name);
        tree = code == 0 && found.entry.flags & CW_ENTRY_TREE;
        if (code == 0 && !tree)
            code =
                cw_meta_decode(found.meta, found.entry.meta_bytes, found.entry.size_bytes, &shape);
        if (code)
            break;
        code = cw_holders_ask(client, found.entry.slab, found.entry.block, found.entry.gen,
                              &holders, NULL);
        if (code != -ESTALE && code != -ENOENT)
            break;
        code = 0; /* the name was replaced meanwhile */
        if (tries + 1 == STAT_TRIES)
            return cw_fail(
                -ESTALE,
                "the name \"%s\" was replaced again and again while it was read: try again", name);
    }
    if (code)
        return code;
    describe(name, &found, tree ? NULL : &shape, out);
    describe_holders(holders.holders, holders.references, holders.device_kind, holders.device_uuid,
                     out);
    return 0;
}

/* ---- all names at once ---- */

typedef int stat_each(void *context, const cw_name_info *info);

/* Names that are asked of together, with what the directory says of them. */
struct batch {
    cw_client *client;
    stat_each *each;
    void *context;
    uint32_t count;
    struct cw_block_name blocks[CW_BLOCKS_ASKED];
    struct cw_block_holders holders[CW_BLOCKS_ASKED];
    cw_name_info infos[CW_BLOCKS_ASKED];
};

/* Looks a name up and adds it. -ENOENT: it went. */
static int batch_add(struct batch *batch, const char *name) {
    struct cw_name_key key;
    struct cw_found found;
    int code = cw_name_key_make(batch->client, name, &key);
    if (code == 0)
        code = cw_name_key_find(batch->client, &key, &found);
    if (code)
        return code;
    cw_name_describe(name, &found, &batch->infos[batch->count]);
    batch->blocks[batch->count++] = (struct cw_block_name){
        .slab = found.entry.slab, .block = found.entry.block, .gen = found.entry.gen};
    return 0;
}

/* Its name was replaced between two looks: it is looked at alone. */
static int look_again(struct batch *batch, cw_name_info *info) {
    char name[sizeof info->name];
    strcpy(name, info->name);
    int code = cw_name_stat(batch->client, name, info);
    if (code == -EPROTO) {
        info->ndim = 0;
        *info->dtype = 0;
    }
    return code == -EPROTO ? 0 : code;
}

/* Asks who holds those from `from` on. The broker tells of as many as it has room for. */
static int batch_ask(struct batch *batch, uint32_t from) {
    struct cw_blocks head = {.count = batch->count - from};
    uint32_t bytes = sizeof batch->holders;
    struct iovec parts[] = {{&head, sizeof head},
                            {batch->blocks + from, head.count * sizeof *batch->blocks}};
    int code = cw_channel_call(batch->client, CW_OP_HOLDERS_OF, parts, 2, batch->holders, &bytes,
                               CW_CALL_SHORT, -1);
    if (code)
        return code;
    uint32_t told = bytes / (uint32_t)sizeof *batch->holders;
    if (told == 0 || told > head.count || bytes % sizeof *batch->holders)
        return cw_fail(-EPROTO, "the broker answered HOLDERS_OF with %u bytes", bytes);
    return (int)told;
}

/* Tells of one whose holders are known now. */
static int batch_tell(struct batch *batch, const struct cw_block_holders *found,
                      cw_name_info *info) {
    int code = 0;
    if (found->device_kind)
        describe_holders(found->holders, found->references, found->device_kind, found->device_uuid,
                         info);
    else
        code = look_again(batch, info);
    if (code == -ENOENT || code == -ESTALE)
        return 0; /* it went, or is replaced all the time */
    return code ? code : batch->each(batch->context, info);
}

static int batch_tell_all(struct batch *batch) {
    int code = 0;
    for (uint32_t from = 0; from < batch->count && code >= 0;) {
        code = batch_ask(batch, from);
        for (uint32_t told = code < 0 ? 0 : (uint32_t)code, i = 0; i < told; i++, from++) {
            code = batch_tell(batch, &batch->holders[i], &batch->infos[from]);
            if (code)
                return code;
        }
    }
    batch->count = 0;
    return code < 0 ? code : 0;
}

static int compare_names(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static int stat_sorted(struct batch *batch, const char **names, uint64_t count, const char *node) {
    char name[CW_KEY_MAX];
    int code = 0;
    for (uint64_t i = 0; i < count && code == 0; i++) {
        if (*node) {
            snprintf(name, sizeof name, "%s%s", node, names[i]);
            code = cw_name_stat(batch->client, name, batch->infos);
        } else {
            code = batch_add(batch, names[i]);
        }
        if (code == -ENOENT)
            code = 0;
        else if (code == 0 && *node)
            code = batch->each(batch->context, batch->infos);
        if (code == 0 && batch->count == CW_BLOCKS_ASKED)
            code = batch_tell_all(batch);
    }
    return code ? code : batch_tell_all(batch);
}

int cw_names_stat(cw_client *client, const char *prefix, cw_on_name *each, void *context) {
    char *names, node[CW_KEY_MAX] = "";
    uint64_t count;
    if (!each)
        return cw_fail(-EINVAL, "a function to be told is needed, NULL was given");
    int code = cw_names(client, prefix, &names, &count);
    if (code)
        return code;
    if (prefix && cw_remote_name(prefix))
        snprintf(node, sizeof node, "%.*s/", 2 + (int)strcspn(prefix + 2, "/"), prefix);
    const char **sorted = malloc((count + 1) * sizeof *sorted), *at = names;
    struct batch *batch = malloc(sizeof *batch);
    if (sorted && batch) {
        for (uint64_t i = 0; i < count; i++, at += strlen(at) + 1)
            sorted[i] = at;
        qsort(sorted, count, sizeof *sorted, compare_names);
        batch->client = client;
        batch->each = each;
        batch->context = context;
        batch->count = 0;
        code = stat_sorted(batch, sorted, count, node);
    } else {
        code = cw_fail(-EDQUOT, "no memory for a list of %llu names", (unsigned long long)count);
    }
    free(batch);
    free(sorted);
    free(names);
    return code;
}

int cw_name_is_here(cw_client *client, const char *name) {
    struct cw_name_key key;
    int code = cw_name_key_make(client, name, &key);
    if (code)
        return code;
    if (!cw_remote_name(name))
        return 1;
    code = cw_remote_call(client, CW_REMOTE_NODE, &key, -1);
    return code == -ELOOP ? 1 : code;
}

int cw_node(cw_client *client, char *node) {
    char found[CW_NODE_MAX + 1];
    if (!client || !node)
        return cw_needs("a client and a place for the node's name");
    /* BD2: nothing is read by it; a bridge that begins or ends just now shows the next time. */
    if (!CW_LOAD(BD2, &client->root->bridge, relaxed))
        return cw_fail(-ENOENT, "no cableway-bridge runs for this broker: it starts with the "
                                "broker where that has --listen, else when it is needed");
    int code = cw_remote_self(client, found);
    if (code == 0 && !cw_node_valid(found))
        code = cw_fail(-EPROTO, "the bridge returned a malformed name of this node");
    if (code == 0)
        strcpy(node, found);
    return code;
}
