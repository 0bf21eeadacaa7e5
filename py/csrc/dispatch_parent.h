/*
 * dispatch_parent.h: what the parts of `Dispatch` share; see dispatch_parent.c.
 */
#ifndef CABLEWAY_CSRC_DISPATCH_PARENT_H
#define CABLEWAY_CSRC_DISPATCH_PARENT_H

#include "dispatch.h"

struct call {
    struct call *next;
    unsigned long thread; /* which waits for it */
    PyObject *function;   /* borrowed: for who has to tell of a death */
    uint64_t token;       /* names it to `fail`; never used again */
    uint32_t cell;
    int ended;
    uint32_t kind;
    PyObject *data;  /* the answer's bytes, or an Answer */
    PyObject *error; /* or what became of it */
};
/* What a thread does: on its stack. */
enum step_kind { STEP_DELIVERS = 1, STEP_SENDS };
struct step {
    struct step *next;
    unsigned long thread;
    enum step_kind kind;
};
struct entry {
    PyObject *owner;   /* NULL: a call's, or nobody's */
    PyObject *payload; /* what goes with the task and stays until it has ended; may be NULL */
    struct call *call;
    uint64_t number;
};
/* Base of what a caller holds for one task (Future, AsyncResult); see dispatch_outcome.c. */
typedef struct {
    PyObject_HEAD PyObject *engine, *owner, *function; /* of a job; NULL reads as None */
    PyObject *found, *described;
    PyObject *call;  /* the task: (args,) or (args, kwargs) */
    PyObject *state; /* text, of concurrent.futures; `outcome_pending` until it has ended */
    PyObject *value, *exception;
    PyObject *condition; /* somebody may wait at it, so that Python is to end the task */
    PyObject *pickled;   /* of a quick one that waits for a cell */
    long cell;
    char quick; /* its answer is seen to here, if it is plain */
    char success, ended;
    char written;   /* an attribute was set from Python */
    char untracked; /* the garbage collector does not know it: see dispatch_outcome.c */
} Outcome;

typedef struct {
    PyObject_HEAD cw_pool *pool;
    PyObject *memory; /* keeps the task queue mapped as long as this lives; knows none of us */
    PyObject *deliver;
    struct entry *entries;
    struct call *calls;
    struct step *steps; /* all that threads are in */
    uint32_t cells, workers, groups;
    int64_t spin_ns;
    Py_ssize_t under_way;
    uint32_t load[CW_POOL_GROUPS_MAX]; /* the same for each group */
    uint8_t *group_of;                 /* of each cell that is under way */
    uint64_t tokens;                   /* given so far */
    int64_t helped_ns;                 /* when the helper was last woken */
    unsigned forks;                    /* of the process that it belongs to */
    uint32_t *lives;                   /* of each worker's number: how many were buried */
    PyObject *rest;       /* list: answers whose delivery was interrupted, last first; or NULL */
    unsigned long helper; /* the helper's thread; 0: there is none */
    char shut;            /* takes no more */
    /* The engine's own, told by `share`: */
    PyObject *pinned;  /* dict: functions that keep their slot, to _pool.functions.Function */
    PyObject *kinds;   /* tuple: types of functions */
    PyObject *pending; /* deque: what waits for a cell (_pool.submit) */
    PyObject *waiters; /* set: threads that wait for a job */
    /* Of the quick way (dispatch_begin.c): */
    PyObject *late; /* list of answers that are Python's, collected by who submits; or NULL */
    uint32_t begun; /* tasks since their submitter has collected */
    _Atomic uint32_t own_collects; /* by who submits; the helper reads it without the GIL: advice */
    uint32_t seen_collects;        /* the helper's: of these */
    char settled;                  /* some have ended since waiters were told */
    uint32_t noted; /* how often what a thread waits for has changed on that thread itself */
    char sending, send_again; /* a thread sends what waits for Python; and is to look again */
} Dispatch;

/* Whether this process has made it; else -1 with a ValueError: a child has the parent's memory, but
 * none of its tasks. */
int dispatch_is_ours(Dispatch *d);
int dispatch_is_here(const Dispatch *d); /* the same, without an exception */

/* ---- dispatch_submit.c ---- */

/* Pickles a plain object, fills a cell and submits it to a group. The cell's number; -1: no room
 * now; -2: an exception; -3: not plain; -4: shut. */
long dispatch_submit_object(Dispatch *d, uint32_t group, uint32_t kind, PyObject *function,
                            PyObject *object);
/* Whether there is such a group; else -1 with a ValueError. */
int dispatch_has_group(Dispatch *d, unsigned group);
/* The entry of a cell, whose references go over; the cell has none any more. */
struct entry dispatch_disown(Dispatch *d, uint32_t cell);
/* (owner, number, worker, kind, data, cell, payload); takes the references of entry and data over.
 */
