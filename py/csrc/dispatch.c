/*
 * dispatch.c: the module cableway._dispatch; see dispatch.h. Its types are in dispatch_parent.c and
 * dispatch_worker.c.
 */
#include "dispatch.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

PyObject *raise_failure(int code) {
    PyObject *errors = PyImport_ImportModule("cableway.errors");
    PyObject *made =
        errors ? PyObject_CallMethod(errors, "from_status", "is", code, cw_error()) : NULL;
    if (made)
        PyErr_SetObject((PyObject *)Py_TYPE(made), made);
    Py_XDECREF(made);
    Py_XDECREF(errors);
    return NULL;
}

static PyObject *pool_bytes(PyObject *module, PyObject *args) {
    (void)module;
    unsigned workers, cells, groups;
    if (!PyArg_ParseTuple(args, "III", &workers, &cells, &groups))
        return NULL;
    return PyLong_FromUnsignedLongLong(cw_pool_bytes(workers, cells, groups));
}

static PyObject *pool_allocate(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long nbytes;
    int fd;
    if (!PyArg_ParseTuple(args, "K", &nbytes))
        return NULL;
    int code = cw_pool_allocate(nbytes, &fd);
    return code ? raise_failure(code) : PyLong_FromLong(fd);
}

static PyObject *pool_map(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long nbytes;
    int fd;
    if (!PyArg_ParseTuple(args, "iK", &fd, &nbytes))
        return NULL;
    void *memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return memory == MAP_FAILED ? PyErr_SetFromErrno(PyExc_OSError)
                                : PyLong_FromUnsignedLongLong((uintptr_t)memory);
}

