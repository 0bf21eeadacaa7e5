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
 * whose bytes are not all here a peer has CWB_OFFERED_MAX bytes, and all peers CWB_OFFERED_ALL_MAX
 * (one array that is larger goes alone). The others wait, which costs no more than the offer: their
 * bytes are asked for when it is their turn, in the order in which they came, and of peers he
 * who had none begun for longest is first. Arrays of CWB_OFFERED_SMALL bytes or less have a
 * measure of their own, CWB_OFFERED_OWN of each peer: they wait for no large one, and for nobody
 * else's.
 */
#include "broker/bridge/serve/incoming_put.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/download.h"
#include "broker/bridge/fetch/gpu_receive.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/local/job.h"
#include "broker/bridge/local/once.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/deferred.h"
#include "broker/bridge/serve/serve.h"
#include "broker/bridge/wire/hash.h"

#define KEEP_NS     600000000000
#define KEPT_MAX    8192u /* outcomes of one peer */
#define PENDING_MAX 1024u /* offers of one peer under way */

struct token { /* what names it */
    uint64_t instance, number;
};

struct cwb_offered {
    struct token token;
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
    char *sentence; /* of a status below 0 */
    struct cwb_offer offer;
    struct cw_name_key key;
    uint8_t *meta, *inside;
    cw_array *array;
    struct cwb_landing *landing; /* it is to lie on a GPU */
    UT_hash_handle hh;
    struct cwb_offered *next, *prev; /* of its peer: that wait, or that are done, in order */
};

static void answer(struct cwb_offered *offered) {
    struct cwb_served *served;
    while ((served = offered->served)) {
        LL_DELETE(offered->served, served);
        served->on_cancel = NULL;
        if (offered->status < 0)
            cw_fail(offered->status, "%s",
                    offered->sentence ? offered->sentence
                                      : "the bridge had no memory left to keep why it failed");
        cwb_served_reply(served, offered->status, NULL, 0);
    }
}

/* From now on the broker is waited for, or (false) it is not. */
static void await_broker(struct cwb_offered *offered, bool waits) {
    struct cwb_served *served;
    offered->at_broker = waits;
    LL_FOREACH(offered->served, served) {
        if (waits)
            cwb_deferred_begin(served);
        else
            cwb_deferred_end(served);
    }
}

/* ---- turns ---- */

static unsigned kind_of(const struct cwb_offered *offered) {
    return offered->offer.size_bytes <= CWB_OFFERED_SMALL ? CWB_SMALL : CWB_LARGE;
}

static bool has_room(const struct cwb_offered *offered) {
    uint64_t own = offered->peer->offering_bytes[kind_of(offered)];
    uint64_t all = own + offered->offer.size_bytes;
    if (kind_of(offered) == CWB_SMALL)
        return all <= CWB_OFFERED_OWN;
    return (own == 0 || all <= CWB_OFFERED_MAX) &&
           offered->bridge->offering_bytes < CWB_OFFERED_ALL_MAX;
}

static void count(struct cwb_offered *offered) {
    unsigned kind = kind_of(offered);
    offered->begun = true;
    offered->peer->offering_bytes[kind] += offered->offer.size_bytes;
    offered->peer->offered_ns[kind] = offered->bridge->loop.now_ns;
    if (kind == CWB_LARGE)
        offered->bridge->offering_bytes += offered->offer.size_bytes;
}

/* It waits no more; its memory is free, and another has its turn. */
static void give_turn(struct cwb_offered *offered) {
    unsigned kind = kind_of(offered);
    if (offered->waits)
        DL_DELETE(offered->peer->offers_waiting[kind], offered);
    if (offered->begun) {
        offered->peer->offering_bytes[kind] -= offered->offer.size_bytes;
        if (kind == CWB_LARGE)
            offered->bridge->offering_bytes -= offered->offer.size_bytes;
        offered->bridge->hurry = true;
    }
    offered->waits = offered->begun = false;
}

