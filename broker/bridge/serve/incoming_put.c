/*
 * Puts of peers: an array that a peer offers is read, checked, named, and then the offer is
 * answered; see frame.h.
 *
 * Invariant: each token is put at most once. What became of it is kept for KEEP_NS, and as long as
 * it is under way, so that an offer that comes again after a cut is answered with what happened,
 * and not done again; all who offered a put are told the same. While the broker is asked, or memory
 * is made, those who offered it are deferred (deferred.c), and may be refused; it goes on. An offer
 * whose peer does not come back in CWB_RESUME_NS is dropped before it was put; nothing of it is
 * ever seen. So is one whose peer was started anew before all of it was read: what it offers again
 * is as good as never offered. If this process dies, what it knew is lost with it: the offering
 * side sees another `run`, and tells its client that the outcome is not known.
 *
 * Memory: an offer costs its peer nothing and this node all of the array's memory, so of arrays
 * whose bytes are not all here a peer has CWB_INCOMING_PUTS_MAX bytes, and all peers
 * CWB_INCOMING_PUTS_ALL_MAX (one array that is larger goes alone). The others wait, which costs no
 * more than the offer: their bytes are asked for in their turn, in the order in which they came, of
 * peers he who had none begun for longest first. Arrays of CWB_INCOMING_PUT_SMALL bytes or less are
 * measured apart, CWB_INCOMING_PUTS_OWN of each peer: they wait for nobody else's.
 */
#include "broker/bridge/serve/incoming_put.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/download.h"
#include "broker/bridge/fetch/gpu_receive.h"
#include "broker/bridge/fetch/tree_receive.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/local/job.h"
#include "broker/bridge/local/once.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/deferred.h"
#include "broker/bridge/serve/serve.h"
#include "ipc/base/hash.h"
#include "ipc/base/meta.h"

#define KEEP_NS     600000000000
#define PENDING_MAX 1024u /* offers of one peer under way */
#define TOKEN_BYTES 16u   /* of a struct cwb_token: instance and number, which name it */

struct cwb_incoming_put {
    struct cwb_download download;
    struct cwb_bridge *bridge;
    struct cwb_peer *peer;
    uint64_t run;              /* of the peer's bridge that offered it last */
    struct cwb_served *served; /* who is to be answered, by next; none: their links ended */
    bool at_broker;            /* asked, or made memory for: the broker's answer is waited for */
    bool renewed;              /* a repetition named another source, as of a bridge started anew */
    bool waits, begun;         /* for its turn; its memory counts */
    bool done;
    int64_t done_ns;
    int status;
    char *sentence;         /* of a status below 0 */
    struct cwb_offer offer; /* the begin of its token is the key of the peer's table */
    struct cw_name_key key;
    uint8_t *meta, *inside;
    cw_array *array;
    struct cwb_gpu_receive *gpu_receive;   /* it is to lie on a GPU */
    struct cwb_tree_receive *tree_receive; /* its index is here, and its parts come */
    uint64_t all_bytes;                    /* of it, and of its parts */
    uint64_t version;                      /* of a tree, once it is put */
    UT_hash_handle hh;
    struct cwb_incoming_put *next, *prev; /* of its peer: that wait, or that are done, in order */
};

static bool is_tree(const struct cwb_incoming_put *incoming) {
    return incoming->offer.flags & CW_PUT_TREE;
}

static void answer(struct cwb_incoming_put *incoming) {
    struct cwb_put_done done = {.version = incoming->version};
    struct iovec part = {&done, sizeof done};
    struct cwb_served *served;
    while ((served = incoming->served)) {
        LL_DELETE(incoming->served, served);
        served->on_cancel = NULL;
        if (incoming->status < 0)
            cw_fail(incoming->status, "%s",
                    incoming->sentence ? incoming->sentence
                                       : "the bridge had no memory left to keep why it failed");
        cwb_served_reply(served, incoming->status, &part, is_tree(incoming));
    }
}

/* From now on the broker is waited for, or (false) it is not. */
static void await_broker(void *owner, bool waits) {
    struct cwb_incoming_put *incoming = owner;
    struct cwb_served *served;
    incoming->at_broker = waits;
    LL_FOREACH(incoming->served, served) {
        if (waits)
            cwb_deferred_begin(served);
        else
            cwb_deferred_end(served);
    }
}

