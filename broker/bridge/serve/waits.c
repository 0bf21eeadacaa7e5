/*
 * Waits: names that peers wait for (WAIT); see waits.h. The loop's thread owns them.
 *
 * The broker tells that there are new names, not which, so after each such news every wait is
 * looked at, in slices of SLICE_NS a turn, WAITS_AT_ONCE of each peer in turn: who waits for one
 * name hears of it as soon beside a peer that waits for CWB_WAITS_MAX. News that come while a
 * peer's are being looked at make them be looked at once more. A wait goes with its answer, its
 * CANCEL or its link.
 */
#include "broker/bridge/serve/waits.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/local/job.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/deferred.h"
#include "broker/bridge/serve/serve.h"
#include "ipc/request/socket.h"
#include "shm/base/wait.h"

#define SLICE_NS      200000
#define WAITS_AT_ONCE 16u

struct waiting { /* a served's owner */
    struct cwb_bridge *bridge;
    struct cwb_peer *peer;
    bool later; /* for a version after that one, else for any */
    struct cwb_after after;
    uint32_t key_bytes;
    char key[];
};

static void wait_ends(struct cwb_served *served) {
    struct waiting *waiting = served->owner;
    if (waiting->peer->wait_at == served)
        waiting->peer->wait_at = served->next;
    DL_DELETE(waiting->peer->waits, served);
    waiting->bridge->wait_count--;
    waiting->peer->wait_count--;
    free(waiting);
}

static void cancel_wait(struct cwb_served *served) {
    wait_ends(served);
    free(served);
}

/* May it wait for one name more? 0, or -EDQUOT. */
static int check_count(const struct cwb_link *link) {
    const struct cwb_bridge *bridge = link->bridge;
    uint32_t count = link->peer->wait_count;
    if (count >= CWB_WAITS_MAX)
        return cw_fail(-EDQUOT,
                       "this node waits for %u names here, and at most %u are possible "
                       "(CWB_WAITS_MAX): end some of its waits",
                       count, CWB_WAITS_MAX);
    if (bridge->wait_count >= CWB_WAITS_ALL_MAX && count >= CWB_WAITS_OWN)
        return cw_fail(-EDQUOT,
                       "%u waits for names are open here (at most %u in all, CWB_WAITS_ALL_MAX, "
                       "and %u are kept for each node): end some of this node's %u",
                       bridge->wait_count, CWB_WAITS_ALL_MAX, CWB_WAITS_OWN, count);
    return 0;
}

void cwb_wait_begin(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_bridge *bridge = link->bridge;
    struct cwb_peer *peer = link->peer;
    int code = check_count(link);
    const struct cwb_after *after = frame->open.flags & CWB_AFTER ? &frame->after : NULL;
    int there = code ? -ENOENT : cwb_is_there(bridge, peer, frame->key, frame->key_bytes, after);
    if (there == CW_WOULD_WAIT) {
        cwb_defer(link, frame);
        return;
    }
    if (code || there == 0) {
        cwb_link_reply(link, CWB_WAIT, frame->head.id, code, cw_detail(), NULL, 0);
        return;
    }
    struct waiting *waiting = malloc(sizeof *waiting + frame->key_bytes);
    struct cwb_served *served = waiting ? cwb_served_new(link, frame) : NULL;
    if (!served) {
        free(waiting);
        code = cwb_no_memory("a peer's request");
        cwb_link_reply(link, CWB_WAIT, frame->head.id, code, cw_detail(), NULL, 0);
        return;
    }
    *waiting = (struct waiting){.bridge = bridge,
                                .peer = peer,
                                .later = after != NULL,
                                .after = frame->after,
                                .key_bytes = frame->key_bytes};
    memcpy(waiting->key, frame->key, frame->key_bytes);
    served->owner = waiting;
    served->on_cancel = cancel_wait;
    DL_APPEND(peer->waits, served);
    peer->wait_count++;
    bridge->wait_count++;
    cwb_jobs_watch(bridge);
}

void cwb_waits_look(struct cwb_bridge *bridge) {
    bridge->news++;
    bridge->waits_due = bridge->wait_count != 0;
}

static bool is_looked_at(const struct cwb_bridge *bridge, const struct cwb_peer *peer) {
    return !peer->waits || peer->looked_news == bridge->news;
}

static void look_at_some(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    if (!peer->wait_at) {
        peer->wait_at = peer->waits;
        peer->looking_news = bridge->news;
    }
    for (uint32_t i = 0; i < WAITS_AT_ONCE && peer->wait_at; i++) {
        struct cwb_served *served = peer->wait_at;
        const struct waiting *waiting = served->owner;
        int there = cwb_is_there(bridge, peer, waiting->key, waiting->key_bytes,
                                 waiting->later ? &waiting->after : NULL);
        if (there == CW_WOULD_WAIT) /* in a later turn */
            return;
        peer->wait_at = served->next;
        if (there != 0)
            continue;
        wait_ends(served);
        cwb_served_reply(served, 0, NULL, 0);
    }
    if (!peer->wait_at)
        peer->looked_news = peer->looking_news;
}

void cwb_waits_turn(struct cwb_bridge *bridge) {
    int64_t until_ns = bridge->waits_due ? cw_now_ns() + SLICE_NS : 0;
    while (bridge->waits_due) {
        bridge->waits_due = false;
        for (struct cwb_peer *peer = bridge->met; peer; peer = peer->met_next) {
            if (is_looked_at(bridge, peer))
                continue;
            look_at_some(bridge, peer);
            bridge->waits_due = bridge->waits_due || !is_looked_at(bridge, peer);
        }
        if (cw_now_ns() >= until_ns)
            return;
    }
}
