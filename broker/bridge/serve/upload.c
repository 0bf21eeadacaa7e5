/*
 * Sources: arrays of this node that a peer reads by pieces; see frame.h and upload.h.
 *
 * A source holds a lease on its array, so that its memory stays while it is read, and is hashed as
 * it goes out, by whoever sends, while its bytes lie in a cache (checksum.h), and what was not read
 * when the peer closes it. What a peer opened and did not close ends with CWB_RESUME_NS without a
 * link, so that a peer that died holds nothing; when its bridge was started anew, whose numbers
 * these are not; and when it was not read for IDLE_NS, since an answer to OPEN that was cut leaves
 * a number that nobody knows. One whose CLOSE came with its OPEN ends when all of it was sent
 * (pushed): if that is cut the peer opens it anew. A number is the peer's own and tells others
 * nothing. Who writes into the array meanwhile makes the hash differ, and the peer reads again, as
 * it does when the source is gone.
 *
 * Who closes what he has not read has it hashed all the same. One array of a peer is hashed at a
 * time, by one helper, in slices of HASH_BYTES: the helpers are there for others, too.
 *
 * READs come over the link, on the bridge's loop, and over streams, on strands: the tables of
 * sources, their references and when they were used are under one lock, bridge->sources_lock, which
 * is held for a look-up. The loop alone makes and ends sources. One that ended while a strand had
 * found it goes with the strand's reference: the piece still leaves, and nobody wants it. Of a
 * staged one a strand sends what is there; a READ whose bytes are away, a slot that is free, and
 * the last reference it hands over to the loop, and is told of a piece when it is there. So it is
 * with the last reference of a pushed one, and with the news that all of it was sent.
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
#include "broker/bridge/serve/serve.h"
#include "broker/bridge/serve/staging.h"
#include "broker/bridge/wire/checksum.h"
#include "broker/bridge/wire/send.h"

#define AT_ONCE_BYTES (1u << 20)  /* so much is hashed by the loop itself */
#define HASH_BYTES    (32u << 20) /* and so much by a helper, before it does something else */
#define IDLE_NS       60000000000
#define LOOK_NS       1000000000 /* between looks at who is idle */

/* What strands hand over to the loop, of staged and pushed sources. */
struct handing {
    struct cwb_work work;
    struct cwb_source *source; /* one reference */
    struct cwb_stream *stream; /* a READ; NULL: a slot may be free, or the reference alone */
    uint64_t id;
    struct cwb_read read;
};

struct cwb_source {
    uint64_t id;
    struct cwb_bridge *bridge;
    struct cwb_peer *peer; /* NULL: ended */
    uint64_t run;          /* of the peer's bridge that opened it */
    /* under bridge->sources_lock, as the peer's table is */
    int64_t used_ns;
    uint32_t references;
    bool handed;            /* looking is on its way to the loop */
    struct handing looking; /* that a slot may be free, all was sent, or the last reference ends */
    /* the loop's, and fixed */
    cw_array *array;
    uint8_t *own;            /* malloced bytes in place of an array */
    struct cwb_stage *stage; /* an array on a GPU: it has the bytes, and their hash */
    const uint8_t *bytes;
    uint64_t size_bytes;
    struct cwb_sum *sum; /* NULL: staged */
    bool offered;        /* it stays when it was closed: the offer ends it */
    bool pushed;         /* the CLOSE is there, and answered when all was sent */
    bool hashing;        /* a helper has the hash */
    struct cwb_hashing {
        struct cwb_work work;
        struct cwb_source *source; /* one reference */
        struct cwb_peer *peer;
        struct cwb_hashing *next, *prev; /* of the peer: the first is a helper's */
    } rest;                              /* while it waits for it, or has it */
    struct cwb_served *closings;         /* who asked for it, by next */
    UT_hash_handle hh;
};

