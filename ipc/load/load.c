/*
 * A checkpoint as a tree under a name, read once by all processes that ask for it.
 *
 *   LOOK --name means these files--> done
 *    |  ^--claim over, name put--.
 *    v                           |
 *   CLAIM --granted--> ALLOCATE --> READ --> PUBLISH --> done
 *
 * Invariants:
 *   - Who reads has the claim of the name at the broker (broker/names/claims.h), so one process
 *     reads, and the others wait.
 *   - What is published was read whole, from files that did not change meanwhile; it is seen by
 *     PUT_TREE alone, which says the version that was there when we looked: two who had the claim
 *     one after the other never make two trees.
 *   - cw_load_end() releases the claim, whatever had become of the wait for it.
 *   - A signal ends each wait, also the allocation, which takes a second for some GiB: the claim
 * and what was allocated are given back, and who calls again begins anew. After
 *     INTERRUPTED_ALLOCATIONS_MAX of them signals no longer end an allocation: so one comes to its
 *     end though they come again and again.
 *   - With CW_KEEP the name is kept when the tree is returned, also if somebody without it loaded:
 *     then the tree is put again as the next version, of the same memory, by PUT_TREE that says the
 *     version that we saw. Of several who do so one succeeds, and the others find it kept. It needs
 *     no claim, since nothing is read.
 *
 * What is left when this process dies, by the state in which it dies:
 *   LOOK          nothing; the name is kept from the moment at which the broker took PUT_TREE
 *   CLAIM         nothing: the wait ends with the session; a claim just granted ends with the
 *                 process, and the others look again
 *   ALLOCATE      the claim, which others get at once; memory has no name yet
 *   READ          arrays, which end with the session, and the claim, which others get at once
 *   PUBLISH       as ipc/tree/publish.c says; then the claim ends, and the others find the tree, or
 *                 load it
 * If the broker dies all calls say -ECONNRESET. Who fails (a file is damaged, no memory) ends its
 * claim like who dies; each of the others finds out for itself.
 *
 * On several GPUs there is a tree for each, under a name of its own: NAME/cuda:0 and so on. Those
 * that are missing are read at once, each byte of the files once, and published one after the
 * other, each whole. Claims are asked for in the order of the names, and who needs an earlier one
 * gives up those behind it first: so of loaders with lists in different orders none waits for
 * another in a ring.
 *
 * Owner: the caller's thread; cw_reading has threads of its own.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/array/array.h"
#include "ipc/base/layout.h"
#include "ipc/base/name_key.h"
#include "ipc/client.h"
#include "ipc/load/checkpoint.h"
#include "ipc/load/claim.h"
#include "ipc/load/origin.h"
#include "ipc/load/reading.h"
#include "ipc/load/ring.h"
#include "ipc/load/target.h"
#include "ipc/request/channel.h"
#include "ipc/tree/tree.h"
#include "shm/base/error.h"
#include "shm/base/segment.h"
#include "shm/base/wait.h"

#define INTERRUPTED_ALLOCATIONS_MAX 4u

enum state { LOOK, CLAIM, ALLOCATE, READ };

struct cw_load {
    cw_client *client;
    struct cw_target *targets; /* as they were asked for */
    uint32_t *in_order;        /* their numbers, by name */
    uint32_t count;
    cw_checkpoint *checkpoint;
    char *extra; /* members of the metadata; NULL: none */
    uint32_t flags;
    enum state state;
    uint32_t interrupted; /* allocations */
    cw_read *reads;       /* of all that are missing */
    cw_reading *reading;
    cw_load_times times;
};

/* ---- what is there ---- */

/* A tree on another device is not what was asked for. */
static int check_place(const struct cw_target *target, const cw_tree *tree) {
    const struct cw_index_head *head = tree->index.head;
    uint8_t uuid[CW_UUID_BYTES] = {0};
    const struct cw_backend *backend;
    int ordinal, code = target->device ? cw_backend_find(target->device, &backend, &ordinal) : 0;
    if (code || !target->device)
        return code;
    if (backend->device_kind != CW_DEVICE_HOST)
        code = backend->device_uuid(ordinal, uuid);
    for (uint32_t i = 0; i < head->parts && code == 0; i++)
        if (tree->index.parts[i].device_kind != backend->device_kind ||
            memcmp(tree->index.parts[i].device_uuid, uuid, sizeof uuid) != 0)
            code = cw_fail(-EEXIST,
                           "\"%.100s\" is there already, but not on %.20s: load it under another "
                           "name, or leave the device out",
                           target->name, target->device);
    return code;
}

/* 1: the name is kept, or need not be; -EAGAIN: look again, since it means another version now, our
 * own one or somebody's. */
