/*
 * Tree receive: a tree that a peer puts here. It brings the bytes of its index, and then the parts,
 * one after the other, into memory of ours, and makes an index of them.
 *
 *   INDEX --here, checked--> PART i --here, hash right--> PART i + 1 ... --all--> GROUP --> told
 *     +------------------------+----------it fails: all of it is freed, its owner told------+
 *
 * Invariant: nobody but us knows of a part or of the index before all are here, their hashes are
 * the peer's, and the broker holds the parts for the index (GROUP). Then its owner gives the index
 * a name, by one request. So the tree is whole or absent.
 *
 * Deaths: this process: its leases end, the broker frees parts and index, with the group or before
 * there is one. The peer's process that puts, or its bridge: a part is answered -ESTALE (the next
 * bridge offers the tree anew). The link: the part that is coming goes on over the next one, for
 * CWB_RESUME_NS at most. The owner: cwb_tree_receive_cancel() at any moment; what helpers have in
 * hand goes when they are done.
 */
#ifndef CW_BROKER_BRIDGE_FETCH_TREE_RECEIVE_H
#define CW_BROKER_BRIDGE_FETCH_TREE_RECEIVE_H

#include <stdint.h>

#include "broker/bridge/local/arrays.h"
#include "broker/bridge/wire/frame.h"

struct cwb_bridge;
struct cwb_peer;
struct cwb_tree_receive;

struct cwb_tree_receive_spec {
    struct cwb_peer *peer;
    uint64_t run;                  /* of its bridge, which offers the tree */
    const struct cw_name_key *key; /* under which it does; copied at once, as inside is */
    const struct cwb_offer *offer; /* of it */
    const uint8_t *inside;         /* its index, if that came with it */
    uint64_t parts_bytes;          /* that all parts have, as the offer says */
    /* From now on the broker is waited for, or (false) it is not. */
    void (*on_broker)(void *owner, bool waits);
};

/* on_done(owner, code, array): 0 and the index of a tree of this node, an anchor, the owner's; else
 * cw_detail(): -ESTALE (the peer's bridge offers it no more), -EDQUOT, -ENODEV, -EREMOTEIO. Never
 * from within. NULL: there is no memory for the receive itself (cw_detail()), and on_done is not
 * called. */
struct cwb_tree_receive *cwb_tree_receive_begin(struct cwb_bridge *bridge,
                                                const struct cwb_tree_receive_spec *spec,
                                                cwb_on_array *on_done, void *owner);
/* on_done is not called. NULL: nothing. */
void cwb_tree_receive_cancel(struct cwb_tree_receive *receive);

#endif
