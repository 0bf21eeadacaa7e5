/*
 * dispatch_outcome.c: `Outcome`, the base of what a caller holds for one task (Future,
 * AsyncResult): the job and its result in one object, whose fields C can see.
 *
 * A *quick* one was submitted by `begin` (dispatch_begin.c). As long as nobody but a listener can
 * wait for it (no condition was made, no callback is to run), who collects its answer ends it at
 * once, under the GIL and without a line of Python: no signal's handler comes in between, and
 * who makes a condition meanwhile does so before or after all of it. In every other case, and for
 * every answer that is no plain value, its Python class sees to it (`task_done`), as to any job.
 */
#include "dispatch_parent.h"

PyTypeObject *outcome_type;
PyObject *outcome_pending;
static PyObject *finished;

int outcome_init(void) {
    outcome_pending = PyUnicode_InternFromString("PENDING");
    finished = PyUnicode_InternFromString("FINISHED");
    return outcome_pending && finished ? 0 : -1;
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
    PyObject *before[] = {outcome->engine, outcome->owner, outcome->found, outcome->described,
                          outcome->call};
    outcome->engine = outcome->owner = outcome->found = outcome->described = outcome->call = NULL;
    for (int i = 0; i < 5; i++)
        Py_XDECREF(before[i]);
}

int outcome_take(Dispatch *d, struct entry *entry, const cw_task *task) {
    Outcome *outcome = (Outcome *)entry->owner;
    PyObject *value = NULL;
    if (entry->held || !PyObject_TypeCheck(entry->owner, outcome_type) || !outcome->quick)
        return 0;
    if (task->kind == ANSWER_NONE) {
        value = Py_None;
        Py_INCREF(value);
    } else if (task->kind == ANSWER_VALUE) {
        value = plain_loads_task(task);
        if (!value && PyErr_ExceptionMatches(PyExc_Exception))
            PyErr_Clear(); /* as Python will tell */
    }
    if (!value || !is_ours_to_end(outcome)) {
        Py_XDECREF(value);
        return 0;
    }
    end(outcome, value, NULL);
    d->settled = 1;
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
    Py_CLEAR(outcome->function);
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

static PyObject *outcome_settled(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(!is_pending((Outcome *)self));
}

static PyMethodDef methods[] = {
    {"finish", outcome_finish, METH_VARARGS,
     "(value, exception or None): ends it unless a condition was made: whether it did."},
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
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, getters},
    {Py_tp_doc, "Outcome(...): base of what a caller holds for one task; takes any arguments."},
    {0, NULL},
};
PyType_Spec outcome_spec = {
    .name = "causeway._dispatch.Outcome",
    .basicsize = sizeof(Outcome),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};