/* The next one whose turn it is; NULL: none has room. */
static struct cwb_offered *next_of(const struct cwb_bridge *bridge, unsigned kind) {
    struct cwb_offered *best = NULL;
    for (struct cwb_peer *peer = bridge->peers; peer; peer = peer->next) {
        struct cwb_offered *first = peer->offers_waiting[kind];
        if (first && has_room(first) &&
            (!best || peer->offered_ns[kind] < best->peer->offered_ns[kind]))
            best = first;
    }
    return best;
}

/* ---- one offer ---- */

static void release(struct cwb_offered *offered) {
    give_turn(offered);
    cwb_download_cancel(&offered->download);
    cwb_landing_cancel(offered->landing);
    offered->landing = NULL;
    cwb_local_close(offered->bridge, offered->array);
    free(offered->meta);
    free(offered->inside);
    offered->array = NULL;
    offered->meta = offered->inside = NULL;
}

static void finish(struct cwb_offered *offered, int status) {
    offered->done_ns = offered->bridge->loop.now_ns;
    offered->status = status == -EAGAIN || status == -ESTALE ? -EREMOTEIO : status;
    if (status < 0)
        offered->sentence = strdup(cw_detail());
    release(offered);
    offered->done = true;
    offered->peer->offered_pending--;
    offered->peer->offered_kept++;
    DL_APPEND(offered->peer->offers_done, offered);
    answer(offered);
}

static void forget(struct cwb_offered *offered) {
    struct cwb_peer *peer = offered->peer;
    HASH_DEL(peer->offered, offered);
    release(offered);
    if (offered->done)
        DL_DELETE(peer->offers_done, offered);
    *(offered->done ? &peer->offered_kept : &peer->offered_pending) -= 1;
    free(offered->sentence);
    free(offered);
}

static void on_put(void *owner, int status, const void *body, uint32_t body_bytes) {
    struct cwb_offered *offered = owner;
    (void)body, (void)body_bytes;
    if (status == 0) {
        cw_name_key_replaced(offered->bridge->client);
        cw_array_close(offered->array); /* its name holds it */
        offered->array = NULL;
    }
    finish(offered, status);
}

static void put(struct cwb_offered *offered) {
    await_broker(offered, true);
    int code = cwb_deed_put(offered->peer, offered->bridge, &offered->offer, &offered->key,
                            offered->array, offered->meta, on_put, offered);
    if (code)
        finish(offered, code);
}

static void start(struct cwb_offered *offered);

/* Its bytes are here, or will not come. */
static void brought(struct cwb_offered *offered, int status) {
    if (status == 0) {
        put(offered);
    } else if (status == -ESTALE && offered->renewed) {
        offered->renewed = false;
        cwb_local_close(offered->bridge, offered->array);
        offered->array = NULL;
        start(offered);
    } else if (status == -ESTALE && !offered->served) {
        forget(offered); /* its bridge was started anew, and may offer it again from there */
    } else {
        finish(offered, status);
    }
}

static void on_downloaded(struct cwb_download *download, int status) {
    brought((struct cwb_offered *)((char *)download - offsetof(struct cwb_offered, download)),
            status);
}

static void on_array(void *owner, int code, cw_array *array) {
    struct cwb_offered *offered = owner;
    offered->array = array;
    await_broker(offered, false);
    if (code == 0 && offered->offer.inside && offered->offer.size_bytes)
        code = cw_array_write(array, 0, offered->inside, offered->offer.size_bytes);
    if (code) {
        finish(offered, code);
        return;
    }
    if (offered->offer.inside) {
        put(offered);
        return;
    }
    offered->download = (struct cwb_download){.on_done = on_downloaded,
                                              .bridge = offered->bridge,
                                              .peer = offered->peer,
                                              .source = offered->offer.source,
                                              .size_bytes = offered->offer.size_bytes,
                                              .patience_ns = CWB_RESUME_NS,
                                              .array = array};
    cwb_download_begin(&offered->download, offered->peer->run);
}

