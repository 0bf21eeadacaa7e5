/*
 * Names that peers wait for. See waits.c.
 */
#ifndef CW_BROKER_BRIDGE_SERVE_WAITS_H
#define CW_BROKER_BRIDGE_SERVE_WAITS_H

#include "broker/bridge/wire/frame.h"

struct cwb_bridge;
struct cwb_link;

/* Answered when the name is there, at once or later. */
void cwb_wait_begin(struct cwb_link *link, const struct cwb_frame *frame);
/* There are new names: all waits are looked at. */
void cwb_waits_look(struct cwb_bridge *bridge);
/* Looks at some. Once a turn. */
void cwb_waits_turn(struct cwb_bridge *bridge);

#endif
