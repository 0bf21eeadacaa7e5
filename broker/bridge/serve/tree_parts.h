/*
 * Trees of this node that peers fetch: an OPEN of a tree brings the bytes of its index, and each
 * OPEN with CWB_PART those of one of its parts. See tree_parts.c.
 */
#ifndef CW_BROKER_BRIDGE_SERVE_TREE_PARTS_H
#define CW_BROKER_BRIDGE_SERVE_TREE_PARTS_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/name_key.h"

struct cwb_bridge;
struct cwb_frame;
struct cwb_link;
struct cwb_peer;
struct cwb_tree;

/* The record of a tree as peers are told of it: its meta becomes a cw_meta_remote_tree. 0, or
 * -EPROTO: it is none. */
int cwb_tree_describe(uint64_t instance, struct cw_found *found);
/* From now on the peer may open parts of this version, though the name may mean another by then.
 * The record is of a tree that it may read, and whose index is mapped. 0 or a negative code. */
int cwb_tree_hold(struct cwb_bridge *bridge, struct cwb_peer *peer, const struct cw_name_key *key,
                  const struct cw_found *found);
/* An OPEN with CWB_PART. false: this version is not held for the peer, and nothing was answered. */
bool cwb_tree_serve_part(struct cwb_link *link, const struct cwb_frame *frame, const char *name);
/* -ESTALE: nobody holds that version here. */
int cwb_tree_gone(const char *name, uint64_t version);
/* An upload of that part is over. The tree may be gone then. */
void cwb_tree_release(struct cwb_tree *tree, uint32_t number);
/* Ends those of which nothing was opened for long. */
void cwb_trees_tick(struct cwb_bridge *bridge);

#endif