static int source_new(struct cwb_bridge *bridge, struct cwb_peer *peer, uint64_t size_bytes,
                      bool offered, struct cwb_source **out) {
    if (HASH_COUNT(peer->sources) >= CWB_REQUESTS_MAX)
        return cw_fail(-EDQUOT, "%u arrays are being read by this peer; it must close some first",
                       CWB_REQUESTS_MAX);
    struct cwb_source *source = calloc(1, sizeof *source);
    if (!source)
        return cwb_no_memory("an array that a peer reads");
    source->id = ++bridge->next_source;
    source->bridge = bridge;
    source->peer = peer;
    source->run = peer->run;
    source->used_ns = bridge->loop.now_ns;
    source->references = 1;
    source->offered = offered;
    source->size_bytes = size_bytes;
    *out = source;
    return 0;
}

/* From now on READs find it. 0 or -EDQUOT. */
static int publish(struct cwb_source *source) {
    struct cwb_peer *peer = source->peer;
    pthread_mutex_lock(&source->bridge->sources_lock);
    HASH_ADD(hh, peer->sources, id, sizeof source->id, source);
    pthread_mutex_unlock(&source->bridge->sources_lock);
    if (!CWD_ADDED(source))
        return cwb_no_memory("an array that a peer reads");
    if (source->size_bytes >= CWB_STREAM_BYTES)
        cwb_streams_want(source->bridge, peer);
    return 0;
}

/* Arrays are there anyway; a list is made for the one who asks. */
static int room_for_list(struct cwb_peer *peer) {
    struct cwb_source *source, *next;
    uint64_t bytes = 0;
    HASH_ITER(hh, peer->sources, source, next) {
        bytes += source->own ? source->size_bytes : 0;
    }
    return bytes < CWB_LISTS_BYTES
               ? 0
               : cw_fail(-EDQUOT,
                         "%llu bytes of lists of names are being read by this peer, at most %u are "
                         "kept; it must close some first",
                         (unsigned long long)bytes, CWB_LISTS_BYTES);
}

int cwb_source_new(struct cwb_bridge *bridge, struct cwb_peer *peer, cw_array *array,
                   uint8_t *bytes, uint64_t size_bytes, enum cwb_sourced how,
                   struct cwb_source **out) {
    struct cwb_source *source;
    int code = array ? 0 : room_for_list(peer);
    if (code == 0)
        code = source_new(bridge, peer, size_bytes, how == CWB_OFFERED, &source);
    if (code)
        return code;
    source->pushed = how == CWB_PUSHED;
    source->array = array;
    source->own = array ? NULL : bytes;
    source->bytes = bytes;
    source->sum = cwb_sum_new(bytes, size_bytes, size_bytes);
    code = source->sum ? publish(source) : -EDQUOT;
    if (code) {
        cwb_sum_free(source->sum);
        free(source);
        return code;
    }
    *out = source;
    return 0;
}

int cwb_source_new_staged(struct cwb_bridge *bridge, struct cwb_peer *peer, cw_array *array,
                          uint64_t size_bytes, uint32_t read_max, bool offered,
                          struct cwb_source **out) {
    struct cwb_source *source;
    int code = source_new(bridge, peer, size_bytes, offered, &source);
    if (code)
        return code;
    code = publish(source);
    if (code) {
        free(source);
        return code;
    }
    source->stage = cwb_stage_new(bridge, source, array, size_bytes, read_max);
    if (!source->stage) {
        pthread_mutex_lock(&bridge->sources_lock); /* nobody has heard its number */
        HASH_DEL(peer->sources, source);
        pthread_mutex_unlock(&bridge->sources_lock);
        free(source);
        return -EDQUOT;
    }
    *out = source;
    return 0;
}

uint64_t cwb_source_id(const struct cwb_source *source) {
    return source->id;
}

