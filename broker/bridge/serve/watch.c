/*
 * Watches: what peers want to be told of: when a name that they opened means another array, or
 * none. The loop's thread owns them.
 *
 * A *watched* is one put of one name (the directory's entry number tells puts apart), with a bit
 * for each peer that opened it, by the peer's number: many peers hold the same few names, and to
 * look whether one is known already must cost less than to answer it. A bit goes when its peer was
 * told, or with the peer's link: who has no link has no replicas either. If this process dies
 * the links end with it.
 *
 * Each peer has the order in which it began to watch, for who watches CWB_WATCHES_MAX names and one
 * more is told of its oldest. What its requests cost depends on its own watches alone, and not on
 * how many others have. Where more ended than the broker names, all watches are looked at, in
 * slices of SLICE_NS a turn.
 */
#include "broker/bridge/serve/watch.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/local/job.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/relay/fan_out.h"
#include "broker/bridge/wire/frame.h"
#include "ipc/request/socket.h"
#include "shm/base/wait.h"

#define ORDER_LEAST 64u
#define SLICE_NS    200000
#define SLICE_ONE   16u /* between two looks at the clock */

struct cwb_watched {
    uint64_t entry;
    uint32_t peers, words; /* how many bits are set, and where they are */
    uint64_t *bits;
    UT_hash_handle hh; /* of the bridge, by entry; the oldest first */
    uint32_t key_bytes;
    char key[];
};

static struct cwb_watched *find(struct cwb_bridge *bridge, uint64_t entry) {
    struct cwb_watched *watched;
    HASH_FIND(hh, bridge->watched, &entry, sizeof entry, watched);
    return watched;
}

static bool watches(const struct cwb_watched *watched, const struct cwb_peer *peer) {
    uint32_t word = peer->number / 64;
    return word < watched->words && watched->bits[word] >> peer->number % 64 & 1;
}

static int set(struct cwb_watched *watched, struct cwb_peer *peer) {
    uint32_t words = peer->number / 64 + 1;
    if (words > watched->words) {
        uint64_t *bits = realloc(watched->bits, words * sizeof *bits);
        if (!bits)
            return cwb_no_memory("what a peer is to be told of");
        watched->bits = bits;
        memset(watched->bits + watched->words, 0, (words - watched->words) * sizeof *watched->bits);
        watched->words = words;
    }
    watched->bits[peer->number / 64] |= 1ull << peer->number % 64;
    watched->peers++;
    peer->watches++;
    return 0;
}

static void drop_unwatched(struct cwb_bridge *bridge, struct cwb_watched *watched) {
    if (watched->peers)
        return;
    if (bridge->watch_at == watched)
        bridge->watch_at = watched->hh.next;
    HASH_DEL(bridge->watched, watched);
    free(watched->bits);
    free(watched);
}

/* With its last peer the watched goes, too. */
static void unset(struct cwb_bridge *bridge, struct cwb_watched *watched, struct cwb_peer *peer) {
    watched->bits[peer->number / 64] &= ~(1ull << peer->number % 64);
    peer->watches--;
    watched->peers--;
    cwb_fan_out_leave(bridge, watched->entry, peer);
    drop_unwatched(bridge, watched);
}

static void tell(struct cwb_bridge *bridge, struct cwb_watched *watched, struct cwb_peer *peer) {
    struct cwb_link *link = cwb_peer_link(peer);
    struct cwb_changed changed = {.instance = cw_client_instance(bridge->client),
                                  .entry = watched->entry,
                                  .key_bytes = watched->key_bytes};
    struct iovec parts[] = {{&changed, sizeof changed}, {watched->key, watched->key_bytes}};
    if (link)
        cwb_link_say(link, CWB_CHANGED, parts, 2);
    unset(bridge, watched, peer);
}

/* ---- a peer's order: a ring, whose room is a power of two ---- */

static uint64_t *order_at(const struct cwb_peer *peer, uint32_t i) {
    return &peer->watch_order[(peer->order_begin + i) & (peer->order_room - 1)];
}

/* What is over goes; where that is less than half of it, there is twice the room. */
static int make_room(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    uint32_t kept = 0, room = peer->order_room ? peer->order_room : ORDER_LEAST / 2;
    uint64_t *order = calloc(2ull * room, sizeof *order);
    if (!order)
        return cwb_no_memory("what a peer is to be told of");
    for (uint32_t i = 0; i < peer->order_count; i++) {
        uint64_t entry = *order_at(peer, i);
        const struct cwb_watched *watched = find(bridge, entry);
        if (watched && watches(watched, peer))
            order[kept++] = entry;
    }
    free(peer->watch_order);
    peer->watch_order = order;
    peer->order_begin = 0;
    peer->order_count = kept;
    peer->order_room = kept > room / 2 || !peer->order_room ? 2 * room : room;
    return 0;
}

