/*
 * Names of other nodes: see remote_name.h.
 *
 * Each call is one long request to the broker, which hands it to the bridge. Any thread may call;
 * a signal or the end of the time cancels it there. If this process dies, the broker tells the
 * bridge that nobody wants the answer; if the bridge dies, the broker gives the same request to the
 * next one. So a put or remove may reach the other node twice; the broker numbers them, by which
 * that is seen there (broker/roles/once.h).
 */
#include "ipc/array/array.h"
#include "ipc/client.h"
#include "ipc/memory/slab.h"
#include "ipc/request/channel.h"
#include "ipc/array/remote_name.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/cuda/device.h"
#include "ipc/array/fast_path.h"
#include "ipc/base/layout.h"
#include "ipc/base/meta.h"
#include "ipc/base/node.h"
#include "shm/base/alive.h"

#define ROOM_TRIES 4u
#define GET_TRIES  100u /* replicas that were let go between being fetched and being opened */

/* The node in //NODE or //NODE/..., and how long it is. 0 or -EINVAL. */
static int check_node(const char *name, size_t *length) {
    char node[CW_NODE_MAX + 1] = "";
    *length = strcspn(name + 2, "/");
    if (*length <= CW_NODE_MAX)
        snprintf(node, sizeof node, "%.*s", (int)*length, name + 2);
    if (cw_node_valid(node))
        return 0;
    return cw_fail(-EINVAL,
                   "the name \"%.300s\": a name of another node is //NODE/NAME, NODE being 1 to %u "
                   "of the characters A-Z a-z 0-9 _ . -, the first no . or -",
                   name, CW_NODE_MAX);
}

int cw_remote_prefix_check(const char *prefix) {
    size_t node;
    return check_node(prefix, &node);
}

static int check_remote(const char *name) {
    size_t node;
    int code = check_node(name, &node);
    if (code)
        return code;
    if (!name[2 + node])
        return cw_fail(-EINVAL,
                       "the name \"%.300s\": a name of another node is //NODE/NAME, and a NAME is "
                       "missing",
                       name);
    if (strlen(name) > CW_KEY_MAX - CW_NAMESPACE_MAX - 1)
        return cw_fail(-EINVAL,
                       "a name of another node of %zu bytes: with //NODE/ it has at most %u",
                       strlen(name), CW_KEY_MAX - CW_NAMESPACE_MAX - 1);
    return cw_local_name_check(name + 2 + node + 1);
}

int cw_name_check(const char *name) {
    return cw_remote_name(name) ? check_remote(name) : cw_local_name_check(name);
}

static int call(cw_client *client, struct cw_remote *remote, const struct cw_name_key *key,
                const void *meta, uint32_t meta_bytes, void *reply, uint32_t *reply_bytes,
                int64_t timeout_ns) {
    remote->key_bytes = (uint16_t)key->length;
    remote->meta_bytes = (uint16_t)meta_bytes;
    struct iovec parts[] = {{remote, sizeof *remote},
                            {(void *)(uintptr_t)key->text, key->length},
                            {(void *)(uintptr_t)meta, meta_bytes}};
    bool looks = remote->verb == CW_REMOTE_WAIT || remote->verb == CW_REMOTE_GET;
    return cw_channel_call(client, CW_OP_REMOTE, parts, 3, reply, reply_bytes,
                           looks ? CW_CALL_LOOK : CW_CALL_LONG, timeout_ns);
}

int cw_remote_call(cw_client *client, enum cw_remote_verb verb, const struct cw_name_key *key,
                   int64_t timeout_ns) {
    struct cw_remote remote = {.verb = verb};
    return call(client, &remote, key, NULL, 0, NULL, NULL, timeout_ns);
}

/* The answer to a GET: where the array lies, if the bridge could say so in it. */
struct placed {
    struct cw_fast_path_answer head;
    uint8_t meta[CW_PLACED_MAX - sizeof(struct cw_fast_path_answer)];
};

struct wish {                           /* what is to be found, or fetched */
    const struct cw_name_key *key, *at; /* the name, and where the replica stands */
    const uint8_t *uuid;                /* of the GPU where it is to lie, or zero */
    const struct cw_remote *part;       /* which part of a tree; NULL: what the name means */
    struct cw_meta_remote_tree *tree;   /* its index is wanted, and what is told of it; else NULL */
};

