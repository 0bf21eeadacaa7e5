/*
 * Which replicas are still used. See replica_gc.c.
 */
#ifndef CW_BROKER_BRIDGE_FETCH_REPLICA_GC_H
#define CW_BROKER_BRIDGE_FETCH_REPLICA_GC_H

#include <stdbool.h>
#include <stdint.h>

struct cwb_bridge;

/* Checks all that are HELD on GPUs, now: memory is needed there. true: there are some, or one was
 * let go of within the last second, and its memory may be on its way back yet. */
bool cwb_replica_gc_on_gpus(struct cwb_bridge *bridge);
/* Lets go of what nobody uses. Returns when it wants to be called again. */
int64_t cwb_replica_gc_tick(struct cwb_bridge *bridge);

#endif
