/*
 * dispatch_begin.c: the quick way of one call, as `submit` and `apply_async` make most of them: a
 * function that keeps its slot, plain arguments, no callback, workers of one group. One call from
 * Python makes the Outcome, pickles and submits the task; its end is seen to in dispatch_outcome.c.
 * Whatever is otherwise goes by _pool.engine.submit.
 *
 * What there is no cell for waits, pickled, in the engine's `pending`, in one order with what waits
 * there for Python to send (_pool.submit). C takes quick ones from its front and nothing else,
 * Python all but those, so nothing is sent twice: taking one and sending it is one step under the
 * GIL. Who frees cells sends what waits for them. Who takes the last one out tells a helper that
 * has asked: in the same step, so that no signal's handler comes in between.
 *
 * Who submits also collects, now and then: it has the GIL and the cells in its cache, and the
 * helper sleeps on meanwhile. It runs no code of the user's at that: answers that are Python's to
 * deliver stay in `late` for whoever collects next, and the helper is told.
 */
#include "dispatch_parent.h"

#include <time.h>

#define COLLECT_EACH 32 /* tasks begun */

/* What the engine keeps and we look at. */
PyObject *dispatch_share(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *pinned, *kinds, *pending, *waiters;
    if (d->pinned) {
        PyErr_SetString(PyExc_ValueError, "it was told already");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O!OO!", &PyDict_Type, &pinned, &PyTuple_Type, &kinds, &pending,
                          &PySet_Type, &waiters))
        return NULL;
    Py_INCREF(pinned);
    Py_INCREF(kinds);
    Py_INCREF(pending);
    Py_INCREF(waiters);
    d->pinned = pinned;
    d->kinds = kinds;
    d->pending = pending;
    d->waiters = waiters;
    Py_RETURN_NONE;
}

/* ---- who waits ---- */

static PyObject *this_thread(void) {
    return PyLong_FromUnsignedLong(PyThread_get_thread_ident());
}

