/*
 * Invalidation: a replica is no longer what its name means, because its owner told us of a change,
 * this node has heard of a later array (floor.h), or the link is gone. A replica that clients can
 * find is closed at once. One that is still being fetched becomes stale and gets no name. The
 * loop's thread owns all.
 */
#include "broker/bridge/fetch/invalidation.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/floor.h"
#include "broker/bridge/fetch/replica.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/local/replica_cache.h"

/* A client that was told where an array lies has this long to open it, whatever happens to the
 * replica (if there is no memory for a note of it, no time at all). If it comes later, the array
 * may be gone, and it asks again. */
#define LINGER_NS 10000000

struct cwb_lingering {
    cw_array *array;
    int64_t until_ns;
    struct cwb_lingering *next;
};

void cwb_replica_release_array(struct cwb_replica *replica) {
    struct cwb_bridge *bridge = replica->bridge;
    struct cwb_lingering *lingering = replica->array && replica->answered_ns &&
                                              bridge->loop.now_ns - replica->answered_ns < LINGER_NS
                                          ? malloc(sizeof *lingering)
                                          : NULL;
    if (lingering) {
        bridge->tick_now = bridge->tick_now || !bridge->lingering;
        *lingering = (struct cwb_lingering){.array = replica->array,
                                            .until_ns = bridge->loop.now_ns + LINGER_NS};
        LL_APPEND(bridge->lingering, lingering);
    } else {
        cwb_local_close(bridge, replica->array);
    }
    replica->array = NULL;
    replica->answered_ns = 0;
}

int64_t cwb_invalidation_tick(struct cwb_bridge *bridge) {
    struct cwb_lingering *first;
    while ((first = bridge->lingering)) {
        if (bridge->loop.now_ns < first->until_ns)
            return first->until_ns;
        LL_DELETE(bridge->lingering, first);
        cwb_local_close(bridge, first->array);
        free(first);
    }
    return INT64_MAX;
}

void cwb_replica_invalidate(struct cwb_replica *replica) {
    if (replica->whole)
        cwb_replica_let_go(replica);
    else
        replica->stale = true;
}

/* May the replica be from before the change that its owner tells of? One that is still coming
 * counts as such. */
static bool concerns(const struct cwb_replica *replica, const struct cwb_changed *changed) {
    const struct cwb_opened *opened = &replica->opened;
    return replica->sent && !replica->stale &&
           (!replica->whole || opened->instance != changed->instance ||
            opened->entry <= changed->entry);
}

void cwb_replica_changed(struct cwb_peer *peer, const struct cwb_frame *frame) {
    struct cwb_floor *floor;
    struct cwb_replica *replica;
    do { /* when a replica goes, its floor may end */
        floor = cwb_floor_find(peer, frame->key, frame->key_bytes);
        replica = floor ? floor->replicas : NULL;
        while (replica && !concerns(replica, &frame->changed))
            replica = replica->floor_next;
        if (replica)
            cwb_replica_invalidate(replica);
    } while (replica);
}

void cwb_replicas_unlink(struct cwb_peer *peer) {
    struct cwb_floor *floor, *next;
    struct cwb_replica *replica;
    HASH_ITER(hh, peer->floors, floor, next) {
        struct cw_name_key there = floor->there;
        do { /* when a replica goes, its floor may end, and with it others of that floor */
            struct cwb_floor *left = cwb_floor_find(peer, there.text, there.length);
            replica = left ? left->replicas : NULL;
            while (replica && (!replica->sent || replica->stale || replica->is_part))
                replica = replica->floor_next;
            if (replica)
                cwb_replica_invalidate(replica);
        } while (replica);
    }
}
