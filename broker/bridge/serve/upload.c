/*
 * Uploads: arrays of this node that a peer reads by pieces; see frame.h and upload.h.
 *
 * An upload holds a lease on its array, so that its memory stays while it is read, and is hashed as
 * it goes out, by whoever sends, while its bytes lie in a cache (checksum.h), and what was not read
 * when the peer closes it. What a peer opened and did not close ends with CWB_RESUME_NS without a
 * link, so that a peer that died holds nothing; when its bridge was started anew, whose numbers
 * these are not; and when it was not read for IDLE_NS, since an answer to OPEN that was cut leaves
 * a number that nobody knows. One whose CLOSE came with its OPEN ends when all of it was sent
 * (pushed): if that is cut the peer opens it anew. A number is the peer's own and tells others
 * nothing. Who writes into the array meanwhile makes the hash differ, and the peer reads again, as
 * it does when the upload is gone.
 *
 * Who closes what he has not read has it hashed all the same. One array of a peer is hashed at a
 * time, by one helper, in slices of HASH_BYTES: the helpers are there for others, too.
 *
 * READs come over the link, on the bridge's loop, and over streams, on I/O threads: the tables of
 * uploads, their references and when they were used are under one lock, bridge->uploads_lock, which
 * is held for a look-up. The loop alone makes and ends uploads. One that ended while an I/O thread
 * had found it goes with the I/O thread's reference: the piece still leaves, and nobody wants it.
 * Of a staged one an I/O thread sends what is there; a READ whose bytes are away, a buffer that is
 * free, and the last reference it hands over to the loop, and is told of a piece when it is there.
 * So it is with the last reference of a pushed one, and with the news that all of it was sent.
 */
#include "broker/bridge/serve/upload.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/link/stream.h"
#include "broker/bridge/link/streams.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/name_lists.h"
#include "broker/bridge/serve/serve.h"
#include "broker/bridge/serve/staging.h"
#include "broker/bridge/serve/tree_parts.h"
#include "broker/bridge/wire/checksum.h"
#include "broker/bridge/wire/send.h"

#define AT_ONCE_BYTES (1u << 20)  /* so much is hashed by the loop itself */
#define HASH_BYTES    (32u << 20) /* and so much by a helper, before it does something else */
#define IDLE_NS       60000000000
#define LOOK_NS       1000000000 /* between looks at who is idle */

/* What I/O threads hand over to the loop, of staged and pushed uploads. */
struct handing {
    struct cwb_work work;
    struct cwb_upload *upload; /* one reference */
    struct cwb_stream *stream; /* a READ; NULL: a buffer may be free, or the reference alone */
    uint64_t id;
    struct cwb_read read;
};

struct cwb_upload {
    uint64_t id;
    struct cwb_bridge *bridge;
    struct cwb_peer *peer; /* NULL: ended */
    uint64_t run;          /* of the peer's bridge that opened it */
    /* under bridge->uploads_lock, as the peer's table is */
    int64_t used_ns;
    uint32_t references;
    bool handed;            /* looking is on its way to the loop */
    struct handing looking; /* a buffer may be free, all was sent, or the last reference ends */
    /* the loop's, and fixed */
    cw_array *array;
    uint8_t *own;                /* malloced bytes in place of an array */
    struct cwb_staging *staging; /* an array on a GPU: it has the bytes, and their hash */
    const uint8_t *bytes;
    uint64_t size_bytes;
    struct cwb_sum *sum;   /* NULL: staged */
    struct cwb_tree *tree; /* it is of a part of that one; NULL: of none */
    uint32_t part;
    bool for_put; /* it stays when it was closed: the offer ends it */
    bool pushed;  /* the CLOSE is there, and answered when all was sent */
    bool hashing; /* a helper has the hash */
    struct cwb_hashing {
        struct cwb_work work;
        struct cwb_upload *upload; /* one reference */
        struct cwb_peer *peer;
        struct cwb_hashing *next, *prev; /* of the peer: the first is a helper's */
    } rest;                              /* while it waits for it, or has it */
    struct cwb_served *closings;         /* who asked for it, by next */
    UT_hash_handle hh;
};

