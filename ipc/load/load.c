/*
 * A checkpoint as a tree under a name, read once by all processes that ask for it.
 *
 *   LOOK --name means these files--> done
 *    |  ^--claim over, name put--.
 *    v                           |
 *   CLAIM --granted--> READ --> PUBLISH --> done
 *
 * Invariants:
 *   - Who reads has the claim of the name at the broker (broker/names/claims.h), so one process
 *     reads, and the others wait.
 *   - What is published was read whole, from files that did not change meanwhile; it is seen by
 *     PUT_TREE alone, which says the version that was there when we looked: two who had the claim
 *     one after the other never make two trees.
 *   - cw_load_end() releases the claim, whatever had become of the wait for it.
 *   - With CW_KEEP the name is kept when the tree is returned, also if somebody without it loaded:
 *     then the tree is put again as the next version, of the same memory, by PUT_TREE that says the
 *     version that we saw. Of several who do so one succeeds, and the others find it kept. It needs
 *     no claim, since nothing is read.
 *
 * What is left when this process dies, by the state in which it dies:
 *   LOOK          nothing; the name is kept from the moment at which the broker took PUT_TREE
 *   CLAIM         nothing: the wait ends with the session; a claim just granted ends with the
 *                 process, and the others look again
 *   READ          arrays, which end with the session, and the claim, which others get at once
 *   PUBLISH       as ipc/tree/publish.c says; then the claim ends, and the others find the tree, or
 *                 load it
 * If the broker dies all calls say -ECONNRESET. Who fails (a file is damaged, no memory) ends its
 * claim like who dies; each of the others finds out for itself.
 *
 * Owner: the caller's thread; cw_reading has threads of its own.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/array/array.h"
#include "ipc/base/layout.h"
#include "ipc/base/name_key.h"
#include "ipc/client.h"
#include "ipc/load/checkpoint.h"
#include "ipc/load/origin.h"
#include "ipc/request/channel.h"
#include "ipc/tree/tree.h"
#include "shm/base/atomic.h"
#include "shm/base/error.h"
#include "shm/base/wait.h"

#define PART_BYTES                                                                                 \
    (64ull << 30) /* of memory that is allocated at once, unless one tensor is larger */

enum state { LOOK, CLAIM, READ };

struct cw_load {
    cw_client *client;
    char *name, *device; /* device NULL: any */
    struct cw_name_key key;
    cw_checkpoint *checkpoint;
    uint32_t flags;
    enum state state;
    uint64_t after; /* the version that the name meant when we looked; 0: none */
    uint64_t token; /* of our CLAIM; 0: there is none */
    cw_read *reads; /* one for each tensor */
    cw_array **parts;
    uint32_t part_count;
    cw_reading *reading;
};

/* ---- what is there ---- */

/* A tree on another device is not what was asked for. */
static int check_place(const cw_load *load, const cw_tree *tree) {
    const struct cw_index_head *head = tree->index.head;
    uint8_t uuid[CW_UUID_BYTES] = {0};
    const struct cw_backend *backend;
    int ordinal, code = load->device ? cw_backend_find(load->device, &backend, &ordinal) : 0;
    if (code || !load->device)
        return code;
    if (backend->device_kind != CW_DEVICE_HOST)
        code = backend->device_uuid(ordinal, uuid);
    for (uint32_t i = 0; i < head->parts && code == 0; i++)
        if (tree->index.parts[i].device_kind != backend->device_kind ||
            memcmp(tree->index.parts[i].device_uuid, uuid, sizeof uuid) != 0)
            code = cw_fail(-EEXIST,
                           "\"%.100s\" is there already, but not on %.20s: load it under another "
                           "name, or leave the device out",
                           load->name, load->device);
    return code;
}

/* 1: the name is kept, or need not be; -EAGAIN: look again, since it means another version now, our
 * own one or somebody's. */
