/*
 * dispatch_group.c: `GroupEnd`, a member of a group (cw_group in ipc/cableway.h). cableway.group
 * makes it, and has all that is not in a hurry.
 *
 * Operations give up the GIL, but for the first microsecond of a barrier. A signal's handler runs
 * in between, where the library asks for it: what it raises ends the operation, and breaks the
 * group.
 */
#include "dispatch.h"

#include <sys/syscall.h>
#include <unistd.h>

/* Has a signal's handler raised, or is it to stop? Only the main thread runs handlers. */
static int interrupted(void *context) {
    const GroupEnd *end = context;
    if (end->stop && *end->stop)
        return 1;
    if (syscall(SYS_gettid) != getpid())
        return 0;
    PyGILState_STATE state = PyGILState_Ensure();
    /* An exception stays until the operation has ended, however often the library asks. */
    int raised = PyErr_Occurred() || PyErr_CheckSignals();
    PyGILState_Release(state);
    return raised != 0;
}

/* What a code means; of a broken group cableway.errors makes GroupBroken, with who broke it. */
PyObject *group_failure(GroupEnd *end, int code) {
    cw_group_break broken = {.reason = 0};
    if (PyErr_Occurred()) /* the handler's */
        return NULL;
    if (!end->group && end->was_open) {
        PyErr_Format(PyExc_ValueError, "the group is closed: join it again");
        return NULL;
    }
    if (code != -EOWNERDEAD || !end->group || !cw_group_broken(end->group, &broken))
        return raise_failure(code);
    PyObject *errors = PyImport_ImportModule("cableway.errors");
    PyObject *made = errors ? PyObject_CallMethod(errors, "group_broken", "sIIi", cw_error(),
                                                  broken.reason, broken.rank, (int)broken.pid)
                            : NULL;
    if (made)
        PyErr_SetObject((PyObject *)Py_TYPE(made), made);
    Py_XDECREF(made);
    Py_XDECREF(errors);
    return NULL;
}

PyObject *group_result(GroupEnd *end, int code) {
    if (code)
        return group_failure(end, code);
    Py_RETURN_NONE;
}

static int end_init(PyObject *self, PyObject *args, PyObject *kwds) {
    GroupEnd *end = (GroupEnd *)self;
    (void)kwds;
    unsigned long long client;
    const char *name;
    unsigned size;
    int rank, code;
    long long timeout_ns, spent_ns = 0;
    unsigned long long stop = 0;
    if (!PyArg_ParseTuple(args, "KsIiL|KL", &client, &name, &size, &rank, &timeout_ns, &stop,
                          &spent_ns))
        return -1;
    if (end->group) {
        PyErr_SetString(PyExc_TypeError, "a member joins once");
        return -1;
    }
    cw_group_options options = {
        .timeout_ns = timeout_ns, .interrupted = interrupted, .context = end, .spent_ns = spent_ns};
    end->stop = (const volatile uint32_t *)(uintptr_t)stop; /* the caller keeps it */
    Py_BEGIN_ALLOW_THREADS;
    code = cw_group_join((cw_client *)(uintptr_t)client, name, size, rank, &options, &end->group);
    Py_END_ALLOW_THREADS;
    end->stop = NULL;
    end->was_open = code == 0;
    if (code)
        group_failure(end, code);
    return code ? -1 : 0;
}

static PyObject *end_close(PyObject *self, PyObject *unused) {
    GroupEnd *end = (GroupEnd *)self;
    (void)unused;
    cw_group *group = end->group;
    if (end->using) {
        PyErr_SetString(PyExc_ValueError,
                        "the group is in an operation, of another thread or of "
                        "what a signal's handler interrupts: close it afterwards");
        return NULL;
    }
    end->group = NULL;
    group_forget_messages(end);
    Py_BEGIN_ALLOW_THREADS;
    cw_group_close(group);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static void end_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    group_forget_messages((GroupEnd *)self);
    cw_group_close(((GroupEnd *)self)->group);
    layouts_forget(&((GroupEnd *)self)->known);
    release(self);
    Py_DECREF(type);
}

static PyObject *end_set_timeout(PyObject *self, PyObject *given) {
    GroupEnd *end = (GroupEnd *)self;
    long long timeout_ns = PyLong_AsLongLong(given);
    if (timeout_ns == -1 && PyErr_Occurred())
        return NULL;
    return group_result(end, cw_group_set_timeout(end->group, timeout_ns));
}

