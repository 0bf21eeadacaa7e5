/*
 * Deferred: what peers ask of this node that only its broker can answer, or help to answer.
 *
 * Invariant: the loop waits for its broker nowhere; it cannot (cw_asks_nobody()). A request that
 * needs the broker waits here, and no other one with it:
 *   - A look-up (OPEN, WAIT, ABOUT) of a name for which this process lacks a mapping, of memory or
 *     of the directory: a helper has it mapped, and the request is served as if it had just come.
 *     A list (name_lists.c) waits in the same way.
 *   - A put or remove is asked over the loop's own session (once.h, broker_channel.h), in the order
 * in which they came, and answered when the broker has answered.
 *
 * A broker that stands, or hangs: when the first of them has waited PROBE_NS the broker is asked
 * for a sign of life. If none comes for PROBED_NS, all that wait are refused, with a sentence that
 * says so, and who comes from then on is refused at once, before anything is begun, so that nothing
 * piles up: nobody is left without an answer for the 5 s after which README says that a call ends.
 * A WAIT that has begun is not refused: its asker says how long. What was refused may still be done
 * when the broker goes on, and the answer to a put or remove says so; it is done once at most, and
 * not after a later one of the same asker (broker/roles/once.h).
 *
 * The loop's thread owns all. If this process dies so do its links, and with them who asked; if the
 * broker dies, so does this process.
 */
#include "broker/bridge/serve/deferred.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/local/broker_channel.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/serve.h"
#include "ipc/request/channel.h"

#define PROBE_NS  500000000
#define PROBED_NS 3000000000

/* ---- who waits ---- */

void cwb_deferred_begin(struct cwb_served *served) {
    if (!served->link || served->deferred_ns)
        return;
    struct cwb_bridge *bridge = served->link->bridge;
    served->deferred_ns = bridge->loop.now_ns;
    DL_APPEND2(bridge->deferred, served, deferred_prev, deferred_next);
    /* Time is looked at once a second anyway (peer.c): most are answered before. */
}

void cwb_deferred_end(struct cwb_served *served) {
    if (!served->deferred_ns)
        return;
    served->deferred_ns = 0;
    DL_DELETE2(served->link->bridge->deferred, served, deferred_prev, deferred_next);
}

static int stands(const struct cwb_bridge *bridge, uint16_t op) {
    const char *node = bridge->node;
    const int seconds = (int)(PROBED_NS / 1000000000);
    if (op != CWB_OFFER && op != CWB_REMOVE)
        return cw_fail(-EREMOTEIO,
                       "the broker of %s has not answered for %d s: it is stopped, or hangs; ask "
                       "again when it goes on",
                       node, seconds);
    return cw_fail(-EREMOTEIO,
                   "whether the %s at %s is not known: the broker of %s has not answered for %d s: "
                   "it is stopped, or hangs; look there when it goes on",
                   op == CWB_OFFER ? "array stands under its name" : "name was removed", node, node,
                   seconds);
}

int cwb_deferred_refuse(const struct cwb_bridge *bridge, uint16_t op, bool again) {
    if (!bridge->probed_ns || bridge->loop.now_ns < bridge->probed_ns + PROBED_NS)
        return 0;
    return stands(bridge, again ? op : CWB_OPEN);
}

static void on_probed(void *owner, int status, const void *body, uint32_t body_bytes) {
    (void)status, (void)body, (void)body_bytes;
    ((struct cwb_bridge *)owner)->probed_ns = 0;
}

/* From its answer on the broker is not probed. */
static int probe(struct cwb_bridge *bridge) {
    if (bridge->probed_ns)
        return 0;
    int code =
        cwb_broker_channel_ask(bridge->broker_channel, CW_OP_PING, NULL, 0, on_probed, bridge);
    if (code == 0)
        bridge->probed_ns = bridge->loop.now_ns;
    return code;
}

int cwb_deferred_probe(struct cwb_bridge *bridge) {
    (void)probe(bridge); /* without memory it is asked the next time */
    return cwb_deferred_refuse(bridge, CWB_READ, false);
}

int64_t cwb_deferred_tick(struct cwb_bridge *bridge) {
    struct cwb_served *served = bridge->deferred;
    const int64_t now_ns = bridge->loop.now_ns;
    if (!served)
        return INT64_MAX;
    if (now_ns < served->deferred_ns + PROBE_NS)
        return served->deferred_ns + PROBE_NS;
    if (probe(bridge) != 0)
        return now_ns + PROBE_NS;
    /* An answer to the PING moves neither; the next look finds it. */
    if (now_ns < bridge->probed_ns + PROBED_NS)
        return bridge->probed_ns + PROBED_NS;
    while ((served = bridge->deferred) && now_ns >= served->deferred_ns + PROBE_NS)
        cwb_served_refuse(served, stands(bridge, served->op));
    return served ? served->deferred_ns + PROBE_NS : INT64_MAX;
}

/* ---- look-ups ---- */

struct lookup { /* a served's owner */
    struct cwb_bridge *bridge;
    struct cwb_served *served; /* NULL: it was cancelled, or refused, or its link ended */
    struct cwb_frame frame;
    struct cw_name_key key; /* the frame's */
};

static void cancel(struct cwb_served *served) {
    ((struct lookup *)served->owner)->served = NULL;
    free(served);
}

static void mapped(void *owner, int code) {
    struct lookup *lookup = owner;
    struct cwb_served *served = lookup->served;
    if (served && code) {
        cwb_served_reply(served, code, NULL, 0);
    } else if (served) {
        struct cwb_link *link = cwb_served_leave(served);
        if (cwb_serve(link, &lookup->frame) < 0)
            cwb_link_end(link);
    }
    free(lookup);
}

void cwb_defer(struct cwb_link *link, const struct cwb_frame *frame) {
    cwb_defer_for(link, frame, NULL);
}

void cwb_defer_for(struct cwb_link *link, const struct cwb_frame *frame,
                   const struct cw_name_key *key) {
    int code = cwb_deferred_refuse(link->bridge, frame->head.op, false);
    struct lookup *lookup = code ? NULL : calloc(1, sizeof *lookup);
    struct cwb_served *served = lookup ? cwb_served_new(link, frame) : NULL;
    if (!served) {
        code = code ? code : cwb_no_memory("a request of a peer");
        free(lookup);
        cwb_link_reply(link, frame->head.op, frame->head.id, code, cw_detail(), NULL, 0);
        return;
    }
    lookup->bridge = link->bridge;
    memcpy(lookup->key.text, frame->key, frame->key_bytes);
    lookup->key.length = frame->key_bytes;
    lookup->frame = (struct cwb_frame){.head = frame->head,
                                       .open = frame->open,
                                       .part = frame->part,
                                       .after = frame->after,
                                       .ticket = frame->ticket,
                                       .key = lookup->key.text,
                                       .key_bytes = frame->key_bytes};
    lookup->served = served;
    lookup->served->owner = lookup;
    lookup->served->on_cancel = cancel;
    if (frame->head.op != CWB_WAIT)
        cwb_deferred_begin(lookup->served);
    cwb_local_map(link->bridge, key ? key : &lookup->key, mapped, lookup);
}
