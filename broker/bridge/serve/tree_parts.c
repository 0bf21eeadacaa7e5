/*
 * Trees that peers fetch: see tree_parts.h.
 *
 * A peer that has opened a tree's index opens its parts by version and number, one after the other.
 * So that it gets all of the version that it began with, that version is held for it: by a lease on
 * its index, by which the broker holds all parts (broker/memory/groups.h), until the peer has had
 * each of them, or nothing of it was opened, and nothing that was opened of it was being read, for
 * IDLE_NS. A peer may have HELD_MAX
 * of them; one more ends the one that was used least lately, of those of which nothing is read. If
 * this process dies its leases end with it: a part is then answered -ESTALE, unless the name still
 * means that version, and the peer begins anew with what the name means.
 *
 * A tree that is put onto the peer's node is held in the same way, under the number of its OFFER,
 * from the first OFFER until the put is over (local/outgoing_put.c): the peer opens its parts with
 * CWB_PUT_PART. Then what it still reads of it ends at once, and it goes with the last reader.
 *
 * What a peer may have of a part is what leaves of the tree need (cw_index_spans()): other bytes of
 * the block are somebody else's, or nobody's. Which those are is read in the index, by a helper,
 * which copies and checks it as each reader does; so it is with opening a part, which may ask the
 * broker. The loop's thread owns all else.
 */
#include "broker/bridge/serve/tree_parts.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/deferred.h"
#include "broker/bridge/serve/serve.h"
#include "broker/bridge/serve/upload.h"
#include "ipc/base/hash.h"
#include "ipc/base/meta.h"
#include "ipc/request/channel.h"
#include "ipc/tree/index.h"

#define IDLE_NS  CWB_RESUME_NS
#define HELD_MAX 16u

struct cwb_tree {
    struct cwb_bridge *bridge;
    struct cwb_peer *peer;
    struct cw_name_key key;
    struct cw_entry entry;
    bool of_put, over;           /* entry.id is the number of an OFFER; that put is over */
    cw_array *index;             /* the lease */
    struct cw_index_part *parts; /* NULL: not read yet; offset and size are what leaves need */
    uint32_t part_count, left;   /* of these the peer has had all but so many */
    uint32_t users;              /* uploads, and helpers at work */
    int64_t used_ns;
    struct cwb_tree *next, *prev; /* of the peer */
};

int cwb_tree_describe(uint64_t instance, struct cw_found *found) {
    struct cw_meta_remote_tree meta = {.instance = instance, .version = found->entry.id};
    int code = cw_meta_tree_decode(found->meta, found->entry.meta_bytes, &meta.tree);
    if (code)
        return code;
    meta.tree.version = CW_META_REMOTE_TREE_VERSION;
    memcpy(found->meta, &meta, sizeof meta);
    found->entry.meta_bytes = sizeof meta;
    return cw_meta_remote_tree_decode(&meta, sizeof meta, found->entry.size_bytes, &meta);
}

static void tree_end(struct cwb_tree *tree) {
    CW_ASSERT(!tree->users);
    DL_DELETE(tree->peer->trees, tree);
    cw_array_close(tree->index);
    free(tree->parts);
    free(tree);
}

static struct cwb_tree *find(const struct cwb_peer *peer, const char *key, uint32_t key_bytes,
                             uint64_t version, bool of_put) {
    struct cwb_tree *tree;
    DL_FOREACH(peer->trees, tree) {
        if (tree->entry.id == version && tree->of_put == of_put && !tree->over &&
            tree->key.length == key_bytes && memcmp(tree->key.text, key, key_bytes) == 0)
            return tree;
    }
    return NULL;
}