/* Does nothing but its name say what it is? */
static bool is_plain(const struct wish *wish) {
    return wish->at == wish->key && !wish->part && !wish->tree;
}

static int take_tree(const struct wish *wish, const void *meta, uint32_t meta_bytes,
                     uint64_t size_bytes) {
    if (!wish->tree)
        return 0;
    if (!cw_meta_is_remote_tree(meta, meta_bytes))
        return cw_fail(-ENOTDIR,
                       "the name means an array of another node, not a tree: get it as an "
                       "array");
    return cw_meta_remote_tree_decode(meta, meta_bytes, size_bytes, wish->tree);
}

/* What stands here already: under its name, or as an unnamed replica. -EAGAIN: nothing. */
static int get_here(cw_client *client, const struct wish *wish, uint32_t flags, cw_array **out) {
    struct cw_found found;
    int code = cw_name_key_get(client, wish->at, flags | CW_CURRENT, &found, out);
    if (code == -ENOENT || code == -ESTALE)
        return is_plain(wish) ? cw_fast_path_find(client, wish->key, flags, out) : -EAGAIN;
    if (code)
        return code;
    code = take_tree(wish, found.meta, found.entry.meta_bytes, found.entry.size_bytes);
    if (code)
        cw_array_close(*out);
    return code;
}

static int ask_bridge(cw_client *client, const struct wish *wish, struct placed *placed,
                      uint32_t *placed_bytes, int64_t left_ns) {
    struct cw_remote remote = {.verb = CW_REMOTE_GET};
    if (wish->part)
        remote = *wish->part;
    memcpy(remote.uuid, wish->uuid, sizeof remote.uuid);
    *placed_bytes = sizeof *placed;
    return call(client, &remote, wish->key, NULL, 0, placed, placed_bytes, left_ns);
}

static int look(cw_client *client, const struct wish *wish, uint32_t flags, int64_t timeout_ns,
                cw_array **out) {
    struct placed placed;
    unsigned room_tries = ROOM_TRIES;
    int64_t until_ns = cw_end_ns(cw_now_ns(), timeout_ns);
    if (!(flags & CW_PRIVATE))
        flags |= CW_READONLY; /* others share it, and its owner would never see what is written */
    for (unsigned tries = 0; tries < GET_TRIES; tries++) {
        uint32_t placed_bytes;
        int code = get_here(client, wish, flags, out);
        if (code == -EAGAIN && is_plain(wish))
            code = cw_fast_path_get(client, wish->key, flags, until_ns, out);
        if (code != -EAGAIN)
            return code;
        int64_t left_ns = timeout_ns < 0 ? -1 : until_ns - cw_now_ns();
        code = left_ns < 0 && timeout_ns >= 0
                   ? -ETIMEDOUT
                   : ask_bridge(client, wish, &placed, &placed_bytes, left_ns);
        if (code == -ETIMEDOUT)
            return cw_fail(code,
                           "the array did not arrive from its node in time: the transfer goes on "
                           "if it can, so ask again");
        if (code == -EDQUOT && wish->at != wish->key && room_tries-- && cw_slabs_sweep(client))
            continue; /* the GPU was full of what we had mapped last */
        if (code == 0 && placed_bytes > sizeof placed.head)
            code = take_tree(wish, placed.meta, placed_bytes - (uint32_t)sizeof placed.head,
                             placed.head.size_bytes);
        if (code == 0)
            code = cw_fast_path_open(client, &placed.head, placed_bytes, flags, out);
        if (code != -EAGAIN)
            return code;
    }
    return cw_fail(-ESTALE,
                   "the remote array was replaced again and again while it was opened: try again");
}

static const uint8_t host[CW_UUID_BYTES];

static int get(cw_client *client, const struct wish *wish, uint32_t flags, int64_t timeout_ns,
               cw_array **out) {
    cw_array *array;
    int code = look(client, wish, flags, timeout_ns, &array);
    if (code)
        return code;
    /* Last of all: it was read while nobody could have anything newer by way of another broker. */
    if (!cw_alive(&client->root->alive)) {
        cw_array_close(array);
        cw_client_lost(client);
        return -ECONNRESET;
    }
    *out = array;
    return 0;
}

