/*
 * dispatch_outcome.c: `Outcome`, the base of what a caller holds for one task (Future,
 * AsyncResult): the job and its result in one object, whose fields C can see.
 *
 * A *quick* one was submitted by `begin` (dispatch_begin.c). As long as nobody but a listener can
 * wait for it (no condition was made, no callback is to run), who collects its answer ends it at
 * once, under the GIL and without a line of Python: no signal's handler comes in between, and
 * who makes a condition meanwhile does so before or after all of it. In every other case, and for
 * every answer that is no plain value, its Python class sees to it (`task_done`), as to any job.
 *
 * One that was ended here with None, a number or text refers to nothing that could refer back, its
 * function included, which it lets go of. So the garbage collector need not know it: a caller that
 * holds thousands of results makes it walk through none of them, and through all else of the
 * process less often; where workers came by fork, such a walk copies every page that they share.
 * Who sets an attribute makes it known again.
 */
#include "dispatch_parent.h"

#include <sys/syscall.h>
#include <unistd.h>

PyTypeObject *outcome_type;
PyObject *outcome_pending;
static PyObject *finished, *get_name;

int outcome_init(void) {
    outcome_pending = PyUnicode_InternFromString("PENDING");
    finished = PyUnicode_InternFromString("FINISHED");
    get_name = PyUnicode_InternFromString("_get");
    return outcome_pending && finished && get_name ? 0 : -1;
}

static int is_pending(const Outcome *outcome) {
    return outcome->state == outcome_pending;
}

/* Whether it may be ended without asking Python. */
static int is_ours_to_end(const Outcome *outcome) {
    return is_pending(outcome) && (!outcome->condition || outcome->condition == Py_None);
}

/* Takes value over; exception may be NULL. */
static void end(Outcome *outcome, PyObject *value, PyObject *exception) {
    PyObject *before[] = {outcome->state, outcome->value, outcome->exception};
    Py_INCREF(finished);
    Py_XINCREF(exception);
    outcome->state = finished;
    outcome->value = value;
    outcome->exception = exception;
    outcome->success = exception == NULL;
    outcome->ended = 1;
    for (int i = 0; i < 3; i++)
        Py_XDECREF(before[i]);
}

/* Lets go of all that it needed while it was under way. May run Python code. */
static void let_go(Outcome *outcome) {
    PyObject *before[] = {outcome->engine, outcome->owner,     outcome->function,
                          outcome->found,  outcome->described, outcome->call};
    outcome->engine = outcome->owner = outcome->function = NULL;
    outcome->found = outcome->described = outcome->call = NULL;
    for (int i = 0; i < 6; i++)
        Py_XDECREF(before[i]);
}

/* Nothing that refers to others. */
static int is_atom(PyObject *value) {
    PyTypeObject *type = Py_TYPE(value);
    return value == Py_None || type == &PyLong_Type || type == &PyBool_Type ||
           type == &PyFloat_Type || type == &PyUnicode_Type || type == &PyBytes_Type ||
           type == &PyComplex_Type;
}

static int is_main_thread(void) {
    return syscall(SYS_gettid) == getpid();
}

int outcome_take(Dispatch *d, struct entry *entry, const cw_task *task) {
    Outcome *outcome = (Outcome *)entry->owner;
    PyObject *value = NULL;
    if (entry->payload || !PyObject_TypeCheck(entry->owner, outcome_type) || !outcome->quick)
        return 0;
    if (task->kind == ANSWER_NONE) {
        value = Py_None;
        Py_INCREF(value);
    } else if (task->kind == ANSWER_VALUE) {
        value = plain_loads_task(task);
        /* As Python will tell; but on the main thread it may be what a signal's handler has raised.
         */
        if (!value && PyErr_ExceptionMatches(PyExc_Exception) && !is_main_thread())
            PyErr_Clear();
    }
    if (!value || !is_ours_to_end(outcome)) {
        Py_XDECREF(value);
        return 0;
    }
    end(outcome, value, NULL);
    d->settled = 1;
    if (is_atom(value) && !outcome->written) {
        PyObject_GC_UnTrack(outcome);
        outcome->untracked = 1;
    }
    let_go(outcome);
    Py_DECREF(entry->owner);
    return 1;
}

/* ---- the type ---- */

static PyObject *outcome_new(PyTypeObject *type, PyObject *args, PyObject *kwds) {
    (void)args;
    (void)kwds;
    Outcome *outcome = (Outcome *)PyType_GenericAlloc(type, 0);
    if (!outcome)
        return NULL;
    Py_INCREF(outcome_pending);
    outcome->state = outcome_pending;
    outcome->cell = -1;
    return (PyObject *)outcome;
}

