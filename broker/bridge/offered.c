/*
 * Puts of peers: an array that a peer offers is read, checked, named, and then the offer is
 * answered; see frame.h.
 *
 * Invariant: each token is put at most once. What became of it is kept for KEEP_NS, and as long as
 * it is under way, so that an offer that comes again after a cut is answered with what happened,
 * and not done again. Of two links of a peer the older one's last words may be read after the newer
 * one's first: so a repetition may come before what it repeats, and all who offered a put are told
 * the same. An offer whose peer does not come back in CWB_RESUME_NS is dropped before it
 * was put; nothing of it is ever seen. So is one whose peer was started anew before all of it was
 * read: what it offers again is as good as never offered. If this process dies, what it knew is
 * lost with it: the offering side sees another `run`, and tells its client that the outcome is not
 * known.
 */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "broker/bridge/hash.h"
#include "broker/bridge/job.h"
#include "broker/bridge/landing.h"

#define KEEP_NS     600000000000
#define KEPT_MAX    8192u /* outcomes of one peer */
#define PENDING_MAX 1024u /* offers of one peer under way */

struct cwb_offered {
    uint8_t token[CWB_TOKEN_BYTES];
    struct cwb_take take;
    struct cwb_bridge *bridge;
    struct cwb_peer *peer;
    struct cwb_served *served; /* who is to be answered, by next; none: their links ended */
    bool renewed;              /* a repetition named another source, as of a bridge started anew */
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
};

static void answer(struct cwb_offered *offered) {
    struct cwb_served *served;
    while ((served = offered->served)) {
        LL_DELETE(offered->served, served);
        served->on_cancel = NULL;
        if (offered->status < 0)
            cw_fail(offered->status, "%s", offered->sentence);
        cwb_served_reply(served, offered->status, NULL, 0);
    }
}

static void release(struct cwb_offered *offered) {
    cwb_take_cancel(&offered->take);
    cwb_landing_cancel(offered->landing);
    offered->landing = NULL;
    cw_array_close(offered->array);
    free(offered->meta);
    free(offered->inside);
    offered->array = NULL;
    offered->meta = offered->inside = NULL;
}

static void finish(struct cwb_offered *offered, int status) {
    offered->done = true;
    offered->done_ns = offered->bridge->loop.now_ns;
    offered->status = status == -EAGAIN || status == -ESTALE ? -EREMOTEIO : status;
    if (status < 0) {
        offered->sentence = strdup(cw_detail());
        CW_ASSERT(offered->sentence);
    }
    release(offered);
    answer(offered);
}

static void forget(struct cwb_offered *offered) {
    HASH_DEL(offered->peer->offered, offered);
    release(offered);
    free(offered->sentence);
    free(offered);
}

static void on_put(void *owner, int code) {
    finish(owner, code);
}

static void put(struct cwb_offered *offered) {
    cwb_local_put(offered->bridge, offered->array, offered->key.text, offered->key.length,
                  offered->meta, offered->offer.meta_bytes, offered->offer.size_bytes,
                  offered->offer.flags, on_put, offered);
}

static void begin(struct cwb_offered *offered);

/* Its bytes are here, or will not come. */
static void brought(struct cwb_offered *offered, int status) {
    if (status == 0) {
        put(offered);
    } else if (status == -ESTALE && offered->renewed) {
        offered->renewed = false;
        cw_array_close(offered->array);
        offered->array = NULL;
        begin(offered);
    } else if (status == -ESTALE && !offered->served) {
        forget(offered); /* its bridge was started anew, and may offer it again from there */
    } else {
        finish(offered, status);
    }
}

static void on_taken(struct cwb_take *take, int status) {
    brought((struct cwb_offered *)((char *)take - offsetof(struct cwb_offered, take)), status);
}

static void on_array(void *owner, int code, cw_array *array) {
    struct cwb_offered *offered = owner;
    offered->array = array;
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
    offered->take = (struct cwb_take){.on_done = on_taken,
                                      .bridge = offered->bridge,
                                      .peer = offered->peer,
                                      .source = offered->offer.source,
                                      .size_bytes = offered->offer.size_bytes,
                                      .array = array};
    cwb_take_begin(&offered->take, offered->peer->run);
}