PyObject *group_barrier(PyObject *self, PyObject *unused) {
    GroupEnd *end = (GroupEnd *)self;
    (void)unused;
    int code = cw_group_barrier_begin(end->group);
    if (code == -EAGAIN) {
        end->using ++;
        Py_BEGIN_ALLOW_THREADS;
        code = cw_group_barrier_finish(end->group);
        Py_END_ALLOW_THREADS;
        end->using --;
    }
    return group_result(end, code);
}

enum { /* as in cableway._group.operations */
       BCAST = 2,
       SCATTER,
       GATHER,
       ALLGATHER,
       REDUCE,
       ALLREDUCE,
       REDUCE_SCATTER,
       ALLTOALL,
       NO_ROOT = 0xffff
};

static int collect(cw_group *group, int kind, cw_group_memory send, cw_group_memory receive,
                   uint64_t count, const char *dtype, cw_reduction reduction, uint32_t root) {
    switch (kind) {
    case BCAST:
        return cw_group_bcast(group, send, count, dtype, root);
    case SCATTER:
        return cw_group_scatter(group, send, receive, count, dtype, root);
    case GATHER:
        return cw_group_gather(group, send, receive, count, dtype, root);
    case ALLGATHER:
        return cw_group_allgather(group, send, receive, count, dtype);
    case REDUCE:
        return cw_group_reduce(group, send, receive, count, dtype, reduction, root);
    case ALLREDUCE:
        return cw_group_allreduce(group, send, receive, count, dtype, reduction);
    case REDUCE_SCATTER:
        return cw_group_reduce_scatter(group, send, receive, count, dtype, reduction);
    default:
        return cw_group_alltoall(group, send, receive, count, dtype);
    }
}

/* One operation, of memory by its addresses; the caller keeps it. */
static PyObject *end_collect(PyObject *self, PyObject *args) {
    GroupEnd *end = (GroupEnd *)self;
    unsigned long long from, from_array, to, to_array, count;
    const char *dtype;
    int kind, reduction, code;
    unsigned root;
    if (!PyArg_ParseTuple(args, "iKKKKKyiI", &kind, &from, &from_array, &to, &to_array, &count,
                          &dtype, &reduction, &root))
        return NULL;
    cw_group_memory send = {(void *)(uintptr_t)from, (cw_array *)(uintptr_t)from_array};
    cw_group_memory receive = {(void *)(uintptr_t)to, (cw_array *)(uintptr_t)to_array};
    end->using ++;
    Py_BEGIN_ALLOW_THREADS;
    code = collect(end->group, kind, send, receive, count, dtype, (cw_reduction)reduction, root);
    Py_END_ALLOW_THREADS;
    end->using --;
    return group_result(end, code);
}

/* (drop): whether messages of before are dropped. */
static PyObject *end_reform(PyObject *self, PyObject *drop) {
    GroupEnd *end = (GroupEnd *)self;
    int code, drops = PyObject_IsTrue(drop);
    if (drops < 0)
        return NULL;
    end->using ++;
    Py_BEGIN_ALLOW_THREADS;
    code = cw_group_reform(end->group);
    if (code == 0 && drops)
        code = cw_group_drop_messages(end->group);
    Py_END_ALLOW_THREADS;
    end->using --;
    return group_result(end, code);
}

/* (reason): whether it met the others; False where it is closed, broken, busy or another process's.
 */
static PyObject *end_decline(PyObject *self, PyObject *reason) {
    GroupEnd *end = (GroupEnd *)self;
    char *why;
    int code;
    if (!PyBytes_Check(reason) || !(why = PyBytes_AsString(reason))) {
        PyErr_SetString(PyExc_TypeError, "the reason is bytes");
        return NULL;
    }
    uint32_t met = cw_group_meetings(end->group);
    end->using ++;
    Py_BEGIN_ALLOW_THREADS;
    code = cw_group_decline(end->group, why);
    Py_END_ALLOW_THREADS;
    end->using --;
    if (code && cw_group_meetings(end->group) != met)
        return group_failure(end, code);
    return PyBool_FromLong(code == 0);
}

static PyObject *end_interrupt(PyObject *self, PyObject *unused) {
    GroupEnd *end = (GroupEnd *)self;
    (void)unused;
    return PyBool_FromLong(end->group && cw_group_interrupt(end->group) == 0);
}

static const struct {
    const char *name;
    cw_reduction reduction;
} reductions[] = {
    {"sum", CW_SUM}, {"max", CW_MAX},   {"min", CW_MIN},   {"prod", CW_PROD}, {"land", CW_LAND},
    {"lor", CW_LOR}, {"lxor", CW_LXOR}, {"band", CW_BAND}, {"bor", CW_BOR},   {"bxor", CW_BXOR},
};

