/*
 * dispatch_worker.c: `WorkerEnd`, a worker's end of a pool: takes tasks, calls their functions,
 * answers. What is not plain goes through the handler, an object of _pool_worker.
 *
 * One thread serves. A task's data are the worker's until it answers. A child that a task has
 * forked must not answer: it ends where it would.
 */
#include "dispatch.h"

#include <pthread.h>
#include <unistd.h>

#define FUNCTIONS 256 /* remembered, by their number; each takes the place of an older one */

typedef struct {
    PyObject_HEAD cw_worker *worker;
    struct {
        uint64_t number;
        PyObject *function;
    } functions[FUNCTIONS];
    unsigned long long extra_in; /* bytes beside the present task's data, told by the handler */
    char running;                /* a task of the user's runs: a SIGINT is meant for it */
} WorkerEnd;

static int is_child; /* of a worker, by a fork in a task */

static void note_child(void) {
    is_child = 1;
}

static int worker_init(PyObject *self, PyObject *args, PyObject *kwds) {
    (void)kwds;
    unsigned long long address, nbytes;
    unsigned workers, cells, number, spinners;
    if (!PyArg_ParseTuple(args, "KKIIII", &address, &nbytes, &workers, &cells, &number, &spinners))
        return -1;
    int code = cw_worker_open((void *)(uintptr_t)address, nbytes, workers, cells, number, spinners,
                              &((WorkerEnd *)self)->worker);
    if (code) {
        raise_failure(code);
        return -1;
    }
    /* A worker within a worker's child is a worker again. */
    static int watching;
    if (!watching && pthread_atfork(NULL, NULL, note_child) == 0)
        watching = 1;
    is_child = 0;
    return 0;
}

static int worker_clear(PyObject *self) {
    for (int i = 0; i < FUNCTIONS; i++)
        Py_CLEAR(((WorkerEnd *)self)->functions[i].function);
    return 0;
}

