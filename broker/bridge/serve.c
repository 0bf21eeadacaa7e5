/*
 * What peers ask of this node: see parts.h. Every request is looked at here for whether its sender
 * may make it. Who may not read a name hears what it would hear if there were none; names are read
 * in the directory, which asks nobody.
 *
 * What is answered later (a served request) is kept by its link until then; a link that ends takes
 * the answers' way, not the work.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "broker/bridge/hash.h"
#include "broker/bridge/parts.h"
#include "ipc/meta.h"
#include "ipc/name_key.h"

/* ---- requests that are answered later ---- */

struct cwb_served *cwb_served_new(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_served *served = calloc(1, sizeof *served);
    CW_ASSERT(served);
    served->id = frame->head.id;
    served->op = frame->head.op;
    served->link = link;
    HASH_ADD(hh, link->served, id, sizeof served->id, served);
    link->served_count++;
    if (served->op == CWB_WAIT) {
        link->wait_count++;
        link->peer->wait_count++;
    }
    return served;
}

static void leave_link(struct cwb_served *served) {
    if (!served->link)
        return;
    HASH_DEL(served->link->served, served);
    served->link->served_count--;
    if (served->op == CWB_WAIT) {
        served->link->wait_count--;
        served->link->peer->wait_count--;
    }
    served->link = NULL;
}

struct cwb_link *cwb_served_leave(struct cwb_served *served) {
    struct cwb_link *link = served->link;
    leave_link(served);
    free(served);
    return link;
}

void cwb_served_reply(struct cwb_served *served, int status, const struct iovec *parts,
                      uint32_t count) {
    struct cwb_link *link = served->link;
    leave_link(served);
    if (link)
        cwb_link_reply(link, served->op, served->id, status, cw_detail(), parts, count);
    free(served);
}

void cwb_serve_end(struct cwb_link *link) {
    struct cwb_served *served, *next;
    HASH_ITER(hh, link->served, served, next) {
        leave_link(served);
        if (served->on_cancel)
            served->on_cancel(served);
    }
}