static PyObject *pool_unmap(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long address, nbytes;
    if (!PyArg_ParseTuple(args, "KK", &address, &nbytes))
        return NULL;
    if (munmap((void *)(uintptr_t)address, nbytes))
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

struct watched {
    int pidfd, status;
};

static void *end_with(void *argument) {
    struct watched watched = *(struct watched *)argument;
    free(argument);
    struct pollfd poll_fd = {.fd = watched.pidfd, .events = POLLIN};
    while (poll(&poll_fd, 1, -1) <= 0)
        ;
    _exit(watched.status);
}

/* A thread of its own, that no task can hold up, ends this process when another one has ended. */
static PyObject *watch(PyObject *module, PyObject *args) {
    (void)module;
    struct watched watched, *argument;
    if (!PyArg_ParseTuple(args, "ii", &watched.pidfd, &watched.status))
        return NULL;
    argument = malloc(sizeof *argument);
    if (!argument)
        return PyErr_NoMemory();
    *argument = watched;
    sigset_t all, before; /* signals are the main thread's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int code = pthread_create(&thread, NULL, end_with, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code) {
        free(argument);
        errno = code;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    pthread_detach(thread);
    Py_RETURN_NONE;
}

/* The two by themselves: for the objects of groups. */
static PyObject *dump_small(PyObject *module, PyObject *object) {
    (void)module;
    char data[CW_POOL_DATA_MAX];
    Py_ssize_t nbytes = small_dump(object, data, sizeof data);
    if (nbytes >= 0)
        return PyBytes_FromStringAndSize(data, nbytes);
    Py_RETURN_NONE;
}

static PyObject *load_small(PyObject *module, PyObject *args) {
    (void)module;
    const char *data;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTuple(args, "y#", &data, &nbytes))
        return NULL;
    PyObject *found = small_load(data, (uint32_t)nbytes);
    return found ? Py_BuildValue("(N)", found) : Py_BuildValue("()");
}

static PyObject *load_plain(PyObject *module, PyObject *pickled) {
    (void)module;
    char *data;
    Py_ssize_t nbytes;
    if (PyBytes_AsStringAndSize(pickled, &data, &nbytes))
        return NULL;
    return plain_loads(data, (uint32_t)nbytes);
}

static PyObject *dump_plain(PyObject *module, PyObject *object) {
    (void)module;
    PyObject *pickled = plain_dumps(object);
    if (pickled || PyErr_Occurred())
        return pickled;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"plain_dumps", dump_plain, METH_O,
     "The pickle of a plain object that fits into a cell, or None."},
    {"plain_loads", load_plain, METH_O, "The object in a pickle of plain objects."},
    {"small_dump", dump_small, METH_O, "The pickle of a very small plain object, or None."},
    {"small_load", load_small, METH_VARARGS, "(pickle): (object,), or () where it is another one."},
    {"watch", watch, METH_VARARGS, "(pidfd, status): ends this process when that one ends."},
    {"pool_bytes", pool_bytes, METH_VARARGS,
     "Bytes of memory for so many workers, cells and groups."},
    {"pool_allocate", pool_allocate, METH_VARARGS,
     "A descriptor of so many bytes of memory, which the caller closes."},
    {"pool_map", pool_map, METH_VARARGS, "(fd, nbytes): the address of its memory, mapped."},
    {"pool_unmap", pool_unmap, METH_VARARGS, "(address, nbytes): ends that."},
    {"pairs_fill", pairs_fill, METH_VARARGS,
     "(pairs, address, usable, describe, leases): cw_pair of the first so many pairs."},
    {"elements_types", elements_types, METH_VARARGS,
     "Tells the array type, that of leases, and the texts of dtypes by dtype."},
    {"raise_later", raise_later, METH_O,
     "(exception): raises it when what runs now has returned; on the main thread."},
    {"set_numpy", plain_numpy, METH_VARARGS, "Tells the array type and a tuple of scalar types."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "cableway._dispatch",
    .m_doc = "The hot path of the Pool: tasks and answers through shared memory.",
    .m_size = -1,
    .m_methods = functions,
};

static int add_type(PyObject *module, const char *name, PyType_Spec *spec) {
    PyObject *type = PyType_FromSpec(spec);
    if (spec == &outcome_spec)
        outcome_type = (PyTypeObject *)type;
    if (spec == &answer_spec)
        answer_type = (PyTypeObject *)type;
    if (spec == &lease_cell_spec)
        lease_cell_type = (PyTypeObject *)type;
    if (spec == &queue_item_spec)
        queue_item_type = (PyTypeObject *)type;
    if (spec == &fields_spec)
        fields_type = (PyTypeObject *)type;
    return type ? PyModule_AddObject(module, name, type) : -1;
}

PyMODINIT_FUNC PyInit__dispatch(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module &&
        (plain_init() || outcome_init() || lease_cell_begin() ||
         add_type(module, "Outcome", &outcome_spec) ||
         add_type(module, "Dispatch", &dispatch_spec) ||
         add_type(module, "WorkerEnd", &worker_spec) || add_type(module, "QueueEnd", &queue_spec) ||
         add_type(module, "LeaseCell", &lease_cell_spec) ||
         add_type(module, "GroupEnd", &group_spec) || add_type(module, "Answer", &answer_spec) ||
         add_type(module, "Fields", &fields_spec) ||
         add_type(module, "QueueItem", &queue_item_spec) ||
         add_type(module, "Uninterrupted", &uninterrupted_spec) ||
         PyModule_AddIntConstant(module, "DATA_MAX", CW_POOL_DATA_MAX) ||
         PyModule_AddIntConstant(module, "WORDS_MAX", WORDS_MAX) ||
         PyModule_AddIntConstant(module, "FUNCTION_MAX", CW_POOL_FUNCTION_MAX) ||
         PyModule_AddIntConstant(module, "FUNCTION_SLOTS", CW_POOL_FUNCTION_SLOTS) ||
         PyModule_AddIntConstant(module, "CELLS_MAX", CW_POOL_CELLS_MAX) ||
         PyModule_AddIntConstant(module, "WORKERS_MAX", CW_POOL_WORKERS_MAX) ||
         PyModule_AddIntConstant(module, "GROUPS_MAX", CW_POOL_GROUPS_MAX)))
        Py_CLEAR(module);
    return module;
}