/* ---- turns ---- */

static unsigned kind_of(const struct cwb_incoming_put *incoming) {
    return incoming->all_bytes <= CWB_INCOMING_PUT_SMALL ? CWB_SMALL : CWB_LARGE;
}

static bool has_room(const struct cwb_incoming_put *incoming) {
    uint64_t own = incoming->peer->put_bytes[kind_of(incoming)], all = own + incoming->all_bytes;
    if (kind_of(incoming) == CWB_SMALL)
        return all <= CWB_INCOMING_PUTS_OWN;
    return (own == 0 || all <= CWB_INCOMING_PUTS_MAX) &&
           incoming->bridge->put_bytes < CWB_INCOMING_PUTS_ALL_MAX;
}

static void count(struct cwb_incoming_put *incoming) {
    unsigned kind = kind_of(incoming);
    incoming->begun = true;
    incoming->peer->put_bytes[kind] += incoming->all_bytes;
    incoming->peer->put_ns[kind] = incoming->bridge->loop.now_ns;
    if (kind == CWB_LARGE)
        incoming->bridge->put_bytes += incoming->all_bytes;
}

/* It waits no more; its memory is free, and another has its turn. */
static void give_turn(struct cwb_incoming_put *incoming) {
    unsigned kind = kind_of(incoming);
    if (incoming->waits)
        DL_DELETE(incoming->peer->puts_waiting[kind], incoming);
    if (incoming->begun) {
        incoming->peer->put_bytes[kind] -= incoming->all_bytes;
        if (kind == CWB_LARGE)
            incoming->bridge->put_bytes -= incoming->all_bytes;
        incoming->bridge->tick_now = true;
    }
    incoming->waits = incoming->begun = false;
}

/* The next one whose turn it is; NULL: none has room. */
static struct cwb_incoming_put *next_of(const struct cwb_bridge *bridge, unsigned kind) {
    struct cwb_incoming_put *best = NULL;
    for (struct cwb_peer *peer = bridge->met; peer; peer = peer->met_next) {
        struct cwb_incoming_put *first = peer->puts_waiting[kind];
        if (first && has_room(first) && (!best || peer->put_ns[kind] < best->peer->put_ns[kind]))
            best = first;
    }
    return best;
}

/* ---- one offer ---- */

static void release(struct cwb_incoming_put *incoming) {
    give_turn(incoming);
    cwb_download_cancel(&incoming->download);
    cwb_gpu_receive_cancel(incoming->gpu_receive);
    cwb_tree_receive_cancel(incoming->tree_receive);
    incoming->gpu_receive = NULL;
    incoming->tree_receive = NULL;
    cwb_local_close(incoming->bridge, incoming->array);
    free(incoming->meta);
    free(incoming->inside);
    incoming->array = NULL;
    incoming->meta = incoming->inside = NULL;
}

static void finish(struct cwb_incoming_put *incoming, int status) {
    incoming->done_ns = incoming->bridge->loop.now_ns;
    /* Of a tree that is all here -ESTALE says that the name means another version. */
    bool gone = status == -EAGAIN || (status == -ESTALE && !(is_tree(incoming) && incoming->array));
    incoming->status = gone ? -EREMOTEIO : status;
    if (status < 0)
        incoming->sentence = strdup(cw_detail());
    release(incoming);
    incoming->done = true;
    incoming->peer->puts_pending--;
    incoming->peer->puts_kept++;
    incoming->bridge->puts_kept++;
    DL_APPEND(incoming->peer->puts_done, incoming);
    answer(incoming);
}

static void forget(struct cwb_incoming_put *incoming) {
    struct cwb_peer *peer = incoming->peer;
    HASH_DEL(peer->incoming_puts, incoming);
    release(incoming);
    if (incoming->done)
        DL_DELETE(peer->puts_done, incoming);
    incoming->bridge->puts_kept -= incoming->done;
    *(incoming->done ? &peer->puts_kept : &peer->puts_pending) -= 1;
    free(incoming->sentence);
    free(incoming);
}

