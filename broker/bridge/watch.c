/*
 * Watches: what peers want to be told of: when a name that they opened means another array, or
 * none. The loop's thread owns them.
 *
 * A *watched* is one put of one name (the directory's entry number tells puts apart), with a
 * *watcher* for each peer that opened it. A watcher ends when it was told, or with its peer's last
 * link: who has no link has no replicas either. If this process dies the links end with it.
 */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "broker/bridge/parts.h"

#define WATCHES_MAX 65536u /* of one peer */

struct cwb_watched {
    uint64_t entry;
    struct cwb_watcher *watchers;
    UT_hash_handle hh; /* of the bridge, by entry */
    struct cw_name_key key;
};

struct cwb_watcher {
    uint64_t entry;
    struct cwb_watched *watched;
    struct cwb_peer *peer;
    struct cwb_watcher *next, *prev; /* of the watched */
    UT_hash_handle hh;               /* of the peer, by entry; the oldest first */
};

/* With its last watcher the watched goes, too. */
static void end(struct cwb_bridge *bridge, struct cwb_watcher *watcher) {
    struct cwb_watched *watched = watcher->watched;
    HASH_DEL(watcher->peer->watchers, watcher);
    DL_DELETE(watched->watchers, watcher);
    free(watcher);
    if (watched->watchers)
        return;
    HASH_DEL(bridge->watched, watched);
    free(watched);
}

static void tell(struct cwb_bridge *bridge, struct cwb_watcher *watcher) {
    const struct cw_name_key *key = &watcher->watched->key;
    struct cwb_link *link = cwb_peer_link(watcher->peer);
    struct cwb_changed changed = {.instance = cw_client_instance(bridge->client),
                                  .entry = watcher->entry,
                                  .key_bytes = key->length};
    struct iovec parts[] = {{&changed, sizeof changed},
                            {(void *)(uintptr_t)key->text, key->length}};
    if (link)
        cwb_link_say(link, CWB_CHANGED, parts, 2);
    end(bridge, watcher);
}

void cwb_watch_begin(struct cwb_link *link, const struct cw_name_key *key, uint64_t entry) {
    struct cwb_bridge *bridge = link->bridge;
    struct cwb_peer *peer = link->peer;
    struct cwb_watcher *watcher;
    struct cwb_watched *watched;
    HASH_FIND(hh, peer->watchers, &entry, sizeof entry, watcher);
    if (watcher)
        return;
    if (HASH_COUNT(peer->watchers) >= WATCHES_MAX)
        tell(bridge, peer->watchers); /* as if it had changed: it is fetched again */
    HASH_FIND(hh, bridge->watched, &entry, sizeof entry, watched);
    if (!watched) {
        watched = malloc(sizeof *watched);
        CW_ASSERT(watched);
        watched->entry = entry;
        watched->watchers = NULL;
        watched->key.length = key->length;
        memcpy(watched->key.text, key->text, key->length);
        HASH_ADD(hh, bridge->watched, entry, sizeof entry, watched);
    }
    watcher = malloc(sizeof *watcher);
    CW_ASSERT(watcher);
    watcher->entry = entry;
    watcher->watched = watched;
    watcher->peer = peer;
    HASH_ADD(hh, peer->watchers, entry, sizeof entry, watcher);
    DL_APPEND(watched->watchers, watcher);
    cwb_jobs_watch(bridge);
}

void cwb_watch_changes(struct cwb_bridge *bridge) {
    struct cwb_watched *watched, *next;
    struct cw_found found;
    HASH_ITER(hh, bridge->watched, watched, next) {
        if (cw_name_key_find(bridge->client, &watched->key, &found) == 0 &&
            found.entry.id == watched->entry)
            continue;
        struct cwb_watcher *watcher, *following;
        DL_FOREACH_SAFE(watched->watchers, watcher, following) {
            tell(bridge, watcher);
        }
    }
}

void cwb_watch_end(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    while (peer->watchers)
        end(bridge, peer->watchers);
}
