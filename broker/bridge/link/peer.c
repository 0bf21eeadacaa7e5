/*
 * Peers as they are now: see peer.h. Dialing those with an address, and telling who waits for a
 * link.
 */
#include "broker/bridge/link/peer.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "broker/bridge/fetch/invalidation.h"
#include "broker/bridge/link/idle.h"
#include "broker/bridge/link/peer_table.h"
#include "broker/bridge/link/streams.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/watch.h"

#define LINES_MOST    256u /* of the log at once, about one peer's connections */
#define LINE_NS       250000000
#define CROWDED_TRIES 4u

struct cwb_link *cwb_peer_link(struct cwb_peer *peer) {
    return peer->link;
}

/* ---- who waits ---- */

/* Who is told that there is no link: all; whose time is over; and who waits for one try. */
enum told { ALL, LATE, FAILED };

/* One at a time is taken off the list: what it does may end others. */
static void tell(struct cwb_peer *peer, struct cwb_link *link, int64_t now_ns, enum told who) {
    struct cwb_waiter *waiter;
    char reason[CW_DETAIL_MAX];
    strcpy(reason, cw_detail());
    for (;;) {
        LL_FOREACH(peer->waiting, waiter) {
            if (link || who == ALL || waiter->until_ns <= now_ns || (who == FAILED && waiter->once))
                break;
        }
        if (!waiter)
            return;
        LL_DELETE(peer->waiting, waiter);
        if (!link)
            cw_fail(-EREMOTEIO, "%s", reason);
        waiter->on_link(waiter, link ? peer->link : NULL);
    }
}

static int no_link(const struct cwb_peer *peer) {
    if (peer->gone)
        return cw_fail(-EREMOTEIO, "the peer %s was removed", peer->config.name);
    if (!cwb_config_known(&peer->config))
        return cw_fail(
            -EREMOTEIO,
            "the peer %s has no key here: `cableway peers add %s ... --key FINGERPRINT`, "
            "or --ca",
            peer->config.name, peer->config.name);
    if (!*peer->config.address)
        return cw_fail(-EREMOTEIO,
                       "the peer %s is not connected, and has no address here at which it could be "
                       "reached%s%s",
                       peer->config.name, *peer->error ? "; last: " : "", peer->error);
    return cw_fail(-EREMOTEIO, "the peer %s at %s cannot be reached: %s", peer->config.name,
                   peer->config.address,
                   *peer->error            ? peer->error
                   : cwb_peer_trying(peer) ? "no connection has come yet"
                                           : "it was not tried yet");
}

void cwb_peer_await(struct cwb_bridge *bridge, struct cwb_peer *peer, struct cwb_waiter *waiter,
                    int64_t wait_ns) {
    if (peer->link && !peer->link->parting) {
        waiter->on_link(waiter, peer->link);
        return;
    }
    bool known = !peer->gone && cwb_config_known(&peer->config);
    if (!known || (wait_ns == 0 && !*peer->config.address && !peer->link)) {
        no_link(peer);
        waiter->on_link(waiter, NULL);
        return;
    }
    waiter->once = wait_ns == 0;
    /* Of a peer that this process never heard an earlier one may have asked (once.h). */
    int64_t heard_ns = peer->heard_ns ? peer->heard_ns : bridge->loop.now_ns;
    waiter->until_ns = waiter->once ? bridge->loop.now_ns + CWB_SILENCE_NS : heard_ns + wait_ns;
    if (waiter->until_ns <= bridge->loop.now_ns) {
        no_link(peer);
        waiter->on_link(waiter, NULL);
        return;
    }
    bridge->tick_now = true;
    LL_APPEND(peer->waiting, waiter);
    if (wait_ns == 0 || peer->fails == 0)
        peer->dial_after_ns = 0; /* somebody asks: do not wait for the pause to end */
}

void cwb_peer_forget(struct cwb_peer *peer, struct cwb_waiter *waiter) {
    struct cwb_waiter *at;
    LL_FOREACH(peer->waiting, at) {
        if (at == waiter) {
            LL_DELETE(peer->waiting, waiter);
            return;
        }
    }
}

