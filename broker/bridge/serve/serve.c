/*
 * What peers ask of this node: see serve.h. Every request is looked at here for whether its sender
 * may make it. Who may not read a name hears what it would hear if there were none; names are read
 * in the directory, which asks nobody.
 *
 * What is answered later (a served request) is kept by its link until then; a link that ends takes
 * the answers' way, not the work.
 */
#include "broker/bridge/serve/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/bridge/fetch/invalidation.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/link/streams.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/local/once.h"
#include "broker/bridge/relay/fan_out.h"
#include "broker/bridge/relay/relay.h"
#include "broker/bridge/serve/deferred.h"
#include "broker/bridge/serve/incoming_put.h"
#include "broker/bridge/serve/name_lists.h"
#include "broker/bridge/serve/remove.h"
#include "broker/bridge/serve/tree_parts.h"
#include "broker/bridge/serve/upload.h"
#include "broker/bridge/serve/waits.h"
#include "broker/bridge/serve/watch.h"
#include "ipc/base/hash.h"
#include "broker/bridge/wire/send.h"
#include "ipc/base/meta.h"
#include "ipc/base/name_key.h"
#include "ipc/request/channel.h"

#define AGAIN_NS 1000000000

static void serve_cancel(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_served *served;
    HASH_FIND(hh, link->served, &frame->cancel.id, sizeof frame->cancel.id, served);
    if (!served || !served->on_cancel)
        return; /* it was answered already, or its answer is on its way */
    cwb_served_refuse(served, cw_fail(-ECANCELED, "cancelled"));
}

/* ---- who may ---- */

struct subject { /* a key, and its name as text */
    struct cw_name_key key;
    char name[CW_KEY_MAX + 1];
};

static void subject_of(const char *key, uint32_t key_bytes, struct subject *out) {
    memcpy(out->key.text, key, key_bytes);
    out->key.length = key_bytes;
    memcpy(out->name, key, key_bytes);
    out->name[key_bytes] = 0;
    size_t at = strlen(out->name) + 1;
    memmove(out->name, out->name + at, key_bytes + 1 - at);
}

bool cwb_may_read(const struct cwb_peer *peer, const char *name, const struct cw_entry *entry) {
    return (entry->flags & CW_ENTRY_REMOTE_READ) || cwb_patterns_match(&peer->config.read, name);
}

int cwb_not_there(const char *name) {
    return cw_fail(-ENOENT, "no array has the name \"%s\" there, or it may not be read from here",
                   name);
}

bool cwb_may_write(const struct cwb_bridge *bridge, const struct cwb_peer *peer, const char *key,
                   uint32_t key_bytes) {
    struct subject subject;
    subject_of(key, key_bytes, &subject);
    if (cwb_patterns_match(&peer->config.write, subject.name))
        return true;
    cw_fail(-EREMOTEIO,
            "the node %s does not let this one write \"%s\": there, `cableway peers add %s ... "
            "--write 'PATTERN'` lets it",
            bridge->node, subject.name, peer->config.name);
    return false;
}

/* The record under a key, if this peer may read it. */
static int look(struct cwb_bridge *bridge, const struct cwb_peer *peer,
                const struct subject *subject, struct cw_found *found) {
    int code = cwb_local_find(bridge, &subject->key, found);
    if (code == -ENOENT || (code == 0 && !cwb_may_read(peer, subject->name, &found->entry)))
        return cwb_not_there(subject->name);
    return code;
}

static bool is_later(const struct cwb_bridge *bridge, const struct cw_entry *entry,
                     const struct cwb_after *after) {
    return !after || entry->id > after->version ||
           (after->instance && after->instance != cw_client_instance(bridge->client));
}

int cwb_is_there(struct cwb_bridge *bridge, const struct cwb_peer *peer, const char *key,
                 uint32_t key_bytes, const struct cwb_after *after) {
    struct subject subject;
    struct cw_found found;
    subject_of(key, key_bytes, &subject);
    int code = cwb_local_find(bridge, &subject.key, &found);
    return code == 0 && (!cwb_may_read(peer, subject.name, &found.entry) ||
                         !is_later(bridge, &found.entry, after))
               ? -ENOENT
               : code;
}

