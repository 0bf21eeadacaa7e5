/*
 * Siblings: replicas of one remote array at several places of this node, in host memory and on
 * GPUs. Each is a replica with a key of its own (cw_remote_place()); a process asks for the place
 * where it wants the array.
 *
 * Its bytes come over the network once, wherever they are wanted: what is HELD at one place is
 * copied from there, by the mover where a GPU is an end of it; what is coming to one place is
 * waited for. If that fails, one of those who waited fetches it. Where a GPU is full, siblings on
 * GPUs that nobody uses are let go.
 */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "broker/bridge/replica.h"

void cwb_replica_wake(struct cwb_replica *replica) {
    struct cwb_replica *follower;
    while ((follower = replica->followers)) {
        replica->followers = follower->follow_next;
        follower->followed = NULL;
        cwb_replica_begin(follower);
    }
}

/* Lets go of what nobody uses on GPUs. Was there any? */
static bool make_room(void *owner) {
    struct cwb_bridge *bridge = ((struct cwb_replica *)owner)->bridge;
    struct cwb_replica *replica, *next;
    bool any = false;
    HASH_ITER(hh, bridge->replicas, replica, next) {
        uint32_t holders = 2, ours = replica->array ? 1 : 0;
        if (replica->held && replica->on_gpu &&
            cw_name_key_holders(bridge->client, &replica->key, &holders) == 0 && holders <= ours) {
            cwb_replica_let_go(replica);
            any = true;
        }
    }
    return any;
}

static void on_landed(void *owner, int code, cw_array *array) {
    struct cwb_replica *replica = owner;
    replica->landing = NULL;
    replica->array = array;
    if (code == 0) {
        cwb_replica_put(replica);
        return;
    }
    if (code == -ESTALE || code == -EAGAIN)
        cwb_replica_again(replica);
    else
        cwb_replica_fail(replica, code);
}

void cwb_replica_land(struct cwb_replica *replica, const struct cwb_landing_wish *what) {
    struct cwb_landing_wish wish = *what;
    wish.size_bytes = replica->opened.size_bytes;
    wish.to_host = !replica->on_gpu;
    wish.make_room = replica->on_gpu ? make_room : NULL;
    memcpy(wish.gpu.device_uuid, replica->gpu, sizeof replica->gpu);
    replica->landing = cwb_landing_begin(replica->bridge, &wish, on_landed, replica);
}

/* Another place of the same array at this node: one that is there, else one that is coming. */
static struct cwb_replica *sibling(const struct cwb_replica *replica) {
    struct cwb_replica *other, *next, *coming = NULL;
    if (!replica->bridge->replicas_on_gpus)
        return NULL;
    HASH_ITER(hh, replica->bridge->replicas, other, next) {
        if (other == replica || other->peer != replica->peer || other->followed ||
            other->there.length != replica->there.length ||
            memcmp(other->there.text, replica->there.text, replica->there.length) != 0)
            continue;
        if (other->held && !other->doubtful)
            return other;
        if (!other->held)
            coming = other;
    }
    return coming;
}

bool cwb_replica_follow(struct cwb_replica *replica) {
    struct cwb_replica *other = sibling(replica);
    struct cw_found found;
    cw_array *array;
    bool on_gpu;
    if (!other)
        return false;
    if (!other->held) {
        replica->followed = other;
        LL_PREPEND2(other->followers, replica, follow_next);
        return true;
    }
    if (cwb_local_open(replica->bridge, &other->key, &found, &array, &on_gpu) != 0)
        return false;
    replica->doubtful = replica->written = false;
    replica->opened = other->opened;
    replica->opened.inside = 0;
    replica->opened.meta_bytes = found.entry.meta_bytes;
    replica->came = malloc(found.entry.meta_bytes + 1);
    CW_ASSERT(replica->came);
    memcpy(replica->came, found.meta, found.entry.meta_bytes);
    cwb_replica_land(replica, &(struct cwb_landing_wish){.local = array});
    return true;
}
