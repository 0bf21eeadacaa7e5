/*
 * Floor: see floor.h. What becomes of a replica that does not stand any more is told in
 * invalidation.c.
 */
#include "broker/bridge/fetch/floor.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/invalidation.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/wire/frame.h"

struct cwb_floor *cwb_floor_find(struct cwb_peer *peer, const char *there, uint32_t length) {
    struct cwb_floor *floor;
    HASH_FIND(hh, peer->floors, there, length, floor);
    return floor;
}

bool cwb_floor_join(struct cwb_replica *replica) {
    struct cwb_floor *floor =
        cwb_floor_find(replica->peer, replica->there.text, replica->there.length);
    if (!floor) {
        floor = calloc(1, sizeof *floor);
        if (floor) {
            floor->there = replica->there;
            HASH_ADD_KEYPTR(hh, replica->peer->floors, floor->there.text, floor->there.length,
                            floor);
        }
        if (!floor || !CWD_ADDED(floor)) {
            free(floor);
            return false;
        }
    }
    replica->floor = floor;
    LL_PREPEND2(floor->replicas, replica, floor_next);
    return true;
}

void cwb_floor_leave(struct cwb_replica *replica) {
    struct cwb_floor *floor = replica->floor;
    LL_DELETE2(floor->replicas, replica, floor_next);
    replica->floor = NULL;
    if (floor->replicas)
        return;
    HASH_DEL(replica->peer->floors, floor);
    free(floor);
}

/* Is it the array of the last fact, or a later one? */
static bool at_least(const struct cwb_replica *replica) {
    const struct cwb_floor *floor = replica->floor;
    return floor->entry && replica->opened.instance == floor->instance &&
           replica->opened.entry >= floor->entry;
}

bool cwb_floor_stands(const struct cwb_replica *replica) {
    return !replica->sent || replica->sent > replica->floor->told || at_least(replica);
}

/* One that can be found, and is not this array. What becomes of one may end others: look anew. */
static struct cwb_replica *another(const struct cwb_floor *floor, uint64_t instance,
                                   uint64_t entry) {
    struct cwb_replica *replica;
    for (replica = floor->replicas; replica; replica = replica->floor_next) {
        if (replica->whole && !replica->stale &&
            (!entry || replica->opened.instance != instance || replica->opened.entry != entry))
            return replica;
    }
    return NULL;
}

void cwb_floor_raise(struct cwb_replica *replica) {
    struct cwb_floor *floor = replica->floor;
    struct cwb_replica *other;
    uint64_t instance = replica->opened.instance, entry = replica->opened.entry;
    if (entry && floor->instance == instance && floor->entry == entry)
        return;
    replica->whole = false; /* it is not meant */
    while ((other = another(floor, instance, entry)))
        cwb_replica_invalidate(other);
    replica->whole = true;
    floor->told = ++replica->bridge->stamp;
    floor->instance = instance;
    floor->entry = entry;
}

void cwb_floor_none(struct cwb_bridge *bridge, struct cwb_peer *peer,
                    const struct cw_name_key *there) {
    struct cwb_floor *floor;
    struct cwb_replica *other;
    while ((floor = cwb_floor_find(peer, there->text, there->length))) {
        floor->told = ++bridge->stamp;
        floor->entry = 0;
        other = another(floor, 0, 0);
        if (!other)
            return;
        cwb_replica_invalidate(other);
    }
}

void cwb_floor_answer(const struct cwb_job *job, int status, const struct cwb_opened *opened) {
    const struct cwb_floor *floor = cwb_floor_find(job->peer, job->there.text, job->there.length);
    bool changed = job->remote.verb == CW_REMOTE_PUT || job->remote.verb == CW_REMOTE_REMOVE;
    if (!floor)
        return;
    if (status == -ENOENT || (status == 0 && changed))
        cwb_floor_none(job->bridge, job->peer, &job->there);
    else if (status == -EEXIST || (status == 0 && !opened))
        cwb_floor_some(job->bridge, job->peer, &job->there);
    else if (status == 0 && (opened->instance != floor->instance || opened->entry != floor->entry))
        cwb_floor_none(job->bridge, job->peer, &job->there);
}

void cwb_floor_some(struct cwb_bridge *bridge, struct cwb_peer *peer,
                    const struct cw_name_key *there) {
    struct cwb_floor *floor = cwb_floor_find(peer, there->text, there->length);
    if (floor)
        floor->told = ++bridge->stamp;
}
