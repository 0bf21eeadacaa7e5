/*
 * Looks: which replicas are still used. Each that is HELD is looked at every LOOK_NS; the broker
 * tells who holds it, and is not waited for. One that nobody held at some looks in a row is let go:
 * at once where it lies on a GPU, whose memory is dear. The loop's thread owns all.
 */
#include "broker/bridge/fetch/replica_gc.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/replica.h"
#include "broker/bridge/local/broker_channel.h"
#include "broker/bridge/memory.h"

#define LOOK_NS      10000000000 /* between looks at one replica */
#define LOOKS_MOST   64u         /* of one turn */
#define UNUSED_LOOKS 6           /* let go after so many that found nobody */

struct look { /* the replica may be gone, or another, when the answer comes */
    struct cwb_bridge *bridge;
    struct cw_block_ref ref;
    struct cw_name_key key;
};

static void on_holders(void *owner, int status, const void *body, uint32_t body_bytes) {
    struct look *look = owner;
    struct cwb_replica *replica = cwb_replica_find(look->bridge, &look->key);
    struct cw_holders holders = {.holders = UINT32_MAX};
    if (status == 0 && body_bytes >= sizeof holders)
        memcpy(&holders, body, sizeof holders);
    bool same = replica && replica->held && replica->put.slab == look->ref.slab &&
                replica->put.block == look->ref.block && replica->put.gen == look->ref.gen;
    free(look);
    if (!same)
        return;
    uint32_t ours = replica->array ? 1 : 0;
    replica->unused = holders.holders > ours ? 0 : replica->unused + 1;
    if (status == -ESTALE || replica->unused >= (replica->on_gpu ? 1 : UNUSED_LOOKS))
        cwb_replica_let_go(replica);
}

static void look_at(struct cwb_replica *replica) {
    struct look *look = malloc(sizeof *look);
    if (!look)
        return; /* the next look may find memory */
    *look = (struct look){
        .bridge = replica->bridge,
        .ref = {.slab = replica->put.slab, .block = replica->put.block, .gen = replica->put.gen},
        .key = replica->key};
    struct iovec part = {&look->ref, sizeof look->ref};
    if (cwb_home_ask(replica->bridge->home, CW_OP_HOLDERS, &part, 1, on_holders, look) != 0)
        free(look);
}

bool cwb_looks_at_gpus(struct cwb_bridge *bridge) {
    struct cwb_replica *replica, *next;
    bool any = false;
    HASH_ITER(hh, bridge->replicas, replica, next) {
        if (!replica->held || !replica->on_gpu)
            continue;
        look_at(replica);
        any = true;
    }
    return any;
}

int64_t cwb_looks_tick(struct cwb_bridge *bridge) {
    int64_t now_ns = bridge->loop.now_ns;
    struct cwb_replica *replica;
    /* The first is who was not looked at for longest. */
    for (unsigned i = 0; (replica = bridge->looks) && i < LOOKS_MOST; i++) {
        if (now_ns - replica->looked_ns < LOOK_NS)
            break;
        replica->looked_ns = now_ns;
        DL_DELETE2(bridge->looks, replica, look_prev, look_next);
        DL_APPEND2(bridge->looks, replica, look_prev, look_next);
        if (replica->held)
            look_at(replica);
    }
    return replica ? replica->looked_ns + LOOK_NS : INT64_MAX;
}
