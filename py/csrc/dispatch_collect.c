/*
 * dispatch_collect.c: how `Dispatch` collects answers and waits for them, and what it does at a
 * worker's death; see dispatch_parent.c.
 */
#include "dispatch_parent.h"

#include <time.h>

#define BURST_NS         1000000 /* woken again within this time */
#define BURST_PAUSE_NS   200000
#define BURST_PAUSES_MAX 50 /* then it looks in any case */

/* Sees to one answer: a call of this process's threads takes it, or it goes to the list. */
static int take_answer(Dispatch *d, const cw_task *task, struct call *mine, PyObject **list) {
    struct entry entry = dispatch_disown(d, task->cell);
    int code = 0;
    if (entry.owner && outcome_take(d, &entry, task)) {
        cw_pool_free(d->pool, task->cell);
        return 0;
    }
    PyObject *type, *value, *trace; /* a KeyboardInterrupt, while it was read */
    PyErr_Fetch(&type, &value, &trace);
    PyObject *data = PyBytes_FromStringAndSize(task->data, task->size_bytes);
    if (entry.call && data) {
        entry.call->kind = task->kind;
        entry.call->data = data;
        entry.call->ended = 1;
        if (entry.call != mine)
            cw_pool_tell(d->pool, 0);
    } else if (entry.owner && data) {
        code = dispatch_append(list,
                               dispatch_told(&entry, task->worker, task->kind, data, task->cell));
    } else if (data && task->kind == ANSWER_MESSAGE) { /* nobody wants it any more */
        Py_INCREF(Py_None);
        entry.owner = Py_None;
        code = dispatch_append(list,
                               dispatch_told(&entry, task->worker, task->kind, data, task->cell));
    } else {
        code = data ? 0 : -1;
        Py_XDECREF(data);
        Py_XDECREF(entry.owner);
        Py_XDECREF(entry.held);
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

int dispatch_deliver(Dispatch *d, PyObject *list) {
    PyObject *type, *value, *trace;
    if (!list)
        return PyErr_Occurred() ? -1 : 0;
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
    Py_DECREF(list);
    if (type) {
        d->settled = 1; /* who was interrupted may have ended a job, and told nobody */
        PyErr_Restore(type, value, trace);
    }
    return type ? -1 : 0;
}

int dispatch_collect_all(Dispatch *d, struct call *mine) {
    if (dispatch_is_ours(d))
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
    if (d->late) /* nobody tells of these any more */
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
    PyObject *seconds;
    unsigned was;
    int64_t timeout_ns;
    if (!PyArg_ParseTuple(args, "IO", &was, &seconds) ||
        dispatch_read_timeout(seconds, &timeout_ns))
        return NULL;
    if (dispatch_listen_once((Dispatch *)self, was, timeout_ns, NULL))
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
    if (d->late) { /* left since we collected, and told before the caller has read its news */
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
PyObject *dispatch_bury(PyObject *self, PyObject *args) {
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
    if (dispatch_deliver(d, list))
        Py_CLEAR(lost);
    dispatch_tell_waiters(d);
    return lost;
}