static void on_put(void *owner, int status, const void *body, uint32_t body_bytes) {
    struct cwb_incoming_put *incoming = owner;
    if (status == 0) {
        incoming->version = cwb_deed_version(body, body_bytes);
        cw_name_key_replaced(incoming->bridge->client);
        cw_array_close(incoming->array); /* its name holds it */
        incoming->array = NULL;
    }
    finish(incoming, status);
}

static void put(struct cwb_incoming_put *incoming) {
    await_broker(incoming, true);
    int code = cwb_deed_put(incoming->peer, incoming->bridge, &incoming->offer, &incoming->key,
                            incoming->array, incoming->meta, on_put, incoming);
    if (code)
        finish(incoming, code);
}

static void start(struct cwb_incoming_put *incoming);

/* Its bytes are here, or will not come. */
static void brought(struct cwb_incoming_put *incoming, int status) {
    if (status == 0) {
        put(incoming);
    } else if (status == -ESTALE && incoming->renewed) {
        incoming->renewed = false;
        cwb_local_close(incoming->bridge, incoming->array);
        incoming->array = NULL;
        start(incoming);
    } else if (status == -ESTALE && !incoming->served) {
        forget(incoming); /* its bridge was started anew, and may offer it again from there */
    } else {
        finish(incoming, status);
    }
}

static void on_downloaded(struct cwb_download *download, int status) {
    brought(
        (struct cwb_incoming_put *)((char *)download - offsetof(struct cwb_incoming_put, download)),
        status);
}

static void on_array(void *owner, int code, cw_array *array) {
    struct cwb_incoming_put *incoming = owner;
    incoming->array = array;
    await_broker(incoming, false);
    if (code == 0 && incoming->offer.inside && incoming->offer.size_bytes)
        code = cw_array_write(array, 0, incoming->inside, incoming->offer.size_bytes);
    if (code) {
        finish(incoming, code);
        return;
    }
    if (incoming->offer.inside) {
        put(incoming);
        return;
    }
    incoming->download = (struct cwb_download){.on_done = on_downloaded,
                                               .bridge = incoming->bridge,
                                               .peer = incoming->peer,
                                               .source = incoming->offer.source,
                                               .size_bytes = incoming->offer.size_bytes,
                                               .wait_ns = CWB_RESUME_NS,
                                               .array = array};
    cwb_download_begin(&incoming->download, incoming->run);
}

static void on_received(void *owner, int code, cw_array *array) {
    struct cwb_incoming_put *incoming = owner;
    incoming->gpu_receive = NULL;
    incoming->tree_receive = NULL;
    incoming->array = array;
    brought(incoming, code);
}

static void start_tree(struct cwb_incoming_put *incoming) {
    const struct cwb_tree_receive_spec spec = {.peer = incoming->peer,
                                               .run = incoming->run,
                                               .key = &incoming->key,
                                               .offer = &incoming->offer,
                                               .inside = incoming->inside,
                                               .parts_bytes =
                                                   incoming->all_bytes - incoming->offer.size_bytes,
                                               .on_broker = await_broker};
    incoming->tree_receive = cwb_tree_receive_begin(incoming->bridge, &spec, on_received, incoming);
    if (!incoming->tree_receive)
        finish(incoming, -EDQUOT);
}

/* Memory for it is made, and its bytes are brought there. */
static void start(struct cwb_incoming_put *incoming) {
    uint32_t gpu = (incoming->offer.flags & CW_PUT_GPU) >> CW_PUT_GPU_SHIFT;
    if (is_tree(incoming)) {
        start_tree(incoming);
        return;
    }
    if (!gpu) {
        await_broker(incoming, true);
        cwb_local_new(incoming->bridge, incoming->offer.size_bytes, on_array, incoming);
        return;
    }
    struct cwb_gpu_receive_spec spec = {.size_bytes = incoming->offer.size_bytes,
                                        .gpu = {.device = gpu - 1},
                                        .inside = incoming->inside,
                                        .peer = incoming->offer.inside ? NULL : incoming->peer,
                                        .run = incoming->run,
                                        .source = incoming->offer.source,
                                        .wait_ns = CWB_RESUME_NS};
    incoming->gpu_receive = cwb_gpu_receive_begin(incoming->bridge, &spec, on_received, incoming);
    if (!incoming->gpu_receive)
        finish(incoming, -EDQUOT);
}