static int keep(const cw_load *load, const cw_tree *tree, const struct cw_entry *entry) {
    uint64_t version;
    if (!(load->flags & CW_KEEP))
        return 1;
    if (entry->id != tree->version) /* replaced between the two looks */
        return -EAGAIN;
    if (entry->flags & CW_ENTRY_KEEP)
        return 1;
    int code =
        cw_tree_name(tree, load->client, load->name, CW_KEEP | CW_REPLACE, tree->version, &version);
    return code == 0 || code == -ESTALE ? -EAGAIN : code;
}

/* The tree, if it is of our files. 1: it is; 0: there is none, or one to be replaced; -EAGAIN: look
 * again; else a code. */
static int look(cw_load *load, cw_tree **out) {
    struct cw_found found;
    cw_tree *tree;
    load->after = 0;
    int code = cw_name_key_find(load->client, &load->key, &found);
    if (code == -ENOENT)
        return 0;
    if (code == 0)
        code = cw_tree_get(load->client, load->name, 0, &tree);
    if (code == -ENOENT) /* just now */
        return 0;
    if (code == -ENOTDIR && load->flags & CW_REPLACE) {
        load->after = found.entry.id;
        return 0;
    }
    if (code)
        return code == -ENOTDIR ? cw_fail(-EEXIST,
                                          "\"%.100s\" is an array: load under another name, or "
                                          "replace it (replace=True, --replace)",
                                          load->name)
                                : code;
    const struct cw_index_head *head = tree->index.head;
    load->after = tree->version;
    code = cw_origin_same(load->checkpoint, tree->index.meta, head->meta_bytes);
    if (code == 1) {
        code = check_place(load, tree);
        code = code ? code : keep(load, tree, &found.entry);
    } else if (code == 0 && !(load->flags & CW_REPLACE)) {
        code = cw_origin_differs(load->checkpoint, load->name, tree->index.meta, head->meta_bytes);
    }
    if (code == 1)
        *out = tree;
    else
        cw_tree_close(tree);
    return code;
}

/* ---- the claim ---- */

static uint64_t next_token(void) {
    static cw_a64 tokens;
    /* K23: a number that no other load of this process has. */
    return CW_ADD(K23, &tokens, 1, relaxed) + 1;
}

static void release(cw_load *load) {
    uint8_t body[sizeof(struct cw_claim) + CW_KEY_MAX];
    struct cw_claim head = {.token = load->token, .key = {.key_bytes = load->key.length}};
    if (!load->token)
        return;
    memcpy(body, &head, sizeof head);
    memcpy(body + sizeof head, load->key.text, load->key.length);
    /* Without memory to keep the message it is not sent, and the claim ends with the session. */
    (void)cw_channel_post(load->client, CW_OP_RELEASE, body,
                          (uint32_t)sizeof head + load->key.length);
    load->token = 0;
}

/* 0: it is ours; -EAGAIN: look again; -EINTR, -ETIMEDOUT: it is not, and we do not wait for it. */
static int ask_claim(cw_load *load, int64_t timeout_ns) {
    load->token = next_token();
    struct cw_claim body = {
        .token = load->token, .after = load->after, .key = {.key_bytes = load->key.length}};
    struct iovec parts[] = {{&body, sizeof body}, {load->key.text, load->key.length}};
    int code =
        cw_channel_call(load->client, CW_OP_CLAIM, parts, 2, NULL, NULL, CW_CALL_LOOK, timeout_ns);
    if (code)
        release(load); /* it may have been granted just before the wait for it was given up */
    return code;
}

/* ---- memory ---- */

static uint64_t aligned(uint64_t bytes) {
    return (bytes + CW_LEAF_ALIGN - 1) / CW_LEAF_ALIGN * CW_LEAF_ALIGN;
}

