/*
 * dispatch_turn.c: `Turn`: which thread sends what waits (_pool_outgoing). One at a time has the
 * turn; who comes meanwhile says so, and the one who has it looks once more before it leaves.
 *
 * A signal's handler may raise at any line of who has it, also of its own handling of an exception.
 * So it is taken and left in C: `with dispatch.turn() as turn`, whose __enter__ and __exit__
 * CPython calls with no look for signals in between, and for the last resort when the object goes.
 * Who leaves with an exception, or without having seen that others came, tells the helper, which
 * goes on.
 *
 * Owner: the thread that made it, under the GIL.
 */
#include "dispatch_parent.h"

static PyTypeObject *turn_type;

typedef struct {
    PyObject_HEAD Dispatch *dispatch;
    char has;
} Turn;

static void leave(Turn *turn, int tells) {
    Dispatch *d = turn->dispatch;
    if (!turn->has)
        return;
    turn->has = 0;
    d->turn_taken = d->turn_wanted = 0;
    if (tells && dispatch_is_here(d))
        cw_pool_tell(d->pool, 1);
}

PyObject *dispatch_turn(PyObject *self, PyObject *unused) {
    (void)unused;
    Turn *turn = PyObject_GC_New(Turn, turn_type);
    if (!turn)
        return NULL;
    Py_INCREF(self);
    turn->dispatch = (Dispatch *)self;
    turn->has = 0;
    PyObject_GC_Track((PyObject *)turn);
    return (PyObject *)turn;
}

static PyObject *turn_enter(PyObject *self, PyObject *unused) {
    (void)unused;
    Turn *turn = (Turn *)self;
    if (turn->dispatch->turn_taken) {
        turn->dispatch->turn_wanted = 1;
    } else {
        turn->dispatch->turn_taken = 1;
        turn->has = 1;
    }
    Py_INCREF(self);
    return self;
}

static PyObject *turn_exit(PyObject *self, PyObject *args) {
    (void)args;
    leave((Turn *)self, 1);
    Py_RETURN_FALSE;
}

/* (): leaves it, unless others came meanwhile: whether it is left, or was another's. */
static PyObject *turn_done(PyObject *self, PyObject *unused) {
    (void)unused;
    Turn *turn = (Turn *)self;
    if (turn->has && turn->dispatch->turn_wanted) {
        turn->dispatch->turn_wanted = 0;
        Py_RETURN_FALSE;
    }
    leave(turn, 0);
    Py_RETURN_TRUE;
}

static int turn_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT((PyObject *)((Turn *)self)->dispatch);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void turn_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    leave((Turn *)self, 1);
    Py_DECREF((PyObject *)((Turn *)self)->dispatch);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"__enter__", turn_enter, METH_NOARGS, NULL},
    {"__exit__", turn_exit, METH_VARARGS, NULL},
    {"done", turn_done, METH_NOARGS,
     "(): leaves it, unless others came meanwhile: whether it is left, or was another's."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"has", T_BOOL, offsetof(Turn, has), READONLY, "Whether this is who sends."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, turn_dealloc},
    {Py_tp_traverse, turn_traverse},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_doc, "The turn of one thread to send what waits."},
    {0, NULL},
};
static PyType_Spec turn_spec = {
    .name = "cableway._dispatch.Turn",
    .basicsize = sizeof(Turn),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

int turn_init(void) {
    turn_type = (PyTypeObject *)PyType_FromSpec(&turn_spec);
    return turn_type ? 0 : -1;
}