static int outcome_traverse(PyObject *self, visitproc visit, void *arg) {
    Outcome *outcome = (Outcome *)self;
    Py_VISIT(outcome->engine);
    Py_VISIT(outcome->owner);
    Py_VISIT(outcome->function);
    Py_VISIT(outcome->found);
    Py_VISIT(outcome->described);
    Py_VISIT(outcome->call);
    Py_VISIT(outcome->value);
    Py_VISIT(outcome->exception);
    Py_VISIT(outcome->condition);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int outcome_clear(PyObject *self) {
    Outcome *outcome = (Outcome *)self;
    let_go(outcome);
    Py_CLEAR(outcome->value);
    Py_CLEAR(outcome->exception);
    Py_CLEAR(outcome->condition);
    return 0;
}

static void outcome_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    outcome_clear(self);
    Py_CLEAR(((Outcome *)self)->state);
    Py_CLEAR(((Outcome *)self)->pickled);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* (value, exception): ends it, if nobody can wait for it but a listener: whether it did. */
static PyObject *outcome_finish(PyObject *self, PyObject *args) {
    PyObject *value, *exception;
    if (!PyArg_ParseTuple(args, "OO", &value, &exception))
        return NULL;
    if (!is_ours_to_end((Outcome *)self))
        Py_RETURN_FALSE;
    Py_INCREF(value);
    end((Outcome *)self, value, exception == Py_None ? NULL : exception);
    Py_RETURN_TRUE;
}

/* The value, if it has ended well; else its class's _get(timeout). */
static PyObject *outcome_given(PyObject *self, PyObject *const *args, Py_ssize_t count,
                               PyObject *names) {
    Outcome *outcome = (Outcome *)self;
    if (count + (names ? PyTuple_Size(names) : 0) == 0 && outcome->state == finished &&
        outcome->success && outcome->value) {
        Py_INCREF(outcome->value);
        return outcome->value;
    }
    PyObject *get = PyObject_GetAttr(self, get_name), *rest = NULL, *named = NULL, *found = NULL;
    if (get && (rest = PyTuple_New(count)) && (named = PyDict_New())) {
        int failed = 0;
        for (Py_ssize_t i = 0; i < count; i++) {
            Py_INCREF(args[i]);
            PyTuple_SetItem(rest, i, args[i]);
        }
        for (Py_ssize_t i = 0; names && i < PyTuple_Size(names) && !failed; i++)
            failed = PyDict_SetItem(named, PyTuple_GetItem(names, i), args[count + i]);
        if (!failed)
            found = PyObject_Call(get, rest, named);
    }
    Py_XDECREF(named);
    Py_XDECREF(rest);
    Py_XDECREF(get);
    return found;
}

/* An attribute may refer to anything. */
static int outcome_setattr(PyObject *self, PyObject *name, PyObject *value) {
    Outcome *outcome = (Outcome *)self;
    outcome->written = 1;
    if (outcome->untracked) {
        outcome->untracked = 0;
        PyObject_GC_Track(self);
    }
    return PyObject_GenericSetAttr(self, name, value);
}

static PyObject *outcome_settled(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(!is_pending((Outcome *)self));
}

static PyMethodDef methods[] = {
    {"finish", outcome_finish, METH_VARARGS,
     "(value, exception or None): ends it unless a condition was made: whether it did."},
    {"_given", (PyCFunction)(void (*)(void))outcome_given, METH_FASTCALL | METH_KEYWORDS,
     "_given($self, timeout=None)\n--\n\n"
     "What the call returned, or raises what it raised.\n\n"
     "Args:\n    timeout: seconds to wait at most; None for ever.\n\n"
     "Raises:\n    TimeoutError: it has not ended by then.\n"
     "    WorkerDied: the worker that ran it died."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"engine", T_OBJECT, offsetof(Outcome, engine), 0, NULL},
    {"owner", T_OBJECT, offsetof(Outcome, owner), 0, NULL},
    {"function", T_OBJECT, offsetof(Outcome, function), 0, NULL},
    {"found", T_OBJECT, offsetof(Outcome, found), 0, NULL},
    {"described", T_OBJECT, offsetof(Outcome, described), 0, NULL},
    {"_call", T_OBJECT, offsetof(Outcome, call), 0, NULL},
    {"_state", T_OBJECT, offsetof(Outcome, state), 0, NULL},
    {"_result", T_OBJECT, offsetof(Outcome, value), 0, NULL},
    {"_exception", T_OBJECT, offsetof(Outcome, exception), 0, NULL},
    {"_made", T_OBJECT, offsetof(Outcome, condition), 0, NULL},
    {"_cell", T_LONG, offsetof(Outcome, cell), 0, NULL},
    {"_success", T_BOOL, offsetof(Outcome, success), 0, NULL},
    {"_ended", T_BOOL, offsetof(Outcome, ended), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"settled", outcome_settled, NULL, "Whether nothing changes any more.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, outcome_new},
    {Py_tp_dealloc, outcome_dealloc},
    {Py_tp_traverse, outcome_traverse},
    {Py_tp_clear, outcome_clear},
    {Py_tp_setattro, outcome_setattr},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, getters},
    {Py_tp_doc, "Outcome(...): base of what a caller holds for one task; takes any arguments."},
    {0, NULL},
};
PyType_Spec outcome_spec = {
    .name = "cableway._dispatch.Outcome",
    .basicsize = sizeof(Outcome),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};
