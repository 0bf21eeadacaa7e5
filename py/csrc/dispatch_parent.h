/*
 * dispatch_parent.h: what the parts of `Dispatch` share; see dispatch_parent.c.
 */
#ifndef CAUSEWAY_CSRC_DISPATCH_PARENT_H
#define CAUSEWAY_CSRC_DISPATCH_PARENT_H

#include "dispatch.h"

struct call {
    struct call *next;
    PyObject *function; /* borrowed: for who has to tell of a death */
    uint64_t token;     /* names it to `fail`; never used again */
    uint32_t cell;
    int ended;
    uint32_t kind;
    PyObject *data;  /* the answer's bytes */
    PyObject *error; /* or what became of it */
};
struct entry {
    PyObject *owner; /* NULL: a call's, or nobody's */
    PyObject *held;  /* what goes with the task and stays until it has ended; may be NULL */
    struct call *call;
    uint64_t number;
};
typedef struct {
    PyObject_HEAD cw_pool *pool;
    PyObject *memory; /* keeps the plane mapped as long as this lives; knows none of us */
    PyObject *deliver;
    struct entry *entries;
    struct call *calls;
    uint32_t cells, workers, groups;
    int64_t spin_ns;
    Py_ssize_t under_way;
    uint64_t tokens;   /* given so far */
    int64_t helped_ns; /* when the helper was last woken */
    unsigned forks;    /* of the process that it belongs to */
    char shut;         /* takes no more */
} Dispatch;

/* Whether this process has made it; else -1 with a ValueError: a child has the parent's memory, but
 * none of its tasks. */
int dispatch_is_ours(Dispatch *d);

/* ---- dispatch_submit.c ---- */

/* Pickles a plain object, fills a cell and submits it to a group. The cell's number; -1: no room
 * now; -2: an exception; -3: not plain; -4: shut. */
long dispatch_submit_object(Dispatch *d, uint32_t group, uint32_t kind, PyObject *function,
                            PyObject *object);
/* Whether there is such a group; else -1 with a ValueError. */
int dispatch_has_group(Dispatch *d, unsigned group);
/* The entry of a cell, whose references go over; the cell has none any more. */
struct entry dispatch_disown(Dispatch *d, uint32_t cell);
/* (owner, number, worker, kind, data, cell, held); takes the references of entry and data over. */
PyObject *dispatch_told(struct entry *entry, uint32_t worker, uint32_t kind, PyObject *data,
                        uint32_t cell);
/* Appends what was made to a list that may not be there yet. Takes entry over. */
int dispatch_append(PyObject **list, PyObject *entry);
PyObject *dispatch_submit(PyObject *self, PyObject *args);
PyObject *dispatch_submit_plain(PyObject *self, PyObject *args);
PyObject *dispatch_submit_chunks(PyObject *self, PyObject *args);
PyObject *dispatch_withdraw(PyObject *self, PyObject *args);
PyObject *dispatch_withdraw_all(PyObject *self, PyObject *owner);

/* ---- dispatch_collect.c ---- */

/* Gives a list of answers to the engine. Takes the list over. An exception that is set stays. */
int dispatch_deliver(Dispatch *d, PyObject *list);
/* Waits as a listener and collects. 0, or -1 with an exception. */
int dispatch_listen_once(Dispatch *d, uint32_t was, int64_t timeout_ns, struct call *mine);
PyObject *dispatch_collect(PyObject *self, PyObject *unused);
PyObject *dispatch_listen(PyObject *self, PyObject *args);
PyObject *dispatch_help(PyObject *self, PyObject *args);
PyObject *dispatch_bury(PyObject *self, PyObject *args);

/* ---- dispatch_calls.c ---- */

PyObject *dispatch_call(PyObject *self, PyObject *args);
PyObject *dispatch_fail(PyObject *self, PyObject *args);

#endif
