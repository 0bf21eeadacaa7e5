/*
 * What peers want to be told of: that a name means something else. See watch.c.
 */
#ifndef CW_BROKER_BRIDGE_SERVE_WATCH_H
#define CW_BROKER_BRIDGE_SERVE_WATCH_H

#include <stdint.h>

#include "ipc/base/name_key.h"

struct cw_changed;
struct cwb_bridge;
struct cwb_link;
struct cwb_peer;

/* This put of that name: its peer is told once when the name means something else. 0 or -EDQUOT. */
int cwb_watch_begin(struct cwb_link *link, const struct cw_name_key *key, uint64_t entry);
/* Names ended: who watches one of them is told, at once or (all) by cwb_watches_turn(). */
void cwb_watch_changes(struct cwb_bridge *bridge, const struct cw_changed *changed);
/* Looks at some watches, if all are to be looked at. Once a turn. */
void cwb_watches_turn(struct cwb_bridge *bridge);
/* The peer has no link any more. */
void cwb_watch_end(struct cwb_bridge *bridge, struct cwb_peer *peer);

#endif
