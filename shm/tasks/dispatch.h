/*
 * Dispatch: tasks of one process, the parent, to its workers, and the answers back. A task lies in
 * a *cell*; what its bytes mean is the caller's (ipc/tasks/pool.c). Workers are in *groups* (those
 * of one GPU), each with a queue of its own; within a group a task goes to whoever takes it first.
 *
 * How many compete: the parent alone submits and collects (its threads one at a time: the caller's
 * lock). Any number of workers take, each a process with one thread that does. One word a cell
 * decides between them by a compare-and-swap and names the winner:
 *
 *              submit                    take (CAS)                   answer
 *   FREE ------------> READY|place ----------------> TAKEN|w|place ---------> DONE|w|place
 *    ^  ^                  | withdraw (CAS)              | w dies                 | collect
 *    |  +------------------+                             v                        |
 *    +------------------------------------------------ bury ----------------------+
 *
 * Place number place = pos * groups + group says where a task stands in the order of submission:
 * at pos of its group's queue. pos only rises, so that a word never comes twice and who compares an
 * old one fails. A task is bound when a worker takes it and not before: a slow task holds back
 * nobody, and who dies takes along the tasks that its words name, no others.
 *
 *   queue[pos % queue_len]   of a group: the cell of that place. head <= pos < tail: READY, unless
 *                            taken or withdrawn and not yet passed by. Who finds the first place no
 *                            longer READY moves head on, whoever took it: no death leaves head
 *                            behind.
 *   done of worker w         cells in the order in which w answered them; one producer (w), one
 *                            consumer (the parent). Never full: it has a place for every cell, and
 * a cell is used again only after its entry was read. It is notice alone: what counts is the cell's
 * word.
 *
 * A worker may take further tasks before it has answered, and answer in any order, from any thread
 * of its process, one at a time (the caller's lock there). What it has taken and not answered is
 * lost with it, each task by itself; taken_ns says which of them it may have begun.
 *
 * Groups. A task stays in its group's queue while at most CW_DISPATCH_STEAL_BEYOND tasks are READY
 * there for each worker of the group; what is beyond that, a worker of another group may take that
 * finds nothing in its own queue, once this has lasted for a moment (CW_DISPATCH_STEAL_AFTER_NS).
 * Which worker is in which group is written down by the parent before it starts the worker
 * (assign), or by the worker when it opens, and deleted when it is buried: no count that a dead one
 * would have to lower. A group without workers has the bound 0, and nobody waits: nothing of it can
 * be stranded.
 *
 * Waiting. A worker that finds nothing spins if one of its group's few places for spinners is free
 * (they are words that name it), then sleeps on its own word. The parent wakes a sleeper of the
 * group only if more tasks are READY there than workers spin. So no task may be left to one that is
 * counted on, as a spinner or as a sleeper that was woken, and has another task already, or leaves:
 *
 *   parent : tail (T3); looks at the spinners (T20); looks who sleeps (W2)
 *   worker : leaves its spinner's place (T19), or announces sleep (W1) and wakes (T38); looks at
 *            tail (T4), and takes what it finds. Whoever has been counted on since its last task
 *            then looks once more, with its task in hand or as it leaves, and wakes a sleeper if
 *            others are READY: who takes keeps somebody awake for the next
 *
 * The same across groups: who submits beyond the bound also wakes a sleeper of another group; who
 * goes to sleep looks at all queues after it has announced it; who was counted on looks at all
 * queues with its task in hand, and wakes one who may steal if there is something to steal. In a
 * burial the bound falls (T47): those who may steal now are woken.
 *
 * All seq_cst: in their single order one sees the other. Threads of the parent that wait for
 * answers count themselves as listeners and sleep at one bell; where nobody listens the worker
 * wakes the parent's helper at another one:
 *
 *   worker   : done (T12); looks whether somebody listens (T13); wakes that bell (W9)
 *   listener : counts itself (T15), announces sleep (W8), looks at done (T14), sleeps. Leaving, it
 *              uncounts itself (T15), looks at done (T14), and collects what is there
 *   helper   : announces sleep (W8), looks at done (T14), sleeps
 *
 * What there is no cell for waits in a row of the caller's. Workers may leave only once it is
 * empty, so a helper that closes waits for that, and answers alone would not tell it, as long as
 * somebody listens:
 *
 *   helper         : reads its news (T27), asks (T52), looks at the row, sleeps until its news rise
 *   who takes last : takes it out of the row; has the helper asked (T53)? Then tells it (T25)
 *
 * Peeking. A worker may copy what lies in READY cells of its group without taking them, to have
 * their inputs ready. The words in a cell are written one by one with release (T43: the parent's
 * task, the taker's answer), and read one by one with acquire (T44) between two looks at the cell's
 * word (T45): who reads a word that was written after the cell was taken sees that the cell
 * was taken. A copy that was not READY throughout is thrown away. Nobody waits, nothing is bound,
 * and a death of either side leaves nothing.
 *
 * Memory. Who is refused memory asks the others for what they keep idle, and waits for them, no
 * longer than its own limit:
 *
 *   asker  : wanted (T56); looks who sleeps (W2), and tells the helper (T25); reads what they
 * heeded worker : announces sleep (W1), looks at wanted (T57), sleeps. Awake, it looks before each
 * task helper : reads its news (T27), looks at wanted (T57), sleeps until its news rise both   :
 * give up what they keep, then say so (T58)
 *
 * Who runs a task heeds once that is done; nobody waits for an asker. Who has no group, or whose
 * state is still 0, keeps nothing and is not waited for.
 *
 * Deaths
 *   who has asked for memory           the others have given up for nothing
 *   who was asked, or is stopped       the asker's limit ends its wait; or the burial
 *   worker before it takes (CAS)       the task is READY for others
 *   worker after the CAS               head is moved by others; bury: the task is lost, it alone
 *   worker with several tasks          bury: those that it had not answered are lost, each alone
 *   worker that steals                 the same: the word names it, whatever group the task is of
 *   worker after DONE, before its entry bury finds the word: the answer counts
 *   worker after its entry, no wake-up who watches it (a pidfd) tells the helper; bury rings
 *   worker in the middle of a wake-up  the sleeper's word is clear, so nobody would wake it again:
 *                                      bury and tell wake all who sleep, whatever their words say
 *   worker that spins, or was woken    its place names it, bury clears it and wakes others
 *   worker that is stopped meanwhile   who waits while something is READY looks again after a
 *                                      millisecond, and wakes all
 *   worker between assign and its open it is in its group until it is buried
 *   the last worker of a group         bury: the bound is 0, others take what is READY there
 *   parent                             workers watch its pidfd and end; nothing here is repaired
 *   broker                             has no part in this
 *
 * What another process wrote is checked where it is read: a cell's number, a worker's; -EPROTO.
 */
