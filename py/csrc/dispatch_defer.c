/*
 * dispatch_defer.c: tasks of a `WorkerEnd` that are answered after their function has returned,
 * when their results have left; see dispatch_worker.c.
 *
 * Invariant: a task that was deferred is in the list until it is answered, once: by `answer` or
 * `answer_message`, or, if its function raises before one of these was called, with that exception.
 * List and tokens belong to this process and are touched under the GIL alone. Who has begun to
 * answer marks the entry, since encoding runs Python code; who fails takes the mark away.
 *
 * Deaths: the cells are TAKEN by this worker until they are answered; all of them are lost with it
 * (shm/tasks/dispatch.h).
 */
#include "dispatch_worker.h"

#include <time.h>

#define LOOK_FIRST_NS 200000 /* between looks whether all are answered, doubling */
#define LOOK_MOST_NS  10000000

PyObject *worker_defer(PyObject *self, PyObject *unused) {
    (void)unused;
    WorkerEnd *w = (WorkerEnd *)self;
    worker_end_child();
    if (!w->current || w->current->kind != TASK_MESSAGE ||
        (w->any_deferred && w->deferred_place == w->place)) {
        PyErr_SetString(PyExc_RuntimeError,
                        "a task's answer is deferred once, while run_message runs");
        return NULL;
    }
    struct deferred *made = malloc(sizeof *made);
    if (!made)
        return PyErr_NoMemory();
    *made = (struct deferred){.next = w->deferred,
                              .token = ++w->tokens,
                              .task = *w->current,
                              .extra_in = w->extra_in,
                              .extra_back = w->extra_back};
    w->deferred = made;
    w->deferred_place = w->place;
    w->any_deferred = 1;
    return PyLong_FromUnsignedLongLong(made->token);
}

static void forget(WorkerEnd *w, struct deferred *entry) {
    struct deferred **at = &w->deferred;
    while (*at != entry)
        at = &(*at)->next;
    *at = entry->next;
    free(entry);
}

/* The entry of a token that nobody answers yet, marked; NULL with a ValueError. */
static struct deferred *begin(WorkerEnd *w, uint64_t token) {
    worker_end_child();
    for (struct deferred *at = w->deferred; at; at = at->next)
        if (at->token == token && !at->answering) {
            at->answering = 1;
            return at;
        }
    PyErr_Format(PyExc_ValueError, "no task waits to be answered by the token %llu",
                 (unsigned long long)token);
    return NULL;
}

/* What lies in the cell is the answer, unless something went wrong. */
static PyObject *end(WorkerEnd *w, struct deferred *entry, int code, uint64_t extra_out) {
    if (code) {
        entry->answering = 0;
        return NULL;
    }
    cw_task task = entry->task;
    code = worker_answer(w, &task, entry->extra_in, entry->extra_back, extra_out, 1);
    forget(w, entry); /* only now: nobody ends the process before it has left */
    if (code)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *worker_answer_deferred(PyObject *self, PyObject *args) {
    WorkerEnd *w = (WorkerEnd *)self;
    unsigned long long token;
    PyObject *value;
    uint64_t extra_out = 0;
    if (!PyArg_ParseTuple(args, "KO", &token, &value))
        return NULL;
    struct deferred *entry = begin(w, token);
    if (!entry)
        return NULL;
    int code = worker_put_outcome(w, &entry->task, value, &extra_out);
    return end(w, entry, code, extra_out);
}

PyObject *worker_answer_message(PyObject *self, PyObject *args) {
    WorkerEnd *w = (WorkerEnd *)self;
    unsigned long long token;
    PyObject *message;
    uint64_t extra_out = 0;
    if (!PyArg_ParseTuple(args, "KO!", &token, &PyTuple_Type, &message))
        return NULL;
    struct deferred *entry = begin(w, token);
    if (!entry)
        return NULL;
    int code = worker_put_message(&entry->task, message, &extra_out);
    return end(w, entry, code, extra_out);
}

int worker_leave_deferred(WorkerEnd *w, uint64_t place, int well) {
    if (!w->any_deferred || w->deferred_place != place)
        return 1;
    w->any_deferred = 0;
    if (well)
        return 0;
    for (struct deferred *at = w->deferred; at; at = at->next)
        if (at->task.place == place && !at->answering) {
            forget(w, at);
            return 1;
        }
    PyErr_WriteUnraisable(w->handler); /* it was answered already */
    return 0;
}

int worker_wait_deferred(WorkerEnd *w) {
    for (long wait_ns = LOOK_FIRST_NS; w->deferred; wait_ns *= wait_ns < LOOK_MOST_NS ? 2 : 1) {
        struct timespec pause = {.tv_nsec = wait_ns};
        Py_BEGIN_ALLOW_THREADS;
        nanosleep(&pause, NULL);
        Py_END_ALLOW_THREADS;
        if (PyErr_CheckSignals())
            return -1;
    }
    return 0;
}

void worker_forget_deferred(WorkerEnd *w) {
    while (w->deferred)
        forget(w, w->deferred);
}