/* Who put it may have written anything as its description, and a peer that is sent what is none
 * ends the connection, with all that others ask for. A tree's becomes what peers are told. */
static int check_described(const struct cwb_bridge *bridge, const struct subject *subject,
                           struct cw_found *found) {
    struct cw_shape shape;
    const struct cw_entry *entry = &found->entry;
    if (entry->flags & CW_ENTRY_TREE &&
        cwb_tree_describe(cw_client_instance(bridge->client), found) == 0)
        return 0;
    if (!(entry->flags & CW_ENTRY_TREE) &&
        cw_meta_decode(found->meta, entry->meta_bytes, entry->size_bytes, &shape) == 0 &&
        shape.span_bytes == entry->size_bytes)
        return 0;
    return cw_fail(-EREMOTEIO, "\"%s\" has malformed metadata on that node: put it there again",
                   subject->name);
}

/* ---- OPEN ---- */

/* The answer at once, or, where something must be mapped for it first, later. status < 0:
 * cw_detail() is the sentence. */
static void answer(struct cwb_link *link, const struct cwb_frame *frame, int status,
                   const struct iovec *parts, uint32_t count) {
    if (status == CW_WOULD_WAIT)
        cwb_defer(link, frame);
    else
        cwb_link_reply(link, frame->head.op, frame->head.id, status, cw_detail(), parts, count);
}

static struct cwb_opened opened_of(const struct cwb_link *link, const struct cw_found *found) {
    return (struct cwb_opened){.size_bytes = found->entry.size_bytes,
                               .instance = cw_client_instance(link->bridge->client),
                               .entry = found->entry.id,
                               .meta_bytes = found->entry.meta_bytes};
}

/* With the bytes inside; they are a copy: somebody may write to the array. */
static void answer_inside(struct cwb_link *link, const struct cwb_frame *frame,
                          struct cwb_opened *opened, const uint8_t *meta, const void *bytes) {
    struct iovec parts[] = {{opened, sizeof *opened},
                            {(void *)(uintptr_t)meta, opened->meta_bytes},
                            {(void *)(uintptr_t)bytes, opened->size_bytes}};
    opened->inside = 1;
    opened->hash = cw_hash(bytes, opened->size_bytes, 0);
    answer(link, frame, 0, parts, 3);
}

/* How many pieces follow the answer: as many as came with the OPEN, and are there; none of what
 * goes over streams, since the link is to be free for requests. *all: they are all of the array. */
static uint16_t ahead_of(const struct cwb_link *link, const struct cwb_frame *frame,
                         uint64_t size_bytes, bool *all) {
    uint64_t piece = cwb_link_piece_bytes(link), there = (size_bytes + piece - 1) / piece;
    uint32_t asked = frame->open.flags >> CWB_AHEAD_SHIFT;
    if (size_bytes >= CWB_STREAM_BYTES && cwb_streams_open(link->peer))
        asked = 0;
    *all = asked >= there;
    return (uint16_t)(asked < there ? asked : there);
}

/* Might the peer have its bytes from another node? */
static bool may_fan_out(const struct cwb_link *link, const struct cwb_frame *frame,
                        const struct cw_found *found, const cw_array *array, bool on_gpu) {
    return frame->open.flags & CWB_REFER && link->bridge->options.fan_out && !on_gpu &&
           !(found->entry.flags & CW_ENTRY_TREE) && found->entry.size_bytes >= CWB_RELAY_MIN &&
           found->entry.size_bytes <= CWB_RELAY_MAX && cw_array_sealed(array) == 1;
}