static void serve_cancel(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_served *served;
    HASH_FIND(hh, link->served, &frame->cancel.id, sizeof frame->cancel.id, served);
    if (!served || !served->on_cancel)
        return; /* it was answered already, or its answer is on its way */
    void (*on_cancel)(struct cwb_served *) = served->on_cancel;
    leave_link(served);
    cw_fail(-ECANCELED, "cancelled");
    cwb_link_reply(link, served->op, frame->cancel.id, -ECANCELED, cw_detail(), NULL, 0);
    on_cancel(served);
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

static bool may_read(const struct cwb_peer *peer, const char *name, const struct cw_entry *entry) {
    return (entry->flags & CW_ENTRY_REMOTE_READ) || cwb_patterns_match(&peer->config.read, name);
}

static int not_there(const char *name) {
    return cw_fail(-ENOENT, "no array has the name \"%s\" there, or it may not be read from here",
                   name);
}

static int may_not_write(const struct cwb_link *link, const char *name) {
    return cw_fail(-EREMOTEIO,
                   "the node %s does not let this one write \"%s\": its file of peers has no such "
                   "\"write\" pattern",
                   link->bridge->node, name);
}

bool cwb_may_write(const struct cwb_link *link, const char *key, uint32_t key_bytes) {
    struct subject subject;
    subject_of(key, key_bytes, &subject);
    if (cwb_patterns_match(&link->peer->config.write, subject.name))
        return true;
    may_not_write(link, subject.name);
    return false;
}

/* The record under a key, if this peer may read it. */
static int look(struct cwb_bridge *bridge, const struct cwb_peer *peer,
                const struct subject *subject, struct cw_found *found) {
    int code = cw_name_key_find(bridge->client, &subject->key, found);
    if (code == -ENOENT || (code == 0 && !may_read(peer, subject->name, &found->entry)))
        return not_there(subject->name);
    return code;
}

/* Who put it may have written anything as its description, and a peer that is sent what is none
 * ends the connection, with all that others ask for. */
static int check_described(const struct subject *subject, const struct cw_found *found) {
    struct cw_shape shape;
    const struct cw_entry *entry = &found->entry;
    if (cw_meta_decode(found->meta, entry->meta_bytes, entry->size_bytes, &shape) == 0 &&
        shape.span_bytes == entry->size_bytes)
        return 0;
    return cw_fail(-EREMOTEIO, "who put \"%s\" there described it by what is no array",
                   subject->name);
}

/* ---- OPEN ---- */

/* The answer at once. status < 0: cw_detail() is the sentence. */
static void answer(struct cwb_link *link, const struct cwb_frame *frame, int status,
                   const struct iovec *parts, uint32_t count) {
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
    opened->hash = cwb_hash(bytes, opened->size_bytes, 0);
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

/* As a source of an array, which is taken over; on a GPU its bytes are still to come. */
static void answer_source(struct cwb_link *link, const struct cwb_frame *frame,
                          const struct cw_found *found, cw_array *array, bool on_gpu) {
    struct cwb_opened opened = opened_of(link, found);
    struct cwb_source *source;
    struct iovec parts[] = {{&opened, sizeof opened},
                            {(void *)(uintptr_t)found->meta, opened.meta_bytes}};
    bool all = false;
    opened.ahead = on_gpu ? 0 : ahead_of(link, frame, opened.size_bytes, &all);
    int code = on_gpu ? cwb_source_new_staged(link->bridge, link->peer, array, opened.size_bytes,
                                              link->read_max, false, &source)
                      : cwb_source_new(link->bridge, link->peer, array, cw_array_lowest(array),
                                       opened.size_bytes, all ? CWB_PUSHED : CWB_OPENED, &source);
    if (code)
        cw_array_close(array);
    else
        opened.source = cwb_source_id(source);
    answer(link, frame, code, parts, 2);
    if (code == 0 && opened.ahead)
        cwb_source_push(link, frame, source, opened.ahead);
}

/* Small, and in host memory. false: it is not, or was replaced meanwhile. */
static bool open_inside(struct cwb_link *link, const struct cwb_frame *frame,
                        const struct subject *subject, const struct cw_found *found) {
    uint8_t bytes[CWB_INLINE_MAX];
    if (found->entry.size_bytes > CWB_INLINE_MAX ||
        cw_found_read(link->bridge->client, found, bytes) != 0)
        return false;
    struct cwb_opened opened = opened_of(link, found);
    if (frame->open.flags & CWB_WATCH)
        cwb_watch_begin(link, &subject->key, found->entry.id);
    answer_inside(link, frame, &opened, found->meta, bytes);
    cwb_awake_served(&link->bridge->awake, &link->served_ns, link->bridge->loop.now_ns);
    return true;
}

static void serve_open(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_bridge *bridge = link->bridge;
    struct subject subject;
    struct cw_found found;
    cw_array *array = NULL;
    bool on_gpu = false;
    subject_of(frame->key, frame->key_bytes, &subject);
    int code = look(bridge, link->peer, &subject, &found);
    if (code == 0)
        code = check_described(&subject, &found);
    if (code == 0 && open_inside(link, frame, &subject, &found))
        return;
    if (code == 0)
        code = cwb_local_open(bridge, &subject.key, &found, &array, &on_gpu);
    if (code == 0 && !may_read(link->peer, subject.name, &found.entry)) {
        cw_array_close(array); /* it was replaced in between */
        code = -ENOENT;
    } else if (code == 0) {
        code = check_described(&subject, &found);
        if (code)
            cw_array_close(array);
    }
    if (code == -ENOENT)
        not_there(subject.name);
    if (code) {
        answer(link, frame, code, NULL, 0);
        return;
    }
    uint64_t size_bytes = found.entry.size_bytes;
    if (frame->open.flags & CWB_WATCH)
        cwb_watch_begin(link, &subject.key, found.entry.id);
    if (size_bytes > CWB_INLINE_MAX || (on_gpu && size_bytes)) {
        answer_source(link, frame, &found, array, on_gpu);
        return;
    }
    uint8_t bytes[CWB_INLINE_MAX];
    struct cwb_opened opened = opened_of(link, &found);
    if (size_bytes)
        memcpy(bytes, cw_array_lowest(array), size_bytes);
    cw_array_close(array);
    answer_inside(link, frame, &opened, found.meta, bytes);
}

/* ---- NAMES, REMOVE, WAIT ---- */

/* A list is answered as an array of bytes is; names is taken over. */
static void answer_names(struct cwb_link *link, const struct cwb_frame *frame, char *names,
                         uint64_t size_bytes) {
    struct cwb_opened opened = {.size_bytes = size_bytes};
    struct cwb_source *source;
    struct iovec part = {&opened, sizeof opened};
    if (size_bytes <= CWB_INLINE_MAX) {
        answer_inside(link, frame, &opened, NULL, names);
        free(names);
        return;
    }
    int code = cwb_source_new(link->bridge, link->peer, NULL, (uint8_t *)names, size_bytes,
                              CWB_OPENED, &source);
    if (code)
        free(names);
    else
        opened.source = cwb_source_id(source);
    answer(link, frame, code, &part, 1);
}

/* What is known about one name, without its bytes. */
static void serve_about(struct cwb_link *link, const struct cwb_frame *frame) {
    struct subject subject;
    struct cw_found found;
    struct cw_shape shape;
    char *text = NULL;
    size_t size_bytes;
    subject_of(frame->key, frame->key_bytes, &subject);
    int code = look(link->bridge, link->peer, &subject, &found);
    if (code) {
        answer(link, frame, code, NULL, 0);
        return;
    }
    if (cw_meta_decode(found.meta, found.entry.meta_bytes, found.entry.size_bytes, &shape) != 0) {
        shape.ndim = 0; /* the name is there all the same */
        *shape.dtype = 0;
    }
    FILE *out = open_memstream(&text, &size_bytes);
    CW_ASSERT(out);
    fprintf(out, "%llu\t%llu\t%d\t%s", (unsigned long long)found.entry.size_bytes,
            (unsigned long long)found.entry.created_ns, (found.entry.flags & CW_ENTRY_KEEP) != 0,
            shape.dtype);
    for (uint32_t i = 0; i < shape.ndim; i++)
        fprintf(out, "\t%lld", (long long)shape.shape[i]);
    fputc(0, out);
    CW_ASSERT(fclose(out) == 0);
    answer_names(link, frame, text, size_bytes);
}

static void serve_names(struct cwb_link *link, const struct cwb_frame *frame) {
    struct subject prefix, subject;
    struct cw_found found;
    char *names = NULL;
    uint64_t count = 0, kept = 0;
    if (frame->open.flags & CWB_ABOUT) {
        serve_about(link, frame);
        return;
    }
    subject_of(frame->key, frame->key_bytes, &prefix);
    int code = cw_name_key_list(link->bridge->client, &prefix.key, &names, &count);
    if (code) {
        answer(link, frame, code, NULL, 0);
        return;
    }
    subject.key = prefix.key;
    size_t space = strlen(prefix.key.text) + 1;
    for (char *at = names, *next; count; count--, at = next) {
        size_t length = strlen(at) + 1;
        next = at + length;
        memcpy(subject.key.text + space, at, length - 1);
        subject.key.length = (uint32_t)(space + length - 1);
        memcpy(subject.name, at, length);
        if (look(link->bridge, link->peer, &subject, &found) != 0)
            continue;
        memmove(names + kept, at, length);
        kept += length;
    }
    answer_names(link, frame, names, kept);
}

static void serve_remove(struct cwb_link *link, const struct cwb_frame *frame) {
    struct subject subject;
    subject_of(frame->key, frame->key_bytes, &subject);
    int code = 0;
    if (!cwb_may_write(link, frame->key, frame->key_bytes))
        code = -EREMOTEIO;
    else
        code = cw_name_key_remove(link->bridge->client, &subject.key);
    if (code == -ENOENT)
        not_there(subject.name);
    cwb_link_reply(link, CWB_REMOVE, frame->head.id, code, cw_detail(), NULL, 0);
}

struct waiting {
    struct cwb_bridge *bridge;
    struct cwb_peer *peer;
    struct subject subject;
};

static void wait_ends(struct cwb_bridge *bridge, struct cwb_served *served) {
    DL_DELETE(bridge->waits, served);
    free(served->owner);
}

static void cancel_wait(struct cwb_served *served) {
    wait_ends(((struct waiting *)served->owner)->bridge, served);
    free(served);
}

static void serve_wait(struct cwb_link *link, const struct cwb_frame *frame) {
    if (link->peer->wait_count >= CWB_WAITS_MAX) {
        cw_fail(-EDQUOT,
                "this node's waits for names here are %u, over all its connections, which is the "
                "most (CWB_WAITS_MAX): end some",
                CWB_WAITS_MAX);
        cwb_link_reply(link, CWB_WAIT, frame->head.id, -EDQUOT, cw_detail(), NULL, 0);
        return;
    }
    struct cwb_served *served = cwb_served_new(link, frame);
    struct waiting *waiting = calloc(1, sizeof *waiting);
    struct cw_found found;
    CW_ASSERT(waiting);
    waiting->peer = link->peer;
    subject_of(frame->key, frame->key_bytes, &waiting->subject);
    if (look(link->bridge, link->peer, &waiting->subject, &found) == 0) {
        free(waiting);
        cwb_served_reply(served, 0, NULL, 0);
        return;
    }
    waiting->bridge = link->bridge;
    served->owner = waiting;
    served->on_cancel = cancel_wait;
    DL_APPEND(link->bridge->waits, served);
    cwb_jobs_watch(link->bridge);
}

/* ---- changes ---- */

void cwb_serve_changes(struct cwb_bridge *bridge, const struct cw_changed *changed) {
    struct cwb_served *served, *following;
    struct cw_found found;
    cwb_watch_changes(bridge, changed);
    DL_FOREACH_SAFE(bridge->waits, served, following) {
        struct waiting *waiting = served->owner;
        if (look(bridge, waiting->peer, &waiting->subject, &found) != 0)
            continue;
        wait_ends(bridge, served);
        cwb_served_reply(served, 0, NULL, 0);
    }
}

bool cwb_serve_watches(const struct cwb_bridge *bridge) {
    return bridge->watched || bridge->waits;
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
        serve_open(link, frame);
        return 0;
    case CWB_READ:
        return cwb_source_serve_read(link, frame);
    case CWB_CLOSE:
        return cwb_source_serve_close(link, frame);
    case CWB_OFFER:
        return cwb_offered_serve(link, frame);
    case CWB_WAIT:
        serve_wait(link, frame);
        return 0;
    case CWB_NAMES:
        serve_names(link, frame);
        return 0;
    case CWB_REMOVE:
        serve_remove(link, frame);
        return 0;
    case CWB_CANCEL:
        serve_cancel(link, frame);
        return 0;
    case CWB_CHANGED:
        cwb_replica_changed(link->peer, frame);
        return 0;
    default: /* frame.c lets no other through */
        return cw_fail(-EPROTO, "op %u", frame->head.op);
    }
}