static int upload_new(struct cwb_bridge *bridge, struct cwb_peer *peer, uint64_t size_bytes,
                      bool for_put, struct cwb_upload **out) {
    if (HASH_COUNT(peer->uploads) >= CWB_REQUESTS_MAX)
        return cw_fail(-EDQUOT, "%u arrays are being read by this peer; it must close some first",
                       CWB_REQUESTS_MAX);
    struct cwb_upload *upload = calloc(1, sizeof *upload);
    if (!upload)
        return cwb_no_memory("an array that a peer reads");
    upload->id = ++bridge->next_upload;
    upload->bridge = bridge;
    upload->peer = peer;
    upload->run = peer->run;
    upload->used_ns = bridge->loop.now_ns;
    upload->references = 1;
    upload->for_put = for_put;
    upload->size_bytes = size_bytes;
    *out = upload;
    return 0;
}

/* From now on READs find it. 0 or -EDQUOT. */
static int publish(struct cwb_upload *upload) {
    struct cwb_peer *peer = upload->peer;
    pthread_mutex_lock(&upload->bridge->uploads_lock);
    HASH_ADD(hh, peer->uploads, id, sizeof upload->id, upload);
    pthread_mutex_unlock(&upload->bridge->uploads_lock);
    if (!CWD_ADDED(upload))
        return cwb_no_memory("an array that a peer reads");
    if (upload->size_bytes >= CWB_STREAM_BYTES)
        cwb_streams_want(upload->bridge, peer);
    return 0;
}

/* Arrays are there anyway; a list is made for the one who asks. */
static int room_for_list(const struct cwb_bridge *bridge, struct cwb_peer *peer,
                         uint64_t size_bytes) {
    struct cwb_upload *upload, *next;
    uint64_t bytes = 0;
    HASH_ITER(hh, peer->uploads, upload, next) {
        bytes += upload->own ? upload->size_bytes : 0;
    }
    return bytes < CWB_LISTS_BYTES
               ? cwb_lists_room(bridge, bytes + size_bytes, size_bytes)
               : cw_fail(-EDQUOT,
                         "%llu bytes of lists of names are being read by this peer, at most %u are "
                         "kept; it must close some first",
                         (unsigned long long)bytes, CWB_LISTS_BYTES);
}

int cwb_upload_new(struct cwb_bridge *bridge, struct cwb_peer *peer, cw_array *array,
                   uint8_t *bytes, uint64_t size_bytes, enum cwb_upload_kind how,
                   struct cwb_upload **out) {
    struct cwb_upload *upload;
    int code = array ? 0 : room_for_list(bridge, peer, size_bytes);
    if (code == 0)
        code = upload_new(bridge, peer, size_bytes, how == CWB_UPLOAD_PUT, &upload);
    if (code)
        return code;
    upload->pushed = how == CWB_UPLOAD_PUSHED;
    upload->array = array;
    upload->own = array ? NULL : bytes;
    upload->bytes = bytes;
    upload->sum = cwb_sum_new(bytes, size_bytes, size_bytes);
    code = upload->sum ? publish(upload) : -EDQUOT;
    if (code) {
        cwb_sum_free(upload->sum);
        free(upload);
        return code;
    }
    bridge->lists_bytes += upload->own ? size_bytes : 0;
    *out = upload;
    return 0;
}

int cwb_upload_new_staged(struct cwb_bridge *bridge, struct cwb_peer *peer, cw_array *array,
                          uint64_t size_bytes, uint32_t read_max, bool for_put,
                          struct cwb_upload **out) {
    struct cwb_upload *upload;
    int code = upload_new(bridge, peer, size_bytes, for_put, &upload);
    if (code)
        return code;
    code = publish(upload);
    if (code) {
        free(upload);
        return code;
    }
    upload->staging = cwb_staging_new(bridge, upload, array, size_bytes, read_max);
    if (!upload->staging) {
        pthread_mutex_lock(&bridge->uploads_lock); /* nobody has heard its number */
        HASH_DEL(peer->uploads, upload);
        pthread_mutex_unlock(&bridge->uploads_lock);
        free(upload);
        return -EDQUOT;
    }
    *out = upload;
    return 0;
}

void cwb_upload_of_tree(struct cwb_upload *upload, struct cwb_tree *tree, uint32_t number) {
    upload->tree = tree;
    upload->part = number;
}

uint64_t cwb_upload_id(const struct cwb_upload *upload) {
    return upload->id;
}

int64_t cwb_upload_used_ns(struct cwb_upload *upload) {
    pthread_mutex_lock(&upload->bridge->uploads_lock);
    int64_t used_ns = upload->used_ns;
    pthread_mutex_unlock(&upload->bridge->uploads_lock);
    return used_ns;
}

