/*
 * Floor: what was last told of a remote name on this node, behind which nobody here may go back.
 * One for each name of a peer of which a replica stands or is coming, at whatever place.
 *
 * A fact is what a client of this node was told of a name: the array that it means, or that there
 * is none, or (waits, puts, removes, lists) something that does not say which array. Facts and
 * questions to the owner are numbered in the order in which this process tells and asks them
 * (cwb_bridge.stamp). What the owner answers to a question was so at a moment after the question.
 *
 * Invariant: a replica STANDS if no other fact was told since its owner was asked for it, or if it
 * is the array of the last fact, or a later one by the same run of the owner's broker (which
 * numbers its puts). It can be found (by its name, in the replica cache) only if it stood when it
 * was whole; and before a later fact is told to anybody it is outdated: one store into its block's
 * entry (shm/blocks/block.h), which whoever finds its name at any place looks at last. A job that
 * asks is given what is coming only if that stands at that moment; else it waits for the next one.
 *
 * So facts have one order, that in which this process tells them, and each read is one of them or
 * (who waited while a later one was told) was so before that. Nothing else is needed: no number of
 * the owner's has to be compared over its restarts, and where no replica stands or is coming there
 * is nothing to remember, since whatever comes will have been asked for after all that was told.
 *
 * Deaths. This process: all that it let be found ends with its session, before the next bridge is
 * started (broker/roles/remote.c); that one asks after all that this one told. The broker: the next
 * one's bridge asks after all that was told, too; who is connected to the dead one believes nothing
 * of its directory any more (shm/base/alive.h). The owner's broker, its bridge, the link: another
 * question is asked, later. A reader: nobody waits for it. Stopped ones: a bridge tells nothing
 * newer and outdates nothing meanwhile; a broker may show a name for as long as it stands, and
 * whoever finds it sees that it is outdated.
 *
 * The loop's thread owns all.
 */
#ifndef CW_BROKER_BRIDGE_FETCH_FLOOR_H
#define CW_BROKER_BRIDGE_FETCH_FLOOR_H

#include "broker/bridge/fetch/replica.h"

struct cwb_floor {
    struct cwb_replica *replicas; /* at whatever place */
    uint64_t told;                /* stamp of the last fact; 0: none yet */
    uint64_t instance, entry;     /* the array that it was; 0: it was none, or not said which */
    struct cw_name_key there;
    UT_hash_handle hh; /* of the peer, by there */
};

/* NULL: nothing of this name stands or is coming. */
struct cwb_floor *cwb_floor_find(struct cwb_peer *peer, const char *there, uint32_t length);
/* A place more, false: there is no memory; and its end, with the last one the floor's. peer and
 * there are set. */
bool cwb_floor_join(struct cwb_replica *replica);
void cwb_floor_leave(struct cwb_replica *replica);
/* Does it, as far as it is known yet? */
bool cwb_floor_stands(const struct cwb_replica *replica);
/* It is whole, stands, and is about to be told. */
void cwb_floor_raise(struct cwb_replica *replica);
/* About to be told: that there is none, or something that does not say which array. */
void cwb_floor_none(struct cwb_bridge *bridge, struct cwb_peer *peer,
                    const struct cw_name_key *there);
/* About to be told: that there is one. */
void cwb_floor_some(struct cwb_bridge *bridge, struct cwb_peer *peer,
                    const struct cw_name_key *there);
/* A job of one name other than GET is about to be told this. opened: of ABOUT, which array; else
 * NULL. */
void cwb_floor_answer(const struct cwb_job *job, int status, const struct cwb_opened *opened);

#endif
