/*
 * dispatch_signals.c: calls after which no signal's handler comes before the caller has what they
 * returned.
 *
 * The interpreter looks for signals after each call, at jumps backwards and as a function begins,
 * and nowhere else (from Python 3.11 on). So a handler may raise between the end of a call and the
 * store of what it gave, which is lost then. `Uninterrupted(function)[a, b]` is a call to C and
 * none to the interpreter: it goes on to the store, and to the `return` of a function of
 * Python, which is no such place either. What the handler raises comes up behind that, where the
 * caller calls the next time.
 *
 * `raise_later(error)` is for who has got what a handler raised, after something had happened that
 * must not be told as an exception: it comes up at the next such place.
 *
 * Python 3.10 looks after a call of a function of Python, too, when it has returned.
 */
#include "dispatch.h"

typedef struct {
    PyObject_HEAD PyObject *function;
} Uninterrupted;

static int uninterrupted_init(PyObject *self, PyObject *args, PyObject *kwds) {
    PyObject *function;
    (void)kwds;
    if (!PyArg_ParseTuple(args, "O", &function))
        return -1;
    Py_INCREF(function);
    Py_XDECREF(((Uninterrupted *)self)->function);
    ((Uninterrupted *)self)->function = function;
    return 0;
}

static int uninterrupted_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Uninterrupted *)self)->function);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int uninterrupted_clear(PyObject *self) {
    Py_CLEAR(((Uninterrupted *)self)->function);
    return 0;
}

static void uninterrupted_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    uninterrupted_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* [a, b]: function(a, b); [a,]: function(a). */
static PyObject *uninterrupted_call(PyObject *self, PyObject *key) {
    PyObject *function = ((Uninterrupted *)self)->function;
    if (!function) {
        PyErr_SetString(PyExc_ValueError, "it was made for no function");
        return NULL;
    }
    if (PyTuple_Check(key))
        return PyObject_CallObject(function, key);
    PyErr_SetString(PyExc_TypeError, "the arguments are a tuple: [a,] for one");
    return NULL;
}

static PyType_Slot slots[] = {
    {Py_tp_init, uninterrupted_init},
    {Py_tp_traverse, uninterrupted_traverse},
    {Py_tp_clear, uninterrupted_clear},
    {Py_tp_dealloc, uninterrupted_dealloc},
    {Py_mp_subscript, uninterrupted_call},
    {Py_tp_doc, "Uninterrupted(function): of it [arguments] calls a function of C, and no signal's "
                "handler comes between its end and the store of what it returned."},
    {0, NULL},
};
PyType_Spec uninterrupted_spec = {
    .name = "cableway._dispatch.Uninterrupted",
    .basicsize = sizeof(Uninterrupted),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

static int raise_it(void *error) {
    PyErr_SetObject((PyObject *)Py_TYPE((PyObject *)error), error);
    Py_DECREF((PyObject *)error);
    return -1;
}

PyObject *raise_later(PyObject *module, PyObject *error) {
    (void)module;
    if (!PyExceptionInstance_Check(error)) {
        PyErr_SetString(PyExc_TypeError, "what is raised later is an exception");
        return NULL;
    }
    Py_INCREF(error);
    if (Py_AddPendingCall(raise_it, error)) { /* too many wait: now, then */
        raise_it(error);
        return NULL;
    }
    Py_RETURN_NONE;
}
