/*
 * Garbage collection of replicas: which are still used? Each that is HELD is checked every
 * CHECK_NS; the broker tells who holds it, and is not waited for. One that nobody held at some
 * checks in a row is let go: at once where it lies on a GPU, whose memory is dear. The loop's
 * thread owns all.
 */
#include "broker/bridge/fetch/replica_gc.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/replica.h"
#include "broker/bridge/local/broker_channel.h"
#include "broker/bridge/memory.h"

#define CHECK_NS      10000000000 /* between two checks of one replica */
#define CHECKS_MOST   64u         /* of one turn */
#define UNUSED_CHECKS 6           /* let go after so many that found nobody */
#define ROOM_COMES_NS 1000000000  /* memory of one that was let go of is free by then */

struct check { /* the replica may be gone, or another, when the answer comes */
    struct cwb_bridge *bridge;
    struct cw_block_ref ref;
    struct cw_name_key key;
};

static void on_holders(void *owner, int status, const void *body, uint32_t body_bytes) {
    struct check *check = owner;
    struct cwb_replica *replica = cwb_replica_find(check->bridge, &check->key);
    struct cw_holders holders = {.holders = UINT32_MAX};
    if (status == 0 && body_bytes >= sizeof holders)
        memcpy(&holders, body, sizeof holders);
    bool same = replica && replica->held && replica->put.slab == check->ref.slab &&
                replica->put.block == check->ref.block && replica->put.gen == check->ref.gen;
    free(check);
    if (!same)
        return;
    uint32_t ours = replica->array ? 1 : 0;
    /* A tree's index refers to its parts: its name is not their only reference then. */
    bool in_tree = replica->is_part && holders.references > 1;
    replica->unused = holders.holders > ours || in_tree ? 0 : replica->unused + 1;
    if (status != -ESTALE && replica->unused < (replica->on_gpu ? 1 : UNUSED_CHECKS))
        return;
    if (replica->on_gpu)
        replica->bridge->gpu_room_until_ns = replica->bridge->loop.now_ns + ROOM_COMES_NS;
    cwb_replica_let_go(replica);
}

static void begin_check(struct cwb_replica *replica) {
    struct check *check = malloc(sizeof *check);
    if (!check)
        return; /* the next check may find memory */
    *check = (struct check){
        .bridge = replica->bridge,
        .ref = {.slab = replica->put.slab, .block = replica->put.block, .gen = replica->put.gen},
        .key = replica->key};
    struct iovec part = {&check->ref, sizeof check->ref};
    if (cwb_broker_channel_ask(replica->bridge->broker_channel, CW_OP_HOLDERS, &part, 1, on_holders,
                               check) != 0)
        free(check);
}

bool cwb_replica_gc_on_gpus(struct cwb_bridge *bridge) {
    struct cwb_replica *replica, *next;
    bool any = bridge->loop.now_ns < bridge->gpu_room_until_ns;
    HASH_ITER(hh, bridge->replicas, replica, next) {
        if (!replica->held || !replica->on_gpu)
            continue;
        begin_check(replica);
        any = true;
    }
    return any;
}

int64_t cwb_replica_gc_tick(struct cwb_bridge *bridge) {
    int64_t now_ns = bridge->loop.now_ns;
    struct cwb_replica *replica;
    /* The first is the one that was not checked for longest. */
    for (unsigned i = 0; (replica = bridge->gc_order) && i < CHECKS_MOST; i++) {
        if (now_ns - replica->checked_ns < CHECK_NS)
            break;
        replica->checked_ns = now_ns;
        DL_DELETE2(bridge->gc_order, replica, gc_prev, gc_next);
        DL_APPEND2(bridge->gc_order, replica, gc_prev, gc_next);
        if (replica->held)
            begin_check(replica);
    }
    return replica ? replica->checked_ns + CHECK_NS : INT64_MAX;
}
