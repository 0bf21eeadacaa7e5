/*
 * Replicas of one remote array at several places of this node. See co_located.c.
 */
#ifndef CW_BROKER_BRIDGE_FETCH_CO_LOCATED_H
#define CW_BROKER_BRIDGE_FETCH_CO_LOCATED_H

#include "broker/bridge/fetch/gpu_receive.h"

struct cwb_replica;

/* Its array is to come onto a GPU, or from another place of this node: size and place are filled
 * in. */
void cwb_replica_receive(struct cwb_replica *replica, const struct cwb_gpu_receive_spec *what);
/* What came to one place is copied to another on this node; what is coming is waited for. false: it
 * must be fetched. */
bool cwb_replica_follow(struct cwb_replica *replica);
/* It is HELD, or gone: co-located ones that waited for it go on. */
void cwb_replica_wake(struct cwb_replica *replica);

#endif