void dispatch_tell_waiters(Dispatch *d) {
    if (!d->settled || !d->waiters)
        return;
    d->settled = 0;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    Py_ssize_t count = PySet_Size(d->waiters);
    if (count == 1) {
        PyObject *me = this_thread();
        if (me && PySet_Contains(d->waiters, me) == 1) {
            count = 0;
            d->noted++;
        }
        Py_XDECREF(me);
    }
    PyErr_Restore(type, value, trace);
    if (count > 0)
        cw_pool_tell(d->pool, 0);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Listens until an outcome has ended. 0: it has, or it took too long; -1: an exception. */
static int wait_for(Dispatch *d, const Outcome *outcome, int64_t timeout_ns) {
    int64_t until_ns;
    if (__builtin_add_overflow(now_ns(), timeout_ns, &until_ns))
        until_ns = INT64_MAX;
    for (;;) {
        uint32_t was = cw_pool_news(d->pool, 0);
        if (outcome->state != outcome_pending)
            return 0;
        int64_t left_ns = timeout_ns < 0 ? LOOK_NS : until_ns - now_ns();
        if (left_ns < 0)
            left_ns = 0;
        if (dispatch_listen_once(d, was, left_ns < LOOK_NS ? left_ns : LOOK_NS, NULL) ||
            PyErr_CheckSignals())
            return -1;
        if (left_ns == 0)
            return 0;
    }
}

/* (outcome, seconds or None): waits until it has ended, or so long. */
PyObject *dispatch_wait(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Dispatch *d = (Dispatch *)self;
    int64_t timeout_ns;
    if (count != 2 || !d->waiters || !PyObject_TypeCheck(args[0], outcome_type)) {
        PyErr_SetString(PyExc_TypeError, "wait takes an Outcome and seconds");
        return NULL;
    }
    if (dispatch_read_timeout(args[1], &timeout_ns))
        return NULL;
    PyObject *me = this_thread();
    /* One that waits already was interrupted by a signal's handler that waits, too. */
    int there = me ? PySet_Contains(d->waiters, me) : -1;
    if (there < 0 || (!there && PySet_Add(d->waiters, me))) {
        Py_XDECREF(me);
        return NULL;
    }
    int code = wait_for(d, (Outcome *)args[0], timeout_ns);
    if (!there) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PySet_Discard(d->waiters, me);
        PyErr_Restore(type, value, trace);
    }
    Py_DECREF(me);
    if (code)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- what waits for a cell ---- */

enum waiting { NOTHING, QUICK_ONE, ANOTHER };

/* What waits first, and in *out, if it is a quick one, itself; the deque holds it. */
static enum waiting first_of(Dispatch *d, Outcome **out) {
    if (PyObject_Size(d->pending) <= 0)
        return NOTHING;
    PyObject *first = PySequence_GetItem(d->pending, 0);
    if (!first) {
        PyErr_Clear();
        return ANOTHER;
    }
    *out = (Outcome *)first;
    int quick = PyObject_TypeCheck(first, outcome_type) && (*out)->pickled;
    Py_DECREF(first);
    return quick ? QUICK_ONE : ANOTHER;
}

int dispatch_pump_quick(Dispatch *d) {
    enum waiting waiting;
    Outcome *outcome;
    uint32_t sent = 0;
    int failed = 0;
    if (!d->pending)
        return 0;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    while ((waiting = first_of(d, &outcome)) == QUICK_ONE && !d->shut) {
        char *data;
        Py_ssize_t nbytes;
        PyBytes_AsStringAndSize(outcome->pickled, &data, &nbytes);
        long cell = dispatch_put(d, 0, TASK_APPLY, outcome->described, data, nbytes);
        failed = cell == -2;
        if (cell < 0)
            break;
        outcome->cell = cell;
        dispatch_own(d, outcome->cell, (PyObject *)outcome, 0, NULL);
        Py_CLEAR(outcome->pickled);
        if (PySequence_DelItem(d->pending, 0)) /* it was there a moment ago */
            PyErr_Clear();
        sent++;
    }
    if (!failed)
        PyErr_Restore(type, value, trace);
    if (sent)
        cw_pool_wake(d->pool, 0, sent);
    if (sent && waiting == NOTHING)
        cw_pool_emptied(d->pool);
    return failed ? -1 : waiting == ANOTHER || (waiting == QUICK_ONE && d->shut);
}

/* (work): takes it out of what waits: whether it was there. What waits is compared by identity, so
 * no Python code runs in between. */
PyObject *dispatch_take_out(PyObject *self, PyObject *work) {
    Dispatch *d = (Dispatch *)self;
    PyObject *first =
        d->pending && PyObject_Size(d->pending) > 0 ? PySequence_GetItem(d->pending, 0) : NULL;
    if (!first)
        return PyErr_Occurred() ? NULL : PyBool_FromLong(0);
    Py_DECREF(first); /* the deque holds it */
    if (first == work) {
        if (PySequence_DelItem(d->pending, 0))
            return NULL;
    } else {
        PyObject *done = PyObject_CallMethod(d->pending, "remove", "O", work);
        Py_XDECREF(done);
        if (!done && !PyErr_ExceptionMatches(PyExc_ValueError))
            return NULL;
        if (!done) {
            PyErr_Clear();
            Py_RETURN_FALSE;
        }
    }
    if (PyObject_Size(d->pending) == 0)
        cw_pool_emptied(d->pool);
    Py_RETURN_TRUE;
}

/* (send): calls it, unless a thread is at it: that one then calls it once more. What an exception
 * leaves is the helper's. Begin and end are one step each, whatever a signal's handler raises. */
PyObject *dispatch_send_exclusive(PyObject *self, PyObject *send) {
    Dispatch *d = (Dispatch *)self;
    d->send_again = 1;
    if (d->sending)
        Py_RETURN_NONE;
    d->sending = 1;
    struct step step;
    dispatch_enter(d, &step, STEP_SENDS);
    PyObject *done = Py_None;
    Py_INCREF(done);
    while (d->send_again && done) {
        d->send_again = 0;
        Py_DECREF(done);
        done = PyObject_CallFunction(send, NULL);
    }
    dispatch_exit(d, &step);
    d->sending = 0;
    if (!done)
        cw_pool_tell(d->pool, 1);
    return done;
}

PyObject *dispatch_ask_emptied(PyObject *self, PyObject *unused) {
    (void)unused;
    cw_pool_ask_emptied(((Dispatch *)self)->pool);
    Py_RETURN_NONE;
}

PyObject *dispatch_pump(PyObject *self, PyObject *unused) {
    (void)unused;
    int others = dispatch_pump_quick((Dispatch *)self);
    return others < 0 ? NULL : PyBool_FromLong(others);
}

/* ---- one call ---- */

/* The described of a function that keeps its slot, a new reference; NULL: it does not. */
static PyObject *pinned_function(Dispatch *d, PyObject *function, PyObject **found) {
    static PyObject *name;
    Py_ssize_t kinds = PyTuple_Size(d->kinds);
    int known = 0;
    for (Py_ssize_t i = 0; i < kinds && !known; i++)
        known = (PyObject *)Py_TYPE(function) == PyTuple_GetItem(d->kinds, i);
    if (!known || (!name && !(name = PyUnicode_InternFromString("described"))))
        return NULL;
    *found = PyDict_GetItemWithError(d->pinned, function);
    return *found ? PyObject_GetAttr(*found, name) : NULL;
}

/* Collects what is there, and sends what waits for cells; for who submits. */
static int collect_in_passing(Dispatch *d) {
    d->begun = 0;
    d->own_collects++;
    PyObject *list = d->late, *others;
    d->late = NULL; /* who collects in another thread, in the middle of this, leaves its own */
    int code = dispatch_drain(d, NULL, &list);
    others = d->late;
    d->late = list;
    if (others && list && PyList_SetSlice(list, PyList_Size(list), PyList_Size(list), others))
        code = -1;
    if (others && !list)
        d->late = others;
    else
        Py_XDECREF(others);
    int others_wait = dispatch_pump_quick(d);
    if (others_wait || d->late || code)
        cw_pool_tell(d->pool, 1);
    dispatch_tell_waiters(d);
    if (d->shut && d->late && code == 0) /* the helper may have looked for the last time */
        code = dispatch_collect_all(d, NULL);
    return others_wait < 0 ? -1 : code;
}

/* Submits an outcome, or leaves it among what waits. 1: done; 0: it is Python's to send; -1: an
 * exception. */
static int submit(Dispatch *d, Outcome *outcome, const void *data, Py_ssize_t nbytes) {
    Outcome *first;
    for (int again = 0; again < 2; again++) {
        enum waiting waiting = first_of(d, &first);
        if (d->shut || waiting == ANOTHER)
            return 0;
        if (waiting == NOTHING)
            outcome->cell = dispatch_put(d, 0, TASK_APPLY, outcome->described, data, nbytes);
        if (outcome->cell >= 0) {
            dispatch_own(d, outcome->cell, (PyObject *)outcome, 0, NULL);
            cw_pool_wake(d->pool, 0, 1);
            return ++d->begun >= COLLECT_EACH && collect_in_passing(d) ? -1 : 1;
        }
        if (outcome->cell != -1)
            return outcome->cell == -2 ? -1 : 0;
        if (again == 0 && collect_in_passing(d))
            return -1;
    }
    outcome->pickled = PyBytes_FromStringAndSize(data, nbytes);
    PyObject *done = outcome->pickled && !d->shut && first_of(d, &first) != ANOTHER
                         ? PyObject_CallMethod(d->pending, "append", "O", (PyObject *)outcome)
                         : NULL;
    if (!done)
        return PyErr_Occurred() ? -1 : 0;
    Py_DECREF(done);
    if (d->shut) { /* by another thread, which a finaliser has let run: who ends it may have looked
                    */
        PyObject *taken = dispatch_take_out((PyObject *)d, (PyObject *)outcome);
        int was_there = taken == Py_True;
        Py_XDECREF(taken);
        return !taken ? -1 : !was_there;
    }
    return 1;
}

static void hold(PyObject **place, PyObject *object) {
    Py_INCREF(object);
    *place = object;
}

/*
 * (class, engine, owner, function, args, kwargs or None): the Outcome of that class, submitted.
 * None: it is none of the quick ones, and nothing was done.
 */
PyObject *dispatch_begin(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Dispatch *d = (Dispatch *)self;
    if (count != 6 || !PyTuple_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError,
                        "begin takes a class, engine, owner, function, a tuple and a dict");
        return NULL;
    }
    int named = PyDict_Check(args[5]) && PyDict_Size(args[5]) > 0;
    /* Whose group is to be chosen; or what the worker is to refuse. */
    if (!d->pinned || d->shut || d->groups > 1 || (args[5] != Py_None && !PyDict_Check(args[5])))
        Py_RETURN_NONE;
    if (dispatch_is_ours(d)) {
        PyErr_Clear(); /* the caller says it better */
        Py_RETURN_NONE;
    }
    PyObject *found, *described = pinned_function(d, args[3], &found);
    if (!described) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    Outcome *outcome = (Outcome *)PyType_GenericAlloc((PyTypeObject *)args[0], 0);
    PyObject *call = named ? PyTuple_Pack(2, args[4], args[5]) : PyTuple_Pack(1, args[4]),
             *pickled = NULL;
    int done = -1;
    if (outcome && call) {
        char small[SMALL_MAX], *data = small;
        hold(&outcome->state, outcome_pending);
        hold(&outcome->engine, args[1]);
        hold(&outcome->owner, args[2]);
        hold(&outcome->function, args[3]);
        hold(&outcome->found, found);
        hold(&outcome->described, described);
        hold(&outcome->call, call);
        outcome->cell = -1;
        outcome->quick = 1;
        Py_ssize_t nbytes = small_dump(call, small, SMALL_MAX);
        if (nbytes < 0)
            pickled = plain_dumps(call);
        if (nbytes >= 0 || (pickled && !PyBytes_AsStringAndSize(pickled, &data, &nbytes)))
            done = submit(d, outcome, data, nbytes);
        else if (!PyErr_Occurred())
            done = 0; /* not plain */
    }
    Py_DECREF(described);
    Py_XDECREF(pickled);
    Py_XDECREF(call);
    if (done == 1)
        return (PyObject *)outcome;
    Py_XDECREF(outcome);
    if (done < 0)
        return NULL;
    Py_RETURN_NONE;
}