/* ---- links ---- */

bool cwb_peer_may_log(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    int64_t passed = (bridge->loop.now_ns - peer->lines_ns) / LINE_NS;
    if (peer->lines_ns == 0 || peer->lines_left + passed >= LINES_MOST) {
        peer->lines_left = LINES_MOST;
        peer->lines_ns = bridge->loop.now_ns;
    } else {
        peer->lines_left += (uint32_t)passed;
        peer->lines_ns += passed * LINE_NS;
    }
    if (peer->lines_left == 0) {
        peer->lines_untold++;
        return false;
    }
    peer->lines_left--;
    if (peer->lines_untold)
        cwb_log("peer %s: %u lines about its connections were left out", peer->config.name,
                peer->lines_untold);
    peer->lines_untold = 0;
    return true;
}

bool cwb_peer_trying(const struct cwb_peer *peer) {
    return peer->resolving || peer->dialing;
}

/* Is there a try of ours for which the other side may have a link already? */
static bool has_said_hello(const struct cwb_link *dialing) {
    return dialing && dialing->state == CWB_GREETING;
}

int cwb_peer_may_open(const struct cwb_link *link) {
    struct cwb_peer *peer = link->peer;
    if (has_said_hello(peer->dialing) && link->bridge->run < link->run)
        return cw_fail(-EPERM, "both nodes dialed at once, and the other connection is the one");
    if (!peer->link || link->run == peer->link->run || link->run != peer->replaced_run)
        return 0;
    peer->twin_ns = link->bridge->loop.now_ns;
    return cw_fail(-EPERM,
                   "two bridges are the peer %s, perhaps since one key lies on two machines; the "
                   "other one came later, and stays",
                   peer->config.name);
}

void cwb_peer_replace(struct cwb_link *link) {
    struct cwb_peer *peer = link->peer;
    struct cwb_link *dialing = peer->dialing;
    if (dialing && dialing != link) {
        peer->dialing = NULL; /* it has not failed */
        cw_fail(-EREMOTEIO, "the other side has dialed, too");
        cwb_link_end(dialing);
    }
    if (!peer->link)
        return;
    peer->heard_ns = link->bridge->loop.now_ns; /* over this one */
    if (peer->link->run != link->run)
        peer->replaced_run = peer->link->run;
    cw_fail(-EREMOTEIO, "the peer has made a newer connection");
    cwb_link_end(peer->link);
}

void cwb_peer_opened(struct cwb_link *link) {
    struct cwb_peer *peer = link->peer;
    if (peer->dialing == link)
        peer->dialing = NULL;
    if (cwb_peer_may_log(link->bridge, peer))
        cwb_log("peer %s is connected (%s %s, by %s)", peer->config.name,
                link->dialed ? "dialed" : "from", link->where, cwb_io_kind(link->bridge->loop.io));
    peer->link = link;
    if (!peer->is_met)
        LL_PREPEND2(link->bridge->met, peer, met_next);
    peer->is_met = true;
    peer->fails = 0;
    peer->redial = false;
    peer->unlinked_ns = 0;
    peer->error[0] = 0;
    tell(peer, link, link->bridge->loop.now_ns, ALL);
}

void cwb_peer_stays(struct cwb_link *link) {
    tell(link->peer, link, link->bridge->loop.now_ns, ALL);
}

int64_t cwb_jitter(struct cwb_bridge *bridge, int64_t most_ns) {
    uint64_t x = bridge->jitter_state ? bridge->jitter_state
                                      : bridge->run; /* xorshift64: it keeps no secret */
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    bridge->jitter_state = x;
    return (int64_t)(x % ((uint64_t)most_ns + 1));
}

/* Half of it or more: those that were refused together do not come together again. */
static void back_off(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    int64_t pause_ns = CWB_REDIAL_FIRST_NS << (peer->fails < 10 ? peer->fails : 10);
    pause_ns = pause_ns < CWB_REDIAL_MOST_NS ? pause_ns : CWB_REDIAL_MOST_NS;
    peer->fails++;
    peer->dial_after_ns = bridge->loop.now_ns + pause_ns / 2 + cwb_jitter(bridge, pause_ns / 2);
    bridge->tick_now = true;
}