static void on_landed(void *owner, int code, cw_array *array) {
    struct cwb_offered *offered = owner;
    offered->landing = NULL;
    offered->array = array;
    brought(offered, code);
}

/* Memory for it is made, and its bytes are brought there. */
static void begin(struct cwb_offered *offered) {
    uint32_t gpu = (offered->offer.flags & CW_PUT_GPU) >> CW_PUT_GPU_SHIFT;
    if (!gpu) {
        cwb_local_new(offered->bridge, offered->offer.size_bytes, on_array, offered);
        return;
    }
    struct cwb_landing_wish wish = {.size_bytes = offered->offer.size_bytes,
                                    .gpu = {.device = gpu - 1},
                                    .inside = offered->inside,
                                    .peer = offered->offer.inside ? NULL : offered->peer,
                                    .run = offered->peer->run,
                                    .source = offered->offer.source};
    offered->landing = cwb_landing_begin(offered->bridge, &wish, on_landed, offered);
}

static void *copy_of(const void *bytes, size_t size_bytes) {
    void *copy = malloc(size_bytes + 1);
    CW_ASSERT(copy);
    if (size_bytes)
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
    struct cwb_offered *offered, *next;
    uint32_t pending = 0, kept = 0;
    HASH_ITER(hh, peer->offered, offered, next) {
        pending += !offered->done;
        kept += offered->done;
    }
    if (pending >= PENDING_MAX)
        return cw_fail(-EDQUOT,
                       "%u puts of this peer are under way; one more may come when one is "
                       "done",
                       pending);
    HASH_ITER(hh, peer->offered, offered, next) { /* in the order in which they came */
        if (kept < KEPT_MAX)
            break;
        if (offered->done) {
            forget(offered);
            kept--;
        }
    }
    return 0;
}

static struct cwb_offered *offered_new(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_offered *offered = calloc(1, sizeof *offered);
    CW_ASSERT(offered);
    memcpy(offered->token, frame->offer.token, sizeof offered->token);
    offered->bridge = link->bridge;
    offered->peer = link->peer;
    offered->offer = frame->offer;
    memcpy(offered->key.text, frame->key, frame->key_bytes);
    offered->key.length = frame->key_bytes;
    offered->meta = copy_of(frame->meta, frame->meta_bytes);
    if (frame->offer.inside)
        offered->inside = copy_of(frame->data, frame->offer.size_bytes);
    HASH_ADD(hh, link->peer->offered, token, sizeof offered->token, offered);
    return offered;
}

int cwb_offered_serve(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_served *served = cwb_served_new(link, frame);
    struct cwb_offered *offered;
    int code = 0;
    HASH_FIND(hh, link->peer->offered, frame->offer.token, CWB_TOKEN_BYTES, offered);
    if (!offered) {
        if (!cwb_may_write(link, frame->key, frame->key_bytes))
            code = -EREMOTEIO;
        else if (frame->offer.inside &&
                 cwb_hash(frame->data, frame->offer.size_bytes, 0) != frame->offer.hash)
            code = cw_fail(-EREMOTEIO, "the bytes of the array are not those that were hashed");
        else
            code = make_room(link->peer);
        if (code) {
            cwb_served_reply(served, code, NULL, 0);
            return 0;
        }
    }
    bool fresh = !offered;
    if (fresh)
        offered = offered_new(link, frame);
    if (offered->offer.source != frame->offer.source) {
        offered->offer.source = frame->offer.source;
        offered->renewed = true;
    }
    served->owner = offered;
    served->on_cancel = on_cancel;
    LL_PREPEND(offered->served, served);
    if (offered->done)
        answer(offered);
    else if (fresh)
        begin(offered);
    return 0;
}

void cwb_offered_tick(struct cwb_bridge *bridge) {
    for (struct cwb_peer *peer = bridge->peers; peer; peer = peer->next) {
        struct cwb_offered *offered, *next;
        HASH_ITER(hh, peer->offered, offered, next) {
            if (!offered->done || bridge->loop.now_ns - offered->done_ns < KEEP_NS)
                continue;
            forget(offered);
        }
    }
}
