/*
 * What comes in over a link. See receive.c.
 */
#ifndef CW_BROKER_BRIDGE_LINK_RECEIVE_H
#define CW_BROKER_BRIDGE_LINK_RECEIVE_H

#include "broker/bridge/wire/wire.h"

void cwb_link_on_data(struct cwb_socket *socket, const uint8_t *bytes, uint32_t size_bytes);
extern const struct cwb_wire_calls cwb_link_wire_calls;

#endif