int cw_remote_stands(cw_client *client, const struct cw_name_key *key) {
    cw_array *array;
    const struct wish wish = {.key = key, .at = key, .uuid = host};
    int code = get_here(client, &wish, CW_UNMAPPED, &array);
    if (code == -EISDIR)
        return cw_alive(&client->root->alive) ? 0 : cw_client_lost(client);
    if (code)
        return code == -EAGAIN ? -ENOENT : code;
    cw_array_close(array);
    return cw_alive(&client->root->alive) ? 0 : cw_client_lost(client);
}

int cw_remote_get(cw_client *client, const struct cw_name_key *key, uint32_t flags,
                  int64_t timeout_ns, cw_array **out) {
    const struct wish wish = {.key = key, .at = key, .uuid = host};
    return get(client, &wish, flags, timeout_ns, out);
}

bool cw_remote_place(const struct cw_name_key *key, const uint8_t uuid[CW_UUID_BYTES],
                     struct cw_name_key *out) {
    if (key->length + 1 + CW_UUID_BYTES > CW_KEY_MAX)
        return false;
    *out = *key;
    out->text[key->length] = 0;
    memcpy(out->text + key->length + 1, uuid, CW_UUID_BYTES);
    out->length = key->length + 1 + CW_UUID_BYTES;
    return true;
}

bool cw_remote_part(const struct cw_name_key *key, const struct cw_remote *part,
                    struct cw_name_key *out) {
    const uint64_t id[2] = {part->offset_bytes, part->size_bytes};
    if (key->length + 2 + sizeof id > CW_KEY_MAX)
        return false;
    *out = *key;
    out->text[key->length] = 0;
    out->text[key->length + 1] = 'P';
    memcpy(out->text + key->length + 2, id, sizeof id);
    out->length = key->length + 2 + (uint32_t)sizeof id;
    return true;
}

/* A copy of the replica in host memory, for a name that is too long for another one. */
static int get_copy(cw_client *client, const struct cw_name_key *key, const char *device,
                    int64_t timeout_ns, cw_array **out) {
    cw_array *here, *copy;
    cw_layout layout;
    int code = cw_remote_get(client, key, CW_READONLY, timeout_ns, &here);
    if (code)
        return code;
    cw_array_layout(here, &layout);
    code = cw_array_new(client, device, &layout, 0, &copy);
    if (code == 0) {
        code = cw_array_copy(copy, 0, here, 0, cw_array_nbytes(here), NULL);
        if (code)
            cw_array_close(copy);
        else
            *out = copy;
    }
    cw_array_close(here);
    return code;
}

int cw_remote_get_on(cw_client *client, const struct cw_name_key *key, const char *device,
                     uint32_t flags, int64_t timeout_ns, cw_array **out) {
    const struct cw_backend *backend;
    const struct cw_gpu *gpu;
    struct cw_name_key at;
    int ordinal;
    int code = cw_backend_find(device, &backend, &ordinal);
    if (code == 0 && backend->device_kind == CW_DEVICE_HOST)
        return cw_remote_get(client, key, flags, timeout_ns, out);
    if (code == 0)
        code = cw_gpu_peek(ordinal, &gpu);
    if (code)
        return code;
    if (!cw_remote_place(key, gpu->uuid, &at))
        return get_copy(client, key, device, timeout_ns, out);
    const struct wish wish = {.key = key, .at = &at, .uuid = gpu->uuid};
    return get(client, &wish, flags, timeout_ns, out);
}

int cw_remote_index(cw_client *client, const struct cw_name_key *key, int64_t timeout_ns,
                    struct cw_meta_remote_tree *about, cw_array **out) {
    const struct wish wish = {.key = key, .at = key, .uuid = host, .tree = about};
    return get(client, &wish, CW_INDEX, timeout_ns, out);
}

int cw_remote_get_part(cw_client *client, const struct cw_name_key *key,
                       const struct cw_remote *part, const char *device, int64_t timeout_ns,
                       cw_array **out) {
    const struct cw_backend *backend;
    const struct cw_gpu *gpu = NULL;
    struct cw_name_key name, at;
    int ordinal;
    int code = cw_backend_find(device, &backend, &ordinal);
    if (code == 0 && backend->device_kind != CW_DEVICE_HOST)
        code = cw_gpu_peek(ordinal, &gpu);
    if (code)
        return code;
    if (!cw_remote_part(key, part, &name) || (gpu && !cw_remote_place(&name, gpu->uuid, &at)))
        return cw_fail(-EINVAL, "the name is too long for a tree of another node: choose a shorter "
                                "one there");
    const struct wish wish = {
        .key = key, .at = gpu ? &at : &name, .uuid = gpu ? gpu->uuid : host, .part = part};
    return get(client, &wish, CW_UNMAPPED, timeout_ns, out);
}