/* By an upload of an array, which is taken over; on a GPU its bytes are still to come. */
static void answer_by_upload(struct cwb_link *link, const struct cwb_frame *frame,
                             const struct cw_found *found, cw_array *array, bool on_gpu) {
    struct cwb_opened opened = opened_of(link, found);
    struct cwb_referral referral = {.turn = 0};
    struct cwb_upload *upload;
    if (may_fan_out(link, frame, found, array, on_gpu) &&
        cwb_fan_out(link, frame, found, array, &referral))
        return;
    struct iovec parts[] = {{&opened, sizeof opened},
                            {(void *)(uintptr_t)found->meta, opened.meta_bytes},
                            {&referral, referral.turn ? sizeof referral : 0}};
    opened.inside = referral.turn ? CWB_REFERRED : 0;
    bool all = false;
    opened.ahead = on_gpu ? 0 : ahead_of(link, frame, opened.size_bytes, &all);
    int code = on_gpu ? cwb_upload_new_staged(link->bridge, link->peer, array, opened.size_bytes,
                                              link->read_max, false, &upload)
                      : cwb_upload_new(link->bridge, link->peer, array, cw_array_lowest(array),
                                       opened.size_bytes,
                                       all ? CWB_UPLOAD_PUSHED : CWB_UPLOAD_OPENED, &upload);
    if (code)
        cw_array_close(array);
    else
        opened.source = cwb_upload_id(upload);
    answer(link, frame, code, parts, 3);
    if (code == 0 && opened.ahead)
        cwb_upload_push(link, frame, upload, opened.ahead);
}

/* Small, and in host memory. false: it is not, or was replaced meanwhile. */
static bool open_inside(struct cwb_link *link, const struct cwb_frame *frame,
                        const struct subject *subject, const struct cw_found *found) {
    uint8_t bytes[CWB_INLINE_MAX];
    if (found->entry.size_bytes > CWB_INLINE_MAX ||
        cw_found_read(link->bridge->client, found, bytes) != 0)
        return false;
    struct cwb_opened opened = opened_of(link, found);
    if (frame->open.flags & CWB_WATCH &&
        cwb_watch_begin(link, &subject->key, found->entry.id) != 0) {
        answer(link, frame, -EDQUOT, NULL, 0); /* who is not told keeps it for good */
        return true;
    }
    answer_inside(link, frame, &opened, found->meta, bytes);
    cwb_spin_served(&link->bridge->spin, &link->served_ns, link->bridge->loop.now_ns);
    return true;
}

/* Is it the version of a tree of which a part is asked for? */
static bool is_version(const struct cwb_bridge *bridge, const struct cw_entry *entry,
                       const struct cwb_frame *frame) {
    return entry->flags & CW_ENTRY_TREE && entry->id == frame->part.version &&
           frame->part.instance == cw_client_instance(bridge->client);
}

static void serve_open(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_bridge *bridge = link->bridge;
    struct subject subject;
    struct cw_found found;
    cw_array *array = NULL;
    bool on_gpu = false;
    const bool part = frame->open.flags & CWB_PART;
    subject_of(frame->key, frame->key_bytes, &subject);
    if (part && cwb_tree_serve_part(link, frame, subject.name))
        return;
    int code = frame->open.flags & CWB_PUT_PART
                   ? cw_fail(-ESTALE, "the tree \"%s\" is not being put any more", subject.name)
                   : look(bridge, link->peer, &subject, &found);
    if (part && (code == -ENOENT || (code == 0 && !is_version(bridge, &found.entry, frame))))
        code = cwb_tree_gone(subject.name, frame->part.version);
    bool tree = code == 0 && found.entry.flags & CW_ENTRY_TREE;
    if (code == 0)
        code = check_described(bridge, &subject, &found);
    if (code == 0 && !tree && open_inside(link, frame, &subject, &found))
        return;
    if (code == 0)
        code = cwb_local_open(bridge, &subject.key, &found, &array, &on_gpu);
    if (code == 0 && !cwb_may_read(link->peer, subject.name, &found.entry)) {
        cw_array_close(array); /* it was replaced in between */
        code = -ENOENT;
    } else if (code == 0) {
        code = check_described(bridge, &subject, &found);
        if (code == 0 && found.entry.flags & CW_ENTRY_TREE)
            code = cwb_tree_hold(bridge, link->peer, &subject.key, &found);
        if (code)
            cw_array_close(array);
    }
    if (code == -ENOENT)
        cwb_not_there(subject.name);
    if (code == 0 && part) {
        cw_array_close(array);
        if (cwb_tree_serve_part(link, frame, subject.name))
            return;
        code = cwb_tree_gone(subject.name, frame->part.version); /* replaced in between */
    }
    if (code) {
        answer(link, frame, code, NULL, 0);
        return;
    }
    uint64_t size_bytes = found.entry.size_bytes;
    if (frame->open.flags & CWB_WATCH && cwb_watch_begin(link, &subject.key, found.entry.id) != 0) {
        cw_array_close(array);
        answer(link, frame, -EDQUOT, NULL, 0);
        return;
    }
    if (size_bytes > CWB_INLINE_MAX || (on_gpu && size_bytes)) {
        answer_by_upload(link, frame, &found, array, on_gpu);
        return;
    }
    uint8_t bytes[CWB_INLINE_MAX];
    struct cwb_opened opened = opened_of(link, &found);
    if (size_bytes)
        memcpy(bytes, cw_array_lowest(array), size_bytes);
    cw_array_close(array);
    answer_inside(link, frame, &opened, found.meta, bytes);
}

