/*
 * dispatch_calls.c: calls of `Dispatch`: submitted and waited for by one thread; see
 * dispatch_parent.c.
 */
#include "dispatch_parent.h"

/* The thread leaves its call. What no worker has taken yet is taken back. */
static void forget_call(Dispatch *d, struct call *call) {
    for (struct call **at = &d->calls; *at; at = &(*at)->next)
        if (*at == call) {
            *at = call->next;
            break;
        }
    if (d->entries[call->cell].call != call)
        return;
    if (cw_pool_withdraw(d->pool, call->cell) == 0) {
        dispatch_disown(d, call->cell);
        cw_pool_free(d->pool, call->cell);
    } else {
        d->entries[call->cell].call = NULL;
    }
}

/* What a call's answer says: (success, value). A message is decoded by Python; then its worker need
 * stay no longer, whatever came of it. */
static PyObject *value_of(struct call *call, PyObject *decode) {
    if (call->kind == ANSWER_NONE)
        return Py_BuildValue("OO", Py_True, Py_None);
    if (call->kind == ANSWER_MESSAGE) {
        PyObject *found =
            PyObject_CallFunctionObjArgs(decode, call->function, call->data, (PyObject *)NULL);
        answer_release(call->data);
        return found;
    }
    char *data;
    Py_ssize_t nbytes;
    PyBytes_AsStringAndSize(call->data, &data, &nbytes);
    PyObject *value = plain_loads(data, (uint32_t)nbytes);
    return value ? Py_BuildValue("ON", Py_True, value) : NULL;
}

PyObject *dispatch_call(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *function, *described, *object, *decode;
    unsigned kind, group = 0;
    if (!PyArg_ParseTuple(args, "IOOOO|I", &kind, &described, &function, &object, &decode, &group))
        return NULL;
    long cell = dispatch_submit_object(d, group, kind, described, object);
    if (cell == -2)
        return NULL;
    if (cell < 0)
        Py_RETURN_NONE;
    struct call call = {.next = d->calls,
                        .thread = PyThread_get_thread_ident(),
                        .function = function,
                        .token = ++d->tokens,
                        .cell = (uint32_t)cell};
    d->calls = &call;
    d->entries[cell] = (struct entry){.call = &call};
    cw_pool_wake(d->pool, group, 1);
    int code = 0;
    while (!call.ended && code == 0) {
        uint32_t was = cw_pool_news(d->pool, 0);
        code = dispatch_listen_once(d, was, LOOK_NS, &call) ? -1 : PyErr_CheckSignals();
    }
    forget_call(d, &call);
    struct step step;
    dispatch_enter(d, &step, STEP_DELIVERS); /* the worker stays until its message is decoded */
    PyObject *result = NULL;
    if (code == 0 && call.error) /* what a signal's handler raised meanwhile goes before it */
        PyErr_SetObject((PyObject *)Py_TYPE(call.error), call.error);
    else if (call.data && code == 0)
        result = value_of(&call, decode);
    Py_XDECREF(call.data); /* one that nobody takes lets its worker go */
    Py_XDECREF(call.error);
    dispatch_exit(d, &step);
    return result;
}

PyObject *dispatch_holds_up(PyObject *self, PyObject *unused) {
    const Dispatch *d = (Dispatch *)self;
    (void)unused;
    const unsigned long me = PyThread_get_thread_ident();
    long found = 0;
    for (const struct step *step = d->steps; step; step = step->next)
        if (step->thread == me && (long)step->kind > found)
            found = (long)step->kind;
    for (const struct call *call = d->calls; call && !found; call = call->next)
        if (call->thread == me && call->ended && call->kind == ANSWER_MESSAGE)
            found = STEP_DELIVERS;
    return PyLong_FromLong(found);
}

/* Ends calls with an exception: the one that `reap` has told of, or all. */
static void fail(struct call *call, PyObject *error) {
    if (call->ended)
        return;
    Py_INCREF(error);
    call->error = error;
    call->ended = 1;
}

PyObject *dispatch_fail(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *error;
    unsigned long long token;
    if (!PyArg_ParseTuple(args, "KO", &token, &error))
        return NULL;
    for (struct call *call = d->calls; call; call = call->next)
        if (token == 0 || call->token == token)
            fail(call, error);
    cw_pool_tell(d->pool, 0);
    Py_RETURN_NONE;
}
