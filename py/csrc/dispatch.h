/*
 * dispatch.h: what the parts of the module cableway._dispatch share. The module is the hot path of
 * the Pool: the parent's and the worker's end of cw_pool (ipc/cableway.h) as two Python types, so
 * that a small task crosses without a line of Python in between.
 *
 * *Plain* objects are those whose pickle depends on nothing but the standard library's C pickler:
 * None, bool, int, float, complex, str, bytes, small NumPy arrays and scalars, and tuples, lists
 * and dicts of these. Whatever else there is goes as a message that Python encodes
 * (_transport.message).
 *
 * The GIL is the parent's lock: all calls into cw_pool but the waits are made while holding it, and
 * no Python code runs between those that belong together.
 *
 * Limited API of Python 3.10, so that one binary serves all versions from there on.
 */
#ifndef CABLEWAY_CSRC_DISPATCH_H
#define CABLEWAY_CSRC_DISPATCH_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/cableway.h"

#ifndef PyBUF_READ /* of the limited API from 3.11 on */
#define PyBUF_READ 0x100
#endif

/* What a task is, and what an answer is: cw_task's kind. As in _transport/message.py. */
enum { TASK_APPLY = 1, TASK_MAP = 2, TASK_STARMAP = 3, TASK_MESSAGE = 4 };
enum { ANSWER_NONE = 1, ANSWER_VALUE = 2, ANSWER_MESSAGE = 3 };
/* A message with memory beside it, for which its worker stays; Python gets it as ANSWER_MESSAGE,
 * with an Answer in place of the bytes (dispatch_answer.c). */
enum { ANSWER_LENT = 4 };

/* A signal may come just before the sleep: who waits looks up now and then. It is CW_TRACE_PART_NS:
 * traces show calls with this limit as one wait. */
#define LOOK_NS 500000000

/* What a worker leaves in its own memory: its length, then so many bytes at most. */
#define WORDS_MAX (CW_POOL_DATA_MAX - sizeof(uint32_t))

/* Sets what plain_dumps() and plain_loads() need. 0 or -1 with an exception. */
int plain_init(void);
int outcome_init(void);
/* The NumPy types that count as plain: the array type, a tuple of scalar types. */
PyObject *plain_numpy(PyObject *module, PyObject *args);
/* A pickle of at most CW_POOL_DATA_MAX bytes if the object is plain, else NULL without an
 * exception; NULL with one where pickling failed. Runs no code of the user's. */
PyObject *plain_dumps(PyObject *object);
/* The object in a pickle, which lies where no other process writes. */
PyObject *plain_loads(const void *data, uint32_t size_bytes);
/* The object in a task's or an answer's data. What is read is a copy: others can write there. */
PyObject *plain_loads_task(const cw_task *task);

/* ---- dispatch_small.c ---- */

#define SMALL_MAX 1024 /* bytes that are worth to be tried on the stack */

/* The pickle of a very small plain object, in so many bytes at most: its length, or -1 where it is
 * left to the pickler. Without an exception; runs no Python code. */
Py_ssize_t small_dump(PyObject *object, void *out, Py_ssize_t most);
/* The object in such a pickle; NULL without an exception where it is another one. */
PyObject *small_load(const void *data, uint32_t size_bytes);

/* An exception for a negative code of the library's: the class is chosen by cableway.errors. */
PyObject *raise_failure(int code);

extern PyType_Spec dispatch_spec, worker_spec, queue_spec, outcome_spec, lease_cell_spec,
    answer_spec, fields_spec, group_spec, queue_item_spec, uninterrupted_spec;

/* ---- dispatch_lease_cell.c ---- */

/* Before the first LeaseCell: 0, or -1 with an exception. */
int lease_cell_begin(void);
extern PyTypeObject *lease_cell_type; /* made of lease_cell_spec */
/* An array into a cell that holds none. */
void lease_cell_put(PyObject *cell, cw_array *array);
/* What a LeaseCell holds; NULL: nothing, or it is none. */
cw_array *lease_cell_array_in(PyObject *cell);