static void on_landed(void *owner, int code, cw_array *array) {
    struct cwb_offered *offered = owner;
    offered->landing = NULL;
    offered->array = array;
    brought(offered, code);
}

/* Memory for it is made, and its bytes are brought there. */
static void start(struct cwb_offered *offered) {
    uint32_t gpu = (offered->offer.flags & CW_PUT_GPU) >> CW_PUT_GPU_SHIFT;
    if (!gpu) {
        await_broker(offered, true);
        cwb_local_new(offered->bridge, offered->offer.size_bytes, on_array, offered);
        return;
    }
    struct cwb_landing_wish wish = {.size_bytes = offered->offer.size_bytes,
                                    .gpu = {.device = gpu - 1},
                                    .inside = offered->inside,
                                    .peer = offered->offer.inside ? NULL : offered->peer,
                                    .run = offered->peer->run,
                                    .source = offered->offer.source,
                                    .patience_ns = CWB_RESUME_NS};
    offered->landing = cwb_landing_begin(offered->bridge, &wish, on_landed, offered);
    if (!offered->landing)
        finish(offered, -EDQUOT);
}

static void begin(struct cwb_offered *offered) {
    unsigned kind = kind_of(offered);
    if (offered->peer->offers_waiting[kind] || !has_room(offered)) {
        offered->waits = true;
        DL_APPEND(offered->peer->offers_waiting[kind], offered);
        return;
    }
    count(offered);
    start(offered);
}

static void *copy_of(const void *bytes, size_t size_bytes) {
    void *copy = malloc(size_bytes + 1);
    if (copy && size_bytes)
        memcpy(copy, bytes, size_bytes);
    return copy;
}

static void on_cancel(struct cwb_served *served) {
    struct cwb_offered *offered = served->owner;
    LL_DELETE(offered->served, served); /* it goes on: what was offered may come again */
    free(served);
}

/* Room for one more. 0 or -EDQUOT. */
static int make_room(struct cwb_peer *peer) {
    if (peer->offered_pending >= PENDING_MAX)
        return cw_fail(-EDQUOT,
                       "%u puts of this peer are under way; one more may come when one is "
                       "done",
                       peer->offered_pending);
    while (peer->offered_kept >= KEPT_MAX)
        forget(peer->offers_done);
    return 0;
}

static struct token token_of(const struct cwb_frame *frame) {
    return (struct token){.instance = frame->offer.token.instance,
                          .number = frame->offer.token.number};
}

/* NULL: there is no memory. */
static struct cwb_offered *offered_new(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_offered *offered = calloc(1, sizeof *offered);
    if (!offered) {
        cwb_no_memory("a put of a peer");
        return NULL;
    }
    offered->token = token_of(frame);
    offered->bridge = link->bridge;
    offered->peer = link->peer;
    offered->offer = frame->offer;
    memcpy(offered->key.text, frame->key, frame->key_bytes);
    offered->key.length = frame->key_bytes;
    offered->meta = copy_of(frame->meta, frame->meta_bytes);
    if (frame->offer.inside)
        offered->inside = copy_of(frame->data, frame->offer.size_bytes);
    if (offered->meta && (offered->inside || !frame->offer.inside)) {
        HASH_ADD(hh, link->peer->offered, token, sizeof offered->token, offered);
        if (CWD_ADDED(offered)) {
            link->peer->offered_pending++;
            return offered;
        }
    }
    release(offered);
    free(offered);
    cwb_no_memory("a put of a peer");
    return NULL;
}

/* May it be done, and is it whole? 0 or -EREMOTEIO. */
static int check(const struct cwb_bridge *bridge, const struct cwb_peer *peer,
                 const struct cwb_offer *offer, const char *key, const uint8_t *inside) {
    if (!cwb_may_write(bridge, peer, key, offer->key_bytes))
        return -EREMOTEIO;
    if (offer->inside && cwb_hash(inside, offer->size_bytes, 0) != offer->hash)
        return cw_fail(-EREMOTEIO, "the bytes of the array are not those that were hashed");
    return 0;
}

