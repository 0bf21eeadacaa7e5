/*
 * Sources: arrays of this node that a peer reads by pieces; see frame.h and parts.h.
 *
 * A source holds a lease on its array, so that its memory stays while it is read, and is hashed as
 * it goes out, while its bytes lie in a cache (sum.h); what is left then when the peer closes it.
 *
 * READs come over the link, on the bridge's loop, and over streams, on strands: the tables of
 * sources and their references are under one lock, bridge->sources_lock, which is held for a
 * look-up. Only the loop makes and ends sources. One that ended while a strand had found it goes
 * with the strand's reference: the piece still leaves, and the peer does not want it. What
 * a peer opened and did not close ends with CWB_RESUME_NS without a link, so that a peer that died
 * holds nothing; a number is the peer's own and tells others nothing. Who writes into the array
 * meanwhile makes the hash differ, and the peer reads again.
 */
#include <stdlib.h>
#include <string.h>

#include "broker/bridge/parts.h"
#include "broker/bridge/sum.h"

#define AT_ONCE_BYTES (1u << 20) /* so much is hashed by the loop itself */

struct cwb_source {
    uint64_t id;
    struct cwb_bridge *bridge;
    struct cwb_peer *peer; /* NULL: ended */
    uint32_t references; /* and the peer's table: under bridge->sources_lock */
    cw_array *array;
    uint8_t *own; /* malloced bytes in place of an array */
    const uint8_t *bytes;
    uint64_t size_bytes;
    struct cwb_sum *sum;
    bool offered;                /* it stays when it was closed: the offer ends it */
    bool hashing;                /* a helper has the hash */
    struct cwb_served *closings; /* who asked for it, by next */
    UT_hash_handle hh;
};

int cwb_source_new(struct cwb_bridge *bridge, struct cwb_peer *peer, cw_array *array,
                   uint8_t *bytes, uint64_t size_bytes, bool offered, struct cwb_source **out) {
    if (HASH_COUNT(peer->sources) >= CWB_REQUESTS_MAX)
        return cw_fail(-EDQUOT, "%u arrays are being read by this peer; it must close some first",
                       CWB_REQUESTS_MAX);
    struct cwb_source *source = calloc(1, sizeof *source);
    CW_ASSERT(source);
    source->sum = cwb_sum_new(bytes, size_bytes);
    source->id = ++bridge->next_source;
    source->bridge = bridge;
    source->peer = peer;
    source->references = 1;
    source->array = array;
    source->own = array ? NULL : bytes;
    source->offered = offered;
    source->bytes = bytes;
    source->size_bytes = size_bytes;
    pthread_mutex_lock(&bridge->sources_lock);
    HASH_ADD(hh, peer->sources, id, sizeof source->id, source);
    pthread_mutex_unlock(&bridge->sources_lock);
    if (size_bytes >= CWB_STREAM_BYTES)
        cwb_streams_want(bridge, peer);
    *out = source;
    return 0;
}

uint64_t cwb_source_id(const struct cwb_source *source) {
    return source->id;
}

const uint8_t *cwb_source_bytes(const struct cwb_source *source) {
    return source->bytes;
}

struct cwb_source *cwb_source_find(struct cwb_bridge *bridge, struct cwb_peer *peer, uint64_t id) {
    struct cwb_source *source;
    pthread_mutex_lock(&bridge->sources_lock);
    HASH_FIND(hh, peer->sources, &id, sizeof id, source);
    if (source)
        source->references++;
    pthread_mutex_unlock(&bridge->sources_lock);
    return source;
}

void cwb_source_ref(struct cwb_source *source) {
    pthread_mutex_lock(&source->bridge->sources_lock);
    source->references++;
    pthread_mutex_unlock(&source->bridge->sources_lock);
}

void cwb_source_unref(struct cwb_source *source) {
    pthread_mutex_lock(&source->bridge->sources_lock);
    bool last = --source->references == 0;
    pthread_mutex_unlock(&source->bridge->sources_lock);
    if (!last)
        return;
    CW_ASSERT(!source->peer);
    cw_array_close(source->array);
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
    cwb_source_unref(source);
}

