/*
 * dispatch_worker.c: `WorkerEnd`, a worker's end of a pool: takes tasks, calls their functions,
 * answers. What is not plain goes through the handler, an object of _pool.worker.worker; what is
 * answered after its function has returned, through dispatch_defer.c.
 *
 * One thread serves. A task's data are the worker's until it answers. A child that a task has
 * forked must not answer: it ends where it would.
 */
#include "dispatch_worker.h"

#include <pthread.h>
#include <unistd.h>

static int is_child; /* of a worker, by a fork in a task */

static void note_child(void) {
    is_child = 1;
}

void worker_end_child(void) {
    if (is_child)
        _exit(0);
}

static int worker_init(PyObject *self, PyObject *args, PyObject *kwds) {
    (void)kwds;
    unsigned long long address, nbytes;
    unsigned workers, cells, groups, number, group, spinners;
    if (!PyArg_ParseTuple(args, "KKIIIIII", &address, &nbytes, &workers, &cells, &groups, &number,
                          &group, &spinners))
        return -1;
    int code = cw_worker_open((void *)(uintptr_t)address, nbytes, workers, cells, groups, number,
                              group, spinners, &((WorkerEnd *)self)->worker);
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
    Py_CLEAR(((WorkerEnd *)self)->handler);
    return 0;
}

