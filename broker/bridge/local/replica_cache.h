/*
 * The replica cache (shm/names/unnamed.h has its table): what is here, whole and checked, and waits
 * for its name. Clients get it with the first answer over the fast path. The loop's thread owns it;
 * without one (no memory was left) clients ask over the fast path each time.
 */
#ifndef CW_BROKER_BRIDGE_LOCAL_REPLICA_CACHE_H
#define CW_BROKER_BRIDGE_LOCAL_REPLICA_CACHE_H

#include "broker/bridge/fetch/replica.h"

struct cwb_replica_cache;

/* For the broker channel's session. NULL: there is none, cw_detail(). */
struct cwb_replica_cache *cwb_replica_cache_new(struct cwb_bridge *bridge);
/* Clients are to see on which core the loop runs. Once a turn. */
void cwb_replica_cache_here(const struct cwb_bridge *bridge);
/* To be handed out; -1: there is none. */
int cwb_replica_cache_fd(const struct cwb_bridge *bridge);
/* It is what its name means, and may be told: put and came say where and what. */
void cwb_replica_cache_add(struct cwb_replica *replica);
/* It has its name, or is not to be told any more. May be repeated. */
void cwb_replica_cache_remove(struct cwb_replica *replica);

#endif