static void begin(struct cwb_incoming_put *incoming) {
    unsigned kind = kind_of(incoming);
    if (incoming->peer->puts_waiting[kind] || !has_room(incoming)) {
        incoming->waits = true;
        DL_APPEND(incoming->peer->puts_waiting[kind], incoming);
        return;
    }
    count(incoming);
    start(incoming);
}

static void *copy_of(const void *bytes, size_t size_bytes) {
    void *copy = malloc(size_bytes + 1);
    if (copy && size_bytes)
        memcpy(copy, bytes, size_bytes);
    return copy;
}

static void on_cancel(struct cwb_served *served) {
    struct cwb_incoming_put *incoming = served->owner;
    LL_DELETE(incoming->served, served); /* it goes on: an OFFER of it may come again */
    free(served);
}

/* Room for one more. 0 or -EDQUOT. */
static int make_room(const struct cwb_bridge *bridge, struct cwb_peer *peer) {
    if (peer->puts_pending >= PENDING_MAX)
        return cw_fail(-EDQUOT,
                       "%u puts of this peer are under way; one more may come when one is done",
                       peer->puts_pending);
    if (bridge->puts_kept >= CWB_PUTS_KEPT_ALL_MAX && peer->puts_kept >= CWB_PUTS_KEPT_OWN)
        forget(peer->puts_done); /* one for the one that comes: all have no more then */
    while (peer->puts_kept >= CWB_PUTS_KEPT_MAX)
        forget(peer->puts_done);
    return 0;
}

/* NULL: there is no memory. */
static struct cwb_incoming_put *incoming_put_new(struct cwb_link *link,
                                                 const struct cwb_frame *frame) {
    struct cwb_incoming_put *incoming = calloc(1, sizeof *incoming);
    if (!incoming) {
        cwb_no_memory("a put of a peer");
        return NULL;
    }
    incoming->bridge = link->bridge;
    incoming->peer = link->peer;
    incoming->offer = frame->offer;
    incoming->all_bytes = frame->offer.size_bytes;
    if (is_tree(incoming)) { /* its form was looked at (frame.c) */
        struct cw_meta_put_tree about;
        memcpy(&about, frame->meta, sizeof about);
        incoming->all_bytes += about.parts_bytes;
    }
    memcpy(incoming->key.text, frame->key, frame->key_bytes);
    incoming->key.length = frame->key_bytes;
    incoming->meta = copy_of(frame->meta, frame->meta_bytes);
    if (frame->offer.inside)
        incoming->inside = copy_of(frame->data, frame->offer.size_bytes);
    if (incoming->meta && (incoming->inside || !frame->offer.inside)) {
        HASH_ADD(hh, link->peer->incoming_puts, offer.token, TOKEN_BYTES, incoming);
        if (CWD_ADDED(incoming)) {
            link->peer->puts_pending++;
            return incoming;
        }
    }
    release(incoming);
    free(incoming);
    cwb_no_memory("a put of a peer");
    return NULL;
}

/* May it be done, and is it whole? 0 or -EREMOTEIO. */
static int check(const struct cwb_bridge *bridge, const struct cwb_peer *peer,
                 const struct cwb_offer *offer, const char *key, const uint8_t *inside) {
    if (!cwb_may_write(bridge, peer, key, offer->key_bytes))
        return -EREMOTEIO;
    if (offer->inside && cw_hash(inside, offer->size_bytes, 0) != offer->hash)
        return cw_fail(-EREMOTEIO, "the bytes of the array are not those that were hashed");
    return 0;
}

/* Was it done before? */
static void on_asked(void *owner, int status, const void *body, uint32_t body_bytes) {
    struct cwb_incoming_put *incoming = owner;
    await_broker(incoming, false);
    if (status != -ENOENT) {
        incoming->version = status ? 0 : cwb_deed_version(body, body_bytes);
        finish(incoming, status);
        return;
    }
    int code = check(incoming->bridge, incoming->peer, &incoming->offer, incoming->key.text,
                     incoming->inside);
    if (code) {
        finish(incoming, code);
        forget(incoming);
    } else {
        begin(incoming);
    }
}

