/*
 * Doubts: when a replica no longer means what its name means: its owner told of a change, a client
 * of this node wrote the name, or the link is gone. One that is HELD is let go of; one that is
 * being fetched is from then on doubtful, or fetched anew (replica.c). Whatever it is, the board
 * does not tell of it any more before anybody hears of the change. The loop's thread owns all.
 */
#include <string.h>

#include "broker/bridge/board.h"
#include "broker/bridge/replica.h"

/*
 * A doubtful one is kept for so long. Where only visitors of the door asked for it, it gets no
 * name: they have been told where it lies, and have so long to open it. Who asked by way of the
 * broker (for a GPU, or where the door was shut) finds it by its name, and so does who reads the
 * directory within that time: he finds what its owner may have replaced before (the change came
 * while it was being fetched). That, and no more, is how far a get may lag behind the owner's word.
 * Who asks at the bridge does not get it: what is doubtful and HELD goes at once (cwb_replica_get).
 * Nothing that was opened after the change is doubtful.
 */
#define DOUBT_NS 10000000

void cwb_doubts_hold(struct cwb_bridge *bridge) {
    if (bridge->doubts_ns)
        return;
    bridge->doubts_ns = bridge->loop.now_ns + DOUBT_NS;
    bridge->hurry = true;
}

int64_t cwb_doubts_tick(struct cwb_bridge *bridge) {
    struct cwb_replica *replica, *next;
    if (!bridge->doubts_ns)
        return INT64_MAX;
    if (bridge->loop.now_ns < bridge->doubts_ns)
        return bridge->doubts_ns;
    bridge->doubts_ns = 0;
    HASH_ITER(hh, bridge->replicas, replica, next) {
        if (replica->held && replica->doubtful)
            cwb_replica_let_go(replica);
    }
    return bridge->doubts_ns ? bridge->doubts_ns : INT64_MAX;
}

static void doubt(struct cwb_replica *replica) {
    cwb_board_take_down(replica);
    replica->doubtful = true;
}

static void outdate(struct cwb_replica *replica) {
    if (replica->held) {
        cwb_replica_let_go(replica);
        return;
    }
    if (replica->whole && !replica->written)
        cwb_replica_unname(replica);
    cwb_board_take_down(replica);
    replica->written = true;
}

void cwb_replica_wrote(const struct cwb_job *job) {
    struct cwb_replica *replica, *next;
    HASH_ITER(hh, job->bridge->replicas, replica, next) { /* here and on GPUs */
        if (replica->peer == job->peer && replica->there.length == job->there.length &&
            memcmp(replica->there.text, job->there.text, job->there.length) == 0)
            outdate(replica);
    }
}

void cwb_replica_changed(struct cwb_peer *peer, const struct cwb_frame *frame) {
    struct cwb_bridge *bridge = NULL;
    struct cwb_replica *replica, *next;
    if (!peer->links)
        return;
    bridge = peer->links->bridge;
    HASH_ITER(hh, bridge->replicas, replica, next) {
        if (replica->peer != peer || replica->there.length != frame->key_bytes ||
            memcmp(replica->there.text, frame->key, frame->key_bytes) != 0)
            continue;
        if (!replica->held)
            doubt(replica);
        else if (replica->opened.entry == frame->changed.entry)
            cwb_replica_let_go(replica);
    }
}

void cwb_replicas_unlink(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    struct cwb_replica *replica, *next;
    HASH_ITER(hh, bridge->replicas, replica, next) {
        if (replica->peer != peer)
            continue;
        if (replica->held)
            cwb_replica_let_go(replica);
        else
            doubt(replica);
    }
}