#ifndef CW_SHM_TASKS_DISPATCH_H
#define CW_SHM_TASKS_DISPATCH_H

#include "shm/base/wait.h"

#define CW_DISPATCH_SPINNERS    8u
#define CW_DISPATCH_CELLS_MAX   65536u
#define CW_DISPATCH_WORKERS_MAX 4095u
#define CW_DISPATCH_GROUPS_MAX  64u
#ifndef CW_DISPATCH_STEAL_BEYOND /* the model check has its own */
/* READY tasks of a group for each of its workers that no other group takes. Two: one that the
 * worker takes next, one whose inputs are on their way to it meanwhile. */
#define CW_DISPATCH_STEAL_BEYOND 2u
#endif
/* So long another group has had too many tasks, and a worker none of its own, before it takes one:
 * it costs more there (what it needs lies elsewhere), and that group may be about to do it, or may
 * only have been kept from running for an instant. */
#define CW_DISPATCH_STEAL_AFTER_NS 5000000

enum cw_cell_state { CW_CELL_FREE, CW_CELL_READY, CW_CELL_TAKEN, CW_CELL_DONE };
enum cw_worker_order { CW_ORDER_NONE, CW_ORDER_LEAVE };

struct cw_cell {     /* 64 bytes, shared; the parent's until READY, the taker's until DONE */
    cw_a64 word;     /* state: bits 0..3, worker + 1: 4..15, place: 16..63 */
    cw_a64 taken_ns; /* CLOCK_MONOTONIC; of the taking, or 0 */
    cw_a64 meta[6];  /* the caller's */
};
struct cw_dispatch_worker { /* 192 bytes, shared; a line of the cache for each who writes often */
    struct cw_sleeper sleeper; /* the parent looks here for each task */
    cw_a32 order;              /* the parent's: enum cw_worker_order */
    cw_a32 state;              /* the worker's; meaning by the caller, 0 at the start */
    cw_a32 group;              /* + 1; 0: none, it does not live */
    cw_a32 heeded;             /* the worker's: see cw_dispatch_heed() */
    uint32_t reserved0[10];
    _Alignas(64) cw_a64 done;      /* the worker's: answers so far */
    cw_a64 figures[7];             /* the worker's, for the caller */
    _Alignas(64) cw_a64 collected; /* the parent's: of these answers; advice */
    cw_a64 released;               /* the parent's, for the caller: see ipc/tasks/worker.c */
    uint64_t reserved1[6];
};
struct cw_dispatch_group { /* shared */
    _Alignas(64) cw_a64 tail;
    _Alignas(64) cw_a64 head;
    _Alignas(64) cw_a32 spinner[CW_DISPATCH_SPINNERS]; /* worker + 1; 0: nobody */
};
struct cw_dispatch_words { /* shared */
    _Alignas(64) cw_a32 closing;
    cw_a32 listeners;
    struct cw_bell answers; /* threads of the parent that listen */
    struct cw_bell helper;
    cw_a32 news[2]; /* for listeners, for the helper: rises when there is something else to see */
    cw_a32 wanted;  /* how often somebody has asked for memory */
    cw_a32 heeded;  /* the parent's: see cw_dispatch_heed() */
};
_Static_assert(sizeof(struct cw_cell) == 64 && sizeof(struct cw_dispatch_worker) == 192 &&
                   sizeof(struct cw_dispatch_group) == 192 &&
                   sizeof(struct cw_dispatch_words) == 64,
               "layout");

