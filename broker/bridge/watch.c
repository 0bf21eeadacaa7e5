/*
 * Watches: what peers want to be told of: when a name that they opened means another array, or
 * none. The loop's thread owns them.
 *
 * A *watched* is one put of one name (the directory's entry number tells puts apart), with a bit
 * for each peer that opened it, by the peer's number: many peers hold the same few names, and to
 * look whether one is known already must cost less than to answer it. A bit goes when its peer was
 * told, or with the peer's last link: who has no link has no replicas either. If this process dies
 * the links end with it.
 */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "broker/bridge/parts.h"

#define WATCHES_MAX 65536u /* of one peer */

struct cwb_watched {
    uint64_t entry;
    uint32_t peers, words; /* how many bits are set, and where they are */
    uint64_t *bits;
    UT_hash_handle hh; /* of the bridge, by entry; the oldest first */
    struct cw_name_key key;
};

static bool watches(const struct cwb_watched *watched, const struct cwb_peer *peer) {
    uint32_t word = peer->number / 64;
    return word < watched->words && watched->bits[word] >> peer->number % 64 & 1;
}

static void set(struct cwb_watched *watched, struct cwb_peer *peer) {
    uint32_t words = peer->number / 64 + 1;
    if (words > watched->words) {
        watched->bits = realloc(watched->bits, words * sizeof *watched->bits);
        CW_ASSERT(watched->bits);
        memset(watched->bits + watched->words, 0, (words - watched->words) * sizeof *watched->bits);
        watched->words = words;
    }
    watched->bits[peer->number / 64] |= 1ull << peer->number % 64;
    watched->peers++;
    peer->watches++;
}

/* With its last peer the watched goes, too. */
static void unset(struct cwb_bridge *bridge, struct cwb_watched *watched, struct cwb_peer *peer) {
    watched->bits[peer->number / 64] &= ~(1ull << peer->number % 64);
    peer->watches--;
    if (--watched->peers)
        return;
    HASH_DEL(bridge->watched, watched);
    free(watched->bits);
    free(watched);
}

static void tell(struct cwb_bridge *bridge, struct cwb_watched *watched, struct cwb_peer *peer) {
    const struct cw_name_key *key = &watched->key;
    struct cwb_link *link = cwb_peer_link(peer);
    struct cwb_changed changed = {.instance = cw_client_instance(bridge->client),
                                  .entry = watched->entry,
                                  .key_bytes = key->length};
    struct iovec parts[] = {{&changed, sizeof changed},
                            {(void *)(uintptr_t)key->text, key->length}};
    if (link)
        cwb_link_say(link, CWB_CHANGED, parts, 2);
    unset(bridge, watched, peer);
}

static void tell_oldest(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    struct cwb_watched *watched, *next;
    HASH_ITER(hh, bridge->watched, watched, next) {
        if (watches(watched, peer)) {
            tell(bridge, watched, peer);
            return;
        }
    }
}

void cwb_watch_begin(struct cwb_link *link, const struct cw_name_key *key, uint64_t entry) {
    struct cwb_bridge *bridge = link->bridge;
    struct cwb_peer *peer = link->peer;
    struct cwb_watched *watched;
    HASH_FIND(hh, bridge->watched, &entry, sizeof entry, watched);
    if (watched && watches(watched, peer))
        return;
    if (!watched) {
        watched = calloc(1, sizeof *watched);
        CW_ASSERT(watched);
        watched->entry = entry;
        watched->key = *key;
        HASH_ADD(hh, bridge->watched, entry, sizeof entry, watched);
    }
    set(watched, peer);
    if (peer->watches > WATCHES_MAX)
        tell_oldest(bridge, peer); /* as if it had changed: it is fetched again */
    cwb_jobs_watch(bridge);
}

/* It is over: all its peers are told. */
static void tell_all(struct cwb_bridge *bridge, struct cwb_watched *watched) {
    uint32_t left = watched->peers;
    for (struct cwb_peer *peer = bridge->peers; peer && left; peer = peer->next) {
        if (!watches(watched, peer))
            continue;
        left--; /* after the last one the watched is gone */
        tell(bridge, watched, peer);
    }
}

void cwb_watch_changes(struct cwb_bridge *bridge, const struct cw_changed *changed) {
    struct cwb_watched *watched, *next;
    struct cw_found found;
    for (uint32_t i = 0; i < changed->count; i++) {
        HASH_FIND(hh, bridge->watched, &changed->ended[i], sizeof changed->ended[i], watched);
        if (watched)
            tell_all(bridge, watched);
    }
    if (!changed->all)
        return;
    HASH_ITER(hh, bridge->watched, watched, next) {
        if (cw_name_key_find(bridge->client, &watched->key, &found) != 0 ||
            found.entry.id != watched->entry)
            tell_all(bridge, watched);
    }
}

void cwb_watch_end(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    struct cwb_watched *watched, *next;
    HASH_ITER(hh, bridge->watched, watched, next) {
        if (peer->watches == 0)
            return;
        if (watches(watched, peer))
            unset(bridge, watched, peer);
    }
}
