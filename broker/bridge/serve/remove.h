/*
 * Removals of peers. See remove.c.
 */
#ifndef CW_BROKER_BRIDGE_SERVE_REMOVE_H
#define CW_BROKER_BRIDGE_SERVE_REMOVE_H

#include "broker/bridge/wire/frame.h"

struct cwb_link;

void cwb_remove_serve(struct cwb_link *link, const struct cwb_frame *frame);

#endif
