/*
 * Room: memory that clients keep free, for one who is about to be refused.
 *
 * A maker keeps slabs with nothing in them for its next arrays, and one that does nothing does not
 * even learn that the last block of its slab came back. Such memory counts against the limits, and
 * takes pages of the machine. Nobody is refused for it: before a client is told LimitExceeded it
 * asks for ROOM, and the broker takes such slabs from their owners, oldest first. The owner is not
 * asked, since it may sleep for hours: one word of the table decides between the two
 * (shm/blocks/block.h).
 *
 * Replicas of other nodes' arrays are kept for who may ask for them again. Those that nobody has
 * lose their names where what is kept free is not enough: they can be fetched again, what is put
 * here cannot. The bridge has no lease on what has its name, and finds that it is gone when it is
 * asked for it (broker/bridge/fetch/replica.c).
 *
 * The loop's thread owns all; there is no state between two requests. Slabs alone are taken, as a
 * whole: a large array has one of its own, and small ones share slabs of 64 MiB at most. Memory of
 * a GPU is not free before all its mappings end, and imported memory is not ours: both stay.
 */
#ifndef CW_BROKER_MEMORY_ROOM_H
#define CW_BROKER_MEMORY_ROOM_H

#include "ipc/wire.h"

struct cwd_broker;
struct cwd_session;

/* Takes back what is wanted, as far as there is so much; looks at some slabs a call and says where
 * to go on. */
void cwd_room_make(struct cwd_broker *broker, struct cwd_session *asker, const struct cw_room *wish,
                   struct cw_room *out);

#endif