/* 0 or -EDQUOT. One that is not watched after all is over. */
static int put_in_order(struct cwb_bridge *bridge, struct cwb_peer *peer, uint64_t entry) {
    int code = peer->order_count == peer->order_room ? make_room(bridge, peer) : 0;
    if (code == 0)
        *order_at(peer, peer->order_count++) = entry;
    return code;
}

/* The oldest, taken off; NULL: it is over. */
static struct cwb_watched *take_oldest(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    struct cwb_watched *watched = find(bridge, *order_at(peer, 0));
    peer->order_begin++;
    peer->order_count--;
    return watched && watches(watched, peer) ? watched : NULL;
}

static void tell_oldest(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    struct cwb_watched *watched = NULL;
    while (!watched)
        watched = take_oldest(bridge, peer);
    tell(bridge, watched, peer);
}

/* Of this put, made if there is none. NULL: there is no memory. */
static struct cwb_watched *watched_of(struct cwb_bridge *bridge, const struct cw_name_key *key,
                                      uint64_t entry) {
    struct cwb_watched *watched = find(bridge, entry);
    if (watched)
        return watched;
    watched = calloc(1, sizeof *watched + key->length);
    if (watched) {
        watched->entry = entry;
        watched->key_bytes = key->length;
        memcpy(watched->key, key->text, key->length);
        HASH_ADD(hh, bridge->watched, entry, sizeof entry, watched);
    }
    if (watched && CWD_ADDED(watched))
        return watched;
    free(watched);
    cwb_no_memory("what a peer is to be told of");
    return NULL;
}

int cwb_watch_begin(struct cwb_link *link, const struct cw_name_key *key, uint64_t entry) {
    struct cwb_bridge *bridge = link->bridge;
    struct cwb_peer *peer = link->peer;
    struct cwb_watched *watched = watched_of(bridge, key, entry);
    if (!watched)
        return -EDQUOT;
    if (watches(watched, peer))
        return 0;
    int code = put_in_order(bridge, peer, entry);
    if (code == 0)
        code = set(watched, peer);
    if (code) {
        drop_unwatched(bridge, watched);
        return code;
    }
    if (peer->watches > CWB_WATCHES_MAX)
        tell_oldest(bridge, peer); /* as if it had changed: it is fetched again */
    cwb_jobs_watch(bridge);
    return 0;
}

/* It is over: all its peers are told. */
static void tell_all(struct cwb_bridge *bridge, struct cwb_watched *watched) {
    uint32_t left = watched->peers;
    for (struct cwb_peer *peer = bridge->met; peer && left; peer = peer->met_next) {
        if (!watches(watched, peer))
            continue;
        left--; /* after the last one the watched is gone */
        tell(bridge, watched, peer);
    }
}

void cwb_watch_changes(struct cwb_bridge *bridge, const struct cw_changed *changed) {
    for (uint32_t i = 0; i < changed->count; i++) {
        struct cwb_watched *watched = find(bridge, changed->ended[i]);
        if (watched)
            tell_all(bridge, watched);
    }
    if (!changed->all)
        return;
    bridge->watch_again = bridge->watch_at != NULL;
    if (!bridge->watch_at)
        bridge->watch_at = bridge->watched;
}

/* What its name means now; CW_WOULD_WAIT: that must be mapped first. */
static int look(struct cwb_bridge *bridge, const struct cwb_watched *watched, uint64_t *entry) {
    struct cw_name_key key = {.length = watched->key_bytes};
    struct cw_found found;
    memcpy(key.text, watched->key, watched->key_bytes);
    int code = cwb_local_find(bridge, &key, &found);
    *entry = code == 0 ? found.entry.id : 0;
    return code;
}

void cwb_watches_turn(struct cwb_bridge *bridge) {
    int64_t until_ns = bridge->watch_at ? cw_now_ns() + SLICE_NS : 0;
    for (uint32_t i = 1; bridge->watch_at; i++) {
        struct cwb_watched *watched = bridge->watch_at;
        uint64_t entry;
        if (look(bridge, watched, &entry) == CW_WOULD_WAIT)
            return;
        bridge->watch_at = watched->hh.next;
        if (entry != watched->entry)
            tell_all(bridge, watched);
        if (!bridge->watch_at && bridge->watch_again) {
            bridge->watch_again = false;
            bridge->watch_at = bridge->watched;
        }
        if (i % SLICE_ONE == 0 && cw_now_ns() >= until_ns)
            return;
    }
}

void cwb_watch_end(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    while (peer->order_count) {
        struct cwb_watched *watched = take_oldest(bridge, peer);
        if (watched)
            unset(bridge, watched, peer);
    }
    free(peer->watch_order);
    peer->watch_order = NULL;
    peer->order_begin = peer->order_room = 0;
}
