/*
 * Where other nodes reach this one. See listen.c.
 */
#ifndef CW_BROKER_BRIDGE_LINK_LISTEN_H
#define CW_BROKER_BRIDGE_LINK_LISTEN_H

#include <stdint.h>

struct cwb_bridge;

/* Looks up where it is to listen. With options.strict, a port that is taken is found without a key,
 * too. 0 or a negative code. */
int cwb_listen_find(struct cwb_bridge *bridge);
/* There is a key: listens. What fails ends it with options.strict, else it is tried again. */
int cwb_listen_begin(struct cwb_bridge *bridge);
/* Tries again, and accepts. Returns when it wants to be called again. */
int64_t cwb_listen_tick(struct cwb_bridge *bridge);

#endif