int64_t cwb_source_used_ns(struct cwb_source *source) {
    pthread_mutex_lock(&source->bridge->sources_lock);
    int64_t used_ns = source->used_ns;
    pthread_mutex_unlock(&source->bridge->sources_lock);
    return used_ns;
}

const uint8_t *cwb_source_at(const struct cwb_source *source, uint64_t offset_bytes) {
    return source->bytes + offset_bytes;
}

static struct cwb_source *find(struct cwb_bridge *bridge, struct cwb_peer *peer, uint64_t id,
                               int64_t now_ns) {
    struct cwb_source *source;
    pthread_mutex_lock(&bridge->sources_lock);
    HASH_FIND(hh, peer->sources, &id, sizeof id, source);
    if (source) {
        source->references++;
        source->used_ns = now_ns;
    }
    pthread_mutex_unlock(&bridge->sources_lock);
    return source;
}

void cwb_source_ref(struct cwb_source *source) {
    pthread_mutex_lock(&source->bridge->sources_lock);
    source->references++;
    pthread_mutex_unlock(&source->bridge->sources_lock);
}

static int no_source(uint64_t id) {
    return cw_fail(-ESTALE,
                   "there is no array %llu that you read: it was closed, or this node's "
                   "bridge was started anew",
                   (unsigned long long)id);
}

/* Answers all who asked for the hash; status below 0: with this thread's sentence. */
static void answer_closings(struct cwb_source *source, int status, uint64_t hash) {
    struct cwb_closed closed = {.hash = hash};
    struct iovec part = {&closed, sizeof closed};
    struct cwb_served *served;
    char sentence[CW_DETAIL_MAX] = "";
    if (status)
        strcpy(sentence, cw_detail());
    while ((served = source->closings)) {
        source->closings = served->next;
        if (status)
            cw_fail(status, "%s", sentence);
        cwb_served_reply(served, status, &part, 1);
    }
}

void cwb_source_unref(struct cwb_source *source) {
    pthread_mutex_lock(&source->bridge->sources_lock);
    bool last = --source->references == 0;
    pthread_mutex_unlock(&source->bridge->sources_lock);
    if (!last)
        return;
    CW_ASSERT(!source->peer);
    if (source->closings) /* it ended before all was sent, and no piece of it is left */
        answer_closings(source, no_source(source->id), 0);
    if (source->stage)
        cwb_stage_end(source->stage);
    cwb_local_close(source->bridge, source->array);
    free(source->own);
    cwb_sum_free(source->sum);
    free(source);
}

void cwb_source_end(struct cwb_source *source) {
    if (!source->peer)
        return;
    pthread_mutex_lock(&source->bridge->sources_lock);
    HASH_DEL(source->peer->sources, source);
    source->peer = NULL;
    pthread_mutex_unlock(&source->bridge->sources_lock);
    if (source->stage)
        cwb_stage_drop(source->stage);
    cwb_source_unref(source);
}

/* ---- what strands hand over to the loop ---- */

/* All of a pushed one was sent: its CLOSE is answered, and it ends. */
static void all_sent(struct cwb_source *source) {
    if (source->peer && !source->hashing)
        cwb_source_staged(source, 0, cwb_sum_digest(source->sum));
}

static void handed(struct cwb_work *work) {
    struct handing *h = (struct handing *)work;
    if (h->source->peer)
        cwb_stage_read(h->source->stage, NULL, h->stream, h->id, &h->read);
    else
        cwb_stream_refuse(h->stream, h->id, no_source(h->read.source));
    cwb_source_unref(h->source);
    free(h);
}

/* A READ of a staged one, with its reference. 0, or -EDQUOT: both stay the caller's. */
static int hand_over(const struct handing *what) {
    struct handing *h = malloc(sizeof *h);
    if (!h)
        return cwb_no_memory("a piece that a peer reads");
    *h = *what;
    h->work.done = handed;
    cwb_work_tell(h->source->bridge->works, &h->work);
    return 0;
}

