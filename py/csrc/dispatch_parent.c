/*
 * dispatch_parent.c: `Dispatch`, the parent's end of a pool.
 *
 * Each cell that is under way has an *entry*: its owner (a job of _pool.jobs) and the number of the
 * task within it, or the *call* of a thread that waits for this very answer (`call`). Entries and
 * calls belong to this process and are touched under the GIL alone.
 *
 * Who collects gives what belongs to others to `deliver`, a function of the engine's, as a list of
 * (owner, number, worker, kind, data, cell, payload), the first one last: what it is done with it
 * takes out of the list. If it was interrupted, by a signal's handler, what is left becomes the
 * helper's (dispatch_collect.c). What a worker did that cannot be is given with None for the owner
 * and kind 0. Messages with memory beside them are Answers, whose worker is released when they go
 * (dispatch_answer.c), so what nobody waits for is simply let go. A thread whose call another
 * thread has collected is told by the listeners' news.
 *
 * Deaths: of a worker, see `reap`; a call that was lost gets its exception by `fail`. A thread that
 * leaves its call (Ctrl-C) takes the task back, or its entry's call away: then the answer is
 * dropped when it comes.
 *
 * No entry of d->entries or d->calls is looked at after what may run Python code: allocating
 * objects may (a collection of garbage, and with it other threads).
 */
#include "dispatch_parent.h"

#include <pthread.h>

static unsigned forks; /* between the first process and this one */

static void count_fork(void) {
    forks++;
}

static int watch_forks(void) {
    static int watching;
    if (!watching && pthread_atfork(NULL, NULL, count_fork) == 0)
        watching = 1;
    return watching ? 0 : -1;
}

int dispatch_is_here(const Dispatch *d) {
    return d->pool && d->forks == forks;
}

int dispatch_is_ours(Dispatch *d) {
    if (dispatch_is_here(d))
        return 0;
    PyErr_SetString(PyExc_ValueError, "Pool not running in this process: another one has made it");
    return -1;
}

static int dispatch_init(PyObject *self, PyObject *args, PyObject *kwds) {
    Dispatch *d = (Dispatch *)self;
    (void)kwds;
    unsigned long long address, nbytes;
    unsigned workers, cells, groups;
    double spin_seconds;
    PyObject *memory, *deliver;
    if (!PyArg_ParseTuple(args, "OKKIIIdO", &memory, &address, &nbytes, &workers, &cells, &groups,
                          &spin_seconds, &deliver))
        return -1;
    if (watch_forks()) {
        PyErr_NoMemory();
        return -1;
    }
    int code = cw_pool_new((void *)(uintptr_t)address, nbytes, workers, cells, groups, &d->pool);
    if (code) {
        raise_failure(code);
        return -1;
    }
    d->entries = calloc(cells, sizeof *d->entries);
    d->group_of = calloc(cells, sizeof *d->group_of);
    d->lives = calloc(workers, sizeof *d->lives);
    if (!d->entries || !d->group_of || !d->lives) {
        PyErr_NoMemory();
        return -1;
    }
    Py_INCREF(memory);
    d->memory = memory;
    Py_INCREF(deliver);
    d->deliver = deliver;
    d->forks = forks;
    d->cells = cells;
    d->workers = workers;
    d->groups = groups;
    d->spin_ns = (int64_t)(spin_seconds * 1e9);
    return 0;
}