const uint8_t *cwb_upload_at(const struct cwb_upload *upload, uint64_t offset_bytes) {
    return upload->bytes + offset_bytes;
}

static struct cwb_upload *find(struct cwb_bridge *bridge, struct cwb_peer *peer, uint64_t id,
                               int64_t now_ns) {
    struct cwb_upload *upload;
    pthread_mutex_lock(&bridge->uploads_lock);
    HASH_FIND(hh, peer->uploads, &id, sizeof id, upload);
    if (upload) {
        upload->references++;
        upload->used_ns = now_ns;
    }
    pthread_mutex_unlock(&bridge->uploads_lock);
    return upload;
}

void cwb_upload_ref(struct cwb_upload *upload) {
    pthread_mutex_lock(&upload->bridge->uploads_lock);
    upload->references++;
    pthread_mutex_unlock(&upload->bridge->uploads_lock);
}

static int no_upload(uint64_t id) {
    return cw_fail(-ESTALE,
                   "there is no array %llu that you read: it was closed, or this node's "
                   "bridge was started anew",
                   (unsigned long long)id);
}

static int closed_early(void) {
    return cw_fail(-ESTALE, "the array is not read any more: it was closed");
}

/* Answers all who asked for the hash; status below 0: with this thread's sentence. */
static void answer_closings(struct cwb_upload *upload, int status, uint64_t hash) {
    struct cwb_closed closed = {.hash = hash};
    struct iovec part = {&closed, sizeof closed};
    struct cwb_served *served;
    char sentence[CW_DETAIL_MAX] = "";
    if (status)
        strcpy(sentence, cw_detail());
    while ((served = upload->closings)) {
        upload->closings = served->next;
        if (status)
            cw_fail(status, "%s", sentence);
        cwb_served_reply(served, status, &part, 1);
    }
}

void cwb_upload_unref(struct cwb_upload *upload) {
    pthread_mutex_lock(&upload->bridge->uploads_lock);
    bool last = --upload->references == 0;
    pthread_mutex_unlock(&upload->bridge->uploads_lock);
    if (!last)
        return;
    CW_ASSERT(!upload->peer);
    if (upload->closings) /* it ended before all was sent, and no piece of it is left */
        answer_closings(upload, no_upload(upload->id), 0);
    if (upload->staging)
        cwb_staging_end(upload->staging);
    cwb_local_close(upload->bridge, upload->array);
    if (upload->tree)
        cwb_tree_release(upload->tree, upload->part);
    upload->bridge->lists_bytes -= upload->own ? upload->size_bytes : 0;
    free(upload->own);
    cwb_sum_free(upload->sum);
    free(upload);
}

void cwb_upload_end(struct cwb_upload *upload) {
    if (!upload->peer)
        return;
    pthread_mutex_lock(&upload->bridge->uploads_lock);
    HASH_DEL(upload->peer->uploads, upload);
    upload->peer = NULL;
    pthread_mutex_unlock(&upload->bridge->uploads_lock);
    if (upload->staging) {
        closed_early();
        cwb_staging_drop(upload->staging);
        if (upload->hashing) /* the staging was asked for it, and tells nobody any more */
            answer_closings(upload, closed_early(), 0);
        upload->hashing = false;
    }
    cwb_upload_unref(upload);
}

void cwb_uploads_end_of_tree(struct cwb_peer *peer, const struct cwb_tree *tree) {
    struct cwb_upload *upload, *next;
    HASH_ITER(hh, peer->uploads, upload, next) {
        if (upload->tree == tree)
            cwb_upload_end(upload);
    }
}

int64_t cwb_uploads_used_ns(struct cwb_peer *peer, const struct cwb_tree *tree) {
    struct cwb_upload *upload, *next;
    int64_t used_ns = 0;
    HASH_ITER(hh, peer->uploads, upload, next) {
        int64_t one_ns = upload->tree == tree ? cwb_upload_used_ns(upload) : 0;
        used_ns = one_ns > used_ns ? one_ns : used_ns;
    }
    return used_ns;
}

/* ---- what I/O threads hand over to the loop ---- */

/* All of a pushed one was sent: its CLOSE is answered, and it ends. */
static void all_sent(struct cwb_upload *upload) {
    if (upload->peer && !upload->hashing)
        cwb_upload_staged(upload, 0, cwb_sum_digest(upload->sum));
}

