/*
 * dispatch_calls.c: calls of `Dispatch`: submitted and waited for by one thread; see
 * dispatch_parent.c.
 */
#include "dispatch_parent.h"

static void forget_call(Dispatch *d, struct call *call) {
    for (struct call **at = &d->calls; *at; at = &(*at)->next)
        if (*at == call) {
            *at = call->next;
            break;
        }
    for (uint32_t i = 0; i < d->cells && !call->ended; i++)
        if (d->entries[i].call == call)
            d->entries[i].call = NULL;
}

/* The value of a call's answer; a message as (None, bytes) for the caller to decode. */
static PyObject *value_of(struct call *call) {
    if (call->kind == ANSWER_NONE)
        return Py_BuildValue("OO", Py_True, Py_None);
    if (call->kind == ANSWER_MESSAGE)
        return Py_BuildValue("OO", Py_None, call->data);
    char *data;
    Py_ssize_t nbytes;
    PyBytes_AsStringAndSize(call->data, &data, &nbytes);
    PyObject *value = plain_loads(data, (uint32_t)nbytes);
    return value ? Py_BuildValue("ON", Py_True, value) : NULL;
}

PyObject *dispatch_call(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *function, *described, *object;
    unsigned kind;
    if (!PyArg_ParseTuple(args, "IOOO", &kind, &described, &function, &object))
        return NULL;
    long cell = dispatch_submit_object(d, kind, described, object);
    if (cell == -2)
        return NULL;
    if (cell < 0)
        Py_RETURN_NONE;
    struct call call = {.next = d->calls, .function = function};
    d->calls = &call;
    d->entries[cell] = (struct entry){.call = &call};
    cw_pool_wake(d->pool, 1);
    int code = 1;
    while (!call.ended && code > 0) {
        uint32_t was = cw_pool_news(d->pool, 0);
        code = dispatch_listen_once(d, was, -1, &call);
    }
    forget_call(d, &call);
    PyObject *result = NULL;
    if (call.ended && call.error)
        PyErr_SetObject((PyObject *)Py_TYPE(call.error), call.error);
    else if (call.ended && call.data && code >= 0)
        result = value_of(&call);
    Py_XDECREF(call.data);
    Py_XDECREF(call.error);
    return result;
}

/* Ends calls with an exception: the one that `bury` has told of, or all. */
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
        if (token == 0 || (uintptr_t)call == token)
            fail(call, error);
    cw_pool_tell(d->pool, 0);
    Py_RETURN_NONE;
}