/* ---- NAMES ---- */

/* Texts are answered as an array of bytes is; they are taken over. about: whose text it is; NULL: a
 * list. */
static void answer_texts(struct cwb_link *link, uint64_t id, char *texts, uint64_t size_bytes,
                         const struct cw_found *about) {
    struct cwb_opened opened = {.size_bytes = size_bytes};
    struct cwb_upload *upload = NULL;
    struct iovec parts[] = {{&opened, sizeof opened}, {texts, size_bytes}};
    if (about) {
        opened.instance = cw_client_instance(link->bridge->client);
        opened.entry = about->entry.id;
    }
    if (size_bytes <= CWB_INLINE_MAX) {
        opened.inside = 1;
        opened.hash = cw_hash(texts, size_bytes, 0);
        cwb_link_reply(link, CWB_NAMES, id, 0, NULL, parts, 2);
        free(texts);
        return;
    }
    int code = cwb_upload_new(link->bridge, link->peer, NULL, (uint8_t *)texts, size_bytes,
                              CWB_UPLOAD_OPENED, &upload);
    if (code)
        free(texts);
    else
        opened.source = cwb_upload_id(upload);
    cwb_link_reply(link, CWB_NAMES, id, code, cw_detail(), parts, 1);
}

void cwb_list_answer(struct cwb_served *served, int status, char *names, uint64_t size_bytes) {
    uint64_t id = served->id;
    if (status) {
        free(names);
        cwb_served_reply(served, status, NULL, 0);
        return;
    }
    struct cwb_link *link = cwb_served_leave(served);
    if (link)
        answer_texts(link, id, names, size_bytes, NULL);
    else
        free(names);
}

/* What a record says. Of a tree: "tree", how many leaves it has, and their bytes; of what is no
 * description: nothing, since the name is there all the same. */
static void describe(const struct cw_found *found, struct cw_shape *shape, uint64_t *size_bytes) {
    struct cw_meta_tree tree;
    *size_bytes = found->entry.size_bytes;
    if (found->entry.flags & CW_ENTRY_TREE &&
        cw_meta_tree_decode(found->meta, found->entry.meta_bytes, &tree) == 0) {
        shape->ndim = 1;
        shape->shape[0] = tree.leaves;
        strcpy(shape->dtype, "tree");
        *size_bytes = tree.total_bytes;
    } else if (cw_meta_decode(found->meta, found->entry.meta_bytes, found->entry.size_bytes,
                              shape) != 0) {
        shape->ndim = 0;
        *shape->dtype = 0;
    }
}

/* What is known about one name, without its bytes. */
static void serve_about(struct cwb_link *link, const struct cwb_frame *frame) {
    struct subject subject;
    struct cw_found found;
    struct cw_shape shape;
    char *text = NULL;
    size_t size_bytes;
    uint64_t data_bytes;
    subject_of(frame->key, frame->key_bytes, &subject);
    int code = look(link->bridge, link->peer, &subject, &found);
    if (code) {
        answer(link, frame, code, NULL, 0);
        return;
    }
    describe(&found, &shape, &data_bytes);
    FILE *out = open_memstream(&text, &size_bytes);
    if (!out) {
        answer(link, frame, cwb_no_memory("what is known about a name"), NULL, 0);
        return;
    }
    fprintf(out, "%llu\t%llu\t%d\t%s", (unsigned long long)data_bytes,
            (unsigned long long)found.entry.created_ns, (found.entry.flags & CW_ENTRY_KEEP) != 0,
            shape.dtype);
    for (uint32_t i = 0; i < shape.ndim; i++)
        fprintf(out, "\t%lld", (long long)shape.shape[i]);
    fputc(0, out);
    bool whole = !ferror(out);
    if (fclose(out) == 0 && whole && text) {
        answer_texts(link, frame->head.id, text, size_bytes, &found);
        return;
    }
    free(text);
    answer(link, frame, cwb_no_memory("what is known about a name"), NULL, 0);
}