struct cw_dispatch_view { /* private: where the shared parts lie */
    struct cw_dispatch_words *words;
    struct cw_dispatch_group *groups;
    struct cw_dispatch_worker *workers;
    struct cw_cell *cells;
    cw_a32 *queue;       /* group g: from g * queue_len */
    cw_a32 *done;        /* worker w: from w * queue_len */
    cw_a32 worker_count; /* who has a number from here on does not live, and has left nothing */
    uint32_t cell_count;
    uint32_t queue_len; /* a power of two, at least cell_count */
    uint32_t group_count;
    uint32_t spinners;  /* how many of a group may spin: 0 to CW_DISPATCH_SPINNERS */
    const void *beside; /* the caller's, of each cell: only brought into the cache; NULL: nothing */
    uint64_t beside_stride;
    uint32_t group;          /* a worker's own */
    bool must_sleep;         /* a worker: not to spin just now */
    int64_t *steal_since_ns; /* a worker: since when it could take others' tasks, 0: it could not;
                            NULL: it takes them at once */
};
#define CW_DISPATCH_AHEAD 64u
struct cw_dispatch_notice { /* private: of an answer */
    uint32_t w, cell;
    bool last; /* of those of this worker that were found */
};
struct cw_dispatch_parent { /* private to the parent; one thread at a time */
    struct cw_dispatch_view view;
    uint64_t *tail; /* of each group */
    uint64_t *head; /* of each group, as last looked at: it only rises */
    uint32_t *free; /* cell_count numbers, a stack */
    uint32_t free_count;
    uint64_t *place;  /* of each cell's task; CW_DISPATCH_NOWHERE when it has none and the cell is
                         the caller's, CW_DISPATCH_FREE when it is nobody's */
    cw_a64 *seen;     /* of each worker: answers collected; waiting threads read it */
    uint32_t look_at; /* the worker whose answers are looked for next */
    struct cw_dispatch_notice ahead[CW_DISPATCH_AHEAD]; /* that were found and not yet collected */
    uint32_t ahead_next, ahead_count;
    cw_a32 asked; /* 1: the helper wants to hear when nothing waits any more. Any thread */
};
#define CW_DISPATCH_FREE    UINT64_MAX
#define CW_DISPATCH_NOWHERE (UINT64_MAX - 1)

/* ---- the worker's side; w is its own number ---- */

/* Says which group the worker is in, before anything else. -EINVAL: the parent has assigned it to
 * another one. */
