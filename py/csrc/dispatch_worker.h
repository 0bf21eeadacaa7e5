/*
 * dispatch_worker.h: what the parts of `WorkerEnd` share; see dispatch_worker.c.
 */
#ifndef CABLEWAY_CSRC_DISPATCH_WORKER_H
#define CABLEWAY_CSRC_DISPATCH_WORKER_H

#include "dispatch.h"

#define FUNCTIONS 256 /* remembered, by their number; each takes the place of an older one */

struct deferred { /* a task that is answered later */
    struct deferred *next;
    uint64_t token; /* names it; never used again */
    cw_task task;
    uint64_t extra_in, extra_back;
    char answering; /* a thread does */
};
typedef struct {
    PyObject_HEAD cw_worker *worker;
    PyObject *handler; /* of who serves */
    struct {
        uint64_t number;
        PyObject *function;
    } functions[FUNCTIONS];
    unsigned long long extra_in;   /* bytes beside the present task's data, told by the handler */
    unsigned long long extra_back; /* bytes of results in the parent's own memory, likewise */
    unsigned long long calls;      /* of functions that the present task has made so far */
    unsigned long long place;      /* of the task that runs, or ran last */
    const cw_task *current;        /* the task that runs */
    struct deferred *deferred;
    uint64_t deferred_place; /* of the last task that was deferred */
    uint64_t tokens;         /* given so far */
    char any_deferred;       /* deferred_place is one */
    char running;            /* a task of the user's runs: a SIGINT is meant for it */
} WorkerEnd;

/* Ends this process if it is the child of a worker: it must not answer. */
void worker_end_child(void);
/* Puts a message of the handler's into the cell: (data, bytes beside it). 0, or -1 with an
 * exception. */
int worker_put_message(cw_task *task, PyObject *message, uint64_t *extra_out);
/* Puts a value into the cell, or (value NULL) the exception that is set. 0, or -1 with an
 * exception: the worker is to end. */
int worker_put_outcome(WorkerEnd *w, cw_task *task, PyObject *value, uint64_t *extra_out);
/* Answers with what was put there, and sees to what only this process holds (extra_out bytes of
 * it; extra_back are the parent's already). settle: nobody takes a task soon. 0, or -1 with an
 * exception. */
int worker_answer(WorkerEnd *w, const cw_task *task, uint64_t extra_in, uint64_t extra_back,
                  uint64_t extra_out, int settle);

/* ---- dispatch_defer.c ---- */

/* The function of this task has returned (well: not by an exception). 0: it was deferred, its
 * answer is not our business; 1: answer it. */
int worker_leave_deferred(WorkerEnd *w, uint64_t place, int well);
/* Waits until all that was deferred is answered. 0, or -1 with an exception. */
int worker_wait_deferred(WorkerEnd *w);
void worker_forget_deferred(WorkerEnd *w);
PyObject *worker_defer(PyObject *self, PyObject *unused);
PyObject *worker_answer_deferred(PyObject *self, PyObject *args);
PyObject *worker_answer_message(PyObject *self, PyObject *args);

#endif