static void try_failed(struct cwb_bridge *bridge, struct cwb_peer *peer, const char *reason) {
    if (strcmp(peer->error, reason) != 0)
        cwb_log("peer %s at %s cannot be reached: %s", peer->config.name, peer->config.address,
                reason);
    snprintf(peer->error, sizeof peer->error, "%s", reason);
    back_off(bridge, peer);
    no_link(peer);
    tell(peer, NULL, bridge->loop.now_ns, FAILED);
}

/* The other side has closed a try of ours after our HELLO. It may have dialed, too (above), and its
 * HELLO be here, and not read yet: nobody is told that the peer cannot be reached before another
 * try has failed. */
static bool may_be_refused(const struct cwb_link *link, enum cwb_link_state was) {
    return was == CWB_GREETING && link->peer->fails == 0 &&
           link->bridge->loop.now_ns < link->limit_ns;
}

/* The other side took the connection and closed it before it had said a word: as one does to whom
 * more come at once than it lets in (CWB_UNKNOWN_MAX). Nobody is told before some more tries. */
static bool was_crowded(const struct cwb_link *link, enum cwb_link_state was) {
    return was == CWB_SHAKING && link->wire.bytes_in == 0 && link->peer->fails < CROWDED_TRIES &&
           link->bridge->loop.now_ns < link->limit_ns;
}

void cwb_peer_ended(struct cwb_link *link, enum cwb_link_state was, const char *reason) {
    struct cwb_peer *peer = link->peer;
    struct cwb_bridge *bridge = link->bridge;
    bridge->tick_now = true;
    cwb_wire_counts(&link->wire, &peer->bytes_in, &peer->bytes_out);
    if (was == CWB_OPEN_LINK) {
        peer->link = NULL;
        peer->redial = link->dialed && !link->parting;
        peer->idle_closes += link->parting;
        snprintf(peer->error, sizeof peer->error, "%s", link->parting ? "" : reason);
        peer->unlinked_ns = bridge->loop.now_ns;
        if (peer->heard_ns < link->wire.heard_ns)
            peer->heard_ns = link->wire.heard_ns;
        peer->dial_after_ns =
            bridge->loop.now_ns + cwb_jitter(bridge, CWB_REDIAL_FIRST_NS); /* so do others */
        cwb_watch_end(bridge, peer);
        cwb_streams_end(peer);
        cwb_replicas_unlink(peer); /* a CHANGED may have been on its way */
    } else if (peer->dialing == link) {
        peer->dialing = NULL;
        if (may_be_refused(link, was))
            peer->fails = 1;
        else if (was_crowded(link, was))
            back_off(bridge, peer);
        else
            try_failed(bridge, peer, reason);
    }
}

void cwb_peer_cut(struct cwb_bridge *bridge, const struct cwb_peer *peer, const char *why) {
    struct cwb_link *link, *next;
    DL_FOREACH_SAFE(bridge->links, link, next) {
        if (link->peer == peer) {
            cw_fail(-EREMOTEIO, "%s", why);
            cwb_link_end(link);
        }
    }
}

void cwb_peer_leave(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    cwb_peer_cut(bridge, peer, "the peer was removed");
    no_link(peer);
    tell(peer, NULL, bridge->loop.now_ns, ALL);
}

/* ---- dialing: the resolver may block, so threads of its own ask it ---- */

struct resolving {
    struct cwb_work work;
    struct cwb_bridge *bridge;
    struct cwb_peer *peer;
    char host[CW_ADDRESS_MAX + 1], port[8], where[CW_ADDRESS_MAX + 1];
    struct addrinfo *found;
};

/* flags 0: it may ask a name server. */
static int look_up(struct resolving *r, int flags) {
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    return getaddrinfo(r->host, r->port, &hints, &r->found);
}

static void resolve(struct cwb_work *work) {
    struct resolving *r = (struct resolving *)work;
    int error = look_up(r, 0);
    cwb_work_set(work, error ? cw_fail(-EREMOTEIO, "%s: %s", r->host, gai_strerror(error)) : 0);
}

