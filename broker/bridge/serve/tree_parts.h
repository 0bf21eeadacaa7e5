/*
 * Trees of this node that peers fetch: an OPEN of a tree brings the bytes of its index, and each
 * OPEN with CWB_PART those of one of its parts. See tree_parts.c.
 */
#ifndef CW_BROKER_BRIDGE_SERVE_TREE_PARTS_H
#define CW_BROKER_BRIDGE_SERVE_TREE_PARTS_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/name_key.h"
#include "ipc/cableway.h"

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
/* A tree that is put onto the peer's node, by its OFFER's number: from now on the peer may open its
 * parts. The index, of size_bytes, is taken over if 0 is returned; else -EDQUOT. */
int cwb_tree_offer(struct cwb_bridge *bridge, struct cwb_peer *peer, const struct cw_name_key *key,
                   uint64_t number, cw_array *index, uint64_t size_bytes, struct cwb_tree **out);
/* The put is over: the peer may open and read nothing of it any more. */
void cwb_tree_withdraw(struct cwb_tree *tree);
/* When the peer last opened or read a part of it. */
int64_t cwb_tree_used_ns(const struct cwb_tree *tree);
/* An upload of that part is over. The tree may be gone then. */
void cwb_tree_release(struct cwb_tree *tree, uint32_t number);
/* Ends those of which nothing was opened for long. */
void cwb_trees_tick(struct cwb_bridge *bridge);

#endif
