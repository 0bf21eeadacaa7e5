/*
 * When a replica no longer means what its name means. See invalidation.c.
 */
#ifndef CW_BROKER_BRIDGE_FETCH_INVALIDATION_H
#define CW_BROKER_BRIDGE_FETCH_INVALIDATION_H

#include <stdint.h>

#include "broker/bridge/wire/frame.h"

struct cwb_bridge;
struct cwb_peer;
struct cwb_replica;

/* It may be found no more from now on, or will not be. If it is whole it is gone, or begins anew.
 */
void cwb_replica_invalidate(struct cwb_replica *replica);
/* Ends our hold on its array, if there is one: later, where somebody may be about to open it. */
void cwb_replica_release_array(struct cwb_replica *replica);
/* Ends such holds. Returns when it wants to be called again. */
int64_t cwb_invalidation_tick(struct cwb_bridge *bridge);
/* The owner tells that a name means something else now. */
void cwb_replica_changed(struct cwb_peer *peer, const struct cwb_frame *frame);
/* The peer has no link any more: nobody can say whether its replicas are fresh. */
void cwb_replicas_unlink(struct cwb_peer *peer);

#endif