int cwb_incoming_put_serve(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_served *served = cwb_served_new(link, frame);
    struct cwb_incoming_put *incoming;
    const bool again = frame->offer.flags & CWB_AGAIN;
    if (!served) {
        cwb_link_reply(link, CWB_OFFER, frame->head.id, -EDQUOT, cw_detail(), NULL, 0);
        return 0;
    }
    HASH_FIND(hh, link->peer->incoming_puts, &frame->offer.token, TOKEN_BYTES, incoming);
    bool fresh = !incoming;
    /* One that may have been done is looked up before anything else can refuse it. */
    int code = fresh ? cwb_deferred_refuse(link->bridge, CWB_OFFER, again) : 0;
    if (code == 0 && fresh && !again)
        code = check(link->bridge, link->peer, &frame->offer, frame->key, frame->data);
    if (code == 0 && fresh)
        code = make_room(link->bridge, link->peer);
    if (code == -EDQUOT && again)
        code = cw_fail(-EREMOTEIO,
                       "whether the array stands under its name at %s is not known: it has %u puts "
                       "of this node under way; look there",
                       link->bridge->node, PENDING_MAX);
    if (code) {
        cwb_served_reply(served, code, NULL, 0);
        return 0;
    }
    if (fresh)
        incoming = incoming_put_new(link, frame);
    if (!incoming) {
        cwb_served_reply(served, -EDQUOT, NULL, 0);
        return 0;
    }
    /* Another bridge of theirs: an index may be inside, parts are sources of the earlier one. */
    incoming->renewed |= incoming->offer.source != frame->offer.source ||
                         (is_tree(incoming) && incoming->run != link->peer->run);
    incoming->offer.source = frame->offer.source;
    incoming->run = link->peer->run;
    served->owner = incoming;
    served->on_cancel = on_cancel;
    LL_PREPEND(incoming->served, served);
    if (incoming->at_broker)
        cwb_deferred_begin(served);
    if (incoming->done) {
        answer(incoming);
    } else if (fresh && again) {
        await_broker(incoming, true);
        code = cwb_deed_asked(link->peer, link->bridge, &frame->offer.token, on_asked, incoming);
        if (code) {
            finish(incoming, code);
            forget(incoming);
        }
    } else if (fresh) {
        begin(incoming);
    }
    return 0;
}

/* Who is away for so long does not come back: nothing is made ready for him. */
static void end_waiting(struct cwb_peer *peer, unsigned kind) {
    while (peer->puts_waiting[kind]) {
        cw_fail(-EREMOTEIO, "the peer was away for more than %d s",
                (int)(CWB_RESUME_NS / 1000000000));
        finish(peer->puts_waiting[kind], -EREMOTEIO);
    }
}

/* Its bridge was started anew, and has not offered it again: there is nothing to be read. */
static bool is_outdated(const struct cwb_incoming_put *incoming) {
    return incoming && !incoming->served && incoming->peer->link &&
           incoming->run != incoming->peer->run;
}

void cwb_incoming_puts_tick(struct cwb_bridge *bridge) {
    const int64_t now_ns = bridge->loop.now_ns;
    for (struct cwb_peer *peer = bridge->met; peer; peer = peer->met_next) {
        while (peer->puts_done && now_ns - peer->puts_done->done_ns >= KEEP_NS)
            forget(peer->puts_done);
        bool away = !peer->link && now_ns - peer->unlinked_ns >= CWB_RESUME_NS;
        for (unsigned kind = 0; kind < CWB_KINDS; kind++) {
            if (away)
                end_waiting(peer, kind);
            while (is_outdated(peer->puts_waiting[kind]))
                forget(peer->puts_waiting[kind]);
        }
    }
    for (unsigned kind = 0; kind < CWB_KINDS; kind++) {
        struct cwb_incoming_put *incoming;
        while ((incoming = next_of(bridge, kind))) {
            give_turn(incoming); /* its place in the order */
            count(incoming);
            start(incoming);
        }
    }
}
