/*
 * dispatch_collect.c: how `Dispatch` collects answers and waits for them, and what it does at a
 * worker's death; see dispatch_parent.c.
 *
 * Whoever collects delivers. One list of answers at a time is in a thread's hands; if it is
 * interrupted there, what is left goes to `rest`, under the GIL and in C, so that every answer is
 * in one of these: its cell, a list in a thread's hands, `late`, `rest`; and each of them has
 * somebody who looks: listeners and the helper at cells and `late`, the helper at `rest`, and
 * whoever collects when there is no helper (before its first wait, and after the Pool's end).
 * No wake-up is lost: who adds to `rest` tells the helper's news afterwards, and the helper takes
 * `rest`, or does not sleep, after it has read them.
 */
#include "dispatch_parent.h"

#include <time.h>

#define BURST_NS         1000000 /* woken again within this time */
#define BURST_PAUSE_NS   200000
#define BURST_PAUSES_MAX 50 /* then it looks in any case */

/* The data of an answer for Python: its kind and bytes, or an Answer. */
static PyObject *data_of(Dispatch *d, const cw_task *task, uint32_t *kind) {
    PyObject *data = PyBytes_FromStringAndSize(task->data, task->size_bytes);
    *kind = task->kind == ANSWER_LENT ? ANSWER_MESSAGE : task->kind;
    return task->kind == ANSWER_LENT ? answer_new(d, task, data) : data;
}

/* Sees to one answer: a call of this process's threads takes it, or it goes to the list, or, where
 * nobody wants it any more, it is let go. */
static int take_answer(Dispatch *d, const cw_task *task, struct call *mine, PyObject **list) {
    struct entry entry = dispatch_disown(d, task->cell);
    int code = 0;
    uint32_t kind;
    if (entry.owner && outcome_take(d, &entry, task)) {
        cw_pool_free(d->pool, task->cell);
        return 0;
    }
    PyObject *type, *value, *trace; /* what a signal's handler raised, while it was read */
    PyErr_Fetch(&type, &value, &trace);
    PyObject *data = data_of(d, task, &kind);
    if (entry.call && data) {
        entry.call->kind = kind;
        entry.call->data = data;
        entry.call->ended = 1;
        if (entry.call != mine)
            cw_pool_tell(d->pool, 0);
    } else if (entry.owner && data) {
        code = dispatch_append(list, dispatch_told(&entry, task->worker, kind, data, task->cell));
    } else {
        code = data ? 0 : -1;
        Py_XDECREF(data);
        Py_XDECREF(entry.owner);
        Py_XDECREF(entry.payload);
    }
    cw_pool_free(d->pool, task->cell);
    if (type)
        PyErr_Restore(type, value, trace);
    return type ? -1 : code;
}

/* A worker has done what cannot be: (None, 0, worker, 0, why, 0, None). */
static PyObject *broken(uint32_t worker) {
    return Py_BuildValue("OiIIsIO", Py_None, 0, worker, 0, cw_error(), 0, Py_None);
}

int dispatch_drain(Dispatch *d, struct call *mine, PyObject **list) {
    cw_task task;
    int code;
    while ((code = cw_pool_collect(d->pool, &task)) == 0)
        if (take_answer(d, &task, mine, list))
            return -1;
    if (code == -EAGAIN)
        return 0;
    if (code == -EPROTO) /* what else there is, is for the next time: it might go on for ever */
        return dispatch_append(list, broken(task.worker));
    raise_failure(code);
    return -1;
}

#define FAULTS_MAX 8 /* exceptions in a row before the engine is told that it cannot go on */

static int is_helper(const Dispatch *d) {
    return d->helper == PyThread_get_thread_ident();
}

int dispatch_has_left(const Dispatch *d) {
    return d->late || (d->rest && (!d->helper || is_helper(d)));
}

PyObject *dispatch_leave(PyObject *self, PyObject *unused) {
    (void)unused;
    ((Dispatch *)self)->helper = 0;
    cw_pool_tell(((Dispatch *)self)->pool, 0); /* what is left is whoever's by now */
    Py_RETURN_NONE;
}

void dispatch_enter(Dispatch *d, struct step *step, enum step_kind kind) {
    *step = (struct step){d->steps, PyThread_get_thread_ident(), kind};
    d->steps = step;
}

void dispatch_exit(Dispatch *d, struct step *step) {
    struct step **at = &d->steps;
    while (*at != step)
        at = &(*at)->next;
    *at = step->next;
}

/* By the thread that nothing interrupts: again while there is an exception, which is a fault of
 * ours. An exception that is set stays. */
