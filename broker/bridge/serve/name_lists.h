/*
 * Lists of this node's names, for peers. See name_lists.c.
 */
#ifndef CW_BROKER_BRIDGE_SERVE_NAME_LISTS_H
#define CW_BROKER_BRIDGE_SERVE_NAME_LISTS_H

#include "broker/bridge/wire/frame.h"

struct cwb_bridge;
struct cwb_link;

/* A peer asks for one. */
void cwb_list_begin(struct cwb_link *link, const struct cwb_frame *frame);
/* Makes a slice of one, if any is asked for. Once a turn. */
void cwb_lists_turn(struct cwb_bridge *bridge);

#endif