static void handed(struct cwb_work *work) {
    struct handing *h = (struct handing *)work;
    if (h->upload->peer)
        cwb_staging_read(h->upload->staging, NULL, h->stream, h->id, &h->read);
    else
        cwb_stream_refuse(h->stream, h->id, no_upload(h->read.source));
    cwb_upload_unref(h->upload);
    free(h);
}

/* A READ of a staged one, with its reference. 0, or -EDQUOT: both stay the caller's. */
static int hand_over(const struct handing *what) {
    struct handing *h = malloc(sizeof *h);
    if (!h)
        return cwb_no_memory("a piece that a peer reads");
    *h = *what;
    h->work.done = handed;
    cwb_work_tell(h->upload->bridge->helpers, &h->work);
    return 0;
}

static void handed_look(struct cwb_work *work) {
    struct cwb_upload *upload = ((struct handing *)work)->upload;
    pthread_mutex_lock(&upload->bridge->uploads_lock);
    upload->handed = false; /* what happens from now on is told anew */
    pthread_mutex_unlock(&upload->bridge->uploads_lock);
    if (upload->staging)
        cwb_staging_look(upload->staging);
    else if (cwb_sum_left(upload->sum) == 0)
        all_sent(upload);
    cwb_upload_unref(upload);
}

/* The loop is to look, and a reference ends. It needs no memory: the upload has room for one such
 * word, and one that is on its way is enough. */
static void hand_look(struct cwb_upload *upload) {
    pthread_mutex_lock(&upload->bridge->uploads_lock);
    bool tell = !upload->handed;
    upload->handed = true;
    upload->references -= !tell; /* that word has one, too: this is not the last */
    pthread_mutex_unlock(&upload->bridge->uploads_lock);
    if (!tell)
        return;
    upload->looking = (struct handing){.work = {.done = handed_look}, .upload = upload};
    cwb_work_tell(upload->bridge->helpers, &upload->looking.work);
}

static bool drop_unless_last(struct cwb_upload *upload) {
    pthread_mutex_lock(&upload->bridge->uploads_lock);
    bool last = upload->references == 1;
    upload->references -= !last;
    pthread_mutex_unlock(&upload->bridge->uploads_lock);
    return !last;
}

void cwb_upload_drop(struct cwb_upload *upload, const struct cwb_loop *loop) {
    bool loops = upload->staging || upload->pushed; /* the loop's to end */
    if (loops && loop != &upload->bridge->loop && drop_unless_last(upload))
        return;
    if (loops && loop != &upload->bridge->loop)
        hand_look(upload);
    else
        cwb_upload_unref(upload);
}

void cwb_upload_release_piece(struct cwb_upload *upload, const struct cwb_loop *loop,
                              const struct cwb_read *read, bool sent) {
    bool look = false;
    if (upload->staging)
        look = cwb_staging_release(upload->staging, read->offset_bytes, read->length_bytes, sent);
    else if (sent)
        look = cwb_sum_add(upload->sum, read->offset_bytes, read->length_bytes) && upload->pushed;
    if (look && loop != &upload->bridge->loop) {
        hand_look(upload);
        return;
    }
    if (look && upload->staging)
        cwb_staging_look(upload->staging);
    else if (look)
        all_sent(upload);
    cwb_upload_drop(upload, loop);
}

static void on_piece(void *owner, const struct cwb_loop *loop, const struct cwb_read *read,
                     bool sent) {
    cwb_upload_release_piece(owner, loop, read, sent);
}

bool cwb_upload_send(struct cwb_upload *upload, struct cwb_wire *wire, uint64_t id,
                     const struct cwb_read *read, const uint8_t *bytes) {
    if (!cwb_wire_send_piece(wire, id, read, bytes, on_piece, upload))
        return false;
    cwb_upload_ref(upload);
    return true;
}

/* Is it one that was agreed on, of an array that is there? 0 and one reference, -EPROTO, or (the
 * refusal, without a reference) -ESTALE. */