static void handed_look(struct cwb_work *work) {
    struct cwb_source *source = ((struct handing *)work)->source;
    pthread_mutex_lock(&source->bridge->sources_lock);
    source->handed = false; /* what happens from now on is told anew */
    pthread_mutex_unlock(&source->bridge->sources_lock);
    if (source->stage)
        cwb_stage_look(source->stage);
    else if (cwb_sum_left(source->sum) == 0)
        all_sent(source);
    cwb_source_unref(source);
}

/* The loop is to look, and a reference ends. It needs no memory: the source has room for one such
 * word, and one that is on its way is enough. */
static void hand_look(struct cwb_source *source) {
    pthread_mutex_lock(&source->bridge->sources_lock);
    bool tell = !source->handed;
    source->handed = true;
    source->references -= !tell; /* that word has one, too: this is not the last */
    pthread_mutex_unlock(&source->bridge->sources_lock);
    if (!tell)
        return;
    source->looking = (struct handing){.work = {.done = handed_look}, .source = source};
    cwb_work_tell(source->bridge->works, &source->looking.work);
}

static bool drop_unless_last(struct cwb_source *source) {
    pthread_mutex_lock(&source->bridge->sources_lock);
    bool last = source->references == 1;
    source->references -= !last;
    pthread_mutex_unlock(&source->bridge->sources_lock);
    return !last;
}

void cwb_source_drop(struct cwb_source *source, const struct cwb_loop *loop) {
    bool loops = source->stage || source->pushed; /* the loop's to end */
    if (loops && loop != &source->bridge->loop && drop_unless_last(source))
        return;
    if (loops && loop != &source->bridge->loop)
        hand_look(source);
    else
        cwb_source_unref(source);
}

void cwb_source_let_go(struct cwb_source *source, const struct cwb_loop *loop,
                       const struct cwb_read *read, bool sent) {
    bool look = false;
    if (source->stage)
        look = cwb_stage_let_go(source->stage, read->offset_bytes, read->length_bytes, sent);
    else if (sent)
        look = cwb_sum_add(source->sum, read->offset_bytes, read->length_bytes) && source->pushed;
    if (look && loop != &source->bridge->loop) {
        hand_look(source);
        return;
    }
    if (look && source->stage)
        cwb_stage_look(source->stage);
    else if (look)
        all_sent(source);
    cwb_source_drop(source, loop);
}

static void on_piece(void *owner, const struct cwb_loop *loop, const struct cwb_read *read,
                     bool sent) {
    cwb_source_let_go(owner, loop, read, sent);
}

bool cwb_source_send(struct cwb_source *source, struct cwb_wire *wire, uint64_t id,
                     const struct cwb_read *read, const uint8_t *bytes) {
    if (!cwb_wire_send_piece(wire, id, read, bytes, on_piece, source))
        return false;
    cwb_source_ref(source);
    return true;
}

/* Is it one that was agreed on, of an array that is there? 0 and one reference, -EPROTO, or (the
 * refusal, without a reference) -ESTALE. */
static int look_up(struct cwb_bridge *bridge, struct cwb_peer *peer, const struct cwb_loop *loop,
                   uint32_t read_max, const struct cwb_read *read, struct cwb_source **out) {
    if (read->length_bytes > read_max)
        return cw_fail(-EPROTO, "a READ of %u bytes, %u were agreed", read->length_bytes, read_max);
    struct cwb_source *source = find(bridge, peer, read->source, loop->now_ns);
    if (!source)
        return no_source(read->source);
    if (read->offset_bytes <= source->size_bytes &&
        read->length_bytes <= source->size_bytes - read->offset_bytes) {
        *out = source;
        return 0;
    }
    int code = cw_fail(-EPROTO, "a READ of bytes %llu to %llu of an array of %llu",
                       (unsigned long long)read->offset_bytes,
                       (unsigned long long)(read->offset_bytes + read->length_bytes),
                       (unsigned long long)source->size_bytes);
    cwb_source_drop(source, loop);
    return code;
}

