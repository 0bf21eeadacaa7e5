/*
 * Peer table: see peer_table.h. Reading the file of peers again when it changed, and the node's key
 * with it.
 */
#include "broker/bridge/link/peer_table.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/tls/folder.h"

#define FILE_LOOK_NS                                                                               \
    1000000000 /* files are looked at so often, when the broker asks whether we live */
#define FILE_LATE_NS  1250000000 /* or by ourselves, if it does not */
#define DATES_TELL_NS (24ll * 3600 * 1000000000)

static struct cwb_peer *find_ever(struct cwb_bridge *bridge, const char *name, size_t length) {
    struct cwb_peer *peer;
    HASH_FIND(hh, bridge->peers_by_name, name, length, peer);
    return peer;
}

struct cwb_peer *cwb_peer_find(struct cwb_bridge *bridge, const char *name, size_t length) {
    struct cwb_peer *peer = find_ever(bridge, name, length);
    return peer && !peer->gone ? peer : NULL;
}

struct cwb_peer *cwb_peer_find_key(struct cwb_bridge *bridge,
                                   const uint8_t print[CWB_PRINT_BYTES]) {
    struct cwb_peer *peer;
    HASH_FIND(hh_key, bridge->peers_by_key, print, CWB_PRINT_BYTES, peer);
    return peer;
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

static struct cwb_peer *peer_new(struct cwb_bridge *bridge, const char *name) {
    struct cwb_peer *peer = calloc(1, sizeof *peer);
    if (peer) {
        strcpy(peer->config.name, name);
        HASH_ADD(hh, bridge->peers_by_name, config.name, strlen(name), peer);
    }
    if (!peer || !CWD_ADDED(peer)) {
        free(peer);
        cwb_no_memory("a peer");
        return NULL;
    }
    peer->number = bridge->peer_count++;
    if (bridge->peers_last)
        bridge->peers_last->next = peer;
    else
        bridge->peers = peer;
    bridge->peers_last = peer;
    return peer;
}

static void forget_key(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    if (peer->hh_key.tbl)
        HASH_DELETE(hh_key, bridge->peers_by_key, peer);
    peer->hh_key.tbl = NULL;
}

/* 0 or -EDQUOT: then it cannot come in until the file is read again. */
static int note_key(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    if (!peer->config.pinned)
        return 0;
    HASH_ADD(hh_key, bridge->peers_by_key, config.print, CWB_PRINT_BYTES, peer);
    return peer->hh_key.tbl ? 0 : cwb_no_memory("a peer");
}

/* spread_ns: where all are dialed at once, so long that takes. */
static int adopt(struct cwb_bridge *bridge, struct cwb_peer_config *config, int64_t spread_ns) {
    struct cwb_peer *peer = find_ever(bridge, config->name, strlen(config->name));
    if (!peer)
        peer = peer_new(bridge, config->name);
    if (!peer)
        return -EDQUOT;
    bool same = cwb_config_same_identity(&peer->config, config);
    struct cwb_peer_config old = peer->config;
    forget_key(bridge, peer);
    peer->config = *config;
    *config = old; /* freed with the list */
    peer->gone = false;
    peer->dial_after_ns = bridge->loop.now_ns + cwb_jitter(bridge, spread_ns);
    if (!same)
        cwb_peer_cut(bridge, peer, "what the peer is known by was changed");
    return note_key(bridge, peer);
}

static void remove_missing(struct cwb_bridge *bridge, const struct cwb_peer_config *configs,
                           uint32_t count) {
    struct cwb_peer *peer;
    bridge->peers_read++;
    for (uint32_t i = 0; i < count; i++) {
        peer = find_ever(bridge, configs[i].name, strlen(configs[i].name));
        if (peer)
            peer->seen_in = bridge->peers_read;
    }
    LL_FOREACH(bridge->peers, peer) {
        if (peer->seen_in == bridge->peers_read || peer->gone)
            continue;
        peer->gone = true;
        forget_key(bridge, peer);
        cwb_peer_leave(bridge, peer);
    }
}

static int read_file(struct cwb_bridge *bridge) {
    struct cwb_peer_config *configs;
    uint32_t count;
    bridge->peers_stamp = cwb_folder_stamp(bridge->options.folder, "peers");
    int code = cwb_peers_read(bridge->options.folder, &configs, &count);
    for (uint32_t i = 0; code == 0 && i < count; i++)
        code = apply_options(bridge, &configs[i]);
    int64_t spread_ns = (count - (count > 0)) * (int64_t)CWB_DIAL_SPREAD_NS;
    if (code == 0)
        remove_missing(bridge, configs, count);
    for (uint32_t i = 0; code == 0 && i < count; i++)
        code = adopt(bridge, &configs[i],
                     spread_ns < CWB_DIAL_SPREAD_MOST_NS ? spread_ns : CWB_DIAL_SPREAD_MOST_NS);
    cwb_configs_free(configs, count);
    return code;
}

int cwb_peer_table_init(struct cwb_bridge *bridge) {
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

/* Before nobody lets this node in any more: at once, and then once a day. */
static void look_at_dates(struct cwb_bridge *bridge) {
    int64_t now_ns = bridge->loop.now_ns;
    if (!bridge->tls || (bridge->dates_told_ns && now_ns - bridge->dates_told_ns < DATES_TELL_NS))
        return;
    bridge->dates_told_ns = now_ns;
    if (cwb_tls_ends_soon(bridge->tls, (int64_t)time(NULL)))
        cwb_log("%s; from then on it opens no connection: give the node a new certificate "
                "(`cableway keygen`, with --sign where a CA signs), which is read at once",
                cw_detail());
}

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
    bridge->dates_told_ns = 0;
    bridge->peers_now = true;
    cwb_print_text(cwb_tls_print(bridge->tls), print);
    cwb_log("loaded again:%s%s%s; the key is %s", what & CWB_NEW_KEY ? " key" : "",
            what & CWB_NEW_CERTIFICATE ? " certificate" : "", what & CWB_NEW_CA ? " CA" : "",
            print);
    LL_FOREACH(bridge->peers, peer) {
        peer->dial_after_ns = 0;
        if ((what & CWB_NEW_CA) && peer->config.by_ca)
            cwb_peer_cut(bridge, peer, "the node's CA was changed");
    }
}

static void look_at_files(struct cwb_bridge *bridge) {
    struct cwb_stamp stamp = cwb_folder_stamp(bridge->options.folder, "peers");
    bridge->peers_looked_ns = bridge->loop.now_ns;
    look_at_key(bridge);
    look_at_dates(bridge);
    if (cwb_stamp_same(&stamp, &bridge->peers_stamp))
        return;
    int code = read_file(bridge);
    bridge->peers_now = true;
    if (code == -EDQUOT) /* the next look may find memory */
        bridge->peers_stamp = (struct cwb_stamp){.inode = 0};
    if (code)
        cwb_log("the peers stay as they are: %s", cw_detail());
    else
        cwb_log("the file of peers was read again");
}

int64_t cwb_peer_table_tick(struct cwb_bridge *bridge) {
    int64_t passed_ns = bridge->loop.now_ns - bridge->peers_looked_ns;
    if (passed_ns >= FILE_LOOK_NS || (bridge->files_now && passed_ns >= FILE_LOOK_NS / 2))
        look_at_files(bridge);
    bridge->files_now = false;
    return bridge->peers_looked_ns + FILE_LATE_NS;
}