/* ---- dispatch_arrays.c ---- */

extern PyTypeObject *fields_type; /* made of fields_spec */
/* Some of what an Array holds; borrowed, NULL: not set. */
struct array_fields {
    PyObject *lease, *layout, *offset;
};
/* Whether an object is an Array: 1 or 0. */
int fields_of(PyObject *object, struct array_fields *out);

/* ---- dispatch_elements.c ---- */

/* Elements of an array, for an operation of a group. The caller keeps the array, these its memory,
 * though a thread closes the array; elements_end() ends that. */
struct elements {
    cw_group_memory memory;
    unsigned long long count, nbytes;
    PyObject *text;  /* bytes: the dtype, the same object for the same dtype */
    PyObject *lease; /* of an Array; else NULL */
};
/* What is known of layouts of Arrays: a few of them, the last ones that were told. */
#define LAYOUTS_KNOWN 8
struct layouts_known {
    PyObject *layout[LAYOUTS_KNOWN], *text[LAYOUTS_KNOWN];
    unsigned long long count[LAYOUTS_KNOWN];
    unsigned next;
};
/* 1: an array whose elements are found without a line of Python: an ndarray that owns its memory,
 * or an Array whose layout is known, contiguous, writable where it has to be, and on a GPU without
 * work of this process that is begun.
 * 0: any other, or one that is refused; Python finds out. Never sets an exception. */
int elements_of(PyObject *object, int writable, const struct layouts_known *known,
                struct elements *out);
void elements_end(struct elements *elements);
/* Notes the layout of an Array; and forgets all. */
void layouts_note(struct layouts_known *known, PyObject *layout, PyObject *text,
                  unsigned long long count);
void layouts_forget(struct layouts_known *known);
PyObject *elements_types(PyObject *module, PyObject *args);
PyObject *pairs_fill(PyObject *module, PyObject *args);

/* ---- dispatch_group.c ---- */

typedef struct {
    PyObject_HEAD cw_group *group;
    struct layouts_known known;
    const volatile uint32_t *stop; /* while it joins: it gives up when this is not 0; or NULL */
    unsigned using;                /* threads that are in a call, without the GIL */
    int was_open;                  /* it has joined; without a group it is closed, then */
    cw_group_message hand;         /* what was received last, until it is where it is to be */
    PyObject *hand_opened;         /* what is open of it: a list; NULL: there is no such message */
    PyObject *opened;              /* of those that were given back, by arrival: a dict, or NULL */
} GroupEnd;

/* The exception of a code; and None, if it is 0. */
PyObject *group_failure(GroupEnd *end, int code);
PyObject *group_result(GroupEnd *end, int code);
PyObject *group_barrier(PyObject *self, PyObject *unused);
/* By its name; 0: there is none such. */
cw_reduction group_reduction_of(PyObject *name);

/* ---- dispatch_messages.c ---- */

PyObject *group_send(PyObject *self, PyObject *args);
PyObject *group_send_bytes(PyObject *self, PyObject *args);
PyObject *group_send_small(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *group_receive(PyObject *self, PyObject *args);
PyObject *group_receive_small(PyObject *self, PyObject *args);
PyObject *group_probe(PyObject *self, PyObject *args);
PyObject *group_received(PyObject *self, PyObject *none);
PyObject *group_exchange(PyObject *self, PyObject *args);
PyObject *group_objects(PyObject *self, PyObject *args);
PyObject *group_give_back(PyObject *self, PyObject *none);
/* Before the group is closed. */
void group_forget_messages(GroupEnd *end);

/* ---- dispatch_signals.c ---- */

/* (error): raises it as soon as the main thread has come back from here, with what this call's
 * caller returns. */
PyObject *raise_later(PyObject *module, PyObject *error);

extern PyTypeObject *queue_item_type; /* made of queue_item_spec */
extern PyTypeObject *answer_type;     /* made of answer_spec */
extern PyTypeObject *outcome_type;    /* made of outcome_spec; the module's, for ever */

#endif