static int keep(const cw_load *load, const struct cw_target *target, const cw_tree *tree,
                const struct cw_entry *entry) {
    uint64_t version;
    if (!(load->flags & CW_KEEP))
        return 1;
    if (entry->id != tree->version) /* replaced between the two looks */
        return -EAGAIN;
    if (entry->flags & CW_ENTRY_KEEP)
        return 1;
    int code = cw_tree_name(tree, load->client, target->name, CW_KEEP | CW_REPLACE, tree->version,
                            &version);
    return code == 0 || code == -ESTALE ? -EAGAIN : code;
}

/* A target's tree, if it is of our files. 1: it is; 0: there is none, or one to be replaced;
 * -EAGAIN: look again; else a code. */
static int look(const cw_load *load, struct cw_target *target) {
    struct cw_found found;
    cw_tree *tree;
    target->after = 0;
    int code = cw_name_key_find(load->client, &target->key, &found);
    if (code == -ENOENT)
        return 0;
    if (code == 0)
        code = cw_tree_get(load->client, target->name, 0, &tree);
    if (code == -ENOENT) /* just now */
        return 0;
    if (code == -ENOTDIR && load->flags & CW_REPLACE) {
        target->after = found.entry.id;
        return 0;
    }
    if (code)
        return code == -ENOTDIR ? cw_fail(-EEXIST,
                                          "\"%.100s\" is an array: load under another name, or "
                                          "replace it (replace=True, --replace)",
                                          target->name)
                                : code;
    const struct cw_index_head *head = tree->index.head;
    target->after = tree->version;
    code = cw_origin_same(load->checkpoint, tree->index.meta, head->meta_bytes);
    if (code == 1) {
        code = check_place(target, tree);
        code = code ? code : keep(load, target, tree, &found.entry);
    } else if (code == 0 && !(load->flags & CW_REPLACE)) {
        code =
            cw_origin_differs(load->checkpoint, target->name, tree->index.meta, head->meta_bytes);
    }
    if (code == 1)
        target->tree = tree;
    else
        cw_tree_close(tree);
    return code;
}

/* ---- the claim ---- */

static void release(const cw_load *load, struct cw_target *target) {
    cw_claim_release(load->client, &target->key, &target->token);
}

/* All that are missing, in order. */
static int ask_claims(cw_load *load, int64_t timeout_ns) {
    int code = 0;
    for (uint32_t i = 0; i < load->count && code == 0; i++) {
        struct cw_target *target = &load->targets[load->in_order[i]];
        if (target->tree || target->token)
            continue;
        for (uint32_t later = i + 1; later < load->count; later++)
            release(load, &load->targets[load->in_order[later]]);
        code = cw_claim_ask(load->client, &target->key, target->after, timeout_ns, &target->token);
    }
    return code;
}

static void give_back(cw_load *load) {
    cw_reading_end(load->reading); /* first: its threads write there */
    load->reading = NULL;
    for (uint32_t i = 0; i < load->count; i++) {
        struct cw_target *target = &load->targets[i];
        cw_target_empty(target);
    }
    free(load->reads);
    load->reads = NULL;
}

/* ---- the tree ---- */

static int put(const cw_load *load, struct cw_target *target, cw_leaf *leaves) {
    const cw_checkpoint *c = load->checkpoint;
    uint64_t meta_bytes;
    char *meta;
    for (uint32_t i = 0; i < c->tensor_count; i++)
        leaves[i] = (cw_leaf){.path = c->tensors[i].name,
                              .layout = c->tensors[i].layout,
                              .array = target->reads[i].array,
                              .offset_bytes = target->reads[i].offset_bytes,
                              .hash = load->reads[i].hash, /* of the first copy */
                              .flags = CW_LEAF_HASHED};
    int code = cw_origin_write(c, load->extra, &meta, &meta_bytes);
    if (code)
        return code;
    code = cw_tree_put_hashed(load->client, target->name, leaves, c->tensor_count, meta, meta_bytes,
                              (load->flags & CW_KEEP) | (target->after ? CW_REPLACE : 0u),
                              target->after, true, &target->tree);
    free(meta);
    return code;
}

/* Each that was read. -EAGAIN: somebody put there without a claim. */
static int publish(cw_load *load) {
    cw_leaf *leaves = calloc((size_t)load->checkpoint->tensor_count + 1, sizeof *leaves);
    if (!leaves)
        return cw_fail(-EDQUOT, "no memory to load %.300s", load->checkpoint->path);
    int code = 0;
    for (uint32_t i = 0; i < load->count && code == 0; i++)
        if (load->targets[i].reads)
            code = put(load, &load->targets[i], leaves);
    free(leaves);
    return code == -EEXIST || code == -ESTALE ? -EAGAIN : code;
}

/* ---- the steps ---- */