int cw_dispatch_join(const struct cw_dispatch_view *view, uint32_t w);
/* How many workers are in the worker's own group. Any thread. */
uint32_t cw_dispatch_fellows(const struct cw_dispatch_view *view);
/*
 * Takes a task: the cell's number, which is this worker's until cw_dispatch_publish(), and its
 * place; of its own group, or one that another group has too many of. One thread of the worker's.
 * Blocks.
 * -ESHUTDOWN: nothing is READY and the parent closes, or this worker is to leave (then whatever is
 * READY). -EINTR: a signal came while it slept. -EDQUOT: somebody wants memory, cw_dispatch_heed()
 * comes first. -EPROTO.
 */
int cw_dispatch_take(const struct cw_dispatch_view *view, uint32_t w, uint64_t *place);
/* Is this a cell whose task the worker has taken and not answered? */
bool cw_dispatch_is_taken(const struct cw_dispatch_view *view, uint32_t w, uint32_t cell);
/* Since when the caller's task runs, CLOCK_MONOTONIC; 0: it has just been taken. */
uint64_t cw_dispatch_taken_ns(const struct cw_dispatch_view *view, uint32_t cell);
/* For how long it runs. */
int64_t cw_dispatch_elapsed_ns(const struct cw_dispatch_view *view, uint32_t cell);
/* Publishes the answer that lies in the cell, and wakes who listens. False: nobody does, and the
 * helper was not told; cw_dispatch_settle() comes soon. Any thread of the worker's, one at a time.
 * Never blocks. */
bool cw_dispatch_publish(const struct cw_dispatch_view *view, uint32_t w, uint32_t cell);
/* Tells the helper of answers that nobody has collected or listens for, once nothing else was to do
 * for wait_ns: a caller that submits and then listens is about to do so. Spins. Any thread. */
void cw_dispatch_settle(const struct cw_dispatch_view *view, uint32_t w, int64_t wait_ns);
/* States what the worker is, and tells the helper. */
void cw_dispatch_state(const struct cw_dispatch_view *view, uint32_t w, uint32_t state);

/*
 * Looks for the nth (from 0) task that is READY in the worker's own group, without taking it: its
 * cell, and its place. What is then copied from the cell by cw_dispatch_read() is the task's if
 * cw_dispatch_is_still() says so afterwards. -EAGAIN: none. -EPROTO. Any thread. Never blocks.
 */
int cw_dispatch_peek(const struct cw_dispatch_view *view, uint32_t nth, uint64_t *place);
bool cw_dispatch_is_still(const struct cw_dispatch_view *view, uint32_t cell, uint64_t place);

/* ---- memory that is kept idle; both sides, any thread, never blocks ---- */

#define CW_DISPATCH_PARENT UINT32_MAX /* in place of a worker's number */
/* Asks all for the memory that they keep idle, and wakes them. The number of this request. */
uint32_t cw_dispatch_ask(const struct cw_dispatch_view *view);
/* The number of the last request; and whether who (a worker, or CW_DISPATCH_PARENT) has still to
 * heed it. */
bool cw_dispatch_must_heed(const struct cw_dispatch_view *view, uint32_t who, uint32_t *number);
/* All requests up to number are heeded; some: something was given up. One thread of who's at a
 * time. */
void cw_dispatch_heed(const struct cw_dispatch_view *view, uint32_t who, uint32_t number,
                      bool some);
/* How many have not heeded that request yet; *some: whether one that did has given something up. */
uint32_t cw_dispatch_unheeded(const struct cw_dispatch_view *view, uint32_t number, bool *some);

/* ---- what lies in cells; both sides, word by word, so that it may be read meanwhile ---- */

/* to is at a multiple of 8, with room for size_bytes rounded up to one. */
void cw_dispatch_write(cw_a64 *to, const void *from, uint32_t size_bytes);
void cw_dispatch_read(void *to, const cw_a64 *from, uint32_t size_bytes);

/* ---- the parent's side; one thread at a time, unless said otherwise ---- */

/* Only workers below this number are looked at from now on: none above lives, or has left anything.
 */
