/*
 * Relay: this node's replica of a sealed array of a third node, which another node was referred to.
 * fan_out.h has the whole. See relay.c.
 */
#ifndef CW_BROKER_BRIDGE_RELAY_RELAY_H
#define CW_BROKER_BRIDGE_RELAY_RELAY_H

#include "broker/bridge/link/link.h"

struct cwb_replica;

struct cwb_relay { /* of a replica */
    uint64_t turn; /* as its owner said; 0: not sealed, or not known yet */
    uint64_t secret[2];
    struct cwb_relayed *waiting; /* OPENs of peers that wait for it */
};

/* An OPEN with CWB_TICKET. */
void cwb_relay_serve(struct cwb_link *link, const struct cwb_frame *frame);
/* The owner has answered: that is the replica's turn (0: none), and replica->opened is set. */
void cwb_relay_know(struct cwb_replica *replica, const struct cwb_referral *referral);
/* It is whole: who waits is answered. */
void cwb_relay_whole(struct cwb_replica *replica);
/* It is given up, or fetched anew: who waits asks the owner. */
void cwb_relay_end(struct cwb_replica *replica);

#endif