static int deliver_all(Dispatch *d, PyObject *list) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *done = NULL;
    for (long faults = 0; d->deliver && !done && faults <= FAULTS_MAX;) {
        Py_ssize_t left = PyList_Size(list);
        done = PyObject_CallFunction(d->deliver, "Ol", list, faults);
        if (done)
            break;
        faults = PyList_Size(list) < left ? 1 : faults + 1;
        if (type)
            PyErr_Clear();
        else
            PyErr_Fetch(&type, &value, &trace);
    }
    Py_XDECREF(done);
    if (type) {
        d->settled = 1; /* who was interrupted may have ended a job, and told nobody */
        PyErr_Restore(type, value, trace);
    }
    return type ? -1 : 0;
}

/* What is left of a list, last first, becomes the helper's. An exception that is set stays. */
static void hand_over(Dispatch *d, PyObject *list) {
    PyObject *type, *value, *trace;
    if (PyList_Size(list) == 0) {
        if (PyErr_Occurred()) /* what waits for the cells that are free now is to be sent */
            cw_pool_tell(d->pool, 1);
        return;
    }
    PyErr_Fetch(&type, &value, &trace);
    int there = 1;
    if (!d->rest) {
        Py_INCREF(list);
        d->rest = list;
    } else {
        there = PyList_SetSlice(d->rest, 0, 0, list) == 0; /* those come first */
    }
    if (!there) { /* no memory even for that */
        PyErr_Clear();
        if (deliver_all(d, list))
            PyErr_Clear();
    }
    PyErr_Restore(type, value, trace);
    cw_pool_tell(d->pool, 1);
    if (!d->helper)
        cw_pool_tell(d->pool, 0);
}

/*
 * A thread other than the helper delivers: a signal's handler may raise at any line of it. Then the
 * exception is this thread's, and what is left the helper's, whom no handler interrupts: to try
 * again here would be to be interrupted again. `deliver` itself may leave something to it, too.
 */
static int deliver_once(Dispatch *d, PyObject *list) {
    PyObject *done = NULL;
    struct step step;
    dispatch_enter(d, &step, STEP_DELIVERS);
    if (!PyErr_Occurred() && d->deliver)
        done = PyObject_CallFunction(d->deliver, "Ol", list, 0L);
    dispatch_exit(d, &step);
    hand_over(d, list);
    Py_XDECREF(done);
    if (!PyErr_Occurred())
        return 0;
    d->settled = 1; /* who was interrupted may have ended a job, and told nobody */
    return -1;
}

int dispatch_deliver(Dispatch *d, PyObject *list) {
    if (!list)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyList_Reverse(list);
    PyErr_Restore(type, value, trace);
    int code = is_helper(d) ? deliver_all(d, list) : deliver_once(d, list);
    Py_DECREF(list);
    return code;
}

/* What others have left to this thread. 0, or -1 with an exception. */
static int deliver_rest(Dispatch *d) {
    PyObject *rest = d->rest;
    if (!rest || (d->helper && !is_helper(d)))
        return 0;
    d->rest = NULL;
    int code = is_helper(d) ? deliver_all(d, rest) : deliver_once(d, rest);
    Py_DECREF(rest);
    return code;
}

int dispatch_collect_all(Dispatch *d, struct call *mine) {
    if (dispatch_is_ours(d) || deliver_rest(d))
        return -1;
    PyObject *list = d->late;
    d->late = NULL;
    Py_ssize_t before = d->under_way;
    int code = dispatch_drain(d, mine, &list);
    if (code)
        cw_pool_tell(d->pool, 1); /* what is left is for the helper, which has slept until now */
    int others_wait = dispatch_pump_quick(d);
    if (others_wait > 0 && !list && code == 0 && d->under_way != before)
        list = PyList_New(0);         /* cells are free for what is Python's to send */
    code = dispatch_deliver(d, list); /* also where something went wrong behind these */
    dispatch_tell_waiters(d);
    return code;
}

PyObject *dispatch_collect(PyObject *self, PyObject *unused) {
    (void)unused;
    Dispatch *d = (Dispatch *)self;
    if (dispatch_collect_all(d, NULL))
        return NULL;
    Py_RETURN_NONE;
}

int dispatch_listen_once(Dispatch *d, uint32_t was, int64_t timeout_ns, struct call *mine) {
    int code;
    if (dispatch_is_ours(d))
        return -1;
    if (dispatch_has_left(d)) /* nobody tells of these any more */
        return dispatch_collect_all(d, mine);
    cw_pool_listen(d->pool, 1);
    Py_BEGIN_ALLOW_THREADS;
    code = cw_pool_wait(d->pool, 0, was, d->spin_ns, timeout_ns);
    Py_END_ALLOW_THREADS;
    cw_pool_listen(d->pool, -1);
    if (dispatch_collect_all(d, mine))
        return -1;
    if (code && code != -ETIMEDOUT && code != -EINTR) {
        raise_failure(code);
        return -1;
    }
    return code ? PyErr_CheckSignals() : 0;
}