/* Was it done before? */
static void on_asked(void *owner, int status, const void *body, uint32_t body_bytes) {
    struct cwb_offered *offered = owner;
    (void)body, (void)body_bytes;
    await_broker(offered, false);
    if (status != -ENOENT) {
        finish(offered, status);
        return;
    }
    int code =
        check(offered->bridge, offered->peer, &offered->offer, offered->key.text, offered->inside);
    if (code) {
        finish(offered, code);
        forget(offered);
    } else {
        begin(offered);
    }
}

int cwb_offered_serve(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_served *served = cwb_served_new(link, frame);
    struct token token = token_of(frame);
    struct cwb_offered *offered;
    const bool again = frame->offer.flags & CWB_AGAIN;
    if (!served) {
        cwb_link_reply(link, CWB_OFFER, frame->head.id, -EDQUOT, cw_detail(), NULL, 0);
        return 0;
    }
    HASH_FIND(hh, link->peer->offered, &token, sizeof token, offered);
    bool fresh = !offered;
    /* One that may have been done is looked up before anything else can refuse it. */
    int code = fresh ? cwb_deferred_refuse(link->bridge, CWB_OFFER, again) : 0;
    if (code == 0 && fresh && !again)
        code = check(link->bridge, link->peer, &frame->offer, frame->key, frame->data);
    if (code == 0 && fresh)
        code = make_room(link->peer);
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
        offered = offered_new(link, frame);
    if (!offered) {
        cwb_served_reply(served, -EDQUOT, NULL, 0);
        return 0;
    }
    offered->run = link->peer->run;
    if (offered->offer.source != frame->offer.source) {
        offered->offer.source = frame->offer.source;
        offered->renewed = true;
    }
    served->owner = offered;
    served->on_cancel = on_cancel;
    LL_PREPEND(offered->served, served);
    if (offered->at_broker)
        cwb_deferred_begin(served);
    if (offered->done) {
        answer(offered);
    } else if (fresh && again) {
        await_broker(offered, true);
        code = cwb_deed_asked(link->peer, link->bridge, &frame->offer.token, on_asked, offered);
        if (code) {
            finish(offered, code);
            forget(offered);
        }
    } else if (fresh) {
        begin(offered);
    }
    return 0;
}

/* Who is away for so long does not come back: nothing is made ready for him. */
static void end_waiting(struct cwb_peer *peer, unsigned kind) {
    while (peer->offers_waiting[kind]) {
        cw_fail(-EREMOTEIO, "the peer was away for more than %d s",
                (int)(CWB_RESUME_NS / 1000000000));
        finish(peer->offers_waiting[kind], -EREMOTEIO);
    }
}

/* Its bridge was started anew, and has not offered it again: there is nothing to be read. */
static bool is_outdated(const struct cwb_offered *offered) {
    return offered && !offered->served && offered->peer->link && offered->run != offered->peer->run;
}

void cwb_offered_tick(struct cwb_bridge *bridge) {
    const int64_t now_ns = bridge->loop.now_ns;
    for (struct cwb_peer *peer = bridge->peers; peer; peer = peer->next) {
        while (peer->offers_done && now_ns - peer->offers_done->done_ns >= KEEP_NS)
            forget(peer->offers_done);
        bool away = !peer->link && now_ns - peer->unlinked_ns >= CWB_RESUME_NS;
        for (unsigned kind = 0; kind < CWB_KINDS; kind++) {
            if (away)
                end_waiting(peer, kind);
            while (is_outdated(peer->offers_waiting[kind]))
                forget(peer->offers_waiting[kind]);
        }
    }
    for (unsigned kind = 0; kind < CWB_KINDS; kind++) {
        struct cwb_offered *offered;
        while ((offered = next_of(bridge, kind))) {
            give_turn(offered); /* its place in the order */
            count(offered);
            start(offered);
        }
    }
}
