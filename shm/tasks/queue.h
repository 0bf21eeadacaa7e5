/*
 * Queue: who of many writers puts next, who of many readers takes next, and how the two ends wait
 * for each other. What an item is and where its bytes lie is the caller's (ipc/tasks/queue.c).
 *
 * How many compete: any number of threads of any number of processes, at each end. One word an
 * end, `turn`, decides between them by a compare-and-swap and names the winner (a task, task.h).
 * Who has the turn of an end is alone there: one writer and one reader at a time, as in a ring.
 *
 *                 take (CAS 0 -> self)                    publish (count + 1)
 *   turn 0  ------------------------------>  turn = self  ------------------->  turn = self
 *    ^  ^                                        |  dies                            |  dies
 *    |  +---- clear (CAS dead -> 0, anybody) ----+----------------------------------+
 *    +------------------------------ release (store 0) -----------------------------+
 *
 * An end counts the items that went through it, and has two marks (where it stands in the memory
 * of the items, bytes so far, items lost); mark[count & 1] is the one that holds. Who has the turn
 * prepares the other one and then publishes it by one store of the count. Before that store nothing
 * has happened, after it everything: a death leaves nothing to repair, and clearing a dead one's
 * turn is one compare-and-swap.
 *
 * Invariants: get.count <= put.count; the difference is the number of items, and never above
 * max_items; put.bytes - get.bytes is the number of bytes, and never above max_bytes. Both follow
 * from the marks: there is no counter that a death could leave wrong.
 *
 * Waiting. A reader that finds nothing sleeps at the bell `filled`, a writer that finds no room at
 * `freed`, who finds the turn taken at the end's own bell. Idle sleepers sleep for ever, so no
 * wake-up may be lost, also when the waker dies:
 *
 *   writer: turn = self (Q1); wakes sleepers (W9); count + 1 (Q3); turn = 0 (Q2); wakes again (W9)
 *   reader: announces (W8); looks at the writers' turn (Q5), then at the count (Q4);
 *           nothing there and turn 0: sleeps for ever; turn taken: sleeps for a while, looks again
 *
 * All but the count are seq_cst. A reader that sleeps for ever saw turn 0 after its announcement:
 * every writer before that had published, and would have been seen in the count; every writer that
 * takes the turn later sees the announcement and wakes it BEFORE it publishes. The reader then
 * finds the turn taken and looks again until the item is there, or the turn is free, or its holder
 * dead. So a writer that dies at any moment either has put nothing, or every reader is awake
 * (one that dies while it wakes them leaves them to the next: wait.h).
 * Readers wake writers in the same way. Where a turn is taken the sleep is short (it doubles to
 * CW_QUEUE_LOOK_NS) and each time over the holder's life is looked at.
 *
 * Deaths
 *   writer with the turn, before Q3      its item was never there; the turn is cleared
 *   writer after Q3                      its item is there; the turn is cleared
 *   reader with the turn, before Q3      the item is still there, for the next reader (the caller
 *                                        says what an item that was partly taken is worth)
 *   reader after Q3                      the item went with it: it is lost, and no other
 *   anybody who waits                    nothing: a set word asleep costs one system call
 *   the broker                           nothing: it has no part in this
 *
 * Time limits are for what the queue holds: no room, or nothing there. A turn lasts microseconds,
 * but its holder may lose its core within it, at any moment, for as long as the machine is busy. So
 * nobody's time runs out at a turn: whoever finds it taken waits until it is free, also with a
 * limit of 0, and only then looks whether there is room, or an item. What a holder does meanwhile:
 *   runs, or waits for a core            it is waited for
 *   dies                                 its turn is cleared, above: within a look (0.5 to 100 ms)
 *   does neither for CW_QUEUE_HOLDER_NS, since it is stopped (SIGSTOP, a debugger, a frozen
 *   cgroup) or asks a broker that stands still: who has time goes on waiting; whose limit is out
 *                                        gets -EBUSY, which is neither "full" nor "empty"
 * It cannot be passed by: its next store may be to the place where another would put. Others at the
 * same end go on when it does, or when it is killed; the other end is not concerned, and takes what
 * is there or puts while there is room.
 *
 * Words that another process wrote are copied and checked by the caller; a turn that names nobody
 * who runs is cleared, a count that makes no sense is -EPROTO.
 */
#ifndef CW_SHM_TASKS_QUEUE_H
#define CW_SHM_TASKS_QUEUE_H

#include "shm/base/wait.h"

#define CW_QUEUE_LOOK_NS   100000000  /* how long a dead holder goes unnoticed at most */
#define CW_QUEUE_HOLDER_NS 1000000000 /* for a holder that stands still, beyond one's limit */
#define CW_QUEUE_END_TRY   INT64_MIN  /* an end_ns: does not wait, not even for a turn */