cw_reduction group_reduction_of(PyObject *name) {
    if (PyUnicode_Check(name))
        for (size_t i = 0; i < sizeof reductions / sizeof *reductions; i++)
            if (PyUnicode_CompareWithASCIIString(name, reductions[i].name) == 0)
                return reductions[i].reduction;
    return 0;
}

/* What end_move() is asked for: an operation, by its number in cableway._group.operations. */
struct move {
    int kind;
    uint32_t root;
    cw_reduction reduction;
    struct elements send, out;
    unsigned long long count; /* of a member's block */
};

/* Do they share an element? */
static int overlap(const struct elements *a, const struct elements *b) {
    uintptr_t one = (uintptr_t)a->memory.data, other = (uintptr_t)b->memory.data;
    return one < other + b->nbytes && other < one + a->nbytes;
}

/* Do the numbers of elements fit, and do the two share none, or all in an Allreduce? What does not
 * fit is told by Python. */
static int fits(struct move *move, uint32_t size) {
    const struct elements *send = &move->send, *out = &move->out;
    move->count = send->count;
    switch (move->kind) {
    case BCAST:
        return 1;
    case ALLREDUCE:
        return send->count == out->count &&
               (send->memory.data == out->memory.data || !overlap(send, out));
    case ALLGATHER:
        return send->count * size == out->count && !overlap(send, out);
    case REDUCE_SCATTER:
        move->count = out->count;
        return send->count == out->count * size && !overlap(send, out);
    case ALLTOALL:
        move->count = send->count / size;
        return send->count == out->count && move->count * size == send->count &&
               !overlap(send, out);
    default:
        return 0;
    }
}

/* Is all of it found without Python? Sets no exception. */
static int move_of(GroupEnd *end, PyObject *const *args, struct move *move) {
    long kind = PyLong_AsLong(args[0]), root = PyLong_AsLong(args[4]);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    move->kind = (int)kind;
    move->root = (uint32_t)root;
    move->reduction = group_reduction_of(args[3]);
    const int computes = kind == ALLREDUCE || kind == REDUCE_SCATTER;
    if (!end->group || root < 0 || root > NO_ROOT || (computes && !move->reduction))
        return 0;
    if (kind == BCAST) {
        int receives = move->root != cw_group_rank(end->group);
        if (!elements_of(args[1], receives, &end->known, &move->send))
            return 0;
        move->out = move->send;
        move->out.lease = NULL; /* send has it */
    } else if (!elements_of(args[1], 0, &end->known, &move->send) ||
               !elements_of(args[2], 1, &end->known, &move->out))
        return 0;
    return move->send.text == move->out.text && fits(move, cw_group_size(end->group));
}

/* Raises that an operation had no time left before the others were met, who are told. */
static PyObject *declined(GroupEnd *end, int code) {
    char why[CW_GROUP_INLINE_MAX];
    PyObject *type, *value, *trace;
    snprintf(why, sizeof why, "Timeout: %s", cw_error());
    raise_failure(code);
    PyErr_Fetch(&type, &value, &trace);
    end->using ++;
    Py_BEGIN_ALLOW_THREADS;
    code = cw_group_decline(end->group, why);
    Py_END_ALLOW_THREADS;
    end->using --;
    if (code == 0) {
        PyErr_Restore(type, value, trace);
        return NULL;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return group_failure(end, code);
}

/* The operation, whether it was done: False: Python calls it again. */
static PyObject *moved(GroupEnd *end, const struct move *move) {
    const char *dtype = PyBytes_AsString(move->send.text);
    uint32_t met = cw_group_meetings(end->group);
    int code;
    end->using ++;
    Py_BEGIN_ALLOW_THREADS;
    code = collect(end->group, move->kind, move->send.memory, move->out.memory, move->count, dtype,
                   move->reduction, move->root);
    Py_END_ALLOW_THREADS;
    end->using --;
    if (code && !PyErr_Occurred() && cw_group_meetings(end->group) == met)
        return code == -ETIMEDOUT ? declined(end, code)
                                  : PyBool_FromLong(0); /* Python calls it again, and tells all */
    return code ? group_failure(end, code) : PyBool_FromLong(1);
}

/* (kind, send, out, op, root): an operation, if both are found without Python, and fit: whether it
 * was. */
static PyObject *end_move(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    GroupEnd *end = (GroupEnd *)self;
    struct move move = {.kind = 0};
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "move takes kind, send, out, op and root");
        return NULL;
    }
    PyObject *done = move_of(end, args, &move) ? moved(end, &move) : PyBool_FromLong(0);
    elements_end(&move.send);
    elements_end(&move.out);
    return done;
}