int cw_remote_wait_after(cw_client *client, const struct cw_name_key *key, uint64_t instance,
                         uint64_t after, int64_t timeout_ns) {
    struct cw_remote remote = {
        .verb = CW_REMOTE_WAIT, .flags = CW_REMOTE_AFTER, .instance = instance, .gen = after};
    return call(client, &remote, key, NULL, 0, NULL, NULL, timeout_ns);
}

int cw_remote_gpu(const char *device, int *gpu) {
    char rest;
    unsigned number = 0;
    if (strcmp(device, "cpu") == 0)
        *gpu = -1;
    else if (sscanf(device, "cuda:%3u%c", &number, &rest) == 1 && number < CW_GPUS_MAX)
        *gpu = (int)number;
    else
        return cw_fail(-ENODEV,
                       "\"%.100s\" is no device of another node: \"cpu\", or \"cuda:0\" to "
                       "\"cuda:%d\" as that node counts its GPUs",
                       device, CW_GPUS_MAX - 1);
    return 0;
}

/* Which array, and how it is put. */
static struct cw_remote put_form(const cw_array *array, int gpu, uint32_t flags) {
    return (struct cw_remote){.verb = CW_REMOTE_PUT,
                              .flags = (flags & CW_REPLACE ? CW_PUT_REPLACE : 0u) |
                                       (flags & CW_KEEP ? CW_PUT_KEEP : 0u) |
                                       (uint32_t)(gpu + 1) << CW_PUT_GPU_SHIFT,
                              .instance = array->client->instance,
                              .slab = array->slab->id,
                              .block = array->block,
                              .gen = array->gen,
                              .offset_bytes = array->offset_bytes,
                              .size_bytes = array->size_bytes};
}

int cw_remote_put_tree(cw_array *array, const struct cw_name_key *key, int gpu, uint32_t flags,
                       const struct cw_meta_put_tree *meta, uint64_t *instance, uint64_t *version) {
    struct cw_remote remote = put_form(array, gpu, flags);
    struct cw_remote_put_tree reply;
    uint32_t reply_bytes = sizeof reply;
    int code = cw_remote_put_check(flags);
    remote.flags |= CW_PUT_TREE;
    if (code == 0)
        code = call(array->client, &remote, key, meta, sizeof *meta, &reply, &reply_bytes, -1);
    if (code == 0 && reply_bytes != sizeof reply)
        code = cw_fail(-EPROTO, "the bridge answered a put of a tree with %u bytes", reply_bytes);
    if (code)
        return code;
    *instance = reply.instance;
    *version = reply.version;
    return 0;
}

int cw_remote_put(cw_array *array, const struct cw_name_key *key, int gpu, uint32_t flags,
                  const cw_layout *layout, uint64_t offset_bytes) {
    struct cw_shape shape;
    uint8_t meta[CW_META_BYTES_MAX];
    uint64_t low_bytes = 0;
    int code = cw_put_view(array, layout, offset_bytes, &shape, &low_bytes);
    if (code == 0)
        code = cw_remote_put_check(flags);
    if (code)
        return code;
    struct cw_remote remote = put_form(array, gpu, flags);
    remote.offset_bytes += low_bytes;
    remote.size_bytes = shape.span_bytes;
    uint32_t meta_bytes = cw_meta_encode(&shape, meta);
    pthread_mutex_lock(&array->client->lock);
    struct cw_extent *extent = array->slab->locals[array->block].extent;
    if (extent)
        extent->published = true; /* the bridge takes a lease on it */
    pthread_mutex_unlock(&array->client->lock);
    return call(array->client, &remote, key, meta, meta_bytes, NULL, NULL, -1);
}