static int add_part(cw_load *load, uint64_t size_bytes) {
    int64_t size = (int64_t)size_bytes;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &size, .dtype = "|u1"};
    cw_array **parts = realloc(load->parts, (load->part_count + 1) * sizeof(void *));
    if (!parts)
        return cw_fail(-EDQUOT, "no memory to load %.300s", load->checkpoint->path);
    load->parts = parts;
    int code = cw_array_new(load->client, load->device ? load->device : "cpu", &layout, CW_APART,
                            &parts[load->part_count]);
    load->part_count += code == 0;
    return code;
}

/* Where each tensor goes; then its memory, before a byte is read. */
static int allocate(cw_load *load) {
    const cw_checkpoint *c = load->checkpoint;
    uint32_t first = 0;
    uint64_t end = 0;
    int code = 0;
    load->reads = calloc((size_t)c->tensor_count + 1, sizeof *load->reads);
    if (!load->reads)
        return cw_fail(-EDQUOT, "no memory to load %.300s", c->path);
    for (uint32_t i = 0; i <= c->tensor_count && code == 0; i++) {
        uint64_t size = i < c->tensor_count ? c->tensors[i].size_bytes : 0;
        bool whole = i == c->tensor_count || (end && aligned(end) + size > PART_BYTES);
        if (whole && i > first) { /* also without bytes: what reads into it needs an array */
            code = add_part(load, end ? end : 1);
            for (; first < i && code == 0; first++)
                load->reads[first].array = load->parts[load->part_count - 1];
            end = 0;
        }
        if (i == c->tensor_count || code)
            break;
        load->reads[i].tensor = i;
        load->reads[i].size_bytes = size;
        load->reads[i].offset_bytes = aligned(end);
        end = aligned(end) + size;
    }
    return code;
}

static void give_back(cw_load *load) {
    cw_reading_end(load->reading); /* first: its threads write there */
    load->reading = NULL;
    while (load->part_count)
        cw_array_close(load->parts[--load->part_count]);
    free(load->reads);
    load->reads = NULL;
}

/* ---- the tree ---- */

static int put(cw_load *load, cw_leaf *leaves, cw_tree **out) {
    const cw_checkpoint *c = load->checkpoint;
    uint64_t meta_bytes;
    char *meta;
    for (uint32_t i = 0; i < c->tensor_count; i++) {
        const cw_read *read = &load->reads[i];
        leaves[i] = (cw_leaf){.path = c->tensors[i].name,
                              .layout = c->tensors[i].layout,
                              .array = read->array,
                              .offset_bytes = read->offset_bytes,
                              .hash = read->hash,
                              .flags = CW_LEAF_HASHED};
    }
    int code = cw_origin_write(c, &meta, &meta_bytes);
    if (code)
        return code;
    code = cw_tree_put_hashed(load->client, load->name, leaves, c->tensor_count, meta, meta_bytes,
                              (load->flags & CW_KEEP) | (load->after ? CW_REPLACE : 0u),
                              load->after, true, out);
    free(meta);
    return code;
}

static int publish(cw_load *load, cw_tree **out) {
    cw_leaf *leaves = calloc((size_t)load->checkpoint->tensor_count + 1, sizeof *leaves);
    if (!leaves)
        return cw_fail(-EDQUOT, "no memory to load %.300s", load->checkpoint->path);
    int code = put(load, leaves, out);
    free(leaves);
    return code;
}

/* ---- the steps ---- */

static int begin_reading(cw_load *load) {
    int code = allocate(load);
    if (code == 0)
        code = cw_reading_begin(load->checkpoint, load->reads, load->checkpoint->tensor_count,
                                &load->reading);
    return code;
}

/* What failed is over for this process, and somebody else may try. */
static int over(cw_load *load, int code) {
    give_back(load);
    release(load);
    load->state = LOOK;
    return code;
}