static int worker_traverse(PyObject *self, visitproc visit, void *arg) {
    for (int i = 0; i < FUNCTIONS; i++)
        Py_VISIT(((WorkerEnd *)self)->functions[i].function);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void worker_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    worker_clear(self);
    cw_worker_close(((WorkerEnd *)self)->worker);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* The function of a task, borrowed; unpickled by the handler when its number is new. */
static PyObject *function_of(WorkerEnd *w, const cw_task *task, PyObject *handler) {
    uint64_t at = task->function % FUNCTIONS;
    if (w->functions[at].function && w->functions[at].number == task->function)
        return w->functions[at].function;
    PyObject *function = PyObject_CallMethod(handler, "load_function", "y#",
                                             (const char *)cw_worker_function(w->worker, task),
                                             (Py_ssize_t)task->function_bytes);
    if (function) {
        Py_XDECREF(w->functions[at].function);
        w->functions[at].function = function;
        w->functions[at].number = task->function;
    }
    return function;
}

static PyObject *call_each(PyObject *function, PyObject *items, int star) {
    Py_ssize_t size = PyTuple_Size(items);
    PyObject *results = size < 0 ? NULL : PyList_New(size);
    for (Py_ssize_t i = 0; results && i < size; i++) {
        PyObject *item = PyTuple_GetItem(items, i), *value = NULL;
        if (!star) {
            value = PyObject_CallFunctionObjArgs(function, item, NULL);
        } else {
            PyObject *args = PySequence_Tuple(item);
            value = args ? PyObject_Call(function, args, NULL) : NULL;
            Py_XDECREF(args);
        }
        if (!value || PyList_SetItem(results, i, value))
            Py_CLEAR(results);
    }
    return results;
}

/* The value of a plain task. */
static PyObject *run_plain(WorkerEnd *w, const cw_task *task, PyObject *handler) {
    PyObject *function = function_of(w, task, handler);
    PyObject *args = function ? plain_loads(task->data, task->size_bytes) : NULL, *value = NULL;
    if (!args)
        return NULL;
    Py_INCREF(function); /* the task may lead to others that take its place */
    if (task->kind == TASK_APPLY) {
        PyObject *named = PyTuple_Size(args) > 1 ? PyTuple_GetItem(args, 1) : NULL;
        PyObject *positional = PyTuple_GetItem(args, 0);
        value = positional ? PyObject_Call(function, positional, named) : NULL;
    } else {
        value = call_each(function, args, task->kind == TASK_STARMAP);
    }
    Py_DECREF(function);
    Py_DECREF(args);
    return value;
}

/* The exception that is set, with its traceback; cleared. */
static PyObject *take_exception(void) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace && value)
        PyException_SetTraceback(value, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

/* Puts a message of the handler's into the cell: (data, bytes beside it). */
static int put_message(cw_task *task, PyObject *message, uint64_t *extra_out) {
    char *data;
    Py_ssize_t nbytes;
    unsigned long long extra;
    if (!message || !PyArg_ParseTuple(message, "y#K", &data, &nbytes, &extra))
        return -1;
    if (nbytes > CW_POOL_DATA_MAX) {
        PyErr_Format(PyExc_ValueError, "an answer's message has at most %d bytes, not %zd",
                     CW_POOL_DATA_MAX, nbytes);
        return -1;
    }
    memcpy(task->data, data, (size_t)nbytes);
    task->size_bytes = (uint32_t)nbytes;
    task->kind = ANSWER_MESSAGE;
    *extra_out = extra;
    return 0;
}

static int put_value(cw_task *task, PyObject *value, PyObject *handler, uint64_t *extra_out) {
    if (value == Py_None) {
        task->kind = ANSWER_NONE;
        task->size_bytes = 0;
        return 0;
    }
    char *data;
    Py_ssize_t nbytes = small_dump(value, task->data, CW_POOL_DATA_MAX);
    if (nbytes >= 0) {
        task->size_bytes = (uint32_t)nbytes;
        task->kind = ANSWER_VALUE;
        return 0;
    }
    PyObject *pickled = plain_dumps(value);
    if (pickled) {
        PyBytes_AsStringAndSize(pickled, &data, &nbytes);
        memcpy(task->data, data, (size_t)nbytes);
        task->size_bytes = (uint32_t)nbytes;
        task->kind = ANSWER_VALUE;
        Py_DECREF(pickled);
        return 0;
    }
    if (PyErr_Occurred())
        return -1;
    PyObject *message = PyObject_CallMethod(handler, "encode_value", "(O)", value);
    int code = put_message(task, message, extra_out);
    Py_XDECREF(message);
    return code;
}

/* Runs one task and leaves its answer in the cell. -1: the worker is to end, with an exception. */
static int run(WorkerEnd *w, cw_task *task, PyObject *handler, uint64_t *extra_out) {
    PyObject *value;
    w->running = 1;
    if (task->kind == TASK_MESSAGE) {
        PyObject *view = PyMemoryView_FromMemory(task->data, task->size_bytes, PyBUF_READ);
        PyObject *function = task->function ? function_of(w, task, handler) : Py_None;
        value = view && function ? PyObject_CallMethod(handler, "run_message", "OO", view, function)
                                 : NULL;
        Py_XDECREF(view);
    } else {
        value = run_plain(w, task, handler);
    }
    w->running = 0;
    if (is_child)
        _exit(0);
    int code = value ? put_value(task, value, handler, extra_out) : -1;
    Py_XDECREF(value);
    if (code == 0)
        return 0;
    PyObject *error = take_exception();
    PyObject *message =
        PyObject_CallMethod(handler, "encode_exception", "(O)", error ? error : Py_None);
    code = put_message(task, message, extra_out);
    Py_XDECREF(message);
    Py_XDECREF(error);
    return code;
}

static PyObject *worker_serve(PyObject *self, PyObject *args) {
    WorkerEnd *w = (WorkerEnd *)self;
    PyObject *handler;
    long most;
    if (!PyArg_ParseTuple(args, "Ol", &handler, &most))
        return NULL;
    for (long tasks = 0; most == 0 || tasks < most; tasks++) {
        cw_task task;
        int code;
        do {
            Py_BEGIN_ALLOW_THREADS;
            code = cw_worker_take(w->worker, &task);
            Py_END_ALLOW_THREADS;
            if (code == -EINTR && PyErr_CheckSignals())
                return NULL;
        } while (code == -EINTR);
        if (code == -ESHUTDOWN)
            break;
        if (code)
            return raise_failure(code);
        if (PyErr_CheckSignals()) /* one that came while no task ran is not meant for this one */
            return NULL;
        uint64_t extra_out = 0;
        if (run(w, &task, handler, &extra_out))
            return NULL;
        cw_worker_answer(w->worker, &task, w->extra_in, extra_out);
        w->extra_in = 0;
        if (extra_out) { /* this process alone holds it until the parent has opened it */
            cw_worker_settle(w->worker);
            PyObject *opened = PyObject_CallMethod(handler, "wait_until_opened", NULL);
            if (!opened)
                return NULL;
            Py_DECREF(opened);
        }
    }
    cw_worker_settle(w->worker);
    Py_RETURN_NONE;
}

static PyObject *worker_tell(PyObject *self, PyObject *args) {
    unsigned state;
    const char *words;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTuple(args, "Iy#", &state, &words, &nbytes))
        return NULL;
    if (nbytes > WORDS_MAX)
        return PyErr_Format(PyExc_ValueError, "a worker's words have at most %d bytes, not %zd",
                            (int)WORDS_MAX, nbytes);
    char *place = cw_worker_words(((WorkerEnd *)self)->worker);
    uint32_t length = (uint32_t)nbytes;
    memcpy(place, &length, sizeof length);
    memcpy(place + sizeof length, words, (size_t)nbytes);
    cw_worker_tell(((WorkerEnd *)self)->worker, state);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"serve", worker_serve, METH_VARARGS,
     "(handler, most): runs tasks, at most so many, 0 for any number."},
    {"tell", worker_tell, METH_VARARGS, "(state, words): tells the parent's helper what it is."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"extra_in", T_ULONGLONG, offsetof(WorkerEnd, extra_in), 0,
     "Bytes that came beside the task's data."},
    {"running", T_BOOL, offsetof(WorkerEnd, running), 0, "Whether a task of the user's runs."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_init, worker_init},
    {Py_tp_dealloc, worker_dealloc},
    {Py_tp_traverse, worker_traverse},
    {Py_tp_clear, worker_clear},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_doc, "WorkerEnd(address, nbytes, workers, cells, number, spinners): a worker's end."},
    {0, NULL},
};
PyType_Spec worker_spec = {
    .name = "causeway._dispatch.WorkerEnd",
    .basicsize = sizeof(WorkerEnd),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
