/*
 * The bridge's board (shm/names/unnamed.h): what is here, whole and checked, and waits for its
 * name. Clients get it with the first answer over the fast path. The loop's thread owns it; without
 * one (no memory was left) clients ask over the fast path each time.
 */
#ifndef CW_BROKER_BRIDGE_LOCAL_REPLICA_CACHE_H
#define CW_BROKER_BRIDGE_LOCAL_REPLICA_CACHE_H

#include "broker/bridge/fetch/replica.h"

struct cwb_board;

/* For the session at home. NULL: there is none, cw_detail(). */
struct cwb_board *cwb_board_new(struct cwb_bridge *bridge);
/* Clients are to see on which core the loop runs. Once a turn. */
void cwb_board_here(const struct cwb_bridge *bridge);
/* To be handed out; -1: there is no board. */
int cwb_board_fd(const struct cwb_bridge *bridge);
/* It is what its name means, and may be told: put and came say where and what. */
void cwb_board_post(struct cwb_replica *replica);
/* It has its name, or is not to be told any more. May be repeated. */
void cwb_board_take_down(struct cwb_replica *replica);

#endif