/* Room for one more of a peer's. 0 or -EDQUOT. */
static int make_room(const struct cwb_peer *peer) {
    struct cwb_tree *tree, *oldest = NULL;
    uint32_t count = 0;
    DL_FOREACH(peer->trees, tree) {
        if (tree->of_put)
            continue;
        count++;
        if (!tree->users && (!oldest || tree->used_ns < oldest->used_ns))
            oldest = tree;
    }
    if (count < HELD_MAX)
        return 0;
    if (!oldest)
        return cw_fail(-EDQUOT, "parts of %u trees are being read by this peer; it must end some",
                       HELD_MAX);
    tree_end(oldest);
    return 0;
}

static int open_at(struct cwb_bridge *bridge, uint32_t slab, uint32_t block, uint64_t gen,
                   uint64_t offset_bytes, uint64_t size_bytes, cw_array **out, bool *on_gpu) {
    const struct cw_remote at = {.instance = cw_client_instance(bridge->client),
                                 .slab = slab,
                                 .block = block,
                                 .gen = gen,
                                 .offset_bytes = offset_bytes,
                                 .size_bytes = size_bytes};
    return cwb_local_open_at(bridge, &at, out, on_gpu);
}

int cwb_tree_hold(struct cwb_bridge *bridge, struct cwb_peer *peer, const struct cw_name_key *key,
                  const struct cw_found *found) {
    const struct cw_entry *entry = &found->entry;
    struct cwb_tree *tree = find(peer, key->text, key->length, entry->id, false);
    bool on_gpu = false;
    if (tree) {
        tree->used_ns = bridge->loop.now_ns;
        return 0;
    }
    int code = make_room(peer);
    if (code)
        return code;
    tree = calloc(1, sizeof *tree);
    if (!tree)
        return cwb_no_memory("a tree that a peer reads");
    *tree = (struct cwb_tree){.bridge = bridge,
                              .peer = peer,
                              .key = *key,
                              .entry = *entry,
                              .used_ns = bridge->loop.now_ns};
    code = open_at(bridge, entry->slab, entry->block, entry->gen, entry->offset_bytes,
                   entry->size_bytes, &tree->index, &on_gpu);
    if (code == 0 && on_gpu) {
        cw_array_close(tree->index);
        code = cw_fail(-EREMOTEIO, "the index of the tree lies on a GPU there: put it again");
    }
    if (code) {
        free(tree);
        return code;
    }
    DL_APPEND(peer->trees, tree);
    return 0;
}

static void release(struct cwb_tree *tree) {
    tree->users--;
    tree->used_ns = tree->bridge->loop.now_ns;
    if (!tree->users && (tree->of_put ? tree->over : tree->parts && !tree->left))
        tree_end(tree);
}

/* The peer has had this part; in a copy of the table `reserved` says so. */
static void had(struct cwb_tree *tree, uint32_t number) {
    if (tree->parts[number].reserved)
        return;
    tree->parts[number].reserved = 1;
    tree->left--;
}

void cwb_tree_release(struct cwb_tree *tree, uint32_t number) {
    had(tree, number);
    release(tree);
}

int cwb_tree_offer(struct cwb_bridge *bridge, struct cwb_peer *peer, const struct cw_name_key *key,
                   uint64_t number, cw_array *index, uint64_t size_bytes, struct cwb_tree **out) {
    struct cwb_tree *tree = calloc(1, sizeof *tree);
    if (!tree)
        return cwb_no_memory("a tree that is put onto another node");
    *tree = (struct cwb_tree){.bridge = bridge,
                              .peer = peer,
                              .key = *key,
                              .entry = {.id = number, .size_bytes = size_bytes},
                              .of_put = true,
                              .index = index,
                              .used_ns = bridge->loop.now_ns};
    DL_APPEND(peer->trees, tree);
    *out = tree;
    return 0;
}

void cwb_tree_withdraw(struct cwb_tree *tree) {
    tree->over = true;
    tree->users++; /* it may go with an upload */
    cwb_uploads_end_of_tree(tree->peer, tree);
    release(tree);
}

int64_t cwb_tree_used_ns(const struct cwb_tree *tree) {
    int64_t used_ns = cwb_uploads_used_ns(tree->peer, tree);
    return used_ns > tree->used_ns ? used_ns : tree->used_ns;
}

