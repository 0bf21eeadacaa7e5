/*
 * The streams of each peer, as the bridge's loop sees them: see streams.c, and stream.h for one
 * stream.
 */
#ifndef CW_BROKER_BRIDGE_LINK_STREAMS_H
#define CW_BROKER_BRIDGE_LINK_STREAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/bridge/wire/frame.h"

struct cwb_bridge;
struct cwb_transfer_plan;
struct cwb_link;
struct cwb_peer;

/* A HELLO came over a link: streams of another run of its bridge end; how many there may be is
 * said. */
void cwb_streams_met(struct cwb_link *link, uint64_t run);
/* The peer said how many it reads over. */
void cwb_streams_agree(struct cwb_link *link, uint32_t streams);
/* A connection of theirs says STREAM: link->stream is made. 0, -EPERM, or -EDQUOT. */
int cwb_streams_accept(struct cwb_link *link, const struct cwb_frame *frame);
/* The connection of link->stream is nobody's now: it goes to an I/O thread. */
void cwb_streams_arrived(struct cwb_link *link);
/* The link that was to become link->stream ended. */
void cwb_streams_lost(struct cwb_link *link, const char *reason);
/* A large array is about to be read, by the peer or by us: streams are dialed, if it is us who
 * dials. */
void cwb_streams_want(struct cwb_bridge *bridge, struct cwb_peer *peer);
/* Is there one over which arrays are read? */
bool cwb_streams_open(const struct cwb_peer *peer);
/* Reads an array over all streams that there are. */
void cwb_streams_read(struct cwb_peer *peer, struct cwb_transfer_plan *plan);
/* The peer has no link any more. */
void cwb_streams_end(struct cwb_peer *peer);
/* Dials. Returns when it wants to be called again. */
int64_t cwb_streams_tick(struct cwb_bridge *bridge);

#endif
