/*
 * Peer table: the peers of the file `peers` (peer_list.h), found by name and by pinned key, and
 * kept as the file has them.
 *
 * Invariant: every peer that ever was in the file is in the list and in the table by name, for
 * pointers to it must hold. In the table by key are those that the file pins a key for; where a
 * key moves from one peer to another, both are in it until the file was taken over whole, which no
 * handshake can see: one thread does both. The loop's thread owns all. If the process dies the next
 * one reads the file.
 *
 * A look costs the same with one peer and with CWB_PEERS_MAX of them.
 */
#ifndef CW_BROKER_BRIDGE_LINK_PEER_TABLE_H
#define CW_BROKER_BRIDGE_LINK_PEER_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "broker/bridge/tls/tls.h"

struct cwb_bridge;
struct cwb_peer;

/* Reads the file. 0 or a negative code with the sentence. */
int cwb_peer_table_init(struct cwb_bridge *bridge);
/* One that is in the file now; NULL: none. */
struct cwb_peer *cwb_peer_find(struct cwb_bridge *bridge, const char *name, size_t length);
/* The same, by the key that is pinned for it. */
struct cwb_peer *cwb_peer_find_key(struct cwb_bridge *bridge, const uint8_t print[CWB_PRINT_BYTES]);
/* Reads it again if it changed, and the node's key. Returns when it wants to be called again. */
int64_t cwb_peer_table_tick(struct cwb_bridge *bridge);

#endif
