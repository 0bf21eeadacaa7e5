/*
 * Peers as they are now: dialing those with an address, telling who waits for a link, and reading
 * the file again when it changed. See peers.h for the file, parts.h for what others call.
 *
 * A peer with an address is dialed at the start and whenever it has no link, with growing pauses;
 * one without must come to us. Both sides may dial at once: either link serves both ways, and both
 * stay. Who waits (a job, a transfer that was cut) is told of the first link that opens, or of the
 * reason why there is none when its patience is over.
 */
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "broker/bridge/parts.h"

#define FILE_LOOK_NS 1000000000

struct cwb_peer *cwb_peer_find(struct cwb_bridge *bridge, const char *name, size_t length) {
    struct cwb_peer *peer;
    LL_FOREACH(bridge->peers, peer) {
        if (!peer->gone && strlen(peer->config.name) == length &&
            memcmp(peer->config.name, name, length) == 0)
            return peer;
    }
    return NULL;
}

/* ---- who shows a certificate ---- */

static struct cwb_peer *by_print(struct cwb_bridge *bridge, const uint8_t *print) {
    struct cwb_peer *peer;
    LL_FOREACH(bridge->peers, peer) {
        if (!peer->gone && peer->config.pinned &&
            memcmp(peer->config.print, print, CWB_PRINT_BYTES) == 0)
            return peer;
    }
    return NULL;
}

/* Nobody, or another than who was dialed: why? */
static enum cwb_known stranger(struct cwb_bridge *bridge, const struct cwb_peer *dialed,
                               const struct cwb_peer *found, const uint8_t *print,
                               const char *node) {
    char text[CWB_PRINT_TEXT];
    const struct cwb_peer *named = cwb_peer_find(bridge, node, strlen(node));
    cwb_print_text(print, text);
    if (found)
        cw_fail(-EPERM, "it is the peer %s's, and this is to be %s", found->config.name,
                dialed->config.name);
    else if (dialed ? dialed->config.pinned : named && named->config.pinned)
        cw_fail(-EPERM, "its key, %s, is not the one that is pinned for the peer %s", text,
                (dialed ? dialed : named)->config.name);
    else if (dialed)
        cw_fail(-EPERM, "it is for %s%s, and this is to be cableway://%s, known by the CA",
                *node ? "cableway://" : "no node", node, dialed->config.name);
    else
        cw_fail(-EPERM,
                "its key, %s, is pinned for no peer, and it is for %s%s, whom the CA lets in%s "
                "(`cableway peers add` makes a peer known)",
                text, *node ? "cableway://" : "no node", node, *node ? " as no peer" : "");
    return CWB_STRANGER;
}

enum cwb_known cwb_peer_known(struct cwb_bridge *bridge, struct cwb_peer **peer,
                              const uint8_t print[CWB_PRINT_BYTES], const char *node) {
    struct cwb_peer *found = by_print(bridge, print);
    enum cwb_known known = CWB_BY_KEY;
    if (!found && *node) {
        found = cwb_peer_find(bridge, node, strlen(node));
        if (found && !found->config.by_ca)
            found = NULL;
        known = CWB_BY_CA;
    }
    if (!found || (*peer && *peer != found))
        return stranger(bridge, *peer, found, print, node);
    if (known == CWB_BY_CA && !cwb_tls_has_ca(bridge->tls)) {
        cw_fail(-EPERM, "the peer %s is known by a CA, and this node has none (%.300s/ca.crt)",
                found->config.name, bridge->options.folder);
        return CWB_STRANGER;
    }
    *peer = found;
    return known;
}

struct cwb_link *cwb_peer_link(struct cwb_peer *peer) {
    return peer->links;
}

/* ---- who waits ---- */

