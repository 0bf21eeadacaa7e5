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

/* May a peer that would then have own_bytes of lists have more_bytes more of them? What is taken is
 * counted in bridge->lists_bytes by who takes it. 0 or -EDQUOT with the sentence. */
int cwb_lists_room(const struct cwb_bridge *bridge, uint64_t own_bytes, uint64_t more_bytes);

#endif
