/*
 * References and reclaim: which blocks the broker holds, and how blocks that nobody holds come
 * back.
 *
 * A hold is kept for each (slab, block, generation) that has references, or that waits. A block
 * waits if it is WANTED and somebody had a lease on it at the last look; whoever drops that lease
 * tells us. A client that is killed between dropping and telling tells nobody, so at each session's
 * end all waiting blocks become suspects again.
 *
 *   suspect -> WANTED -> scan: held  -> waits
 *                              free  -> RETIRING -> scan: held -> back to LIVE, waits
 *                                                         free -> FREE, generation + 1
 * Suspects are gathered during a turn of the loop and examined in one batch: one scan of all lease
 * tables for all of them. Everything between RETIRING and its end happens in one call.
 *
 * Before a suspect is examined, all rings are read up to where they were filled when it was marked
 * WANTED. A client may have begun a transit and then dropped its lease without telling, as it may
 * while the block is not WANTED: then only the BEGIN in its ring says that the block is held. The
 * same may happen during the examination: the block is taken, passed on and let go between the
 * reading of that ring and the scan. So if the scan after RETIRING finds no holder, the rings'
 * contents of that moment are searched for such BEGINs before anything is freed. If a client's ring
 * cannot be read (it takes no replies), the broker waits RING_TIMEOUT_NS for it: the client may
 * lose what it alone had begun to pass on, and delays nobody's memory any longer.
 */
#ifndef CW_BROKER_MEMORY_RECLAIM_H
#define CW_BROKER_MEMORY_RECLAIM_H

#include <stdbool.h>
#include <stdint.h>

struct cwd_broker;
struct cwd_slab;
struct cwd_hold;

struct cwd_hold_key;

struct cwd_suspect {
    uint64_t slot; /* as in a lease table: slab and block */
    uint64_t gen;
    uint64_t turn; /* in which it was marked */
    bool held;
};

struct cwd_reclaim {
    struct cwd_hold *holds;   /* holds.h: by slab, block, generation */
    struct cwd_hold *waiting; /* list of those that wait */
    struct cwd_suspect *suspects;
    uint32_t count, room;
    struct cwd_hold_key *begun; /* in a run: blocks whose transit's BEGIN is unread in a ring */
    uint32_t begun_count, begun_room;
    uint32_t crowded;          /* with so many suspects a run does not wait for its time */
    uint32_t missed;           /* looks in a row that found all of them too young */
    int64_t since_ns;          /* the oldest was marked then, or later */
    uint64_t since_turn;       /* the same, in turns of the loop */
    int64_t not_before_ns;     /* scans take a fifth of the time at most */
    bool urgent;               /* a session ended: look now */
    struct cwd_suspect *later; /* in a run: those that are looked at again in the next one */
    uint32_t later_count, later_room;
    bool forgot; /* for want of memory a suspect is not in the list: its word alone says WANTED */
};

/* Takes one reference on a block that lives. spare: a hold for it, or NULL (holds.h). Returns 0, or
 * with the sentence -ESTALE, or (without a spare) -EDQUOT. */
int cwd_ref_take(struct cwd_broker *broker, struct cwd_slab *slab, uint32_t block, uint64_t gen,
                 struct cwd_hold **spare);
/* Gives one back that was taken. The last one makes the block a suspect. */
void cwd_ref_drop(struct cwd_broker *broker, uint32_t slab, uint32_t block, uint64_t gen);
/* How many references there are. */
uint32_t cwd_ref_count(struct cwd_broker *broker, uint32_t slab, uint32_t block, uint64_t gen);

/* Perhaps nobody holds this block. Anything may be claimed: it is looked at, not believed. */
void cwd_reclaim_suspect(struct cwd_broker *broker, uint32_t slab, uint32_t block);
/* Suspects everything that waits. */
void cwd_reclaim_suspect_waiting(struct cwd_broker *broker);
/* Looks at all suspects and takes back what nobody holds. */
void cwd_reclaim_run(struct cwd_broker *broker);
/* When to run next: 0 now, INT64_MAX never, else CLOCK_MONOTONIC ns. */
int64_t cwd_reclaim_due(const struct cwd_broker *broker);
/* Is there a suspect that was marked in that turn or before? */
bool cwd_reclaim_unsettled(const struct cwd_broker *broker, uint64_t turn);
/* Writes this number into each slab that has suspects (unsettled). */
void cwd_reclaim_mark_slabs(struct cwd_broker *broker, uint64_t sweep);
void cwd_reclaim_deinit(struct cwd_broker *broker);

#endif