static int look_up(struct cwb_bridge *bridge, struct cwb_peer *peer, const struct cwb_loop *loop,
                   uint32_t read_max, const struct cwb_read *read, struct cwb_upload **out) {
    if (read->length_bytes > read_max)
        return cw_fail(-EPROTO, "a READ of %u bytes, %u were agreed", read->length_bytes, read_max);
    struct cwb_upload *upload = find(bridge, peer, read->source, loop->now_ns);
    if (!upload)
        return no_upload(read->source);
    if (read->offset_bytes <= upload->size_bytes &&
        read->length_bytes <= upload->size_bytes - read->offset_bytes) {
        *out = upload;
        return 0;
    }
    int code = cw_fail(-EPROTO, "a READ of bytes %llu to %llu of an array of %llu",
                       (unsigned long long)read->offset_bytes,
                       (unsigned long long)(read->offset_bytes + read->length_bytes),
                       (unsigned long long)upload->size_bytes);
    cwb_upload_drop(upload, loop);
    return code;
}

int cwb_upload_serve_read(struct cwb_link *link, const struct cwb_frame *frame) {
    const struct cwb_read *read = &frame->read;
    struct cwb_upload *upload;
    int code = look_up(link->bridge, link->peer, link->wire.loop, link->read_max, read, &upload);
    if (code == -ESTALE)
        cwb_link_reply(link, CWB_READ, frame->head.id, code, cw_detail(), NULL, 0);
    if (code)
        return code == -ESTALE ? 0 : code;
    if (upload->size_bytes >= CWB_STREAM_BYTES)
        cwb_streams_want(link->bridge, link->peer); /* still */
    struct cwb_served *served = upload->staging ? cwb_served_new(link, frame) : NULL;
    if (served)
        cwb_staging_read(upload->staging, served, NULL, 0, read);
    else if (upload->staging)
        cwb_link_reply(link, CWB_READ, frame->head.id, -EDQUOT, cw_detail(), NULL, 0);
    else
        (void)cwb_upload_send(upload, &link->wire, frame->head.id, read,
                              cwb_upload_at(upload, read->offset_bytes));
    cwb_upload_unref(upload);
    return 0;
}

int cwb_upload_serve_stream_read(struct cwb_stream *stream, const struct cwb_frame *frame) {
    const struct cwb_read *read = &frame->read;
    struct cwb_upload *upload;
    int code =
        look_up(stream->bridge, stream->peer, stream->wire.loop, stream->read_max, read, &upload);
    if (code == -ESTALE)
        cwb_wire_reply(&stream->wire, CWB_READ, frame->head.id, code, cw_detail(), NULL, 0);
    if (code)
        return code == -ESTALE ? 0 : code;
    const uint8_t *bytes = upload->staging ? cwb_staging_acquire(upload->staging, read)
                                           : cwb_upload_at(upload, read->offset_bytes);
    if (bytes) {
        if (cwb_upload_send(upload, &stream->wire, frame->head.id, read, bytes))
            cwb_upload_drop(upload, stream->wire.loop);
        else
            cwb_upload_release_piece(upload, stream->wire.loop, read, false);
        return 0;
    }
    code = hand_over(
        &(struct handing){.upload = upload, .stream = stream, .id = frame->head.id, .read = *read});
    if (code) {
        cwb_wire_reply(&stream->wire, CWB_READ, frame->head.id, code, cw_detail(), NULL, 0);
        cwb_upload_drop(upload, stream->wire.loop);
    } else {
        stream->parked++; /* this I/O thread's own: what is handed over has not come back before */
    }
    return 0;
}

/* ---- the end: the hash over all ---- */

static void hash_rest(struct cwb_work *work) {
    struct cwb_upload *upload = ((struct cwb_hashing *)work)->upload;
    work->code = cwb_sum_rest(upload->sum, HASH_BYTES) ? 0 : 1;
}

void cwb_upload_staged(struct cwb_upload *upload, int status, uint64_t hash) {
    upload->hashing = false;
    answer_closings(upload, status, hash);
    if (!upload->for_put)
        cwb_upload_end(upload);
}

static void hashed(struct cwb_work *work) {
    struct cwb_hashing *hashing = (struct cwb_hashing *)work;
    struct cwb_upload *upload = hashing->upload;
    struct cwb_peer *peer = hashing->peer;
    struct cwb_helpers *helpers = upload->bridge->helpers;
    if (work->code && upload->peer) { /* behind what others want of the helpers */
        cwb_work_begin(helpers, work);
        return;
    }
    DL_DELETE(peer->hashings, hashing);
    if (peer->hashings)
        cwb_work_begin(helpers, &peer->hashings->work);
    if (work->code == 0)
        cwb_upload_staged(upload, 0, cwb_sum_digest(upload->sum));
    cwb_upload_unref(upload);
}

