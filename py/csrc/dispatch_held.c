/*
 * dispatch_held.c: `Held`, which owns one array of the library's, or none yet: the *cell* of a
 * lease (extra.h, cableway.views). It is there before a call makes or opens the array, the call
 * puts the array into it, and it closes the array when it goes, without a line of Python: whatever
 * a signal's handler raises, the array is closed once.
 *
 * Here and not by CFFI since it is on the way of each get. The library's functions are called by
 * their addresses in CFFI's extension, which has the copy of the library that made the array.
 *
 * Owner: whoever has the object; one thread at a time calls it. If the process dies, so does the
 * lease. A forked child's copy closes the child's copy of the array, which the library sees to.
 */
#include "dispatch.h"

typedef int get_function(cw_client *, const char *, uint32_t, cw_array **);
typedef void close_function(cw_array *);

static get_function *get_array; /* set once, before there is any Held */
static close_function *close_array;

typedef struct {
    PyObject_HEAD cw_array *array;
} Held;

PyObject *held_functions(PyObject *module, PyObject *args) {
    unsigned long long get, close;
    (void)module;
    if (!PyArg_ParseTuple(args, "KK", &get, &close))
        return NULL;
    get_array = (get_function *)(uintptr_t)get;
    close_array = (close_function *)(uintptr_t)close;
    Py_RETURN_NONE;
}

static void end(Held *held) {
    cw_array *array = held->array;
    held->array = NULL;
    if (!array)
        return;
    Py_BEGIN_ALLOW_THREADS;
    close_array(array);
    Py_END_ALLOW_THREADS;
}

static void held_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    end((Held *)self);
    release(self);
    Py_DECREF(type);
}

static PyObject *held_end(PyObject *self, PyObject *none) {
    (void)none;
    end((Held *)self);
    Py_RETURN_NONE;
}

static PyObject *held_address(PyObject *self, PyObject *none) {
    (void)none;
    return PyLong_FromVoidPtr(&((Held *)self)->array);
}

static PyObject *held_array(PyObject *self, PyObject *none) {
    (void)none;
    return PyLong_FromVoidPtr(((Held *)self)->array);
}

/* (client, name, flags): cw_get() into it; what that returns. */
static PyObject *held_get(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Held *held = (Held *)self;
    char *name;
    Py_ssize_t length;
    if (count != 3 || held->array) {
        PyErr_SetString(PyExc_ValueError, "get(client, name, flags), of one that holds nothing");
        return NULL;
    }
    void *client = PyLong_AsVoidPtr(args[0]);
    unsigned long flags = PyLong_AsUnsignedLong(args[2]);
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[1], &name, &length))
        return NULL;
    int code;
    Py_BEGIN_ALLOW_THREADS;
    code = get_array(client, name, (uint32_t)flags, &held->array);
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(code);
}

static PyMethodDef methods[] = {
    {"address", held_address, METH_NOARGS, "(): of the cell, a cw_array *."},
    {"array", held_array, METH_NOARGS, "(): what it holds, by address; 0: nothing."},
    {"end", held_end, METH_NOARGS, "(): closes the array, if there is one. May be repeated."},
    {"get", (PyCFunction)(void (*)(void))held_get, METH_FASTCALL,
     "(client, name, flags): what cw_get() returned; the client by its address."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, held_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, "Held(): owns one array, once a call has put it there."},
    {0, NULL},
};
PyType_Spec held_spec = {
    .name = "cableway._dispatch.Held",
    .basicsize = sizeof(Held),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
