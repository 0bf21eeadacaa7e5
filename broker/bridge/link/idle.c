/*
 * Idle links: see idle.h. The loop's thread owns all; if this process dies its links end.
 */
#include "broker/bridge/link/idle.h"

#include "broker/bridge/bridge.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/wire/frame.h"

bool cwb_links_stand(const struct cwb_bridge *bridge) {
    return bridge->options.idle_ns == 0 || bridge->options.listens == 0;
}

/* What is under way between the two nodes, over whichever connection. */
static bool peer_is_busy(const struct cwb_peer *peer) {
    return peer->waiting || peer->waits || peer->downloads || peer->uploads || peer->hashings ||
           peer->trees || peer->list || peer->puts_pending || peer->streams;
}

/* Watches of the other side's need no look: where it has nothing that we would have to tell it of,
 * it forgets them with the link; and where it has, it has a floor, and refuses. */
bool cwb_link_is_idle(const struct cwb_link *link) {
    const struct cwb_peer *peer = link->peer;
    return link->state == CWB_OPEN_LINK && peer->link == link &&
           HASH_COUNT(link->requests) == link->pings + link->parting && !link->backlog &&
           link->served_count == 0 && link->wire.piece_count == 0 && !peer->floors &&
           !peer_is_busy(peer);
}

void cwb_link_use(struct cwb_link *link) {
    link->used_ns = link->bridge->loop.now_ns;
}

static void on_answer(struct cwb_request *request, const struct cwb_frame *frame) {
    struct cwb_link *link = request->link;
    if (!frame)
        return; /* it ended */
    link->parting = false;
    cwb_link_use(link);
    cwb_peer_stays(link);
}

int64_t cwb_link_idle_tick(struct cwb_link *link) {
    const struct cwb_bridge *bridge = link->bridge;
    const int64_t now_ns = bridge->loop.now_ns, idle_ns = bridge->options.idle_ns;
    if (cwb_links_stand(bridge) || !link->dialed || link->parting ||
        link->peer->streams_until_ns > now_ns || !*link->peer->config.address)
        return INT64_MAX;
    if (!cwb_link_is_idle(link))
        cwb_link_use(link);
    if (now_ns - link->used_ns < idle_ns)
        return link->used_ns + idle_ns;
    if (!cwb_link_ask(link, CWB_IDLE, NULL, 0, on_answer, NULL))
        cwb_link_use(link); /* no memory: another time */
    else
        link->parting = true;
    return INT64_MAX;
}

int cwb_link_take_idle(struct cwb_link *link, const struct cwb_frame *frame) {
    if (link->dialed)
        return cw_fail(-EPROTO, "an IDLE from who may say none");
    if (!cwb_link_is_idle(link) || cwb_links_stand(link->bridge) || !*link->peer->config.address) {
        cw_fail(-EBUSY, "the link is wanted");
        cwb_link_reply(link, CWB_IDLE, frame->head.id, -EBUSY, cw_detail(), NULL, 0);
        return 0;
    }
    link->parting = true;
    return -EREMOTEIO;
}