int cwb_source_serve_read(struct cwb_link *link, const struct cwb_frame *frame) {
    const struct cwb_read *read = &frame->read;
    struct cwb_source *source;
    int code = look_up(link->bridge, link->peer, link->wire.loop, link->read_max, read, &source);
    if (code == -ESTALE)
        cwb_link_reply(link, CWB_READ, frame->head.id, code, cw_detail(), NULL, 0);
    if (code)
        return code == -ESTALE ? 0 : code;
    if (source->size_bytes >= CWB_STREAM_BYTES)
        cwb_streams_want(link->bridge, link->peer); /* still */
    struct cwb_served *served = source->stage ? cwb_served_new(link, frame) : NULL;
    if (served)
        cwb_stage_read(source->stage, served, NULL, 0, read);
    else if (source->stage)
        cwb_link_reply(link, CWB_READ, frame->head.id, -EDQUOT, cw_detail(), NULL, 0);
    else
        (void)cwb_source_send(source, &link->wire, frame->head.id, read,
                              cwb_source_at(source, read->offset_bytes));
    cwb_source_unref(source);
    return 0;
}

int cwb_source_serve_far_read(struct cwb_stream *stream, const struct cwb_frame *frame) {
    const struct cwb_read *read = &frame->read;
    struct cwb_source *source;
    int code =
        look_up(stream->bridge, stream->peer, stream->wire.loop, stream->read_max, read, &source);
    if (code == -ESTALE)
        cwb_wire_reply(&stream->wire, CWB_READ, frame->head.id, code, cw_detail(), NULL, 0);
    if (code)
        return code == -ESTALE ? 0 : code;
    const uint8_t *bytes = source->stage ? cwb_stage_take(source->stage, read)
                                         : cwb_source_at(source, read->offset_bytes);
    if (bytes) {
        if (cwb_source_send(source, &stream->wire, frame->head.id, read, bytes))
            cwb_source_drop(source, stream->wire.loop);
        else
            cwb_source_let_go(source, stream->wire.loop, read, false);
        return 0;
    }
    code = hand_over(
        &(struct handing){.source = source, .stream = stream, .id = frame->head.id, .read = *read});
    if (code) {
        cwb_wire_reply(&stream->wire, CWB_READ, frame->head.id, code, cw_detail(), NULL, 0);
        cwb_source_drop(source, stream->wire.loop);
    } else {
        stream->parked++; /* this strand's own: what is handed over has not come back before */
    }
    return 0;
}

/* ---- the end: the hash over all ---- */

static void hash_rest(struct cwb_work *work) {
    struct cwb_source *source = ((struct cwb_hashing *)work)->source;
    work->code = cwb_sum_rest(source->sum, HASH_BYTES) ? 0 : 1;
}

void cwb_source_staged(struct cwb_source *source, int status, uint64_t hash) {
    source->hashing = false;
    answer_closings(source, status, hash);
    if (!source->offered)
        cwb_source_end(source);
}

static void hashed(struct cwb_work *work) {
    struct cwb_hashing *hashing = (struct cwb_hashing *)work;
    struct cwb_source *source = hashing->source;
    struct cwb_peer *peer = hashing->peer;
    struct cwb_works *works = source->bridge->works;
    if (work->code && source->peer) { /* behind what others want of the helpers */
        cwb_work_begin(works, work);
        return;
    }
    DL_DELETE(peer->hashings, hashing);
    if (peer->hashings)
        cwb_work_begin(works, &peer->hashings->work);
    if (work->code == 0)
        cwb_source_staged(source, 0, cwb_sum_digest(source->sum));
    cwb_source_unref(source);
}