void cwb_upload_push(struct cwb_link *link, const struct cwb_frame *frame,
                     struct cwb_upload *upload, uint32_t count) {
    struct cwb_frame closing = {.head = {.op = CWB_CLOSE, .id = frame->head.id + 1 + count}};
    for (uint32_t i = 0; i < count; i++) {
        struct cwb_read read = cwb_link_piece(link, upload->id, upload->size_bytes, i);
        if (!cwb_upload_send(upload, &link->wire, frame->head.id + 1 + i, &read,
                             cwb_upload_at(upload, read.offset_bytes)))
            return; /* the link ends */
    }
    if (!upload->pushed)
        return;
    struct cwb_served *served = cwb_served_new(link, &closing);
    if (!served) { /* a CLOSE came, and nobody would answer it */
        link->wire.broken = -EDQUOT;
        cwb_wire_touch(&link->wire);
        cwb_upload_end(upload);
        return;
    }
    served->next = upload->closings;
    upload->closings = served;
}

int cwb_upload_serve_close(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_upload *upload =
        find(link->bridge, link->peer, frame->close.source, link->bridge->loop.now_ns);
    struct cwb_closed closed = {.hash = 0};
    struct iovec part = {&closed, sizeof closed};
    if (frame->close.unneeded) {
        if (upload && !upload->for_put)
            cwb_upload_end(upload);
        if (upload)
            cwb_upload_unref(upload);
        cwb_link_reply(link, CWB_CLOSE, frame->head.id, 0, NULL, &part, 1);
        return 0;
    }
    if (!upload) {
        int code = no_upload(frame->close.source);
        cwb_link_reply(link, CWB_CLOSE, frame->head.id, code, cw_detail(), NULL, 0);
        return 0;
    }
    cwb_upload_unref(upload); /* it is in the table: this thread alone takes it out */
    struct cwb_served *served = cwb_served_new(link, frame);
    if (!served) {
        cwb_link_reply(link, CWB_CLOSE, frame->head.id, -EDQUOT, cw_detail(), NULL, 0);
        return 0;
    }
    served->next = upload->closings;
    upload->closings = served;
    if (upload->hashing)
        return 0;
    if (upload->staging) {
        upload->hashing = true;
        cwb_staging_close(upload->staging);
        return 0;
    }
    upload->rest = (struct cwb_hashing){
        .work = {.run = hash_rest, .done = hashed}, .upload = upload, .peer = link->peer};
    upload->hashing = true;
    cwb_upload_ref(upload);
    if (cwb_sum_left(upload->sum) <= AT_ONCE_BYTES) {
        (void)cwb_sum_rest(upload->sum, UINT64_MAX);
        cwb_upload_staged(upload, 0, cwb_sum_digest(upload->sum));
        cwb_upload_unref(upload);
        return 0;
    }
    DL_APPEND(link->peer->hashings, &upload->rest);
    if (link->peer->hashings == &upload->rest)
        cwb_work_begin(link->bridge->helpers, &upload->rest.work);
    return 0;
}

/* Does nobody read it any more? Its pieces under way, and its hash, are references. */
static bool forgotten(const struct cwb_upload *upload, int64_t now_ns) {
    pthread_mutex_lock(&upload->bridge->uploads_lock);
    bool held = upload->references > 1, idle = now_ns - upload->used_ns >= IDLE_NS;
    pthread_mutex_unlock(&upload->bridge->uploads_lock);
    return !upload->for_put && !held && (idle || upload->run != upload->peer->run);
}

void cwb_uploads_tick(struct cwb_bridge *bridge) {
    bool look = bridge->loop.now_ns - bridge->uploads_looked_ns >= LOOK_NS;
    if (look)
        bridge->uploads_looked_ns = bridge->loop.now_ns;
    for (struct cwb_peer *peer = bridge->met; peer; peer = peer->met_next) {
        struct cwb_upload *upload, *next;
        bool away = !peer->link && bridge->loop.now_ns - peer->unlinked_ns >= CWB_RESUME_NS;
        if (!away && !look)
            continue;
        HASH_ITER(hh, peer->uploads, upload, next) {
            if (away || forgotten(upload, bridge->loop.now_ns))
                cwb_upload_end(upload);
        }
    }
}