void cwb_trees_tick(struct cwb_bridge *bridge) {
    for (struct cwb_peer *peer = bridge->met; peer; peer = peer->met_next) {
        struct cwb_tree *tree, *next;
        DL_FOREACH_SAFE(peer->trees, tree, next) {
            if (!tree->users && !tree->of_put && bridge->loop.now_ns - tree->used_ns >= IDLE_NS)
                tree_end(tree);
        }
    }
}

int cwb_tree_gone(const char *name, uint64_t version) {
    return cw_fail(
        -ESTALE,
        "version %llu of the tree \"%s\" is gone there: it was replaced or removed while "
        "it was fetched",
        (unsigned long long)version, name);
}

/* ---- a part ---- */

struct opening {
    struct cwb_work work;
    struct cwb_tree *tree;     /* one of its users */
    struct cwb_served *served; /* NULL: nobody hears the answer */
    uint32_t number, read_max;
    struct cw_index_part *parts; /* as of the tree; NULL: it is to be read */
    uint32_t part_count;
    bool read; /* parts are ours: they were read now */
    cw_array *array;
    bool on_gpu;
};

/* What each part is to a peer. */
static int read_index(struct opening *o) {
    struct cw_index index;
    int code = cw_index_read(cw_array_lowest(o->tree->index), o->tree->entry.size_bytes, &index);
    if (code)
        return cw_fail(-EREMOTEIO, "the tree is damaged on that node: put it there again");
    uint32_t count = index.head->parts;
    struct cw_index_span *spans = malloc((count + 1) * sizeof *spans);
    o->parts = malloc((count + 1) * sizeof *o->parts);
    if (spans && o->parts) {
        cw_index_spans(&index, spans);
        for (uint32_t i = 0; i < count; i++) {
            o->parts[i] = index.parts[i];
            o->parts[i].offset_bytes += spans[i].offset_bytes;
            o->parts[i].size_bytes = spans[i].size_bytes;
        }
        o->part_count = count;
        o->read = true;
    } else {
        free(o->parts);
        o->parts = NULL;
        code = cwb_no_memory("a tree that a peer reads");
    }
    free(spans);
    cw_index_deinit(&index);
    return code;
}

static void run(struct cwb_work *work) {
    struct opening *o = (struct opening *)work;
    int code = o->parts ? 0 : read_index(o);
    if (code == 0 && (o->number >= o->part_count || o->parts[o->number].size_bytes == 0))
        code = cw_fail(-EINVAL, "the tree has no part %u in which leaves lie", o->number);
    if (code == 0) {
        const struct cw_index_part *at = &o->parts[o->number];
        code = open_at(o->tree->bridge, at->slab, at->block, at->gen, at->offset_bytes,
                       at->size_bytes, &o->array, &o->on_gpu);
        if (code == -ESTALE)
            code = cw_fail(-EREMOTEIO, "a part of the tree is gone on that node: put it again");
        if (code == 0 && !cw_array_sealed(o->array)) {
            cw_array_close(o->array);
            o->array = NULL;
            code = cw_fail(-EREMOTEIO, "the tree changes in place on its node (it was put there "
                                       "with seal=False), so no other node can fetch it: put a "
                                       "sealed version there");
        }
    }
    cwb_work_set(work, code);
}

