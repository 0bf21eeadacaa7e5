/*
 * What comes in over a wire. See receive.c.
 */
#ifndef CW_BROKER_BRIDGE_WIRE_RECEIVE_H
#define CW_BROKER_BRIDGE_WIRE_RECEIVE_H

#include <stdint.h>

struct cwb_wire;

/* Bytes came and TLS stands: decrypts and hands frames on, or keeps them. 0 or a negative code. */
int cwb_wire_feed(struct cwb_wire *wire, const uint8_t *bytes, uint32_t size_bytes);
/* The same for what TLS has still of an earlier feed. */
int cwb_wire_read_on(struct cwb_wire *wire);
/* So many bytes came, now. */
void cwb_wire_heard(struct cwb_wire *wire, uint32_t size_bytes);

#endif
