/*
 * Sources: arrays of this node that a peer reads by pieces; see frame.h and parts.h.
 *
 * A source holds a lease on its array, so that its memory stays while it is read, and is hashed as
 * it goes out: pieces in order while they lie in the cache, the rest when the peer closes it. What
 * a peer opened and did not close ends with CWB_RESUME_NS without a link, so that a peer that died
 * holds nothing; when its bridge was started anew, whose numbers these are not; and when it was not
 * read for IDLE_NS, since an answer to OPEN that was cut leaves a number that nobody knows. A
 * number is the peer's own and tells others nothing. Who writes into the array meanwhile makes the
 * hash differ, and the peer reads again, as it does when the source is gone.
 */
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "broker/bridge/stage.h"

#define AT_ONCE_BYTES (1u << 20) /* so much is hashed by the loop itself */
#define IDLE_NS       60000000000
#define LOOK_NS       1000000000 /* between looks at who is idle */

struct cwb_source {
    uint64_t id;
    struct cwb_bridge *bridge;
    struct cwb_peer *peer; /* NULL: ended */
    uint64_t run;          /* of the peer's bridge that opened it */
    int64_t used_ns;
    uint32_t references;
    cw_array *array;
    uint8_t *own;            /* malloced bytes in place of an array */
    struct cwb_stage *stage; /* an array on a GPU: it has the bytes, and their hash */
    const uint8_t *bytes;
    uint64_t size_bytes, hashed_bytes;
    XXH3_state_t *hash;
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
    source->hash = XXH3_createState();
    CW_ASSERT(source->hash);
    XXH3_64bits_reset(source->hash);
    source->id = ++bridge->next_source;
    source->bridge = bridge;
    source->peer = peer;
    source->run = peer->run;
    source->used_ns = bridge->now_ns;
    source->references = 1;
    source->array = array;
    source->own = array ? NULL : bytes;
    source->offered = offered;
    source->bytes = bytes;
    source->size_bytes = size_bytes;
    HASH_ADD(hh, peer->sources, id, sizeof source->id, source);
    *out = source;
    return 0;
}

int cwb_source_new_staged(struct cwb_bridge *bridge, struct cwb_peer *peer, cw_array *array,
                          uint64_t size_bytes, uint32_t read_max, bool offered,
                          struct cwb_source **out) {
    int code = cwb_source_new(bridge, peer, NULL, NULL, size_bytes, offered, out);
    if (code == 0)
        (*out)->stage = cwb_stage_new(bridge, *out, array, size_bytes, read_max);
    return code;
}

uint64_t cwb_source_id(const struct cwb_source *source) {
    return source->id;
}

const uint8_t *cwb_source_at(const struct cwb_source *source, uint64_t offset_bytes) {
    return source->stage ? cwb_stage_at(source->stage, offset_bytes) : source->bytes + offset_bytes;
}

struct cwb_source *cwb_source_find(struct cwb_peer *peer, uint64_t id) {
    struct cwb_source *source;
    HASH_FIND(hh, peer->sources, &id, sizeof id, source);
    return source;
}

void cwb_source_ref(struct cwb_source *source) {
    source->references++;
}

void cwb_source_unref(struct cwb_source *source) {
    if (--source->references)
        return;
    CW_ASSERT(!source->peer);
    if (source->stage)
        cwb_stage_end(source->stage);
    cw_array_close(source->array);
    free(source->own);
    XXH3_freeState(source->hash);
    free(source);
}

void cwb_source_end(struct cwb_source *source) {
    if (!source->peer)
        return;
    HASH_DEL(source->peer->sources, source);
    source->peer = NULL;
    if (source->stage)
        cwb_stage_drop(source->stage);
    cwb_source_unref(source);
}

void cwb_source_passed(struct cwb_source *source, uint64_t offset_bytes, uint32_t length_bytes) {
    if (source->stage) {
        cwb_stage_let_go(source->stage, offset_bytes, length_bytes, true);
        return;
    }
    if (source->hashing || offset_bytes != source->hashed_bytes)
        return;
    XXH3_64bits_update(source->hash, source->bytes + offset_bytes, length_bytes);
    source->hashed_bytes += length_bytes;
}

void cwb_source_dropped(struct cwb_source *source, uint64_t offset_bytes, uint32_t length_bytes) {
    if (source->stage)
        cwb_stage_let_go(source->stage, offset_bytes, length_bytes, false);
}

static int no_source(uint64_t id) {
    return cw_fail(-ESTALE,
                   "there is no array %llu that you read: it was closed, or this node's "
                   "bridge was started anew",
                   (unsigned long long)id);
}