/* One step. -EAGAIN: the next one comes; else as cw_load_wait(). */
static int step(cw_load *load, int64_t timeout_ns, cw_tree **out, int *loaded) {
    int code;
    switch (load->state) {
    case LOOK:
        code = look(load, out);
        if (code < 0)
            return code;
        load->state = CLAIM;
        return code == 1 ? over(load, 0) : -EAGAIN;
    case CLAIM:
        code = ask_claim(load, timeout_ns);
        if (code == -EAGAIN)
            load->state = LOOK;
        if (code)
            return code;
        code = begin_reading(load);
        if (code)
            return over(load, code);
        load->state = READ;
        return -EAGAIN;
    case READ:
        code = cw_reading_wait(load->reading, timeout_ns);
        if (code == -EINTR || code == -ETIMEDOUT)
            return code;
        if (code == 0) {
            code = publish(load, out);
            *loaded = code == 0;
            if (code == -EEXIST || code == -ESTALE) /* somebody put there without a claim */
                code = -EAGAIN;
        }
        return over(load, code);
    }
    return -EINVAL;
}

static int64_t left_ns(int64_t end_ns) {
    int64_t left = end_ns == INT64_MAX ? -1 : end_ns - cw_now_ns();
    return end_ns == INT64_MAX || left > 0 ? left : 0;
}

/* Whether another process loads is known to the broker alone, whose answer did not come in time.
 * How long we waited is the caller's to say, who may have asked several times. */
static int not_yet(const cw_load *load) {
    return cw_fail(-ETIMEDOUT, "\"%.100s\" is not loaded yet: %s", load->name,
                   load->state == READ ? "this process still reads the files"
                                       : "another process may be loading it");
}

int cw_load_wait(cw_load *load, int64_t timeout_ns, cw_tree **out, int *loaded) {
    int64_t end_ns = cw_end_ns(cw_now_ns(), timeout_ns);
    int read_here = 0, code;
    cw_tree *tree = NULL;
    if (!load || !out)
        return cw_needs("a load and a place for the tree");
    do
        code = cw_client_usable(load->client);
    while (code == 0 && (code = step(load, left_ns(end_ns), &tree, &read_here)) == -EAGAIN);
    if (code == -ETIMEDOUT)
        return not_yet(load);
    if (code)
        return code;
    *out = tree;
    if (loaded)
        *loaded = read_here;
    return 0;
}

static int check_paths(const cw_checkpoint *c) {
    for (uint32_t i = 0; i < c->tensor_count; i++) {
        int code = cw_path_check(c->tensors[i].name);
        if (code)
            return code;
    }
    return 0;
}

int cw_load_begin(cw_client *client, const char *name, const char *path, const char *device,
                  uint32_t flags, cw_load **out) {
    struct cw_name_key key;
    cw_checkpoint *checkpoint;
    if (!client || !path || !out)
        return cw_needs("a client, a path and a place for the load");
    if (flags & ~(uint32_t)(CW_REPLACE | CW_KEEP))
        return cw_fail(-EINVAL, "flags 0x%x: cw_load_begin knows CW_REPLACE and CW_KEEP", flags);
    int code = cw_tree_key(client, name, &key);
    if (code == 0 && device)
        code = cw_device_check(device);
    if (code == 0)
        code = cw_checkpoint_open(path, &checkpoint);
    if (code)
        return code;
    code = check_paths(checkpoint);
    cw_load *load = code ? NULL : calloc(1, sizeof *load);
    if (load) {
        *load = (cw_load){.client = client,
                          .name = strdup(name),
                          .device = device ? strdup(device) : NULL,
                          .key = key,
                          .checkpoint = checkpoint,
                          .flags = flags};
        cw_client_ref(client);
        if (load->name && (!device || load->device)) {
            *out = load;
            return 0;
        }
        load->checkpoint = NULL;
        cw_load_end(load);
    }
    cw_checkpoint_close(checkpoint);
    return code ? code : cw_fail(-EDQUOT, "no memory to load %.300s", path);
}

void cw_load_end(cw_load *load) {
    if (!load)
        return;
    give_back(load);
    release(load);
    cw_checkpoint_close(load->checkpoint);
    cw_client_unref(load->client);
    free(load->parts);
    free(load->name);
    free(load->device);
    free(load);
}
