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

static bool means(const struct cwb_replica *replica, const struct cwb_peer *peer,
                  const struct cw_name_key *there) {
    return replica->peer == peer && replica->there.length == there->length &&
           memcmp(replica->there.text, there->text, there->length) == 0;
}

void cwb_replica_wrote(const struct cwb_job *job) {
    struct cwb_replica *replica, *next;
    HASH_ITER(hh, job->bridge->replicas, replica, next) { /* here and on GPUs */
        if (means(replica, job->peer, &job->there))
            outdate(replica);
    }
}

/*
 * Siblings come to their places at their own pace, and who has got a later array at one place must
 * not get an earlier one at another. The owner numbers its puts; over two runs of its broker the
 * earlier one is doubtful.
 */
static bool older(const struct cwb_replica *a, const struct cwb_replica *b) {
    return a->opened.instance == b->opened.instance ? a->opened.entry < b->opened.entry
                                                    : a->doubtful && !b->doubtful;
}

bool cwb_doubts_newest(struct cwb_replica *replica) {
    struct cwb_replica *other, *next;
    if (!replica->bridge->replicas_on_gpus)
        return true;
    HASH_ITER(hh, replica->bridge->replicas, other, next) {
        if (other->whole && !other->written && older(replica, other) &&
            means(other, replica->peer, &replica->there))
            return false;
    }
    return true;
}

bool cwb_doubts_outdate(struct cwb_replica *replica) {
    struct cwb_replica *other, *next;
    bool found = false;
    if (!replica->bridge->replicas_on_gpus)
        return false;
    HASH_ITER(hh, replica->bridge->replicas, other, next) {
        if (!(other->whole || other->doubtful) || !older(other, replica) ||
            !means(other, replica->peer, &replica->there))
            continue;
        found = found || other->whole;
        outdate(other);
    }
    return found;
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
