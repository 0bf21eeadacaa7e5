/*
 * Co-located replicas: those of one remote array at several places of this node, in host memory and
 * on GPUs. Each is a replica with a key of its own (cw_remote_place()); a process asks for the
 * place where it wants the array.
 *
 * Its bytes come over the network once, wherever they are wanted: what is HELD at one place is
 * copied from there, by the mover where a GPU is an end of it; what is coming to one place is
 * waited for. If that fails, one of those who waited fetches it. Where a GPU is full, co-located
 * ones on GPUs that nobody uses are let go.
 *
 * To copy from a place its memory must be mapped here, and may not be: what was received is mapped
 * writable, and closed once it is HELD; to be read it is mapped apart. The loop cannot do so
 * (CW_WOULD_WAIT), and that says nothing of whether the bytes are here: a helper maps them
 * (MAPPING), then it is looked again which place there is, since the other may have gone. Of one
 * that is MAPPING nothing else is under way, so nothing can fail of it, and it is not freed; it was
 * not asked for yet (sent is 0), so what is told meanwhile does not concern it, and who asks for it
 * waits with the others. Places that would copy from it wait for it. What the helper mapped stays
 * mapped until it was looked again: each place that is there is mapped once at most. If the broker
 * dies, so does this process.
 */
#include "broker/bridge/fetch/co_located.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/fetch/floor.h"
#include "broker/bridge/fetch/replica.h"
#include "broker/bridge/fetch/replica_form.h"
#include "broker/bridge/fetch/replica_gc.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/memory.h"
#include "ipc/request/socket.h"

void cwb_replica_wake(struct cwb_replica *replica) {
    struct cwb_replica *follower;
    while ((follower = replica->followers)) {
        replica->followers = follower->follow_next;
        follower->followed = NULL;
        cwb_replica_begin(follower);
    }
}

/* What nobody uses on GPUs is let go of, as soon as the broker has told so. Is there anything? */
static bool make_room(void *owner) {
    return cwb_replica_gc_on_gpus(((struct cwb_replica *)owner)->bridge);
}

static void on_received(void *owner, int code, cw_array *array) {
    struct cwb_replica *replica = owner;
    replica->gpu_receive = NULL;
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

void cwb_replica_receive(struct cwb_replica *replica, const struct cwb_gpu_receive_spec *what) {
    struct cwb_gpu_receive_spec spec = *what;
    spec.size_bytes = replica->opened.size_bytes;
    spec.to_host = !replica->on_gpu;
    spec.make_room = replica->on_gpu ? make_room : NULL;
    memcpy(spec.gpu.device_uuid, replica->gpu, sizeof replica->gpu);
    replica->gpu_receive = cwb_gpu_receive_begin(replica->bridge, &spec, on_received, replica);
    if (!replica->gpu_receive)
        cwb_replica_fail(replica, -EDQUOT);
}

/* Another place of the same array at this node: one that is there, else one that is coming. */
static struct cwb_replica *co_located(const struct cwb_replica *replica) {
    struct cwb_replica *coming = NULL, *other = replica->floor->replicas;
    for (; other; other = other->floor_next) {
        if (other == replica || other->followed || other->due)
            continue;
        if (other->held && !other->stale)
            return other;
        if (!other->held)
            coming = other;
    }
    return coming;
}

/* The other place's memory is mapped as long as this runs. */
static void on_mapped(void *owner, int code) {
    struct cwb_replica *replica = owner;
    replica->mapping = false;
    if (code)
        cwb_replica_fail(replica, code);
    else if (!cwb_replica_follow(replica))
        cwb_replica_begin(replica);
}

bool cwb_replica_follow(struct cwb_replica *replica) {
    struct cwb_replica *other = co_located(replica);
    struct cw_found found;
    cw_array *array;
    bool on_gpu;
    if (!other)
        return false;
    if (!other->held) {
        replica->followed = other;
        replica->waited = true;
        LL_PREPEND2(other->followers, replica, follow_next);
        cwb_replica_hurry(other);
        return true;
    }
    int code = cwb_local_open(replica->bridge, &other->key, &found, &array, &on_gpu);
    if (code == CW_WOULD_WAIT) {
        replica->mapping = true;
        cwb_local_map(replica->bridge, &other->key, on_mapped, replica);
        return true;
    }
    if (code == -ENOENT || code == -ESTALE) /* its name went meanwhile */
        return false;
    if (code) {
        cwb_replica_fail(replica, code);
        return true;
    }
    bool same = found.entry.slab == other->put.slab && found.entry.block == other->put.block &&
                found.entry.gen == other->put.gen;
    if (!same) {
        cw_array_close(array);
        return false;
    }
    if (cwb_replica_check_place(replica, found.meta, found.entry.meta_bytes) != 0) {
        cw_array_close(array);
        cwb_replica_fail(replica, -EISDIR);
        return true;
    }
    replica->stale = false;
    replica->sent = other->sent;
    replica->opened = other->opened;
    replica->opened.inside = 0;
    replica->opened.meta_bytes = found.entry.meta_bytes;
    replica->came = malloc(found.entry.meta_bytes + 1);
    if (!replica->came) {
        cw_array_close(array);
        cwb_replica_fail(replica, cwb_no_memory("an array of another node"));
        return true;
    }
    memcpy(replica->came, found.meta, found.entry.meta_bytes);
    cwb_replica_receive(replica, &(struct cwb_gpu_receive_spec){.local = array});
    return true;
}