/* What was opened goes to the peer. The array is taken over. */
static void answer(struct opening *o) {
    struct cwb_tree *tree = o->tree;
    struct cwb_served *served = o->served;
    const uint64_t size_bytes = o->parts[o->number].size_bytes;
    struct cwb_opened opened = {.size_bytes = size_bytes,
                                .instance = cw_client_instance(tree->bridge->client),
                                .entry = tree->entry.id};
    uint8_t meta[CW_META_BYTES_MAX], inside[CWB_INLINE_MAX];
    int64_t length = (int64_t)size_bytes;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &length, .dtype = "|u1"};
    struct cw_shape shape;
    struct cwb_upload *upload = NULL;
    struct iovec parts[] = {{&opened, sizeof opened}, {meta, 0}, {inside, 0}};
    int code = cw_layout_resolve(&layout, &shape);
    if (code == 0)
        opened.meta_bytes = cw_meta_encode(&shape, meta);
    parts[1].iov_len = opened.meta_bytes;
    if (code == 0 && !o->on_gpu && size_bytes <= CWB_INLINE_MAX) {
        memcpy(inside, cw_array_lowest(o->array), size_bytes);
        opened.inside = 1;
        opened.hash = cw_hash(inside, size_bytes, 0);
        parts[2].iov_len = size_bytes;
        cw_array_close(o->array);
        had(tree, o->number);
    } else if (code == 0) {
        code = o->on_gpu
                   ? cwb_upload_new_staged(tree->bridge, tree->peer, o->array, size_bytes,
                                           o->read_max, false, &upload)
                   : cwb_upload_new(tree->bridge, tree->peer, o->array, cw_array_lowest(o->array),
                                    size_bytes, CWB_UPLOAD_OPENED, &upload);
    }
    if (code)
        cw_array_close(o->array);
    if (upload) {
        tree->users++;
        cwb_upload_of_tree(upload, tree, o->number);
        opened.source = cwb_upload_id(upload);
    }
    cwb_served_reply(served, code, parts, 3);
}

static void done(struct cwb_work *work) {
    struct opening *o = (struct opening *)work;
    struct cwb_tree *tree = o->tree;
    int code = work->code;
    if (code)
        cw_fail(code, "%s", work->detail);
    else if (tree->over)
        code = cw_fail(-ESTALE, "the tree is not being put any more");
    if (o->read && !tree->parts) {
        tree->parts = o->parts;
        tree->part_count = o->part_count;
        for (uint32_t i = 0; i < o->part_count; i++)
            tree->left += o->parts[i].size_bytes != 0;
    } else if (o->read) {
        free(o->parts);
    }
    o->parts = tree->parts;
    const bool answered = o->served && code == 0;
    if (answered)
        answer(o);
    else if (o->served)
        cwb_served_reply(o->served, code, NULL, 0);
    if (!answered)
        cw_array_close(o->array);
    release(tree);
    free(o);
}

static void on_cancel(struct cwb_served *served) {
    ((struct opening *)served->owner)->served = NULL;
    free(served);
}

bool cwb_tree_serve_part(struct cwb_link *link, const struct cwb_frame *frame, const char *name) {
    const bool of_put = frame->open.flags & CWB_PUT_PART;
    struct cwb_tree *tree =
        find(link->peer, frame->key, frame->key_bytes, frame->part.version, of_put);
    if (!tree || frame->part.instance != cw_client_instance(link->bridge->client))
        return false;
    int code = of_put || cwb_may_read(link->peer, name, &tree->entry) ? 0 : cwb_not_there(name);
    if (code == 0)
        code = cwb_deferred_refuse(link->bridge, CWB_OPEN, false);
    struct opening *o = code ? NULL : calloc(1, sizeof *o);
    struct cwb_served *served = o ? cwb_served_new(link, frame) : NULL;
    if (!served) {
        free(o);
        code = code ? code : cwb_no_memory("a tree that a peer reads");
        cwb_link_reply(link, CWB_OPEN, frame->head.id, code, cw_detail(), NULL, 0);
        return true;
    }
    *o = (struct opening){.work = {.run = run, .done = done},
                          .tree = tree,
                          .served = served,
                          .number = frame->part.number,
                          .read_max = link->read_max,
                          .parts = tree->parts,
                          .part_count = tree->part_count};
    served->owner = o;
    served->on_cancel = on_cancel;
    tree->users++;
    cwb_deferred_begin(served);
    cwb_work_begin(link->bridge->broker_helpers, &o->work);
    return true;
}