/* One at a time is taken off the list: what it does may end others. */
static void tell(struct cwb_peer *peer, struct cwb_link *link, int64_t now_ns, bool all) {
    struct cwb_waiter *waiter;
    char reason[CW_DETAIL_MAX];
    strcpy(reason, cw_detail());
    for (;;) {
        LL_FOREACH(peer->waiting, waiter) {
            if (link || all || waiter->until_ns <= now_ns)
                break;
        }
        if (!waiter)
            return;
        LL_DELETE(peer->waiting, waiter);
        if (!link)
            cw_fail(-EREMOTEIO, "%s", reason);
        waiter->on_link(waiter, link ? peer->links : NULL);
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
                   peer->config.address, *peer->error ? peer->error : "it was not tried yet");
}

void cwb_peer_await(struct cwb_bridge *bridge, struct cwb_peer *peer, struct cwb_waiter *waiter,
                    int64_t patience_ns) {
    if (peer->links) {
        waiter->on_link(waiter, peer->links);
        return;
    }
    bool known = !peer->gone && cwb_config_known(&peer->config);
    if (!known || (patience_ns == 0 && !*peer->config.address)) {
        no_link(peer);
        waiter->on_link(waiter, NULL);
        return;
    }
    bridge->hurry = true;
    waiter->until_ns = patience_ns ? bridge->loop.now_ns + patience_ns : 0;
    LL_APPEND(peer->waiting, waiter);
    if (patience_ns == 0)
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

void cwb_peer_opened(struct cwb_link *link) {
    struct cwb_peer *peer = link->peer;
    if (peer->dialing == link)
        peer->dialing = NULL;
    cwb_log("peer %s is connected (%s %s, by %s)", peer->config.name,
            link->dialed ? "dialed" : "from", link->where, cwb_io_kind(link->bridge->loop.io));
    DL_APPEND2(peer->links, link, peer_prev, peer_next);
    peer->fails = 0;
    peer->unlinked_ns = 0;
    peer->error[0] = 0;
    tell(peer, link, link->bridge->loop.now_ns, true);
}

static void try_failed(struct cwb_bridge *bridge, struct cwb_peer *peer, const char *reason) {
    int64_t pause_ns = CWB_REDIAL_FIRST_NS << (peer->fails < 10 ? peer->fails : 10);
    if (strcmp(peer->error, reason) != 0)
        cwb_log("peer %s at %s cannot be reached: %s", peer->config.name, peer->config.address,
                reason);
    snprintf(peer->error, sizeof peer->error, "%s", reason);
    peer->fails++;
    bridge->hurry = true;
    peer->dial_after_ns =
        bridge->loop.now_ns + (pause_ns < CWB_REDIAL_MOST_NS ? pause_ns : CWB_REDIAL_MOST_NS);
    no_link(peer);
    tell(peer, NULL, bridge->loop.now_ns, false);
}

void cwb_peer_ended(struct cwb_link *link, bool was_open, const char *reason) {
    struct cwb_peer *peer = link->peer;
    struct cwb_bridge *bridge = link->bridge;
    bridge->hurry = true;
    cwb_wire_counts(&link->wire, &peer->bytes_in, &peer->bytes_out);
    if (was_open) {
        DL_DELETE2(peer->links, link, peer_prev, peer_next);
        snprintf(peer->error, sizeof peer->error, "%s", reason);
        if (!peer->links) {
            peer->unlinked_ns = bridge->loop.now_ns;
            peer->dial_after_ns = bridge->loop.now_ns;
            cwb_watch_end(bridge, peer);
            cwb_streams_end(peer);
        }
        cwb_replicas_unlink(bridge, peer); /* a CHANGED may have been on its way over this one */
    } else if (peer->dialing == link) {
        peer->dialing = NULL;
        try_failed(bridge, peer, reason);
    }
}

/* ---- dialing: the resolver may block, so a helper asks it ---- */

struct resolving {
    struct cwb_work work;
    struct cwb_bridge *bridge;
    struct cwb_peer *peer;
    char host[CWB_ADDRESS_MAX + 1], port[8], where[CWB_ADDRESS_MAX + 1];
    struct addrinfo *found;
};

static void resolve(struct cwb_work *work) {
    struct resolving *r = (struct resolving *)work;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    int error = getaddrinfo(r->host, r->port, &hints, &r->found);
    cwb_work_set(work, error ? cw_fail(-EREMOTEIO, "%s: %s", r->host, gai_strerror(error)) : 0);
}

static void resolved(struct cwb_work *work) {
    struct resolving *r = (struct resolving *)work;
    struct cwb_peer *peer = r->peer;
    peer->dialing = NULL;
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
    if (r->found)
        freeaddrinfo(r->found);
    free(r);
}

static struct cwb_link being_resolved; /* what peer->dialing is until there is a link */

static void dial(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    struct resolving *r = calloc(1, sizeof *r);
    CW_ASSERT(r);
    r->work = (struct cwb_work){.run = resolve, .done = resolved};
    r->bridge = bridge;
    r->peer = peer;
    strcpy(r->where, peer->config.address);
    CW_ASSERT(cwb_address_split(peer->config.address, r->host, r->port));
    peer->dialing = &being_resolved;
    cwb_work_begin(bridge->works, &r->work);
}

/* ---- the file ---- */

/* An address on the command line stands over the file's. */
static int apply_options(struct cwb_bridge *bridge, struct cwb_peer_config *config) {
    size_t length = strlen(config->name);
    for (uint32_t i = 0; i < bridge->options.peer_count; i++) {
        const char *text = bridge->options.peers[i];
        if (strncmp(text, config->name, length) == 0 && text[length] == '=')
            return cwb_config_set(config, "address", text + length + 1, "--peer");
    }
    return 0;
}

static void end_links(struct cwb_bridge *bridge, const struct cwb_peer *peer, const char *why) {
    struct cwb_link *link, *next;
    DL_FOREACH_SAFE(bridge->links, link, next) {
        if (link->peer == peer) {
            cw_fail(-EREMOTEIO, "%s", why);
            cwb_link_end(link);
        }
    }
}

static void adopt(struct cwb_bridge *bridge, struct cwb_peer_config *config) {
    struct cwb_peer *peer, *found = NULL;
    LL_FOREACH(bridge->peers, peer) {
        if (strcmp(peer->config.name, config->name) == 0)
            found = peer;
    }
    if (!found) {
        found = calloc(1, sizeof *found);
        CW_ASSERT(found);
        LL_APPEND(bridge->peers, found);
        found->number = bridge->peer_count++;
    }
    bool same = cwb_config_same_identity(&found->config, config);
    struct cwb_peer_config old = found->config;
    found->config = *config;
    *config = old; /* freed with the list */
    found->gone = false;
    found->dial_after_ns = 0;
    if (!same)
        end_links(bridge, found, "what the peer is known by was changed");
}

static void remove_missing(struct cwb_bridge *bridge, const bool *seen) {
    struct cwb_peer *peer;
    uint32_t i = 0;
    LL_FOREACH(bridge->peers, peer) {
        if (seen[i++] || peer->gone)
            continue;
        peer->gone = true;
        end_links(bridge, peer, "the peer was removed");
        no_link(peer);
        tell(peer, NULL, bridge->loop.now_ns, true);
    }
}

static int read_file(struct cwb_bridge *bridge) {
    struct cwb_peer_config *configs;
    struct cwb_peer *peer;
    uint32_t count;
    bridge->peers_stamp = cwb_folder_stamp(bridge->options.folder, "peers");
    int code = cwb_peers_read(bridge->options.folder, &configs, &count);
    for (uint32_t i = 0; code == 0 && i < count; i++)
        code = apply_options(bridge, &configs[i]);
    if (code) {
        cwb_configs_free(configs, count);
        return code;
    }
    bool *seen = calloc(bridge->peer_count + count + 1, sizeof *seen);
    CW_ASSERT(seen);
    uint32_t at = 0;
    LL_FOREACH(bridge->peers, peer) {
        for (uint32_t i = 0; i < count; i++)
            seen[at] = seen[at] || strcmp(peer->config.name, configs[i].name) == 0;
        at++;
    }
    remove_missing(bridge, seen);
    free(seen);
    for (uint32_t i = 0; i < count; i++)
        adopt(bridge, &configs[i]);
    cwb_configs_free(configs, count);
    return 0;
}

int cwb_peers_init(struct cwb_bridge *bridge) {
    int code = read_file(bridge);
    for (uint32_t i = 0; code == 0 && i < bridge->options.peer_count; i++) {
        const char *text = bridge->options.peers[i], *equals = strchr(text, '=');
        if (!equals)
            return cw_fail(-EINVAL, "--peer %.300s: it is NAME=HOST:PORT", text);
        if (!cwb_peer_find(bridge, text, (size_t)(equals - text)))
            cwb_log("--peer %s: the file %s/peers has no key for it, so it cannot come in nor be "
                    "reached; `cableway peers add` says it",
                    text, bridge->options.folder);
    }
    return code;
}

/* ---- time ---- */

/* The node's key, certificate and authority: others hold from now on, for new connections. Those of
 * peers that an authority vouched for are made anew. */
static void look_at_key(struct cwb_bridge *bridge) {
    char print[CWB_PRINT_TEXT];
    struct cwb_peer *peer;
    int what = bridge->tls ? cwb_tls_renew(bridge->tls, bridge->options.folder) : 0;
    if (what < 0)
        cwb_log("the node's key, certificate and CA stay as they were: %s", cw_detail());
    if (what <= 0)
        return;
    cwb_print_text(cwb_tls_print(bridge->tls), print);
    cwb_log("loaded again:%s%s%s; the key is %s", what & CWB_NEW_KEY ? " key" : "",
            what & CWB_NEW_CERTIFICATE ? " certificate" : "", what & CWB_NEW_CA ? " CA" : "",
            print);
    LL_FOREACH(bridge->peers, peer) {
        peer->dial_after_ns = 0;
        if ((what & CWB_NEW_CA) && peer->config.by_ca)
            end_links(bridge, peer, "the node's CA was changed");
    }
}

static void look_at_files(struct cwb_bridge *bridge) {
    struct cwb_stamp stamp = cwb_folder_stamp(bridge->options.folder, "peers");
    bridge->peers_looked_ns = bridge->loop.now_ns;
    look_at_key(bridge);
    if (cwb_stamp_same(&stamp, &bridge->peers_stamp))
        return;
    if (read_file(bridge) != 0)
        cwb_log("the peers stay as they are: %s", cw_detail());
    else
        cwb_log("the file of peers was read again");
}

int64_t cwb_peers_tick(struct cwb_bridge *bridge) {
    struct cwb_peer *peer;
    if (bridge->loop.now_ns - bridge->peers_looked_ns >= FILE_LOOK_NS)
        look_at_files(bridge);
    int64_t due_ns = bridge->peers_looked_ns + FILE_LOOK_NS;
    LL_FOREACH(bridge->peers, peer) {
        struct cwb_waiter *waiter;
        bool late = false;
        if (peer->links || peer->gone)
            continue;
        LL_FOREACH(peer->waiting, waiter) {
            late = late || (waiter->until_ns && waiter->until_ns <= bridge->loop.now_ns);
        }
        if (late) {
            no_link(peer);
            tell(peer, NULL, bridge->loop.now_ns, false);
        }
        if (!*peer->config.address || !cwb_config_known(&peer->config) || peer->dialing ||
            !bridge->tls)
            continue;
        if (bridge->loop.now_ns >= peer->dial_after_ns)
            dial(bridge, peer);
        else if (peer->dial_after_ns < due_ns)
            due_ns = peer->dial_after_ns;
    }
    return due_ns;
}
