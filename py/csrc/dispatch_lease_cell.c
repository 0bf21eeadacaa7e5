/*
 * dispatch_lease_cell.c: `LeaseCell`, which owns one array of the library's, or none yet: the
 * *cell* of a lease (extra.h, cableway._core.leases). It is there before a call makes or opens the
 * array, the call puts the array into it, and it closes the array when it goes, without a line of
 * Python: whatever a signal's handler raises, the array is closed once.
 *
 * Here and not by CFFI since it is on the way of each get.
 *
 * A *block* that another process has lent (_transport/blocks.py) is opened here as well, and given
 * back when the object goes: its first word says OPENED, then RETURNED, or LEFT where a process
 * that was forked meanwhile may look at it. No handler comes between opening and noting it, and
 * what a handler raises is never lost in a finaliser, since none is Python's.
 *
 * Owner: whoever has the object; one thread at a time calls it. If the process dies, so does the
 * lease. A forked child's copy closes the child's copy of the array, which the library sees to.
 */
#include "dispatch.h"

#include <pthread.h>
#include <unistd.h>

/* Of a block's word. As in _transport/blocks.py. */
enum { BLOCK_RETURNED = 2, BLOCK_LEFT = 3, BLOCK_OPENED = 4 };

PyTypeObject *lease_cell_type;
static unsigned forks; /* that this process has begun */

typedef struct {
    PyObject_HEAD cw_array *array;
    volatile uint32_t *word; /* of a block; else NULL */
    unsigned forks;
    pid_t pid;
} LeaseCell;

static void count_fork(void) {
    forks++;
}

int lease_cell_begin(void) {
    static int begun;
    if (!begun && pthread_atfork(count_fork, NULL, NULL)) {
        PyErr_NoMemory();
        return -1;
    }
    begun = 1;
    return 0;
}

void lease_cell_put(PyObject *cell, cw_array *array) {
    ((LeaseCell *)cell)->array = array;
}

cw_array *lease_cell_array_in(PyObject *cell) {
    return PyObject_TypeCheck(cell, lease_cell_type) ? ((LeaseCell *)cell)->array : NULL;
}

static void end(LeaseCell *cell) {
    cw_array *array = cell->array;
    volatile uint32_t *word = cell->word;
    cell->array = NULL;
    cell->word = NULL;
    if (!array)
        return;
    /* x86-64 makes stores visible in order: whatever was read or written there is done. */
    if (word && getpid() == cell->pid)
        *word = cell->forks == forks ? BLOCK_RETURNED : BLOCK_LEFT;
    Py_BEGIN_ALLOW_THREADS;
    cw_array_close(array);
    Py_END_ALLOW_THREADS;
}

static void lease_cell_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    end((LeaseCell *)self);
    release(self);
    Py_DECREF(type);
}

static PyObject *lease_cell_end(PyObject *self, PyObject *none) {
    (void)none;
    end((LeaseCell *)self);
    Py_RETURN_NONE;
}

static PyObject *lease_cell_address(PyObject *self, PyObject *none) {
    (void)none;
    return PyLong_FromVoidPtr(&((LeaseCell *)self)->array);
}

static PyObject *lease_cell_array(PyObject *self, PyObject *none) {
    (void)none;
    return PyLong_FromVoidPtr(((LeaseCell *)self)->array);
}

/* (client, name, flags): cw_get() into it; what that returns. */
static PyObject *lease_cell_get(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    LeaseCell *cell = (LeaseCell *)self;
    char *name;
    Py_ssize_t length;
    if (count != 3 || cell->array) {
        PyErr_SetString(PyExc_ValueError, "get(client, name, flags), of one that holds nothing");
        return NULL;
    }
    void *client = PyLong_AsVoidPtr(args[0]);
    unsigned long flags = PyLong_AsUnsignedLong(args[2]);
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[1], &name, &length))
        return NULL;
    int code;
    Py_BEGIN_ALLOW_THREADS;
    code = cw_get(client, name, (uint32_t)flags, &cell->array);
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(code);
}