int cwb_source_serve_read(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_source *source = cwb_source_find(link->peer, frame->read.source);
    if (frame->read.length_bytes > link->read_max)
        return cw_fail(-EPROTO, "a READ of %u bytes, %u were agreed", frame->read.length_bytes,
                       link->read_max);
    if (!source) {
        int code = no_source(frame->read.source);
        cwb_link_reply(link, CWB_READ, frame->head.id, code, cw_detail(), NULL, 0);
        return 0;
    }
    if (frame->read.offset_bytes > source->size_bytes ||
        frame->read.length_bytes > source->size_bytes - frame->read.offset_bytes)
        return cw_fail(-EPROTO, "a READ of bytes %llu to %llu of an array of %llu",
                       (unsigned long long)frame->read.offset_bytes,
                       (unsigned long long)(frame->read.offset_bytes + frame->read.length_bytes),
                       (unsigned long long)source->size_bytes);
    source->used_ns = link->bridge->now_ns;
    if (source->stage)
        cwb_stage_read(source->stage, cwb_served_new(link, frame), &frame->read);
    else
        cwb_link_send_piece(link, frame->head.id, source, &frame->read);
    return 0;
}

/* ---- the end: the hash over all ---- */

struct hashing {
    struct cwb_work work;
    struct cwb_source *source; /* one reference */
};

static void hash_rest(struct cwb_work *work) {
    struct cwb_source *source = ((struct hashing *)work)->source;
    XXH3_64bits_update(source->hash, source->bytes + source->hashed_bytes,
                       source->size_bytes - source->hashed_bytes);
    source->hashed_bytes = source->size_bytes;
    work->code = 0;
}

/* Answers all who asked for the hash; status below 0: with this thread's sentence. */
void cwb_source_staged(struct cwb_source *source, int status, uint64_t hash) {
    struct cwb_closed closed = {.hash = hash};
    struct iovec part = {&closed, sizeof closed};
    struct cwb_served *served;
    char sentence[CW_DETAIL_MAX] = "";
    if (status)
        strcpy(sentence, cw_detail());
    source->hashing = false;
    while ((served = source->closings)) {
        source->closings = served->next;
        if (status)
            cw_fail(status, "%s", sentence);
        cwb_served_reply(served, status, &part, 1);
    }
    if (!source->offered)
        cwb_source_end(source);
}

static void hashed(struct cwb_work *work) {
    struct cwb_source *source = ((struct hashing *)work)->source;
    cwb_source_staged(source, 0, XXH3_64bits_digest(source->hash));
    cwb_source_unref(source);
    free(work);
}

int cwb_source_serve_close(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_source *source = cwb_source_find(link->peer, frame->close.source);
    struct cwb_closed closed = {.hash = 0};
    struct iovec part = {&closed, sizeof closed};
    if (frame->close.unneeded) {
        if (source && !source->offered)
            cwb_source_end(source);
        cwb_link_reply(link, CWB_CLOSE, frame->head.id, 0, NULL, &part, 1);
        return 0;
    }
    if (!source) {
        int code = no_source(frame->close.source);
        cwb_link_reply(link, CWB_CLOSE, frame->head.id, code, cw_detail(), NULL, 0);
        return 0;
    }
    struct cwb_served *served = cwb_served_new(link, frame);
    served->next = source->closings;
    source->closings = served;
    if (source->hashing)
        return 0;
    if (source->stage) {
        source->hashing = true;
        cwb_stage_close(source->stage);
        return 0;
    }
    struct hashing *hashing = calloc(1, sizeof *hashing);
    CW_ASSERT(hashing);
    hashing->work = (struct cwb_work){.run = hash_rest, .done = hashed};
    hashing->source = source;
    source->hashing = true;
    cwb_source_ref(source);
    if (source->size_bytes - source->hashed_bytes > AT_ONCE_BYTES) {
        cwb_work_begin(link->bridge->works, &hashing->work);
    } else {
        hash_rest(&hashing->work);
        hashed(&hashing->work);
    }
    return 0;
}

/* Does nobody read it any more? Its pieces under way, and its hash, are references. */
static bool forgotten(const struct cwb_source *source, int64_t now_ns) {
    if (source->offered || source->references > 1)
        return false;
    return source->run != source->peer->run || now_ns - source->used_ns >= IDLE_NS;
}

void cwb_sources_tick(struct cwb_bridge *bridge) {
    static int64_t looked_ns;
    bool look = bridge->now_ns - looked_ns >= LOOK_NS;
    if (look)
        looked_ns = bridge->now_ns;
    for (struct cwb_peer *peer = bridge->peers; peer; peer = peer->next) {
        struct cwb_source *source, *next;
        bool away = !peer->links && bridge->now_ns - peer->unlinked_ns >= CWB_RESUME_NS;
        if (!away && !look)
            continue;
        HASH_ITER(hh, peer->sources, source, next) {
            if (away || forgotten(source, bridge->now_ns))
                cwb_source_end(source);
        }
    }
}
