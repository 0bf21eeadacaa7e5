/*
 * Transits: references for handles under way. A client begins one when it exports a handle. It ends
 * when somebody opens (or discards) the handle, or at its limit. Transits outlive the client that
 * began them: the handle may still lie in a pipe.
 *
 * BEGIN and END come from the rings of two clients. BEGIN was written before the handle was passed
 * on, but may be read after END. So an END whose BEGIN is still to come is remembered, and meets
 * it. Tokens are numbers that anybody can guess, so an END names its block. It is remembered until
 * the beginner's ring was read as far as it was filled at that time, and no longer.
 *
 * BEGIN has no answer, so it must not fail. The broker reserves memory for a session's next
 * transits before it tells the session how many it may begin (transits_ready, a counter of its
 * tokens): some at HELLO, and as many again as were begun, whenever it reads a BEGIN or a PING. A
 * client that has used all of them sends a PING. If the number does not rise by that, a limit or
 * the end of memory is reached, and the export of the handle fails. If the client dies, the
 * transits that it had begun have their memory; the rest of the reserve ends with its session.
 *
 * A transit may be for several openers. Each says OPENED once it has its lease, and the last one's
 * ends the transit; an END ends it whoever is still to come. One that dies between its lease and
 * its OPENED, or never comes, leaves the transit to its limit. Openings are counted, not openers: a
 * process that opens twice counts twice, since two processes may as well have one session's number
 * after the other.
 *
 * Of a plain pickle nobody knows how many will open it (CW_OPENERS_ANY): a queue has one reader, a
 * broadcast has many, and the sender may have let go. So it does not end with its first opening,
 * but pickle_seconds after the first by another session than its maker's. What was opened and stays
 * for others is worth max_pickle_bytes at most: what was first opened more than OPENED_LEAST_NS ago
 * ends earlier where it is more, the longest opened first, and all of it ends where somebody is
 * about to be refused memory (room.c). That its maker opens it itself starts no clock, since in a
 * broadcast the root does so at once, and the others come when they come; the end of its maker's
 * session does start the clock of such a one.
 *
 * A transit may be tied to another block, its anchor: an item that waits in a queue, to the queue.
 * At its limit it then lives on for as long again if the anchor is alive, whichever process died
 * meanwhile. When the anchor is freed, it ends, whatever its limit: nobody can take an item from a
 * queue that nobody has any more.
 *
 * A transit that the mover begins is not a handle in a pipe: its holder is known. At first that is
 * the mover, until it has reported what it made; then the client that asked (the *keeper*), until
 * it ends the transit. With its keeper's session the transit ends at once. So if memory was made
 * and its maker or asker is killed, at whatever moment, the memory is free as soon as the death is
 * known.
 */
#ifndef CW_BROKER_MEMORY_TRANSIT_H
#define CW_BROKER_MEMORY_TRANSIT_H

#include <stdint.h>

#include "ipc/wire.h"

struct cwd_broker;
struct cwd_session;

/* 0, or -EDQUOT. */
int cwd_transits_init(struct cwd_broker *broker);
/* Has memory ready for the session's next transits, as far as limits and memory allow, and tells it
 * how many they are. */
void cwd_transits_ready(struct cwd_broker *broker, struct cwd_session *session);
/* The token is session's own and new; else -EPROTO. What cannot begin (more than it was told that
 * it may, a block that is gone) does not, and returns 0: the handle is then stale for who opens it.
 */
int cwd_transit_begin(struct cwd_broker *broker, struct cwd_session *session,
                      const struct cw_block_ref *ref, uint32_t openers);
/* The session has opened what ref names, as one of those for whom the transit of ref's token is. */
void cwd_transit_opened(struct cwd_broker *broker, struct cwd_session *session,
                        const struct cw_block_ref *ref);
/* Ends all that were opened and stay for others who may come. How many. */
uint32_t cwd_transits_end_opened(struct cwd_broker *broker);
/* The transit of ref's token ends, if it is one of ref's block (slab 0: of any). */
void cwd_transit_end(struct cwd_broker *broker, struct cwd_session *session,
                     const struct cw_block_ref *ref);
/* Ties a transit that the session began to ref's block. One that ended already is no matter. */
void cwd_transit_anchor(struct cwd_broker *broker, struct cwd_session *session,
                        const struct cw_block_ref *ref);
/* What the mover made and has told of is the client's from now on. */
void cwd_transit_keep(struct cwd_broker *broker, uint64_t token, struct cwd_session *client);
/* This block is free now: what is tied to it ends at the next cwd_transits_expire(). */
void cwd_transits_untie(struct cwd_broker *broker, uint32_t slab, uint32_t block, uint64_t gen);
/* Ends those past their limits, but for those whose anchor is alive; so many in a turn. */
void cwd_transits_expire(struct cwd_broker *broker);
/* When cwd_transits_expire() is to be called next; INT64_MAX: there are none. */
int64_t cwd_transits_due(struct cwd_broker *broker);
/* A session ends: those that it keeps end, its others stay, uncharged, for pickle_seconds if it
 * alone has opened them; remembered ENDs for it go, those from it stay. */
void cwd_transits_forget(struct cwd_broker *broker, struct cwd_session *session);
uint32_t cwd_transit_count(struct cwd_broker *broker);
/* transit_seconds and pickle_seconds have changed by so much: so do the limits of those under way.
 */
void cwd_transits_move_limits(struct cwd_broker *broker, int64_t more_ns, int64_t soon_more_ns);
/* The oldest of all, the oldest first, room of them at most; returns how many. Where there are many
 * it looks at those alone that are among the first to end. */
uint32_t cwd_transits_oldest(struct cwd_broker *broker, uint32_t room, struct cw_transit_told *out);
void cwd_transits_deinit(struct cwd_broker *broker);

#endif