static void note_block(LeaseCell *cell) {
    cell->forks = forks;
    cell->pid = getpid();
    cell->word = cw_array_data(cell->array);
}

/* (client, handle, layout, flags, lent): cw_array_open() into it, unless it holds one already; what
 * that returns. A signal is served, and it goes on unless the handler raises. */
static PyObject *lease_cell_open(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    LeaseCell *cell = (LeaseCell *)self;
    char *bytes;
    Py_ssize_t length;
    cw_handle handle;
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "open(client, handle, layout, flags, lent)");
        return NULL;
    }
    void *client = PyLong_AsVoidPtr(args[0]), *layout = PyLong_AsVoidPtr(args[2]);
    unsigned long flags = PyLong_AsUnsignedLong(args[3]);
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[1], &bytes, &length))
        return NULL;
    if (length != sizeof handle) {
        PyErr_Format(PyExc_ValueError, "a handle has %d bytes, not %zd", (int)sizeof handle,
                     length);
        return NULL;
    }
    memcpy(&handle, bytes, sizeof handle);
    int code = 0;
    while (!cell->array) {
        cw_array *array = NULL;
        Py_BEGIN_ALLOW_THREADS;
        code = cw_array_open(client, &handle, layout, (uint32_t)flags, &array);
        Py_END_ALLOW_THREADS;
        if (cell->array && array) { /* another thread has opened it meanwhile */
            cw_array_close(array);
            return PyLong_FromLong(0);
        }
        if (array)
            cell->array = array;
        if (code != -EINTR)
            break;
        if (PyErr_CheckSignals())
            return NULL;
    }
    if (code == 0 && args[4] == Py_True && !cell->word) {
        note_block(cell);
        *cell->word = BLOCK_OPENED;
    }
    return PyLong_FromLong(code);
}

/* (): what it holds is a block, whose sender is told when it goes. */
static PyObject *lease_cell_returns(PyObject *self, PyObject *none) {
    (void)none;
    if (!((LeaseCell *)self)->array) {
        PyErr_SetString(PyExc_ValueError, "it holds nothing");
        return NULL;
    }
    note_block((LeaseCell *)self);
    Py_RETURN_NONE;
}

static PyObject *lease_cell_data(PyObject *self, PyObject *none) {
    (void)none;
    LeaseCell *cell = (LeaseCell *)self;
    return PyLong_FromVoidPtr(cell->array ? cw_array_data(cell->array) : NULL);
}

static PyMethodDef methods[] = {
    {"address", lease_cell_address, METH_NOARGS, "(): of the cell, a cw_array *."},
    {"array", lease_cell_array, METH_NOARGS, "(): what it holds, by address; 0: nothing."},
    {"end", lease_cell_end, METH_NOARGS, "(): closes the array, if there is one. May be repeated."},
    {"data", lease_cell_data, METH_NOARGS,
     "(): where the array's data lie, by address; 0: nothing."},
    {"open", (PyCFunction)(void (*)(void))lease_cell_open, METH_FASTCALL,
     "(client, handle, layout, flags, lent): what cw_array_open() returned, 0 if it holds one "
     "already; client and layout by their addresses; lent: it is a block."},
    {"returns", lease_cell_returns, METH_NOARGS,
     "(): what it holds is a block; its sender is told when it goes."},
    {"get", (PyCFunction)(void (*)(void))lease_cell_get, METH_FASTCALL,
     "(client, name, flags): what cw_get() returned; the client by its address."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, lease_cell_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, "LeaseCell(): owns one array, once a call has put it there."},
    {0, NULL},
};
PyType_Spec lease_cell_spec = {
    .name = "cableway._dispatch.LeaseCell",
    .basicsize = sizeof(LeaseCell),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
