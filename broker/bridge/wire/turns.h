/*
 * Turns of wires: who is read when. See wire.h.
 */
#ifndef CW_BROKER_BRIDGE_WIRE_TURNS_H
#define CW_BROKER_BRIDGE_WIRE_TURNS_H

#include <stdbool.h>
#include <stdint.h>

struct cwb_loop;
struct cwb_wire;

/* Has it been read for long enough in this turn? What it has is kept then. *at_ns: when this was
 * last asked; counts: what was done since counts. */
bool cwb_wire_turn_over(struct cwb_wire *wire, int64_t *at_ns, bool counts);
/* It is read in the next turn: what came waits behind what waits already. size 0: its end. */
void cwb_wire_keep(struct cwb_wire *wire, const uint8_t *bytes, uint32_t size_bytes);
/* Within its turn: it has another one, behind all that wait, and what was kept is as it was. */
void cwb_wire_hold(struct cwb_wire *wire);
/* It is gone, and has no turn. */
void cwb_wire_unhold(struct cwb_wire *wire);
/* A turn begins: all that wait are read on. */
void cwb_wires_turn(struct cwb_loop *loop);

#endif