PyObject *dispatch_told(struct entry *entry, uint32_t worker, uint32_t kind, PyObject *data,
                        uint32_t cell);
/* Appends what was made to a list that may not be there yet. Takes entry over. */
int dispatch_append(PyObject **list, PyObject *entry);
PyObject *dispatch_submit(PyObject *self, PyObject *args);
PyObject *dispatch_submit_plain(PyObject *self, PyObject *args);
PyObject *dispatch_submit_chunks(PyObject *self, PyObject *args);
PyObject *dispatch_withdraw(PyObject *self, PyObject *args);
PyObject *dispatch_withdraw_all(PyObject *self, PyObject *owner);

/* Fills a cell and submits it. The cell's number; -1: no room now; -2: an exception; -4: shut. Runs
 * no Python code unless there is an exception. */
long dispatch_put(Dispatch *d, uint32_t group, uint32_t kind, PyObject *function, const void *data,
                  Py_ssize_t nbytes);
/* Whose task is in a cell now. Takes new references. */
void dispatch_own(Dispatch *d, long cell, PyObject *owner, uint64_t number, PyObject *payload);

/* ---- dispatch_collect.c ---- */

/* This thread is in a step until it leaves it, whatever a signal's handler does in between. */
void dispatch_enter(Dispatch *d, struct step *step, enum step_kind kind);
void dispatch_exit(Dispatch *d, struct step *step);

/* Gives a list of answers to the engine. Takes the list over. An exception that is set stays. */
int dispatch_deliver(Dispatch *d, PyObject *list);
/* Collects all answers: 0, or -1 with an exception. *list: those that are to be delivered, NULL
 * when there are none; mine: the call of this thread. */
int dispatch_drain(Dispatch *d, struct call *mine, PyObject **list);
/* Collects all answers and gives them to whom they belong, sends what waits for cells, tells who
 * waits. 0, or -1 with an exception. */
int dispatch_collect_all(Dispatch *d, struct call *mine);
/* Waits as a listener and collects. 0, or -1 with an exception. */
int dispatch_listen_once(Dispatch *d, uint32_t was, int64_t timeout_ns, struct call *mine);
PyObject *dispatch_collect(PyObject *self, PyObject *unused);
PyObject *dispatch_listen(PyObject *self, PyObject *args);
PyObject *dispatch_help(PyObject *self, PyObject *args);
PyObject *dispatch_leave(PyObject *self, PyObject *unused);
/* Whether there are answers that this thread is to deliver though it has not collected them. */
int dispatch_has_left(const Dispatch *d);
PyObject *dispatch_reap(PyObject *self, PyObject *args);

/* ---- dispatch_answer.c ---- */

/* The data of an ANSWER_LENT, which it takes over; NULL with an exception: it was released. */
PyObject *answer_new(Dispatch *d, const cw_task *task, PyObject *data);
/* Its worker need stay no longer. Any object; may be repeated. */
void answer_release(PyObject *object);

/* ---- dispatch_calls.c ---- */

PyObject *dispatch_call(PyObject *self, PyObject *args);
PyObject *dispatch_holds_up(PyObject *self, PyObject *unused);
PyObject *dispatch_fail(PyObject *self, PyObject *args);

/* Seconds to ns; < 0 and None: for ever. 0, or -1 with an exception. */
int dispatch_read_timeout(PyObject *seconds, int64_t *ns);

/* ---- dispatch_begin.c ---- */

PyObject *dispatch_share(PyObject *self, PyObject *args);
PyObject *dispatch_begin(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *dispatch_wait(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *dispatch_pump(PyObject *self, PyObject *unused);
PyObject *dispatch_take_out(PyObject *self, PyObject *work);
PyObject *dispatch_send_exclusive(PyObject *self, PyObject *send);
PyObject *dispatch_ask_emptied(PyObject *self, PyObject *unused);
/* Sends what waits first, as long as it is quick and there is room: whether what is first now is
 * Python's to send; -1: an exception. Runs no Python code. */
int dispatch_pump_quick(Dispatch *d);
/* Tells threads that wait, if tasks have ended that they may wait for. */
void dispatch_tell_waiters(Dispatch *d);

/* ---- dispatch_outcome.c ---- */

extern PyObject *outcome_pending; /* the state of what has not ended */

/* Ends a quick task with its plain answer. 1: done, and the entry is taken over; 0: it is Python's
 * to see to, perhaps with an exception set that is not the task's. */
int outcome_take(Dispatch *d, struct entry *entry, const cw_task *task);

#endif