static int worker_traverse(PyObject *self, visitproc visit, void *arg) {
    for (int i = 0; i < FUNCTIONS; i++)
        Py_VISIT(((WorkerEnd *)self)->functions[i].function);
    Py_VISIT(((WorkerEnd *)self)->handler);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void worker_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    worker_clear(self);
    worker_forget_deferred((WorkerEnd *)self);
    cw_worker_close(((WorkerEnd *)self)->worker);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* Tells traces how a function is called that the handler has just unpickled. A handler may have no
 * name for it. */
static int tell_name(WorkerEnd *w, uint64_t number) {
    PyObject *name = PyObject_GetAttrString(w->handler, "loaded_name");
    if (!name) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    PyObject *bytes = PyUnicode_AsEncodedString(name, "utf-8", "replace");
    Py_DECREF(name);
    if (!bytes)
        return -1;
    cw_worker_name_function(w->worker, number, PyBytes_AsString(bytes));
    Py_DECREF(bytes);
    return 0;
}

/* The function of a task, borrowed; unpickled by the handler when its number is new. */
static PyObject *function_of(WorkerEnd *w, const cw_task *task) {
    uint64_t at = task->function % FUNCTIONS;
    if (w->functions[at].function && w->functions[at].number == task->function)
        return w->functions[at].function;
    PyObject *function = PyObject_CallMethod(w->handler, "load_function", "y#",
                                             (const char *)cw_worker_function(w->worker, task),
                                             (Py_ssize_t)task->function_bytes);
    if (function && tell_name(w, task->function) < 0)
        Py_CLEAR(function);
    if (function) {
        Py_XDECREF(w->functions[at].function);
        w->functions[at].function = function;
        w->functions[at].number = task->function;
    }
    return function;
}

static PyObject *call_each(WorkerEnd *w, PyObject *function, PyObject *items, int star) {
    Py_ssize_t size = PyTuple_Size(items);
    PyObject *results = size < 0 ? NULL : PyList_New(size);
    for (Py_ssize_t i = 0; results && i < size; i++) {
        PyObject *item = PyTuple_GetItem(items, i), *value = NULL;
        w->calls++;
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
static PyObject *run_plain(WorkerEnd *w, const cw_task *task) {
    PyObject *function = function_of(w, task);
    PyObject *args = function ? plain_loads_task(task) : NULL, *value = NULL;
    if (!args)
        return NULL;
    Py_INCREF(function); /* the task may lead to others that take its place */
    if (task->kind == TASK_APPLY) {
        PyObject *named = PyTuple_Size(args) > 1 ? PyTuple_GetItem(args, 1) : NULL;
        PyObject *positional = PyTuple_GetItem(args, 0);
        if (named && !PyDict_Check(named))
            PyErr_Format(PyExc_TypeError, "argument after ** must be a mapping, not %R",
                         Py_TYPE(named));
        else if (positional) {
            w->calls++;
            value = PyObject_Call(function, positional, named);
        }
    } else {
        value = call_each(w, function, args, task->kind == TASK_STARMAP);
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

int worker_put_message(cw_task *task, PyObject *message, uint64_t *extra_out) {
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
    task->size_bytes = (uint32_t)nbytes;
    cw_task_write(task, data, task->size_bytes);
    task->kind = extra ? ANSWER_LENT : ANSWER_MESSAGE;
    *extra_out = extra;
    return 0;
}

static int put_value(WorkerEnd *w, cw_task *task, PyObject *value, uint64_t *extra_out) {
    if (value == Py_None) {
        task->kind = ANSWER_NONE;
        task->size_bytes = 0;
        return 0;
    }
    char small[SMALL_MAX], *data = small;
    Py_ssize_t nbytes = small_dump(value, small, SMALL_MAX);
    PyObject *pickled = nbytes < 0 ? plain_dumps(value) : NULL;
    if (pickled)
        PyBytes_AsStringAndSize(pickled, &data, &nbytes);
    if (nbytes >= 0) {
        task->size_bytes = (uint32_t)nbytes;
        cw_task_write(task, data, task->size_bytes);
        task->kind = ANSWER_VALUE;
        Py_XDECREF(pickled);
        return 0;
    }
    if (PyErr_Occurred())
        return -1;
    PyObject *message = PyObject_CallMethod(w->handler, "encode_value", "(O)", value);
    int code = worker_put_message(task, message, extra_out);
    Py_XDECREF(message);
    return code;
}

int worker_put_outcome(WorkerEnd *w, cw_task *task, PyObject *value, uint64_t *extra_out) {
    int code = value ? put_value(w, task, value, extra_out) : -1;
    if (code == 0)
        return 0;
    PyObject *error = take_exception();
    PyObject *message =
        PyObject_CallMethod(w->handler, "encode_exception", "(O)", error ? error : Py_None);
    code = worker_put_message(task, message, extra_out);
    if (code == 0)
        cw_worker_fail(w->worker);
    Py_XDECREF(message);
    Py_XDECREF(error);
    return code;
}

int worker_answer(WorkerEnd *w, const cw_task *task, uint64_t extra_in, uint64_t extra_back,
                  uint64_t extra_out, int settle) {
    if (task->kind == ANSWER_LENT)
        cw_worker_lend(w->worker);
    cw_worker_answer(w->worker, task, extra_in, extra_out + extra_back);
    if (!extra_out && !settle)
        return 0;
    Py_BEGIN_ALLOW_THREADS;
    cw_worker_settle(w->worker);
    Py_END_ALLOW_THREADS;
    if (!extra_out)
        return 0;
    /* This process alone holds it until the parent has opened it, or says that it will not. */
    PyObject *done = PyObject_CallMethod(w->handler, "wait_until_released", NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Calls a task's function. */
static PyObject *call(WorkerEnd *w, const cw_task *task) {
    PyObject *value = NULL;
    w->running = 1;
    if (task->kind == TASK_MESSAGE) {
        PyObject *view = PyMemoryView_FromMemory(task->data, task->size_bytes, PyBUF_READ);
        PyObject *function = task->function ? function_of(w, task) : Py_None;
        value = view && function
                    ? PyObject_CallMethod(w->handler, "run_message", "OO", view, function)
                    : NULL;
        Py_XDECREF(view);
    } else {
        value = run_plain(w, task);
    }
    w->running = 0;
    worker_end_child();
    return value;
}

/* Runs one task and answers it, unless that was deferred. -1: the worker is to end, with an
 * exception. */
static int run(WorkerEnd *w, cw_task *task) {
    w->current = task;
    w->place = task->place;
    w->extra_in = w->extra_back = w->calls = 0;
    PyObject *value = call(w, task);
    cw_worker_called(w->worker, w->calls);
    w->current = NULL;
    uint64_t extra_out = 0;
    int code = 0, well = value != NULL;
    if (worker_leave_deferred(w, task->place, well)) {
        code = worker_put_outcome(w, task, value, &extra_out);
        Py_CLEAR(value);
        if (code == 0)
            code = worker_answer(w, task, w->extra_in, well ? w->extra_back : 0, extra_out, 0);
    }
    Py_XDECREF(value);
    return code;
}

/* The next task. 0, -1 with an exception, -ESHUTDOWN. */
static int take(WorkerEnd *w, cw_task *task) {
    int code;
    do {
        Py_BEGIN_ALLOW_THREADS;
        code = cw_worker_take(w->worker, task);
        Py_END_ALLOW_THREADS;
        if (code == -EINTR && PyErr_CheckSignals())
            return -1;
        if (code == -EDQUOT) { /* somebody wants what we keep idle */
            PyObject *done = PyObject_CallMethod(w->handler, "heed", NULL);
            Py_XDECREF(done);
            if (!done)
                return -1;
        }
    } while (code == -EINTR || code == -EDQUOT);
    if (code == 0)
        return PyErr_CheckSignals(); /* one that came while no task ran is not meant for this one */
    if (code != -ESHUTDOWN)
        raise_failure(code);
    return code == -ESHUTDOWN ? code : -1;
}

static PyObject *worker_serve(PyObject *self, PyObject *args) {
    WorkerEnd *w = (WorkerEnd *)self;
    PyObject *handler;
    long most;
    if (!PyArg_ParseTuple(args, "Ol", &handler, &most))
        return NULL;
    Py_INCREF(handler);
    Py_XDECREF(w->handler);
    w->handler = handler;
    for (long tasks = 0; most == 0 || tasks < most; tasks++) {
        cw_task task;
        int code = take(w, &task);
        if (code == -ESHUTDOWN)
            break;
        if (code || run(w, &task))
            return NULL;
    }
    cw_worker_settle(w->worker);
    if (worker_wait_deferred(w))
        return NULL;
    Py_RETURN_NONE;
}

/* (place, message) of the nth ready task of the own group. */
static PyObject *worker_peek(PyObject *self, PyObject *args) {
    unsigned nth;
    uint64_t buffer[CW_POOL_DATA_MAX / sizeof(uint64_t)];
    cw_task task;
    if (!PyArg_ParseTuple(args, "I", &nth))
        return NULL;
    int code = cw_worker_peek(((WorkerEnd *)self)->worker, nth, buffer, &task);
    if (code == -EAGAIN)
        Py_RETURN_NONE;
    if (code)
        return raise_failure(code);
    return Py_BuildValue("Ky#", (unsigned long long)task.place, (const char *)buffer,
                         (Py_ssize_t)(task.kind == TASK_MESSAGE ? task.size_bytes : 0));
}

static PyObject *worker_fellows(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyLong_FromUnsignedLong(cw_worker_fellows(((WorkerEnd *)self)->worker));
}

static PyObject *worker_released(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(cw_worker_released(((WorkerEnd *)self)->worker));
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

static PyObject *worker_fail(PyObject *self, PyObject *unused) {
    (void)unused;
    cw_worker_fail(((WorkerEnd *)self)->worker);
    Py_RETURN_NONE;
}

static PyObject *worker_ask(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyLong_FromUnsignedLong(cw_worker_ask(((WorkerEnd *)self)->worker));
}

static PyObject *worker_wanted(PyObject *self, PyObject *unused) {
    uint32_t number;
    (void)unused;
    if (!cw_worker_must_heed(((WorkerEnd *)self)->worker, &number))
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLong(number);
}

static PyObject *worker_heed(PyObject *self, PyObject *args) {
    unsigned number;
    int some;
    if (!PyArg_ParseTuple(args, "Ip", &number, &some))
        return NULL;
    cw_worker_heed(((WorkerEnd *)self)->worker, number, some);
    Py_RETURN_NONE;
}

static PyObject *worker_unheeded(PyObject *self, PyObject *args) {
    unsigned number;
    int some;
    if (!PyArg_ParseTuple(args, "I", &number))
        return NULL;
    unsigned missing = cw_worker_unheeded(((WorkerEnd *)self)->worker, number, &some);
    return Py_BuildValue("IN", missing, PyBool_FromLong(some));
}

static PyMethodDef methods[] = {
    {"serve", worker_serve, METH_VARARGS,
     "(handler, most): runs tasks, at most so many, 0 for any number."},
    {"peek", worker_peek, METH_VARARGS,
     "(nth): place and message of the nth ready task of the own group, or None; the message is "
     "empty "
     "if the task is plain."},
    {"fellows", worker_fellows, METH_NOARGS, "How many workers are of its group, with itself."},
    {"defer", worker_defer, METH_NOARGS,
     "In run_message: what it returns is not the answer. A token."},
    {"answer", worker_answer_deferred, METH_VARARGS,
     "(token, value): as if the function had returned it. Any thread."},
    {"answer_message", worker_answer_message, METH_VARARGS,
     "(token, (data, bytes beside it)): with a message of the handler's. Any thread."},
    {"released", worker_released, METH_NOARGS,
     "Whether the parent needs it for none of its answers: all that it will open is open."},
    {"tell", worker_tell, METH_VARARGS, "(state, words): tells the parent's helper what it is."},
    {"fail", worker_fail, METH_NOARGS,
     "Counts a failed task, whose answer was encoded by the caller."},
    {"ask", worker_ask, METH_NOARGS, "Asks all for the memory that they keep idle: a number."},
    {"wanted", worker_wanted, METH_NOARGS, "The number of a request to be heeded, or None."},
    {"heed", worker_heed, METH_VARARGS, "(number, some): whether something was given up."},
    {"unheeded", worker_unheeded, METH_VARARGS,
     "(number): how many have not heeded it yet, and whether others gave something up."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"extra_in", T_ULONGLONG, offsetof(WorkerEnd, extra_in), 0,
     "Bytes that came beside the task's data."},
    {"extra_back", T_ULONGLONG, offsetof(WorkerEnd, extra_back), 0,
     "Bytes of results that the task has written, or will have, into the parent's memory."},
    {"calls", T_ULONGLONG, offsetof(WorkerEnd, calls), 0,
     "Calls of functions that the task has made so far."},
    {"place", T_ULONGLONG, offsetof(WorkerEnd, place), READONLY,
     "The number of the task that runs, or ran last."},
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
    {Py_tp_doc, "WorkerEnd(address, nbytes, workers, cells, groups, number, group, spinners): a "
                "worker's end."},
    {0, NULL},
};
PyType_Spec worker_spec = {
    .name = "cableway._dispatch.WorkerEnd",
    .basicsize = sizeof(WorkerEnd),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