struct cw_queue_mark { /* shared; written by who has the turn */
    cw_a64 position;   /* in the memory of the items */
    cw_a64 bytes;      /* of all items so far */
    cw_a64 lost;       /* get: items whose memory was gone with a dead reader */
};

struct cw_queue_end { /* 128 bytes, shared */
    cw_a64 turn;
    cw_a64 count;
    struct cw_queue_mark mark[2];
    struct cw_bell bell; /* who waits for the turn sleeps here */
    uint64_t reserved[6];
};
_Static_assert(sizeof(struct cw_queue_end) == 128, "layout");

struct cw_queue_core { /* shared; zeros and the two limits are a queue */
    struct cw_queue_end put, get;
    struct cw_bell filled; /* readers that wait for an item */
    struct cw_bell freed;  /* writers that wait for room */
    struct cw_bell joined; /* who waits until all is done */
    cw_a64 done;           /* items that are done with, said by their readers */
    uint64_t max_items;    /* 0: no limit */
    uint64_t max_bytes;    /* 0: no limit */
    uint64_t reserved[23];
};
_Static_assert(sizeof(struct cw_queue_core) == 512, "layout");

struct cw_queue_place { /* private: where an end stands */
    uint64_t count;
    uint64_t position;
    uint64_t bytes;
    uint64_t lost;
};

/*
 * Takes the turn to put an item that is charged with so many bytes, once there is room for it.
 * place: where writers stand. end_ns: CLOCK_MONOTONIC, < 0 for ever, CW_QUEUE_END_TRY not for a
 * turn either. Blocks. The caller then commits or cancels, soon. 0, -ETIMEDOUT (no room until
 * then), -EBUSY (who has the turn does not run, see above; CW_QUEUE_END_TRY: it is taken), -EINTR,
 * -EPROTO (the words make no sense).
 */
int cw_queue_put_begin(struct cw_queue_core *queue, uint64_t bytes, int64_t end_ns,
                       struct cw_queue_place *place);
/* Publishes the item; place->position is where writers stand now, place->bytes is counted here. */
void cw_queue_put_commit(struct cw_queue_core *queue, struct cw_queue_place *place, uint64_t bytes);
void cw_queue_put_cancel(struct cw_queue_core *queue);

/* The same for taking one. lost: the item is counted as lost. */
int cw_queue_get_begin(struct cw_queue_core *queue, int64_t end_ns, struct cw_queue_place *place);
/* And -EAGAIN instead of waiting once *word, private to the caller's process, is not as it was:
 * cw_queue_end_waits() changes it, and ends the waits that it concerns. */
int cw_queue_get_begin_unless(struct cw_queue_core *queue, int64_t end_ns, const cw_a32 *word,
                              uint32_t as_it_was, struct cw_queue_place *place);
void cw_queue_end_waits(struct cw_queue_core *queue, cw_a32 *word);
void cw_queue_get_commit(struct cw_queue_core *queue, struct cw_queue_place *place, uint64_t bytes,
                         bool lost);
void cw_queue_get_cancel(struct cw_queue_core *queue);

/*
 * Who watches a queue and takes no part: announces, then looks, then sleeps until that end may have
 * moved since. It sleeps where the other end does, and as that does: at `filled` to see items put,
 * at `freed` to see items taken; so each death above leaves it awake, or nothing to see. Any number
 * may watch. What it costs the others is what a sleeper costs them: a system call an item while it
 * sleeps.
 */
struct cw_queue_sight { /* private; zeros at first */
    struct cw_queue_end *end;
    struct cw_bell *bell;
    uint64_t holder; /* who had the turn of that end */
    int64_t look_ns; /* how long the next sleep is, if somebody had */
    uint32_t rings;
};
void cw_queue_watch(struct cw_queue_core *queue, bool taken, struct cw_queue_sight *sight);
/* 0: look again; -EINTR. */
int cw_queue_watch_sleep(struct cw_queue_sight *sight);
/* Ends the sleep of all who watch and have announced it: it is theirs to know why. */
void cw_queue_rouse(struct cw_queue_core *queue);

/* Where an end stands; never waits. */
void cw_queue_look(struct cw_queue_end *end, struct cw_queue_place *place);

/* How many items are done with. */
uint64_t cw_queue_count_done(struct cw_queue_core *queue);
/* An item is done with. -EINVAL when there were no more. */
int cw_queue_done(struct cw_queue_core *queue);
/* Waits until every item is done with, or was lost. 0, -ETIMEDOUT, -EINTR. */
int cw_queue_join(struct cw_queue_core *queue, int64_t end_ns);

#endif