int dispatch_read_timeout(PyObject *seconds, int64_t *ns) {
    *ns = -1;
    if (seconds == Py_None)
        return 0;
    double value = PyFloat_AsDouble(seconds);
    if (value == -1.0 && PyErr_Occurred())
        return -1;
    *ns = value <= 0 ? 0 : value > 9e9 ? -1 : (int64_t)(value * 1e9);
    return 0;
}

PyObject *dispatch_listen(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *seconds;
    unsigned long long was;
    int64_t timeout_ns;
    if (!PyArg_ParseTuple(args, "KO", &was, &seconds) ||
        dispatch_read_timeout(seconds, &timeout_ns))
        return NULL;
    if ((uint32_t)(was >> 32) != d->noted)
        timeout_ns = 0;
    if (dispatch_listen_once(d, (uint32_t)was, timeout_ns, NULL))
        return NULL;
    Py_RETURN_NONE;
}

/*
 * The helper was woken. In a burst that nobody listens to, each answer would wake it, and make the
 * thread that submits give the GIL up: so who is woken again at once lets some more come first, and
 * stays out of the way as long as who submits collects, too (dispatch_begin.c).
 */
static void let_more_come(Dispatch *d, uint32_t was) {
    struct timespec now, pause = {.tv_nsec = BURST_PAUSE_NS};
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t now_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    uint32_t seen = d->own_collects;
    if (now_ns - d->helped_ns < BURST_NS || seen != d->seen_collects)
        nanosleep(&pause, NULL);
    for (int i = 0;
         i < BURST_PAUSES_MAX && seen != d->seen_collects && cw_pool_news(d->pool, 1) == was; i++) {
        d->seen_collects = seen;
        nanosleep(&pause, NULL);
        seen = d->own_collects;
    }
    d->seen_collects = seen;
    d->helped_ns = now_ns;
}

PyObject *dispatch_help(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *seconds;
    unsigned was;
    int64_t timeout_ns;
    int code;
    if (!PyArg_ParseTuple(args, "IO", &was, &seconds) ||
        dispatch_read_timeout(seconds, &timeout_ns) || dispatch_is_ours(d))
        return NULL;
    d->helper = PyThread_get_thread_ident();
    if (dispatch_has_left(
            d)) { /* since we collected, and told before the caller has read its news */
        if (dispatch_collect_all(d, NULL))
            return NULL;
        Py_RETURN_NONE;
    }
    Py_BEGIN_ALLOW_THREADS;
    code = cw_pool_wait(d->pool, 1, was, 0, timeout_ns);
    if (code == 0 && cw_pool_news(d->pool, 1) == was)
        let_more_come(d, was);
    Py_END_ALLOW_THREADS;
    if (code && code != -ETIMEDOUT && code != -EINTR)
        return raise_failure(code);
    if (dispatch_collect_all(d, NULL))
        return NULL;
    Py_RETURN_NONE;
}

/* ---- deaths ---- */

/* What a call had lost: (None, token, worker, begun, function, cell, None). */
static PyObject *lost_call(const struct call *call, const cw_task *task) {
    Py_INCREF(call->function); /* the call may end while we build */
    return Py_BuildValue("OKIINIO", Py_None, (unsigned long long)call->token, task->worker,
                         task->begun, call->function, task->cell, Py_None);
}

/*
 * What a dead worker had, after all that it had sent was collected. Answers that it had just given
 * are delivered; what is lost is returned, as `deliver` would be given it, with None for the data
 * and for the kind whether the worker had begun it: 1, or 0 if it had done no more than to take it.
 * For calls the owner is None, the number is what `fail` takes, and the data are the function.
 */
PyObject *dispatch_reap(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    unsigned worker;
    if (!PyArg_ParseTuple(args, "I", &worker))
        return NULL;
    if (worker >= d->workers)
        return PyErr_Format(PyExc_ValueError, "there is no worker %u", worker);
    if (dispatch_collect_all(d, NULL))
        return NULL;
    PyObject *lost = PyList_New(0), *list = NULL;
    cw_task task;
    int code = 0;
    while (lost && (code = cw_pool_bury(d->pool, worker, &task)) >= 0) {
        if (code == 1) {
            code = take_answer(d, &task, NULL, &list);
        } else {
            struct entry entry = dispatch_disown(d, task.cell);
            cw_pool_free(d->pool, task.cell);
            if (entry.call)
                code = dispatch_append(&lost, lost_call(entry.call, &task));
            else if (entry.owner) {
                Py_INCREF(Py_None);
                code = dispatch_append(
                    &lost, dispatch_told(&entry, worker, task.begun, Py_None, task.cell));
            }
        }
        if (code)
            Py_CLEAR(lost);
    }
    d->lives[worker]++; /* whoever has its number next waits for nothing of it */
    if (dispatch_deliver(d, list))
        Py_CLEAR(lost);
    dispatch_tell_waiters(d);
    return lost;
}
