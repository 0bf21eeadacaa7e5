/*
 * Relay: see relay.h and fan_out.h.
 *
 * A ticket names a put of a name by the run of the owner's broker, and the key. It is looked up
 * among the replicas of the peer with that broker. The replica must be of that put, and the secret
 * the one that the owner told us with it; else the answer is -ESTALE, as if there were none.
 *
 * Who asks before the replica is whole waits with it: no circle, for its turn must be later than
 * ours. It may also come before the owner's answer has told us our own turn and secret (it was
 * referred right after we were answered): then it waits, and is looked at once more.
 *
 * What was served stays for as long as the peer reads (upload.h), whatever becomes of the replica.
 * The loop's thread owns all; if this process dies, its links tell the others.
 */
#include "broker/bridge/relay/relay.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/floor.h"
#include "broker/bridge/fetch/replica.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/deferred.h"
#include "broker/bridge/serve/serve.h"
#include "broker/bridge/serve/upload.h"
#include "broker/bridge/tls/digest.h"
#include "ipc/request/socket.h"

struct cwb_relayed { /* a served's owner */
    struct cwb_replica *replica;
    struct cwb_served *served;
    struct cwb_ticket ticket;
    struct cwb_relayed *next, *prev;
};

static int no_replica(void) {
    return cw_fail(-ESTALE, "there is no replica of that array here");
}

static struct cwb_peer *peer_of(struct cwb_bridge *bridge, uint64_t instance) {
    struct cwb_peer *peer = bridge->met;
    while (peer && !(cwb_peer_link(peer) && cwb_peer_link(peer)->instance == instance))
        peer = peer->met_next;
    return peer;
}

/* That is here, or coming. NULL: none. */
static struct cwb_replica *replica_of(struct cwb_bridge *bridge, const struct cwb_frame *frame) {
    struct cwb_peer *owner = peer_of(bridge, frame->ticket.instance);
    struct cwb_floor *floor = owner ? cwb_floor_find(owner, frame->key, frame->key_bytes) : NULL;
    struct cwb_replica *replica = floor ? floor->replicas : NULL;
    while (replica && (replica->on_gpu || replica->is_part || !replica->sent))
        replica = replica->floor_next;
    return replica;
}

/* Is it what the ticket is for? The replica's turn is known. */
static bool fits(const struct cwb_replica *replica, const struct cwb_ticket *ticket) {
    const struct cwb_relay *relay = &replica->relay;
    return relay->turn && ticket->instance == replica->opened.instance &&
           ticket->entry == replica->opened.entry &&
           cwb_same_bytes(ticket->secret, relay->secret, sizeof relay->secret);
}

/* One more lease on what is whole. 0; CW_WOULD_WAIT: its memory must be mapped first; or -ESTALE.
 */
static int hold(const struct cwb_replica *replica, cw_array **out) {
    const struct cw_put *put = &replica->put;
    struct cw_found found;
    bool on_gpu;
    if (replica->array)
        return cwb_local_hold(replica->array, out) == 0 ? 0 : no_replica();
    int code = cwb_local_open(replica->bridge, &replica->key, &found, out, &on_gpu);
    if (code == 0 && found.entry.slab == put->slab && found.entry.block == put->block &&
        found.entry.gen == put->gen)
        return 0;
    if (code == 0)
        cw_array_close(*out);
    *out = NULL;
    return code == CW_WOULD_WAIT ? code : no_replica();
}

/* The answer: an upload of it. frame NULL: of one that waited, whose array is held. */
static void serve(struct cwb_link *link, uint64_t id, const struct cwb_frame *frame,
                  const struct cwb_replica *replica) {
    struct cwb_opened opened = {.size_bytes = replica->opened.size_bytes,
                                .instance = replica->opened.instance,
                                .entry = replica->opened.entry,
                                .meta_bytes = replica->put.meta_bytes};
    struct iovec parts[] = {{&opened, sizeof opened}, {replica->came, opened.meta_bytes}};
    struct cwb_upload *upload;
    cw_array *array = NULL;
    int code = hold(replica, &array);
    if (code == CW_WOULD_WAIT && frame) {
        cwb_defer_for(link, frame, &replica->key);
        return;
    }
    if (code == 0)
        code = cwb_upload_new(link->bridge, link->peer, array, cw_array_lowest(array),
                              opened.size_bytes, CWB_UPLOAD_OPENED, &upload);
    if (code)
        cw_array_close(array);
    else
        opened.source = cwb_upload_id(upload);
    cwb_link_reply(link, CWB_OPEN, id, code, cw_detail(), parts, 2);
}

/* ---- who waits ---- */

static void relayed_free(struct cwb_relayed *relayed) {
    DL_DELETE(relayed->replica->relay.waiting, relayed);
    free(relayed);
}

static void on_cancel(struct cwb_served *served) {
    relayed_free(served->owner);
    free(served);
}

static void refuse(struct cwb_relayed *relayed) {
    cwb_served_reply(relayed->served, no_replica(), NULL, 0);
    relayed_free(relayed);
}

static int wait_for(struct cwb_link *link, const struct cwb_frame *frame,
                    struct cwb_replica *replica) {
    struct cwb_relayed *relayed = calloc(1, sizeof *relayed);
    struct cwb_served *served = relayed ? cwb_served_new(link, frame) : NULL;
    if (!served) {
        free(relayed);
        return cwb_no_memory("a peer's request");
    }
    *relayed = (struct cwb_relayed){.replica = replica, .served = served, .ticket = frame->ticket};
    served->owner = relayed;
    served->on_cancel = on_cancel;
    DL_APPEND(replica->relay.waiting, relayed);
    return 0;
}

void cwb_relay_serve(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_replica *replica = replica_of(link->bridge, frame);
    bool asking = replica && replica->asked && !replica->relay.turn;
    int code = 0;
    if (!replica || (!asking && !fits(replica, &frame->ticket)))
        code = no_replica();
    else if (replica->whole)
        serve(link, frame->head.id, frame, replica);
    else if (!asking && frame->ticket.turn <= replica->relay.turn)
        code = no_replica(); /* it was fetched anew, and may wait for who asks */
    else
        code = wait_for(link, frame, replica);
    if (code)
        cwb_link_reply(link, CWB_OPEN, frame->head.id, code, cw_detail(), NULL, 0);
}

void cwb_relay_know(struct cwb_replica *replica, const struct cwb_referral *referral) {
    struct cwb_relay *relay = &replica->relay;
    struct cwb_relayed *relayed, *next;
    relay->turn = referral->turn;
    memcpy(relay->secret, referral->secret, sizeof relay->secret);
    DL_FOREACH_SAFE(relay->waiting, relayed, next) {
        if (!fits(replica, &relayed->ticket) || relayed->ticket.turn <= relay->turn)
            refuse(relayed);
    }
}

void cwb_relay_whole(struct cwb_replica *replica) {
    struct cwb_relayed *relayed, *next;
    DL_FOREACH_SAFE(replica->relay.waiting, relayed, next) {
        uint64_t id = relayed->served->id;
        struct cwb_link *link = cwb_served_leave(relayed->served);
        relayed_free(relayed);
        serve(link, id, NULL, replica);
    }
}

void cwb_relay_end(struct cwb_replica *replica) {
    while (replica->relay.waiting)
        refuse(replica->relay.waiting);
    replica->relay = (struct cwb_relay){.turn = 0};
}
