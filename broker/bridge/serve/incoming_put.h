/*
 * Puts of peers. See incoming_put.c.
 */
#ifndef CW_BROKER_BRIDGE_SERVE_INCOMING_PUT_H
#define CW_BROKER_BRIDGE_SERVE_INCOMING_PUT_H

#include "broker/bridge/wire/frame.h"

struct cwb_bridge;
struct cwb_link;

int cwb_incoming_put_serve(struct cwb_link *link, const struct cwb_frame *frame);
void cwb_incoming_puts_tick(struct cwb_bridge *bridge);

#endif