void cwb_source_push(struct cwb_link *link, const struct cwb_frame *frame,
                     struct cwb_source *source, uint32_t count) {
    struct cwb_frame closing = {.head = {.op = CWB_CLOSE, .id = frame->head.id + 1 + count}};
    for (uint32_t i = 0; i < count; i++) {
        struct cwb_read read = cwb_link_piece(link, source->id, source->size_bytes, i);
        if (!cwb_source_send(source, &link->wire, frame->head.id + 1 + i, &read,
                             cwb_source_at(source, read.offset_bytes)))
            return; /* the link ends */
    }
    if (!source->pushed)
        return;
    struct cwb_served *served = cwb_served_new(link, &closing);
    if (!served) { /* a CLOSE came, and nobody would answer it */
        link->wire.broken = -EDQUOT;
        cwb_wire_touch(&link->wire);
        cwb_source_end(source);
        return;
    }
    served->next = source->closings;
    source->closings = served;
}

int cwb_source_serve_close(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_source *source =
        find(link->bridge, link->peer, frame->close.source, link->bridge->loop.now_ns);
    struct cwb_closed closed = {.hash = 0};
    struct iovec part = {&closed, sizeof closed};
    if (frame->close.unneeded) {
        if (source && !source->offered)
            cwb_source_end(source);
        if (source)
            cwb_source_unref(source);
        cwb_link_reply(link, CWB_CLOSE, frame->head.id, 0, NULL, &part, 1);
        return 0;
    }
    if (!source) {
        int code = no_source(frame->close.source);
        cwb_link_reply(link, CWB_CLOSE, frame->head.id, code, cw_detail(), NULL, 0);
        return 0;
    }
    cwb_source_unref(source); /* it is in the table: this thread alone takes it out */
    struct cwb_served *served = cwb_served_new(link, frame);
    if (!served) {
        cwb_link_reply(link, CWB_CLOSE, frame->head.id, -EDQUOT, cw_detail(), NULL, 0);
        return 0;
    }
    served->next = source->closings;
    source->closings = served;
    if (source->hashing)
        return 0;
    if (source->stage) {
        source->hashing = true;
        cwb_stage_close(source->stage);
        return 0;
    }
    source->rest = (struct cwb_hashing){
        .work = {.run = hash_rest, .done = hashed}, .source = source, .peer = link->peer};
    source->hashing = true;
    cwb_source_ref(source);
    if (cwb_sum_left(source->sum) <= AT_ONCE_BYTES) {
        (void)cwb_sum_rest(source->sum, UINT64_MAX);
        cwb_source_staged(source, 0, cwb_sum_digest(source->sum));
        cwb_source_unref(source);
        return 0;
    }
    DL_APPEND(link->peer->hashings, &source->rest);
    if (link->peer->hashings == &source->rest)
        cwb_work_begin(link->bridge->works, &source->rest.work);
    return 0;
}

/* Does nobody read it any more? Its pieces under way, and its hash, are references. */
static bool forgotten(const struct cwb_source *source, int64_t now_ns) {
    pthread_mutex_lock(&source->bridge->sources_lock);
    bool held = source->references > 1, idle = now_ns - source->used_ns >= IDLE_NS;
    pthread_mutex_unlock(&source->bridge->sources_lock);
    return !source->offered && !held && (idle || source->run != source->peer->run);
}

void cwb_sources_tick(struct cwb_bridge *bridge) {
    bool look = bridge->loop.now_ns - bridge->sources_looked_ns >= LOOK_NS;
    if (look)
        bridge->sources_looked_ns = bridge->loop.now_ns;
    for (struct cwb_peer *peer = bridge->peers; peer; peer = peer->next) {
        struct cwb_source *source, *next;
        bool away = !peer->link && bridge->loop.now_ns - peer->unlinked_ns >= CWB_RESUME_NS;
        if (!away && !look)
            continue;
        HASH_ITER(hh, peer->sources, source, next) {
            if (away || forgotten(source, bridge->loop.now_ns))
                cwb_source_end(source);
        }
    }
}