static void resolved(struct cwb_work *work) {
    struct resolving *r = (struct resolving *)work;
    struct cwb_peer *peer = r->peer;
    peer->resolving = false;
    if (peer->link) { /* it came to us meanwhile */
        if (r->found)
            freeaddrinfo(r->found);
        free(r);
        return;
    }
    int fd = -1;
    struct addrinfo *at = r->found;
    /* One address a try: the next try takes the next one. */
    for (uint32_t skip = peer->fails; work->code == 0 && at && skip; skip--)
        at = at->ai_next ? at->ai_next : r->found;
    if (at)
        fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (work->code)
        try_failed(r->bridge, peer, work->detail);
    else if (fd < 0)
        try_failed(r->bridge, peer, "no socket could be made for it");
    else
        peer->dialing = cwb_link_dial(r->bridge, peer, fd, at->ai_addr, at->ai_addrlen, r->where);
    if (fd >= 0 && !peer->dialing)
        try_failed(r->bridge, peer, cw_detail());
    if (r->found)
        freeaddrinfo(r->found);
    free(r);
}

static void dial(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    struct resolving *r = calloc(1, sizeof *r);
    if (!r) {
        cwb_no_memory("a connection");
        try_failed(bridge, peer, cw_detail());
        return;
    }
    r->work = (struct cwb_work){.run = resolve, .done = resolved};
    r->bridge = bridge;
    r->peer = peer;
    strcpy(r->where, peer->config.address);
    CW_ASSERT(cw_address_split(peer->config.address, r->host, r->port));
    peer->resolving = true;
    if (look_up(r, AI_NUMERICHOST) == 0) /* asks nobody */
        resolved(&r->work);
    else
        cwb_work_begin(bridge->resolver_helpers, &r->work);
}

/* ---- time ---- */

void cwb_peer_look(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    peer->look_until_ns = bridge->loop.now_ns + CWB_LOOK_NS;
    bridge->tick_now = true;
}

static bool is_wanted(const struct cwb_bridge *bridge, const struct cwb_peer *peer) {
    return peer->waiting || peer->redial || peer->look_until_ns > bridge->loop.now_ns ||
           cwb_links_stand(bridge);
}

/* Who waited for too long is told. Returns when the next one has. */
static int64_t look_at_waiting(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    struct cwb_waiter *waiter;
    int64_t due_ns = INT64_MAX;
    bool late = false;
    LL_FOREACH(peer->waiting, waiter) {
        if (waiter->until_ns <= bridge->loop.now_ns)
            late = true;
        else if (waiter->until_ns < due_ns)
            due_ns = waiter->until_ns;
    }
    if (late) {
        no_link(peer);
        tell(peer, NULL, bridge->loop.now_ns, LATE);
    }
    return due_ns;
}

int64_t cwb_peers_tick(struct cwb_bridge *bridge) {
    struct cwb_peer *peer;
    int64_t due_ns = cwb_peer_table_tick(bridge), table_ns = due_ns;
    if (!bridge->peers_now && bridge->loop.now_ns < bridge->peers_due_ns)
        return due_ns < bridge->peers_due_ns ? due_ns : bridge->peers_due_ns;
    bridge->peers_now = false;
    due_ns = INT64_MAX;
    LL_FOREACH(bridge->peers, peer) {
        int64_t late_ns = peer->waiting ? look_at_waiting(bridge, peer) : INT64_MAX;
        due_ns = late_ns < due_ns ? late_ns : due_ns;
        if (peer->link || peer->gone || !*peer->config.address ||
            !cwb_config_known(&peer->config) || cwb_peer_trying(peer) || !bridge->tls ||
            !is_wanted(bridge, peer))
            continue;
        if (bridge->loop.now_ns >= peer->dial_after_ns)
            dial(bridge, peer);
        else if (peer->dial_after_ns < due_ns)
            due_ns = peer->dial_after_ns;
    }
    bridge->peers_due_ns = due_ns;
    return due_ns < table_ns ? due_ns : table_ns;
}