static int allocate(cw_load *load, struct cw_target *target) {
    bool before = cw_segment_interruptible(load->interrupted < INTERRUPTED_ALLOCATIONS_MAX);
    int code = cw_target_allocate(target, load->client, load->checkpoint);
    cw_segment_interruptible(before);
    load->interrupted += code == -EINTR;
    return code;
}

static int begin_reading(cw_load *load) {
    const uint32_t tensors = load->checkpoint->tensor_count;
    uint32_t copies = 0;
    int code = 0;
    load->reads = calloc((size_t)tensors * load->count + 1, sizeof *load->reads);
    if (!load->reads)
        return cw_fail(-EDQUOT, "no memory to load %.300s", load->checkpoint->path);
    for (uint32_t i = 0; i < load->count && code == 0; i++) {
        struct cw_target *target = &load->targets[i];
        if (target->tree)
            continue;
        target->reads = load->reads + (size_t)tensors * copies++;
        code = allocate(load, target);
    }
    if (code == 0)
        code =
            cw_reading_begin_copies(load->checkpoint, load->reads, tensors, copies, &load->reading);
    return code;
}

/* What failed is over for this process, and somebody else may try. */
static int over(cw_load *load, int code) {
    give_back(load);
    for (uint32_t i = 0; i < load->count; i++)
        release(load, &load->targets[i]);
    load->state = LOOK;
    return code;
}

/* At those that are missing. 1: none is. */
static int look_at_all(cw_load *load) {
    int code = 1;
    for (uint32_t i = 0; i < load->count; i++) {
        struct cw_target *target = &load->targets[i];
        int found = target->tree ? 1 : look(load, target);
        if (found < 0)
            return found;
        if (found)
            release(load, target);
        code = found ? code : 0;
    }
    return code;
}

/* What took until now since then, which becomes now. */
static uint64_t lap(int64_t *since_ns) {
    int64_t now_ns = cw_now_ns(), then_ns = *since_ns;
    *since_ns = now_ns;
    return (uint64_t)(now_ns - then_ns);
}

static int enter(cw_load *load, enum state state) {
    load->state = state;
    return load->flags & CW_LOAD_STEPS ? cw_fail(-EINTR, "the caller looks at its signals")
                                       : -EAGAIN;
}