static int ask_texts(cw_client *client, enum cw_remote_verb verb, const struct cw_name_key *key,
                     int64_t timeout_ns, char **names, uint64_t *count) {
    struct cw_remote remote = {.verb = verb};
    struct cw_remote_names reply;
    uint32_t reply_bytes = sizeof reply;
    int code = call(client, &remote, key, NULL, 0, &reply, &reply_bytes, timeout_ns);
    if (code)
        return code;
    if (reply_bytes != sizeof reply)
        return cw_fail(-EPROTO, "the bridge answered with %u bytes", reply_bytes);
    char *text = malloc(reply.size_bytes + 1);
    if (!text)
        return cw_fail(-EDQUOT, "no memory for a list of %llu names",
                       (unsigned long long)reply.count);
    if (reply.size_bytes) {
        cw_array *array;
        cw_handle handle = {.instance = reply.instance,
                            .token = reply.token,
                            .slab = reply.slab,
                            .block = reply.block,
                            .gen = reply.gen,
                            .offset_bytes = reply.offset_bytes,
                            .size_bytes = reply.size_bytes};
        int64_t length = (int64_t)reply.size_bytes;
        cw_layout bytes = {.ndim = 1, .itemsize = 1, .shape = &length, .dtype = "|u1"};
        code = cw_array_open(client, &handle, &bytes, CW_READONLY, &array);
        if (code == 0) {
            code = cw_array_read(array, 0, text, reply.size_bytes);
            cw_array_close(array);
        }
    }
    text[reply.size_bytes] = 0;
    uint64_t ends = 0;
    for (uint64_t i = 0; code == 0 && i < reply.size_bytes; i++)
        ends += text[i] == 0;
    if (code == 0 && (ends != reply.count || (ends && text[reply.size_bytes - 1])))
        code = cw_fail(-EPROTO, "the bridge returned a malformed name list");
    if (code) {
        free(text);
        return code;
    }
    *names = text;
    *count = reply.count;
    return 0;
}

int cw_remote_names(cw_client *client, const struct cw_name_key *key, char **names,
                    uint64_t *count) {
    return ask_texts(client, CW_REMOTE_NAMES, key, -1, names, count);
}

int cw_remote_peers(cw_client *client, int64_t timeout_ns, char **texts, uint64_t *count) {
    struct cw_name_key none = {.length = 0};
    return ask_texts(client, CW_REMOTE_PEERS, &none, timeout_ns, texts, count);
}

int cw_remote_self(cw_client *client, char node[CW_NODE_MAX + 1]) {
    const struct cw_name_key none = {.length = 0};
    struct cw_remote remote = {.verb = CW_REMOTE_SELF};
    uint32_t bytes = CW_NODE_MAX;
    memset(node, 0, CW_NODE_MAX + 1);
    return call(client, &remote, &none, NULL, 0, node, &bytes, -1);
}

/* A number, and the tab or end behind it. */
static bool take_number(char **at, int64_t *out) {
    char *end;
    errno = 0;
    *out = strtoll(*at, &end, 10);
    if (end == *at || errno || *out < 0 || (*end && *end != '\t'))
        return false;
    *at = *end ? end + 1 : end;
    return true;
}

static bool read_about(char *text, cw_name_info *out) {
    int64_t size_bytes, created_ns, keep;
    if (!take_number(&text, &size_bytes) || !take_number(&text, &created_ns) ||
        !take_number(&text, &keep))
        return false;
    size_t length = strcspn(text, "\t");
    if (length >= sizeof out->dtype) /* 0: who put it described it by what is no array */
        return false;
    memcpy(out->dtype, text, length);
    out->dtype[length] = 0;
    uint32_t itemsize;
    bool tree = strcmp(out->dtype, "tree") == 0;
    if (length && !tree &&
        (cw_dtype_size(out->dtype, &itemsize) != 0 || cw_text_clean(out->dtype, length)))
        return false;
    text += length + (text[length] != 0);
    for (out->ndim = 0; *text; out->ndim++)
        if (out->ndim == CW_NDIM_MAX || !take_number(&text, &out->shape[out->ndim]))
            return false;
    if (tree && out->ndim != 1) /* how many leaves it has */
        return false;
    out->nbytes = (uint64_t)size_bytes;
    out->created_ns = (uint64_t)created_ns;
    out->keep = keep != 0;
    return true;
}

int cw_remote_about(cw_client *client, const struct cw_name_key *key, cw_name_info *out) {
    char *text;
    uint64_t count;
    int code = ask_texts(client, CW_REMOTE_ABOUT, key, -1, &text, &count);
    if (code)
        return code;
    if (count != 1 || !read_about(text, out))
        code = cw_fail(-EPROTO, "the other node returned a malformed answer about the name");
    free(text);
    return code;
}