void cwb_source_passed(struct cwb_source *source, uint64_t offset_bytes, uint32_t length_bytes) {
    cwb_sum_add(source->sum, offset_bytes, length_bytes);
}

static int no_source(uint64_t id) {
    return cw_fail(-ESTALE,
                   "there is no array %llu that you read: it was closed, or this node's "
                   "bridge was started anew",
                   (unsigned long long)id);
}

int cwb_source_serve_read(struct cwb_wire *wire, struct cwb_bridge *bridge, struct cwb_peer *peer,
                          uint32_t read_max, const struct cwb_frame *frame) {
    const struct cwb_read *read = &frame->read;
    int code = 0;
    if (read->length_bytes > read_max)
        return cw_fail(-EPROTO, "a READ of %u bytes, %u were agreed", read->length_bytes, read_max);
    struct cwb_source *source = cwb_source_find(bridge, peer, read->source);
    if (!source) {
        code = no_source(read->source);
        cwb_wire_reply(wire, CWB_READ, frame->head.id, code, cw_detail(), NULL, 0);
        return 0;
    }
    if (read->offset_bytes > source->size_bytes ||
        read->length_bytes > source->size_bytes - read->offset_bytes)
        code = cw_fail(-EPROTO, "a READ of bytes %llu to %llu of an array of %llu",
                       (unsigned long long)read->offset_bytes,
                       (unsigned long long)(read->offset_bytes + read->length_bytes),
                       (unsigned long long)source->size_bytes);
    else
        cwb_wire_send_piece(wire, frame->head.id, source, read);
    if (source->size_bytes >= CWB_STREAM_BYTES && wire->loop == &bridge->loop)
        cwb_streams_want(bridge, peer); /* still */
    cwb_source_unref(source);
    return code;
}

/* ---- the end: the hash over all ---- */

struct hashing {
    struct cwb_work work;
    struct cwb_source *source; /* one reference */
};

static void hash_rest(struct cwb_work *work) {
    struct cwb_source *source = ((struct hashing *)work)->source;
    cwb_sum_rest(source->sum);
    work->code = 0;
}

static void hashed(struct cwb_work *work) {
    struct cwb_source *source = ((struct hashing *)work)->source;
    struct cwb_closed closed = {.hash = cwb_sum_digest(source->sum)};
    struct iovec part = {&closed, sizeof closed};
    struct cwb_served *served;
    source->hashing = false;
    while ((served = source->closings)) {
        source->closings = served->next;
        cwb_served_reply(served, 0, &part, 1);
    }
    if (!source->offered)
        cwb_source_end(source);
    cwb_source_unref(source);
    free(work);
}

int cwb_source_serve_close(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_source *source =
        cwb_source_find(link->bridge, link->peer, frame->close.source);
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
    cwb_source_unref(source); /* the table holds it: only this thread takes it out */
    struct cwb_served *served = cwb_served_new(link, frame);
    served->next = source->closings;
    source->closings = served;
    if (source->hashing)
        return 0;
    struct hashing *hashing = calloc(1, sizeof *hashing);
    CW_ASSERT(hashing);
    hashing->work = (struct cwb_work){.run = hash_rest, .done = hashed};
    hashing->source = source;
    source->hashing = true;
    cwb_source_ref(source);
    if (source->size_bytes - cwb_sum_prefix(source->sum) > AT_ONCE_BYTES) {
        cwb_work_begin(link->bridge->works, &hashing->work);
    } else {
        hash_rest(&hashing->work);
        hashed(&hashing->work);
    }
    return 0;
}

void cwb_sources_tick(struct cwb_bridge *bridge) {
    for (struct cwb_peer *peer = bridge->peers; peer; peer = peer->next) {
        if (peer->links || !peer->sources || bridge->loop.now_ns - peer->unlinked_ns < CWB_RESUME_NS)
            continue;
        while (peer->sources)
            cwb_source_end(peer->sources);
    }
}