/* ---- changes ---- */

void cwb_serve_changes(struct cwb_bridge *bridge, const struct cw_changed *changed) {
    cwb_watch_changes(bridge, changed);
    cwb_waits_look(bridge);
}

/* It failed: the next look is in a while. */
static void on_mapped(void *owner, int code) {
    struct cwb_bridge *bridge = owner;
    bridge->changes_mapping = false;
    if (code == 0)
        return;
    cwb_log("changes of names could not be looked at: %s", cw_detail());
    bridge->changes_after_ns = bridge->loop.now_ns + AGAIN_NS;
}

bool cwb_changes_due(const struct cwb_bridge *bridge) {
    return (bridge->waits_due || bridge->watch_at) && !bridge->changes_mapping &&
           bridge->loop.now_ns >= bridge->changes_after_ns;
}

void cwb_changes_turn(struct cwb_bridge *bridge) {
    if (!cwb_changes_due(bridge))
        return;
    if (!cwb_local_mapped(bridge)) {
        bridge->changes_mapping = true;
        cwb_local_map(bridge, NULL, on_mapped, bridge);
        return;
    }
    cwb_waits_turn(bridge);
    cwb_watches_turn(bridge);
}

bool cwb_serve_watches(const struct cwb_bridge *bridge) {
    return bridge->watched || bridge->wait_count;
}

int cwb_serve(struct cwb_link *link, const struct cwb_frame *frame) {
    if (link->served_count - link->wait_count + link->wire.piece_count >=
        CWB_REQUESTS_MAX + CWB_REQUESTS_SPARE)
        return cw_fail(-EPROTO, "more than %u requests at once", CWB_REQUESTS_MAX);
    if (cwb_wire_may_ask(&link->wire) < 0)
        return -EPROTO;
    uint32_t ids = 1; /* and those of what came with it */
    if (frame->head.op == CWB_OPEN && frame->open.flags >> CWB_AHEAD_SHIFT)
        ids += (frame->open.flags >> CWB_AHEAD_SHIFT) + 1;
    for (uint64_t id = frame->head.id; ids; id++, ids--) {
        struct cwb_served *known;
        HASH_FIND(hh, link->served, &id, sizeof id, known);
        if (known)
            return cw_fail(-EPROTO, "a request with the id of another that is under way");
    }
    switch (frame->head.op) {
    case CWB_PING:
        cwb_link_reply(link, CWB_PING, frame->head.id, 0, NULL, NULL, 0);
        return 0;
    case CWB_OPEN:
        if (frame->open.flags & CWB_TICKET)
            cwb_relay_serve(link, frame);
        else
            serve_open(link, frame);
        return 0;
    case CWB_READ:
        return cwb_upload_serve_read(link, frame);
    case CWB_CLOSE:
        return cwb_upload_serve_close(link, frame);
    case CWB_OFFER:
        return cwb_incoming_put_serve(link, frame);
    case CWB_WAIT:
        cwb_wait_begin(link, frame);
        return 0;
    case CWB_NAMES:
        if (frame->open.flags & CWB_ABOUT)
            serve_about(link, frame);
        else
            cwb_list_begin(link, frame);
        return 0;
    case CWB_REMOVE:
        cwb_remove_serve(link, frame);
        return 0;
    case CWB_CANCEL:
        serve_cancel(link, frame);
        return 0;
    case CWB_CHANGED:
        if (link->changed_left == 0)
            return cw_fail(-EPROTO,
                           "it tells of %u changes more than it was asked to (CWB_CHANGED_SPARE)",
                           CWB_CHANGED_SPARE);
        link->changed_left--;
        cwb_replica_changed(link->peer, frame);
        return 0;
    default: /* frame.c lets no other through */
        return cw_fail(-EPROTO, "op %u", frame->head.op);
    }
}