/* (layout, text, count): notes a layout of Arrays whose elements are contiguous. */
static PyObject *end_know(PyObject *self, PyObject *args) {
    PyObject *layout, *text;
    unsigned long long count;
    if (!PyArg_ParseTuple(args, "OO!K", &layout, &PyBytes_Type, &text, &count))
        return NULL;
    layouts_note(&((GroupEnd *)self)->known, layout, text, count);
    Py_RETURN_NONE;
}

static PyObject *end_numbers(PyObject *self, PyObject *unused) {
    cw_group *group = ((GroupEnd *)self)->group;
    (void)unused;
    return Py_BuildValue("(IIK)", cw_group_rank(group), cw_group_size(group),
                         (unsigned long long)cw_group_completed(group));
}

static PyObject *end_address(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong((uintptr_t)((GroupEnd *)self)->group);
}

static PyObject *end_meetings(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLong(cw_group_meetings(((GroupEnd *)self)->group));
}

static PyObject *end_broken(PyObject *self, void *unused) {
    cw_group *group = ((GroupEnd *)self)->group;
    (void)unused;
    return PyBool_FromLong(group && cw_group_broken(group, NULL) > 0);
}

static PyGetSetDef gets[] = {
    {"meetings", end_meetings, NULL, "How often it has met the others; may wrap around.", NULL},
    {"broken", end_broken, NULL, "Whether the group is, as far as anybody knows.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef methods[] = {
    {"barrier", group_barrier, METH_NOARGS, "Waits until all members are here."},
    {"reform", end_reform, METH_O, "(drop): goes on with the members that are left."},
    {"collect", end_collect, METH_VARARGS,
     "(kind, address, array, address, array, count, dtype, op, root): an operation on elements."},
    {"move", (PyCFunction)(void (*)(void))end_move, METH_FASTCALL,
     "(kind, send, out, op, root): an operation, if it needs no Python: whether it was."},
    {"exchange", group_exchange, METH_VARARGS,
     "(bytes, from, to, label): what each member sent, by rank."},
    {"objects", group_objects, METH_VARARGS,
     "(object, from, to, label, op): an operation on small plain objects, if it is one."},
    {"decline", end_decline, METH_O,
     "(reason): cannot take part in what the others call: whether they were met."},
    {"interrupt", end_interrupt, METH_NOARGS,
     "Breaks the group, since an operation ends in the middle."},
    {"send", group_send, METH_VARARGS,
     "(address, nbytes, kind, to, tag, waits, left_ns): whether it was."},
    {"send_bytes", group_send_bytes, METH_VARARGS,
     "(bytes, kind, to, tag, waits, left_ns): whether it was."},
    {"receive", group_receive, METH_VARARGS,
     "(source, tag, kind, address, nbytes, left_ns): (source, tag, kind, nbytes, bytes, opened)"},
    {"send_small", (PyCFunction)(void (*)(void))group_send_small, METH_FASTCALL,
     "(object, to, tag): True, or None where Python sends it."},
    {"receive_small", group_receive_small, METH_VARARGS,
     "(source, tag): (object, source, tag, nbytes), or None where Python receives it."},
    {"probe", group_probe, METH_VARARGS,
     "(source, tag, wait, left_ns): (source, tag, nbytes) or None."},
    {"received", group_received, METH_NOARGS, "What was received last is where it is to be."},
    {"give_back", group_give_back, METH_NOARGS, "What was received last is received again."},
    {"know", end_know, METH_VARARGS, "(layout, text, count): notes a layout of arrays."},
    {"close", end_close, METH_NOARGS, "Leaves the group. May be repeated."},
    {"set_timeout", end_set_timeout, METH_O, "Nanoseconds for each operation; -1 for ever."},
    {"numbers", end_numbers, METH_NOARGS, "(rank, size, completed)"},
    {"address", end_address, METH_NOARGS, "The address of the cw_group, 0: closed."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_init, end_init},
    {Py_tp_dealloc, end_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, gets},
    {Py_tp_doc,
     "GroupEnd(client, name, size, rank, timeout_ns, stop, spent_ns): joins, and waits for all."},
    {0, NULL},
};
PyType_Spec group_spec = {
    .name = "cableway._dispatch.GroupEnd",
    .basicsize = sizeof(GroupEnd),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