static int dispatch_traverse(PyObject *self, visitproc visit, void *arg) {
    Dispatch *d = (Dispatch *)self;
    Py_VISIT(d->deliver);
    Py_VISIT(d->pinned);
    Py_VISIT(d->kinds);
    Py_VISIT(d->pending);
    Py_VISIT(d->waiters);
    Py_VISIT(d->late);
    Py_VISIT(d->rest);
    for (uint32_t i = 0; d->entries && i < d->cells; i++)
        Py_VISIT(d->entries[i].owner);
    for (uint32_t i = 0; d->entries && i < d->cells; i++)
        Py_VISIT(d->entries[i].payload);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int dispatch_clear(PyObject *self) {
    Dispatch *d = (Dispatch *)self;
    Py_CLEAR(d->deliver);
    Py_CLEAR(d->pinned);
    Py_CLEAR(d->kinds);
    Py_CLEAR(d->pending);
    Py_CLEAR(d->waiters);
    Py_CLEAR(d->late);
    Py_CLEAR(d->rest);
    for (uint32_t i = 0; d->entries && i < d->cells; i++)
        Py_CLEAR(d->entries[i].owner);
    for (uint32_t i = 0; d->entries && i < d->cells; i++)
        Py_CLEAR(d->entries[i].payload);
    return 0;
}

static void dispatch_dealloc(PyObject *self) {
    Dispatch *d = (Dispatch *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    dispatch_clear(self);
    cw_pool_delete(d->pool);
    Py_XDECREF(d->memory); /* not when cleared: what is cleared after us may still call */
    free(d->entries);
    free(d->group_of);
    free(d->lives);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *dispatch_close(PyObject *self, PyObject *closing) {
    cw_pool_close(((Dispatch *)self)->pool, PyObject_IsTrue(closing));
    Py_RETURN_NONE;
}

static PyObject *dispatch_use(PyObject *self, PyObject *args) {
    unsigned workers;
    if (!PyArg_ParseTuple(args, "I", &workers))
        return NULL;
    if (workers < 1 || workers > ((Dispatch *)self)->workers)
        return PyErr_Format(PyExc_ValueError, "there is room for %u workers, not for %u",
                            ((Dispatch *)self)->workers, workers);
    cw_pool_use(((Dispatch *)self)->pool, workers);
    Py_RETURN_NONE;
}

static PyObject *dispatch_shut(PyObject *self, PyObject *unused) {
    (void)unused;
    ((Dispatch *)self)->shut = 1;
    Py_RETURN_NONE;
}

/* Takes no more tasks, if none waits that nobody has taken: whether it is so. One step: whoever
 * submits comes before it, and is served, or after it, and is refused. */
static PyObject *dispatch_shut_if_done(PyObject *self, PyObject *unused) {
    Dispatch *d = (Dispatch *)self;
    (void)unused;
    Py_ssize_t waiting = d->pending ? PyObject_Size(d->pending) : 0;
    if (waiting < 0)
        return NULL;
    for (uint32_t i = 0; i < d->groups && !waiting; i++)
        waiting = cw_pool_ready(d->pool, i) > 0;
    if (!waiting)
        d->shut = 1;
    return PyBool_FromLong(!waiting);
}

static PyObject *dispatch_dismiss(PyObject *self, PyObject *args) {
    unsigned worker;
    if (!PyArg_ParseTuple(args, "I", &worker))
        return NULL;
    if (worker >= ((Dispatch *)self)->workers)
        return PyErr_Format(PyExc_ValueError, "there is no worker %u", worker);
    cw_pool_dismiss(((Dispatch *)self)->pool, worker);
    Py_RETURN_NONE;
}

static PyObject *dispatch_news(PyObject *self, PyObject *helper) {
    Dispatch *d = (Dispatch *)self;
    if (helper == Py_True)
        return PyLong_FromUnsignedLong(cw_pool_news(d->pool, 1));
    return PyLong_FromUnsignedLongLong((unsigned long long)d->noted << 32 |
                                       cw_pool_news(d->pool, 0));
}

/* A thread that waits has changed what it waits for, in a signal's handler: the wait that this has
 * interrupted may have looked already, and not sleep yet. It does not then. */
static PyObject *dispatch_note(PyObject *self, PyObject *unused) {
    (void)unused;
    ((Dispatch *)self)->noted++;
    Py_RETURN_NONE;
}

static PyObject *dispatch_tell(PyObject *self, PyObject *helper) {
    cw_pool_tell(((Dispatch *)self)->pool, helper == Py_True);
    Py_RETURN_NONE;
}

static PyObject *dispatch_count_lost(PyObject *self, PyObject *repeated) {
    cw_pool_count_lost(((Dispatch *)self)->pool, repeated == Py_True);
    Py_RETURN_NONE;
}

static PyObject *dispatch_ask(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyLong_FromUnsignedLong(cw_pool_ask(((Dispatch *)self)->pool));
}

static PyObject *dispatch_wanted(PyObject *self, PyObject *unused) {
    uint32_t number;
    (void)unused;
    if (!cw_pool_must_heed(((Dispatch *)self)->pool, &number))
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLong(number);
}

static PyObject *dispatch_heed(PyObject *self, PyObject *args) {
    unsigned number;
    int some;
    if (!PyArg_ParseTuple(args, "Ip", &number, &some))
        return NULL;
    cw_pool_heed(((Dispatch *)self)->pool, number, some);
    Py_RETURN_NONE;
}

static PyObject *dispatch_unheeded(PyObject *self, PyObject *args) {
    unsigned number;
    int some;
    if (!PyArg_ParseTuple(args, "I", &number))
        return NULL;
    unsigned missing = cw_pool_unheeded(((Dispatch *)self)->pool, number, &some);
    return Py_BuildValue("IN", missing, PyBool_FromLong(some));
}

static PyObject *dispatch_assign(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    unsigned worker, group;
    if (!PyArg_ParseTuple(args, "II", &worker, &group) || dispatch_has_group(d, group))
        return NULL;
    if (worker >= d->workers)
        return PyErr_Format(PyExc_ValueError, "there is no worker %u", worker);
    if (cw_pool_assign(d->pool, worker, group))
        return PyErr_Format(PyExc_ValueError, "%s", cw_error());
    Py_RETURN_NONE;
}

static PyObject *dispatch_ready(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *group = Py_None;
    uint64_t count = 0;
    if (!PyArg_ParseTuple(args, "|O", &group))
        return NULL;
    if (group != Py_None) {
        unsigned long number = PyLong_AsUnsignedLong(group);
        if (PyErr_Occurred() ||
            dispatch_has_group(d, number < UINT32_MAX ? (unsigned)number : UINT32_MAX))
            return NULL;
        return PyLong_FromUnsignedLongLong(cw_pool_ready(d->pool, (uint32_t)number));
    }
    for (uint32_t i = 0; i < d->groups; i++)
        count += cw_pool_ready(d->pool, i);
    return PyLong_FromUnsignedLongLong(count);
}

static PyObject *dispatch_load(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    unsigned group;
    if (!PyArg_ParseTuple(args, "I", &group) || dispatch_has_group(d, group))
        return NULL;
    return PyLong_FromUnsignedLong(d->load[group]);
}

/* [(owner, number, worker, seconds, cell)] of the tasks that workers have; for calls the owner is
 * None, and the number what `fail` takes. */
static PyObject *dispatch_running(PyObject *self, PyObject *unused) {
    (void)unused;
    Dispatch *d = (Dispatch *)self;
    PyObject *found = PyList_New(0);
    for (uint32_t i = 0; found && i < d->cells; i++) {
        struct entry entry = d->entries[i];
        int64_t elapsed_ns;
        int worker = entry.owner || entry.call ? cw_pool_taker(d->pool, i, &elapsed_ns) : -1;
        if (worker < 0)
            continue;
        unsigned long long number = entry.call ? entry.call->token : entry.number;
        PyObject *told = Py_BuildValue("OKidI", entry.owner ? entry.owner : Py_None, number, worker,
                                       (double)elapsed_ns / 1e9, i);
        if (!told || PyList_Append(found, told))
            Py_CLEAR(found);
        Py_XDECREF(told);
    }
    return found;
}

/* 0, or -1 with an exception. */
static int append_owners(PyObject *found, PyObject *told) {
    Py_ssize_t count = told ? PyList_Size(told) : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *owner = PyTuple_GetItem(PyList_GetItem(told, i), 0);
        if (!owner || PyList_Append(found, owner))
            return -1;
    }
    return 0;
}

/* The owner of each task under way, and of each answer that nobody has been given yet. */
static PyObject *dispatch_owners(PyObject *self, PyObject *unused) {
    (void)unused;
    Dispatch *d = (Dispatch *)self;
    PyObject *found = PyList_New(0);
    int code = found ? 0 : -1;
    for (uint32_t i = 0; code == 0 && i < d->cells; i++)
        if (d->entries[i].owner)
            code = PyList_Append(found, d->entries[i].owner);
    if (code || append_owners(found, d->late) || append_owners(found, d->rest))
        Py_CLEAR(found);
    return found;
}

/* Whether a worker has taken this owner's task in this cell. */
static PyObject *dispatch_is_taken(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *owner;
    unsigned long cell;
    int64_t elapsed_ns;
    if (!PyArg_ParseTuple(args, "kO", &cell, &owner))
        return NULL;
    return PyBool_FromLong(cell < d->cells && d->entries[cell].owner == owner &&
                           cw_pool_taker(d->pool, (uint32_t)cell, &elapsed_ns) >= 0);
}

static PyObject *dispatch_look_at(PyObject *self, PyObject *args) {
    unsigned worker;
    cw_worker_info info;
    if (!PyArg_ParseTuple(args, "I", &worker))
        return NULL;
    if (worker >= ((Dispatch *)self)->workers)
        return PyErr_Format(PyExc_ValueError, "there is no worker %u", worker);
    cw_pool_look_at(((Dispatch *)self)->pool, worker, &info);
    return Py_BuildValue("IKKKKK", info.state, info.tasks, info.busy_ns, info.bytes_in,
                         info.bytes_out, info.calls);
}

static PyObject *dispatch_words(PyObject *self, PyObject *args) {
    unsigned worker;
    if (!PyArg_ParseTuple(args, "I", &worker))
        return NULL;
    if (worker >= ((Dispatch *)self)->workers)
        return PyErr_Format(PyExc_ValueError, "there is no worker %u", worker);
    const char *place = cw_pool_words(((Dispatch *)self)->pool, worker);
    uint32_t length;
    memcpy(&length, place, sizeof length);
    return PyBytes_FromStringAndSize(place + sizeof length,
                                     length <= WORDS_MAX ? length : WORDS_MAX);
}

static PyObject *dispatch_put_function(PyObject *self, PyObject *args) {
    unsigned slot;
    const char *data;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTuple(args, "Iy#", &slot, &data, &nbytes))
        return NULL;
    if (slot >= CW_POOL_FUNCTION_SLOTS || nbytes > CW_POOL_FUNCTION_MAX)
        return PyErr_Format(PyExc_ValueError, "a function has at most %d bytes, not %zd",
                            CW_POOL_FUNCTION_MAX, nbytes);
    memcpy(cw_pool_function(((Dispatch *)self)->pool, slot), data, (size_t)nbytes);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"submit", dispatch_submit, METH_VARARGS,
     "(work, owner, number, kind, function, data, payload, group=0): the cell, or -1; sets "
     "work.sent."},
    {"submit_plain", dispatch_submit_plain, METH_VARARGS,
     "(work, owner, number, kind, function, object, group=0): the cell; -1: no room; -3: not "
     "plain; "
     "sets work.sent."},
    {"submit_chunks", dispatch_submit_chunks, METH_VARARGS,
     "(work, owner, number, kind, function, items, chunksize, most, group=0): (sent, 0 or why it "
     "stopped); sets work.sent."},
    {"share", dispatch_share, METH_VARARGS,
     "(pinned, kinds, pending, waiters): what the engine keeps and the quick way looks at."},
    {"begin", (PyCFunction)(void (*)(void))dispatch_begin, METH_FASTCALL,
     "(class, engine, owner, function, args, kwargs): the Outcome, submitted; None: no quick one."},
    {"wait", (PyCFunction)(void (*)(void))dispatch_wait, METH_FASTCALL,
     "(outcome, seconds): until it has ended, or so long; delivers."},
    {"pump", dispatch_pump, METH_NOARGS,
     "Sends quick ones that wait first: whether what is first now is another one."},
    {"take_out", dispatch_take_out, METH_O,
     "(work): takes it out of what waits: whether it was there. Tells a helper that has asked."},
    {"send_exclusive", dispatch_send_exclusive, METH_O,
     "(send): calls it until nobody has asked for it meanwhile; not where a thread is at it."},
    {"ask_emptied", dispatch_ask_emptied, METH_NOARGS,
     "From now on who takes out the last thing that waits tells the helper."},
    {"withdraw", dispatch_withdraw, METH_VARARGS,
     "(cell, owner): what it was, as delivered; None: it was taken."},
    {"withdraw_all", dispatch_withdraw_all, METH_O,
     "(owner or None): a list of what was not taken, as delivered."},
    {"collect", dispatch_collect, METH_NOARGS, "Delivers the answers that are there."},
    {"listen", dispatch_listen, METH_VARARGS, "(news, seconds): waits, delivers."},
    {"help", dispatch_help, METH_VARARGS, "(news, seconds): the helper's wait; delivers."},
    {"call", dispatch_call, METH_VARARGS,
     "(kind, described, function, object, decode, group=0): (True, value), or for a message what "
     "decode(function, message) returns; None: not plain, or no room."},
    {"fail", dispatch_fail, METH_VARARGS, "(token or 0, exception): ends one call, or all."},
    {"leave", dispatch_leave, METH_NOARGS, "There is no helper any more."},
    {"reap", dispatch_reap, METH_VARARGS,
     "(worker): delivers what it had answered, returns what is lost."},
    {"close", dispatch_close, METH_O, "(closing): whether workers leave when nothing is ready."},
    {"use", dispatch_use, METH_VARARGS, "(workers): numbers from there on are not looked at."},
    {"shut", dispatch_shut, METH_NOARGS, "Takes no more tasks."},
    {"shut_if_done", dispatch_shut_if_done, METH_NOARGS,
     "Takes no more tasks, if none is left that nobody has taken: whether it is so."},
    {"dismiss", dispatch_dismiss, METH_VARARGS, "(worker): it leaves after its task."},
    {"news", dispatch_news, METH_O, "(helper): the number that listen or help compare with."},
    {"note", dispatch_note, METH_NOARGS, "Ends the wait of this thread that it has interrupted."},
    {"tell", dispatch_tell, METH_O, "(helper): ends the waits of listeners, or of the helper."},
    {"count_lost", dispatch_count_lost, METH_O,
     "Counts a task that went with its worker; True: it is run again."},
    {"ask", dispatch_ask, METH_NOARGS, "Asks all for the memory that they keep idle: a number."},
    {"wanted", dispatch_wanted, METH_NOARGS, "The number of a request to be heeded, or None."},
    {"heed", dispatch_heed, METH_VARARGS, "(number, some): whether something was given up."},
    {"unheeded", dispatch_unheeded, METH_VARARGS,
     "(number): how many have not heeded it yet, and whether others gave something up."},
    {"assign", dispatch_assign, METH_VARARGS,
     "(worker, group): it is about to be started, in that group."},
    {"ready", dispatch_ready, METH_VARARGS,
     "(group=None): tasks that nobody has taken, of one group or of all."},
    {"load", dispatch_load, METH_VARARGS,
     "(group): tasks under way that were given to it, whoever has taken them."},
    {"running", dispatch_running, METH_NOARGS, "[(owner, number, worker, seconds, cell)]."},
    {"owners", dispatch_owners, METH_NOARGS, "Of each task under way or not delivered yet."},
    {"is_taken", dispatch_is_taken, METH_VARARGS, "(cell, owner)"},
    {"holds_up", dispatch_holds_up, METH_NOARGS,
     "What this thread is in, if somebody has interrupted it: 1: it delivers an answer, for which "
     "a "
     "worker may wait; 2: it sends what waits; 0: nothing of that."},
    {"look_at", dispatch_look_at, METH_VARARGS,
     "(worker): state, tasks, busy ns, bytes in, bytes out."},
    {"words", dispatch_words, METH_VARARGS, "(worker): what it left before it told its state."},
    {"put_function", dispatch_put_function, METH_VARARGS, "(slot, data)"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"under_way", T_PYSSIZET, offsetof(Dispatch, under_way), READONLY,
     "Tasks submitted and not collected."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_init, dispatch_init},
    {Py_tp_dealloc, dispatch_dealloc},
    {Py_tp_traverse, dispatch_traverse},
    {Py_tp_clear, dispatch_clear},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_doc, "Dispatch(memory, address, nbytes, workers, cells, groups, spin_seconds, deliver): "
                "the parent's "
                "end."},
    {0, NULL},
};
PyType_Spec dispatch_spec = {
    .name = "cableway._dispatch.Dispatch",
    .basicsize = sizeof(Dispatch),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