void cw_dispatch_use(struct cw_dispatch_parent *parent, uint32_t workers);
/* A free cell, for the caller to fill. -EAGAIN: none. It goes back with cw_dispatch_free(). */
int cw_dispatch_reserve(struct cw_dispatch_parent *parent);
void cw_dispatch_free(struct cw_dispatch_parent *parent, uint32_t cell);
/* A worker is about to be started, in this group. */
void cw_dispatch_assign(struct cw_dispatch_parent *parent, uint32_t w, uint32_t group);
/* Makes a filled cell's task READY in a group; who can be spared for it is woken by
 * cw_dispatch_wake(), once for many. 0, or -EAGAIN: the queue is full of tasks that were withdrawn
 * behind a READY one. -EPROTO. */
int cw_dispatch_submit(struct cw_dispatch_parent *parent, uint32_t group, uint32_t cell);
/* Wakes sleepers of the group for the tasks that are READY beyond what spinners will take, at most
 * so many; and as many of other groups for those that these may take. */
void cw_dispatch_wake(struct cw_dispatch_parent *parent, uint32_t group, uint32_t most);
/* Takes a task back: 0, the cell is the caller's; -EBUSY: a worker has taken it. */
int cw_dispatch_withdraw(struct cw_dispatch_parent *parent, uint32_t cell);
/* Who has taken a cell's task: its number, -1: nobody yet; for how long (0: has just). */
int cw_dispatch_taker(const struct cw_dispatch_parent *parent, uint32_t cell, int64_t *elapsed_ns);
/* Workers below this number are looked at. Any thread. */
uint32_t cw_dispatch_in_use(const struct cw_dispatch_view *view);
/* Tasks of a group that are READY, at some moment of the call. Any thread. */
uint64_t cw_dispatch_ready(const struct cw_dispatch_view *view, uint32_t group);
/* The next answer's cell, which is the caller's again, its task's place, and who gave it. -EAGAIN:
 * none. -EPROTO: *w broke the rules. */
int cw_dispatch_collect(struct cw_dispatch_parent *parent, uint32_t *w, uint64_t *place);
/* Is there an answer, as far as was collected? Any thread. */
bool cw_dispatch_has_answer(const struct cw_dispatch_parent *parent);
/* Counts a thread in (+1) or out (-1) as a listener. After counting out, collect. */
void cw_dispatch_listen(struct cw_dispatch_parent *parent, int change);
/* The number that cw_dispatch_wait() compares with. Any thread. */
uint32_t cw_dispatch_news(const struct cw_dispatch_view *view, bool helper);
/* Lets it rise, and ends the waits of all listeners or of the helper; a system call in any case.
 * Any thread, any party. */
void cw_dispatch_tell(const struct cw_dispatch_view *view, bool helper);
/* The helper is about to look whether anything waits to be sent, after it has read its news:
 * whoever takes the last of it away from now on tells it. Any thread. */
void cw_dispatch_ask_emptied(struct cw_dispatch_parent *parent);
/* Nothing waits any more: the caller has just taken the last away. Tells the helper if it has
 * asked. Any thread. */
void cw_dispatch_emptied(struct cw_dispatch_parent *parent);
/*
 * Waits until there is an answer, or news are no more what they were. A listener may spin for
 * spin_ns first; the helper, one thread, leaves answers to listeners while there are any. Any
 * thread, several at a time. 0: look; -ETIMEDOUT; -EINTR. Blocks.
 */
int cw_dispatch_wait(const struct cw_dispatch_parent *parent, bool helper, uint32_t was,
                     int64_t spin_ns, int64_t timeout_ns);
/* From now on workers leave when nothing is READY; false takes it back. Wakes them. */
void cw_dispatch_close(struct cw_dispatch_parent *parent, bool closing);
/* Tells one worker to leave after its task. */
void cw_dispatch_order(struct cw_dispatch_parent *parent, uint32_t w, enum cw_worker_order order);
struct cw_dispatch_end { /* of a task whose worker is dead */
    uint64_t place;
    bool answered;
    bool begun; /* false: nobody has looked at it but to take it */
};
/*
 * A worker is dead, and all its entries are collected: clears what names it and wakes others for
 * what it may have been woken for. Then its number may be given to another, in any group. Cells
 * with an answer and no entry, and cells that it had taken, come out by repeated calls: the cell's
 * number, and how far the task came; they are the caller's again. -EAGAIN: no more.
 */
int cw_dispatch_bury(struct cw_dispatch_parent *parent, uint32_t w, struct cw_dispatch_end *end);

#endif