/* One step. -EAGAIN: the next one comes; else as cw_load_wait(). */
static int step(cw_load *load, int64_t timeout_ns, int *loaded) {
    int64_t since_ns = cw_now_ns();
    int code;
    switch (load->state) {
    case LOOK:
        code = look_at_all(load);
        if (code < 0)
            return code;
        load->state = CLAIM;
        return code == 1 ? over(load, 0) : -EAGAIN;
    case CLAIM:
        code = ask_claims(load, timeout_ns);
        load->times.claim_ns += lap(&since_ns);
        if (code == -EAGAIN)
            load->state = LOOK;
        if (code)
            return code;
        return enter(load, ALLOCATE);
    case ALLOCATE:
        code = begin_reading(load);
        load->times.allocate_ns += lap(&since_ns);
        if (code)
            return over(load, code);
        return enter(load, READ);
    case READ:
        code = cw_reading_wait(load->reading, timeout_ns);
        load->times.read_ns += lap(&since_ns);
        if (code == -EINTR || code == -ETIMEDOUT)
            return code;
        cw_reading_times(load->reading, &load->times);
        if (code == 0) {
            code = publish(load);
            load->times.publish_ns += lap(&since_ns);
            *loaded |= code == 0;
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
    return cw_fail(-ETIMEDOUT, "\"%.100s\" is not loaded yet: %s", load->targets[0].name,
                   load->state == READ ? "this process still reads the files"
                                       : "another process may be loading it");
}

int cw_load_wait(cw_load *load, int64_t timeout_ns, cw_tree **out, int *loaded) {
    int64_t end_ns = cw_end_ns(cw_now_ns(), timeout_ns);
    int read_here = 0, code;
    if (!load || !out)
        return cw_needs("a load and a place for the tree");
    do
        code = cw_client_usable(load->client);
    while (code == 0 && (code = step(load, left_ns(end_ns), &read_here)) == -EAGAIN);
    if (code == -ETIMEDOUT)
        return not_yet(load);
    if (code)
        return code;
    for (uint32_t i = 0; i < load->count; i++) {
        out[i] = load->targets[i].tree;
        load->targets[i].tree = NULL;
    }
    if (loaded)
        *loaded = read_here;
    return 0;
}

static int by_name(const void *a, const void *b, void *targets) {
    const struct cw_target *all = targets;
    return strcmp(all[*(const uint32_t *)a].name, all[*(const uint32_t *)b].name);
}

/* NAME/cuda:N for each of the GPUs. */
static int make_targets(cw_load *load, const char *name, const char *const *devices) {
    uint64_t seen = 0;
    int code = 0;
    for (uint32_t i = 0; i < load->count && code == 0; i++) {
        const struct cw_backend *backend;
        char device[32], own[CW_NAME_MAX + sizeof device];
        int ordinal;
        code = devices[i] ? cw_backend_find(devices[i], &backend, &ordinal) : cw_needs("a device");
        if (code)
            return code;
        if (backend->device_kind != CW_DEVICE_CUDA || seen >> ordinal & 1)
            return cw_fail(-EINVAL, "the list has \"%.20s\"%s: give GPUs (\"cuda:N\"), each once",
                           devices[i], backend->device_kind == CW_DEVICE_CUDA ? " twice" : "");
        seen |= 1ull << ordinal;
        snprintf(device, sizeof device, "cuda:%d", ordinal);
        int length = snprintf(own, sizeof own, "%s/%s", name, device);
        if (length > CW_NAME_MAX)
            return cw_fail(-EINVAL,
                           "with \"/%s\" the name has %d bytes, %d are possible: shorten the name",
                           device, length, CW_NAME_MAX);
        code = cw_target_init(&load->targets[i], load->client, own, device);
    }
    for (uint32_t i = 0; i < load->count; i++)
        load->in_order[i] = i;
    qsort_r(load->in_order, load->count, sizeof *load->in_order, by_name, load->targets);
    return code;
}

static int begin(cw_client *client, const char *name, const char *path, const char *const *devices,
                 uint32_t count, bool list, uint32_t flags, cw_load **out) {
    if (flags & ~(uint32_t)(CW_REPLACE | CW_KEEP | CW_LOAD_STEPS))
        return cw_fail(-EINVAL,
                       "flags 0x%x: cw_load_begin knows CW_REPLACE, CW_KEEP and CW_LOAD_STEPS",
                       flags);
    struct cw_name_key key;
    int code = cw_tree_key(client, name, &key);
    if (code)
        return code;
    cw_load *load = calloc(1, sizeof *load);
    if (!load)
        return cw_fail(-EDQUOT, "no memory to load %.300s", path);
    load->client = client;
    cw_client_ref(client);
    load->flags = flags;
    code = cw_checkpoint_open(path, &load->checkpoint);
    if (code == 0)
        code = cw_target_check_paths(load->checkpoint);
    load->targets = code ? NULL : calloc(count, sizeof *load->targets);
    load->in_order = code ? NULL : calloc(count, sizeof *load->in_order);
    if (code == 0 && (!load->targets || !load->in_order))
        code = cw_fail(-EDQUOT, "no memory to load %.300s", path);
    load->count = code ? 0 : count;
    if (code == 0)
        code = list ? make_targets(load, name, devices)
                    : cw_target_init(&load->targets[0], client, name, *devices);
    if (code)
        cw_load_end(load);
    else
        *out = load;
    return code;
}

int cw_load_begin(cw_client *client, const char *name, const char *path, const char *device,
                  uint32_t flags, cw_load **out) {
    if (!client || !path || !out)
        return cw_needs("a client, a path and a place for the load");
    return begin(client, name, path, &device, 1, false, flags, out);
}

int cw_load_begin_all(cw_client *client, const char *name, const char *path,
                      const char *const *devices, uint32_t count, uint32_t flags, cw_load **out) {
    if (!client || !path || !devices || !out)
        return cw_needs("a client, a path, devices and a place for the load");
    if (count == 0 || count > CW_RING_GPUS_MAX)
        return cw_fail(-EINVAL, "%u devices given, 1 to %u possible", count, CW_RING_GPUS_MAX);
    return begin(client, name, path, devices, count, true, flags, out);
}

int cw_load_meta(cw_load *load, const char *meta, uint64_t meta_bytes) {
    if (!load || !meta)
        return cw_needs("a load and metadata");
    if (meta_bytes > CW_TREE_META_MAX)
        return cw_fail(-EDQUOT, "%llu bytes of metadata, %u are possible",
                       (unsigned long long)meta_bytes, CW_TREE_META_MAX);
    char *extra;
    int code = cw_origin_members(meta, meta_bytes, &extra);
    if (code)
        return code;
    free(load->extra);
    load->extra = extra;
    return 0;
}

void cw_load_look_at(const cw_load *load, cw_load_times *out) {
    static const cw_load_times none;
    if (out)
        *out = load ? load->times : none;
}

void cw_load_end(cw_load *load) {
    if (!load)
        return;
    give_back(load);
    for (uint32_t i = 0; i < load->count; i++) {
        struct cw_target *target = &load->targets[i];
        release(load, target);
        cw_tree_close(target->tree);
        cw_target_deinit(target);
    }
    cw_checkpoint_close(load->checkpoint);
    cw_client_unref(load->client);
    free(load->targets);
    free(load->in_order);
    free(load->extra);
    free(load);
}
