/*
 * Room: memory that clients keep free, for a client that is about to be refused memory.
 *
 * A maker keeps empty slabs for its next arrays, and a maker that does nothing does not even learn
 * that the last block of its slab came back. Such memory counts against the limits and takes pages
 * of the machine. No client is refused memory because of it: before a client is told LimitExceeded
 * it asks for ROOM, and the broker takes such slabs from their owners, oldest first. It does not
 * ask the owner, which may sleep for hours: one word of the table decides between the two
 * (shm/blocks/block.h).
 *
 * An array whose pickle was opened stays for a while, for others who open the same one
 * (transit.h). Such arrays are let go of before anybody is refused memory, on a GPU too: there by a
 * request of its own (CW_ROOM_OPENED), since no slabs are taken.
 *
 * Replicas of other nodes' arrays are kept for later use. If the free memory is not enough,
 * replicas that nobody uses lose their names: they can be fetched again, and arrays that were put
 * here cannot. The bridge has no lease on a replica with a name. It finds that the replica is gone
 * when it is next asked for it (broker/bridge/fetch/replica.c).
 *
 * Who asks for more than there can be is refused at once: a process that does so again and again
 * would else take from all others what they keep. And a client asks (CW_ROOM_CHECK) before it makes
 * a large slab, which takes milliseconds and the machine's memory, only to be refused.
 *
 * Owner: the loop's thread; there is no state between two requests. Only whole slabs are taken: a
 * large array has a slab of its own, and small ones share slabs of at most 64 MiB. GPU memory is
 * not free before all its mappings end, and imported memory is not ours: neither is taken.
 */
#ifndef CW_BROKER_MEMORY_ROOM_H
#define CW_BROKER_MEMORY_ROOM_H

#include "ipc/wire.h"

struct cwd_broker;
struct cwd_session;

/* Takes back what is wanted, as far as there is so much, or nothing where that is not enough for a
 * limit; looks at some slabs a call and says where to go on. CW_ROOM_CHECK: -EDQUOT, -EINVAL. */
int cwd_room_make(struct cwd_broker *broker, struct cwd_session *asker, const struct cw_room *wish,
                  struct cw_room *out);

#endif
