/*
 * dispatch_parent.c: `Dispatch`, the parent's end of a pool.
 *
 * Each cell that is under way has an *entry*: its owner (a job of _pool_jobs) and the number of the
 * task within it, or the *call* of a thread that waits for this very answer (`call`). Entries and
 * calls belong to this process and are touched under the GIL alone.
 *
 * Who collects gives what belongs to others to `deliver`, a function of the engine's, as a list of
 * (owner, number, worker, kind, data). A thread whose call another thread has collected is told by
 * the listeners' news.
 *
 * Deaths: of a worker, see `bury`; a call that was lost gets its exception by `fail`. A thread that
 * leaves its call (Ctrl-C) takes its entry's call away: the answer is dropped when it comes.
 */
#include "dispatch.h"

struct call {
    struct call *next;
    PyObject *function; /* borrowed: for who has to tell of a death */
    int ended;
    uint32_t kind;
    PyObject *data;  /* the answer's bytes */
    PyObject *error; /* or what became of it */
};
struct entry {
    PyObject *owner; /* NULL: a call's, or nobody's */
    PyObject *held;  /* what goes with the task and stays until it has ended; may be NULL */
    struct call *call;
    uint64_t number;
};
typedef struct {
    PyObject_HEAD cw_pool *pool;
    PyObject *deliver;
    struct entry *entries;
    struct call *calls;
    uint32_t cells, workers;
    int64_t spin_ns;
    Py_ssize_t under_way;
    char shut; /* takes no more */
} Dispatch;

static int dispatch_init(PyObject *self, PyObject *args, PyObject *kwds) {
    Dispatch *d = (Dispatch *)self;
    (void)kwds;
    unsigned long long address, nbytes;
    unsigned workers, cells;
    double spin_seconds;
    PyObject *deliver;
    if (!PyArg_ParseTuple(args, "KKIIdO", &address, &nbytes, &workers, &cells, &spin_seconds,
                          &deliver))
        return -1;
    int code = cw_pool_new((void *)(uintptr_t)address, nbytes, workers, cells, &d->pool);
    if (code) {
        raise_failure(code);
        return -1;
    }
    d->entries = calloc(cells, sizeof *d->entries);
    if (!d->entries) {
        PyErr_NoMemory();
        return -1;
    }
    Py_INCREF(deliver);
    d->deliver = deliver;
    d->cells = cells;
    d->workers = workers;
    d->spin_ns = (int64_t)(spin_seconds * 1e9);
    return 0;
}

static int dispatch_traverse(PyObject *self, visitproc visit, void *arg) {
    Dispatch *d = (Dispatch *)self;
    Py_VISIT(d->deliver);
    for (uint32_t i = 0; d->entries && i < d->cells; i++)
        Py_VISIT(d->entries[i].owner);
    for (uint32_t i = 0; d->entries && i < d->cells; i++)
        Py_VISIT(d->entries[i].held);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int dispatch_clear(PyObject *self) {
    Dispatch *d = (Dispatch *)self;
    Py_CLEAR(d->deliver);
    for (uint32_t i = 0; d->entries && i < d->cells; i++)
        Py_CLEAR(d->entries[i].owner);
    for (uint32_t i = 0; d->entries && i < d->cells; i++)
        Py_CLEAR(d->entries[i].held);
    return 0;
}

static void dispatch_dealloc(PyObject *self) {
    Dispatch *d = (Dispatch *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    dispatch_clear(self);
    cw_pool_delete(d->pool);
    free(d->entries);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* ---- submitting ---- */

/* A function's (number, slot, bytes); None: it goes along with the arguments. */
static int read_function(PyObject *function, cw_task *task) {
    task->function = 0;
    task->slot = task->function_bytes = 0;
    if (function == Py_None)
        return 0;
    task->function = PyLong_AsUnsignedLongLong(PyTuple_GetItem(function, 0));
    task->slot = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GetItem(function, 1));
    task->function_bytes = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GetItem(function, 2));
    if (!PyErr_Occurred() && task->slot < CW_POOL_FUNCTION_SLOTS &&
        task->function_bytes <= CW_POOL_FUNCTION_MAX)
        return 0;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "no such slot for a function");
    return -1;
}

/* Fills a cell and submits it. The cell's number; -1: no room now; -2: an exception; -4: shut. */
static long submit(Dispatch *d, uint32_t kind, PyObject *function, const void *data,
                   Py_ssize_t nbytes) {
    cw_task task;
    if (d->shut)
        return -4;
    if (cw_pool_reserve(d->pool, &task))
        return -1;
    if (read_function(function, &task)) {
        cw_pool_free(d->pool, task.cell);
        return -2;
    }
    memcpy(task.data, data, (size_t)nbytes);
    task.size_bytes = (uint32_t)nbytes;
    task.kind = kind;
    if (cw_pool_submit(d->pool, &task)) {
        cw_pool_free(d->pool, task.cell);
        return -1;
    }
    d->under_way++;
    return (long)task.cell;
}

static void own(Dispatch *d, long cell, PyObject *owner, uint64_t number, PyObject *held) {
    Py_INCREF(owner);
    Py_XINCREF(held);
    d->entries[cell] = (struct entry){.owner = owner, .held = held, .number = number};
}

/* The entry of a cell, whose references go over; the cell has none any more. */
static struct entry disown(Dispatch *d, uint32_t cell) {
    struct entry entry = d->entries[cell];
    d->entries[cell] = (struct entry){.owner = NULL};
    d->under_way--;
    return entry;
}

/* (owner, number, worker, kind, data, cell, held); takes the references of entry and data over. */
static PyObject *told(struct entry *entry, uint32_t worker, uint32_t kind, PyObject *data,
                      uint32_t cell) {
    if (!entry->held) {
        Py_INCREF(Py_None);
        entry->held = Py_None;
    }
    return Py_BuildValue("NKIININ", entry->owner, (unsigned long long)entry->number, worker, kind,
                         data, cell, entry->held);
}

/* Appends what was made to a list that may not be there yet. Takes entry over. */
static int append(PyObject **list, PyObject *entry) {
    if (entry && !*list)
        *list = PyList_New(0);
    int code = entry && *list ? PyList_Append(*list, entry) : -1;
    Py_XDECREF(entry);
    return code;
}

static PyObject *dispatch_submit(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *owner, *function, *held;
    unsigned long long number;
    unsigned kind;
    const char *data;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTuple(args, "OKIOy#O", &owner, &number, &kind, &function, &data, &nbytes,
                          &held))
        return NULL;
    if (nbytes > CW_POOL_DATA_MAX)
        return PyErr_Format(PyExc_ValueError, "a task's message has at most %d bytes, not %zd",
                            CW_POOL_DATA_MAX, nbytes);
    long cell = submit(d, kind, function, data, nbytes);
    if (cell == -2)
        return NULL;
    if (cell >= 0) {
        own(d, cell, owner, number, held);
        cw_pool_wake(d->pool, 1);
    }
    return PyLong_FromLong(cell);
}

/* Pickles and submits a plain object. As submit(); -3: not plain. */
static long submit_plain(Dispatch *d, uint32_t kind, PyObject *function, PyObject *object) {
    PyObject *pickled = plain_dumps(object);
    if (!pickled)
        return PyErr_Occurred() ? -2 : -3;
    char *data;
    Py_ssize_t nbytes;
    long cell = PyBytes_AsStringAndSize(pickled, &data, &nbytes)
                    ? -2
                    : submit(d, kind, function, data, nbytes);
    Py_DECREF(pickled);
    return cell;
}

static PyObject *dispatch_submit_plain(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *owner, *function, *object;
    unsigned long long number;
    unsigned kind;
    if (!PyArg_ParseTuple(args, "OKIOO", &owner, &number, &kind, &function, &object))
        return NULL;
    long cell = submit_plain(d, kind, function, object);
    if (cell == -2)
        return NULL;
    if (cell >= 0) {
        own(d, cell, owner, number, NULL);
        cw_pool_wake(d->pool, 1);
    }
    return PyLong_FromLong(cell);
}

/* Chunks of items, a task each, from chunk `number` on: as many as there is room for and most. */
static PyObject *dispatch_submit_chunks(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *owner, *function, *items;
    unsigned long long number;
    unsigned kind;
    Py_ssize_t chunksize, most;
    if (!PyArg_ParseTuple(args, "OKIOO!nn", &owner, &number, &kind, &function, &PyTuple_Type,
                          &items, &chunksize, &most))
        return NULL;
    Py_ssize_t size = PyTuple_Size(items), sent = 0;
    long cell = 0;
    for (; sent < most && (Py_ssize_t)number * chunksize < size; sent++, number++) {
        Py_ssize_t first = (Py_ssize_t)number * chunksize;
        Py_ssize_t last = size - first > chunksize ? first + chunksize : size;
        PyObject *chunk = PyTuple_GetSlice(items, first, last);
        if (!chunk)
            return NULL;
        cell = submit_plain(d, kind, function, chunk);
        Py_DECREF(chunk);
        if (cell < 0)
            break;
        own(d, cell, owner, number, NULL);
    }
    if (sent)
        cw_pool_wake(d->pool, (uint32_t)sent);
    if (cell == -2)
        return NULL;
    return Py_BuildValue("nl", sent, cell < 0 ? cell : 0L);
}

static PyObject *dispatch_withdraw(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *owner;
    unsigned long cell;
    if (!PyArg_ParseTuple(args, "kO", &cell, &owner))
        return NULL;
    if (cell >= d->cells || d->entries[cell].owner != owner ||
        cw_pool_withdraw(d->pool, (uint32_t)cell))
        Py_RETURN_NONE;
    struct entry entry = disown(d, (uint32_t)cell);
    cw_pool_free(d->pool, (uint32_t)cell);
    Py_INCREF(Py_None);
    return told(&entry, 0, 0, Py_None, (uint32_t)cell);
}

/* Takes back all that no worker has taken yet, or what of it belongs to one owner. */
static PyObject *dispatch_withdraw_all(PyObject *self, PyObject *owner) {
    Dispatch *d = (Dispatch *)self;
    PyObject *found = PyList_New(0);
    for (uint32_t i = 0; found && i < d->cells; i++) {
        if (!d->entries[i].owner || (owner != Py_None && d->entries[i].owner != owner) ||
            cw_pool_withdraw(d->pool, i))
            continue;
        struct entry entry = disown(d, i);
        cw_pool_free(d->pool, i);
        Py_INCREF(Py_None);
        if (append(&found, told(&entry, 0, 0, Py_None, i)))
            Py_CLEAR(found);
    }
    return found;
}

/* ---- collecting ---- */

/* Sees to one answer: a call of this process's threads takes it, or it goes to the list. */
static int take_answer(Dispatch *d, const cw_task *task, struct call *mine, PyObject **list) {
    struct entry entry = disown(d, task->cell);
    int code = 0;
    PyObject *data = PyBytes_FromStringAndSize(task->data, task->size_bytes);
    if (entry.call && data) {
        entry.call->kind = task->kind;
        entry.call->data = data;
        entry.call->ended = 1;
        if (entry.call != mine)
            cw_pool_tell(d->pool, 0);
    } else if (entry.owner && data) {
        code = append(list, told(&entry, task->worker, task->kind, data, task->cell));
    } else { /* nobody wants it any more */
        code = data ? 0 : -1;
        Py_XDECREF(data);
        Py_XDECREF(entry.held);
    }
    cw_pool_free(d->pool, task->cell);
    return code;
}

/* Collects all answers. *list: those of others, NULL when there are none. */
static int drain(Dispatch *d, struct call *mine, PyObject **list) {
    cw_task task;
    int code;
    while ((code = cw_pool_collect(d->pool, &task)) == 0)
        if (take_answer(d, &task, mine, list))
            return -1;
    if (code == -EAGAIN)
        return 0;
    raise_failure(code);
    return -1;
}

/* Gives a list of answers to the engine. Takes the list over. */
static int deliver(Dispatch *d, PyObject *list) {
    if (!list)
        return 0;
    PyObject *done = d->deliver ? PyObject_CallFunctionObjArgs(d->deliver, list, NULL) : NULL;
    Py_DECREF(list);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int collect(Dispatch *d, struct call *mine) {
    PyObject *list = NULL;
    if (drain(d, mine, &list)) {
        Py_XDECREF(list);
        return -1;
    }
    return deliver(d, list);
}

static PyObject *dispatch_collect(PyObject *self, PyObject *unused) {
    (void)unused;
    Dispatch *d = (Dispatch *)self;
    if (d->pool && collect(d, NULL))
        return NULL;
    Py_RETURN_NONE;
}

/* Waits as a listener and collects. 1, 0: the time ran out, -1 with an exception. */
static int listen(Dispatch *d, uint32_t was, int64_t timeout_ns, struct call *mine) {
    int code;
    cw_pool_listen(d->pool, 1);
    Py_BEGIN_ALLOW_THREADS;
    code = cw_pool_wait(d->pool, 0, was, d->spin_ns, timeout_ns);
    Py_END_ALLOW_THREADS;
    cw_pool_listen(d->pool, -1);
    if (collect(d, mine))
        return -1;
    if (code == -EINTR)
        return PyErr_CheckSignals() ? -1 : 1;
    if (code && code != -ETIMEDOUT) {
        raise_failure(code);
        return -1;
    }
    return code == 0;
}

/* Seconds to ns; < 0 and None: for ever. */
static int read_timeout(PyObject *seconds, int64_t *ns) {
    *ns = -1;
    if (seconds == Py_None)
        return 0;
    double value = PyFloat_AsDouble(seconds);
    if (value == -1.0 && PyErr_Occurred())
        return -1;
    *ns = value <= 0 ? 0 : value > 9e9 ? -1 : (int64_t)(value * 1e9);
    return 0;
}

static PyObject *dispatch_listen(PyObject *self, PyObject *args) {
    PyObject *seconds;
    unsigned was;
    int64_t timeout_ns;
    if (!PyArg_ParseTuple(args, "IO", &was, &seconds) || read_timeout(seconds, &timeout_ns))
        return NULL;
    int code = listen((Dispatch *)self, was, timeout_ns, NULL);
    return code < 0 ? NULL : PyBool_FromLong(code);
}

static PyObject *dispatch_help(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *seconds;
    unsigned was;
    int64_t timeout_ns;
    int code;
    if (!PyArg_ParseTuple(args, "IO", &was, &seconds) || read_timeout(seconds, &timeout_ns))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    code = cw_pool_wait(d->pool, 1, was, 0, timeout_ns);
    Py_END_ALLOW_THREADS;
    if (code && code != -ETIMEDOUT && code != -EINTR)
        return raise_failure(code);
    if (collect(d, NULL))
        return NULL;
    Py_RETURN_NONE;
}

/* ---- a call: submitted and waited for by one thread ---- */

static void forget_call(Dispatch *d, struct call *call) {
    for (struct call **at = &d->calls; *at; at = &(*at)->next)
        if (*at == call) {
            *at = call->next;
            break;
        }
    for (uint32_t i = 0; i < d->cells && !call->ended; i++)
        if (d->entries[i].call == call)
            d->entries[i].call = NULL;
}

/* The value of a call's answer; a message as (None, bytes) for the caller to decode. */
static PyObject *value_of(struct call *call) {
    if (call->kind == ANSWER_NONE)
        return Py_BuildValue("OO", Py_True, Py_None);
    if (call->kind == ANSWER_MESSAGE)
        return Py_BuildValue("OO", Py_None, call->data);
    char *data;
    Py_ssize_t nbytes;
    PyBytes_AsStringAndSize(call->data, &data, &nbytes);
    PyObject *value = plain_loads(data, (uint32_t)nbytes);
    return value ? Py_BuildValue("ON", Py_True, value) : NULL;
}

static PyObject *dispatch_call(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *function, *described, *object;
    unsigned kind;
    if (!PyArg_ParseTuple(args, "IOOO", &kind, &described, &function, &object))
        return NULL;
    long cell = submit_plain(d, kind, described, object);
    if (cell == -2)
        return NULL;
    if (cell < 0)
        Py_RETURN_NONE;
    struct call call = {.next = d->calls, .function = function};
    d->calls = &call;
    d->entries[cell] = (struct entry){.call = &call};
    cw_pool_wake(d->pool, 1);
    int code = 1;
    while (!call.ended && code > 0) {
        uint32_t was = cw_pool_news(d->pool, 0);
        code = listen(d, was, -1, &call);
    }
    forget_call(d, &call);
    PyObject *result = NULL;
    if (call.ended && call.error)
        PyErr_SetObject((PyObject *)Py_TYPE(call.error), call.error);
    else if (call.ended && call.data && code >= 0)
        result = value_of(&call);
    Py_XDECREF(call.data);
    Py_XDECREF(call.error);
    return result;
}

/* Ends calls with an exception: the one that `bury` has told of, or all. */
static void fail(struct call *call, PyObject *error) {
    if (call->ended)
        return;
    Py_INCREF(error);
    call->error = error;
    call->ended = 1;
}

static PyObject *dispatch_fail(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *error;
    unsigned long long token;
    if (!PyArg_ParseTuple(args, "KO", &token, &error))
        return NULL;
    for (struct call *call = d->calls; call; call = call->next)
        if (token == 0 || (uintptr_t)call == token)
            fail(call, error);
    cw_pool_tell(d->pool, 0);
    Py_RETURN_NONE;
}

/* ---- deaths ---- */

/* What a call had lost: (None, token, worker, 0, function, cell, None). */
static PyObject *lost_call(const struct call *call, const cw_task *task) {
    return Py_BuildValue("OKIIOIO", Py_None, (unsigned long long)(uintptr_t)call, task->worker, 0,
                         call->function, task->cell, Py_None);
}

/*
 * What a dead worker had, after all that it had sent was collected. Answers that it had just given
 * are delivered; what is lost is returned, as `deliver` would be given it, with None for the data.
 * For calls the owner is None, the number is what `fail` takes, and the data are the function.
 */
static PyObject *dispatch_bury(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    unsigned worker;
    if (!PyArg_ParseTuple(args, "I", &worker))
        return NULL;
    if (worker >= d->workers)
        return PyErr_Format(PyExc_ValueError, "there is no worker %u", worker);
    if (collect(d, NULL))
        return NULL;
    PyObject *lost = PyList_New(0), *list = NULL;
    cw_task task;
    int code = 0;
    while (lost && (code = cw_pool_bury(d->pool, worker, &task)) >= 0) {
        if (code == 1) {
            code = take_answer(d, &task, NULL, &list);
        } else {
            struct entry entry = disown(d, task.cell);
            cw_pool_free(d->pool, task.cell);
            if (entry.call)
                code = append(&lost, lost_call(entry.call, &task));
            else if (entry.owner) {
                Py_INCREF(Py_None);
                code = append(&lost, told(&entry, worker, 0, Py_None, task.cell));
            }
        }
        if (code)
            Py_CLEAR(lost);
    }
    if (deliver(d, list))
        Py_CLEAR(lost);
    return lost;
}

/* ---- the rest ---- */

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
    return PyLong_FromUnsignedLong(cw_pool_news(((Dispatch *)self)->pool, helper == Py_True));
}

static PyObject *dispatch_tell(PyObject *self, PyObject *helper) {
    cw_pool_tell(((Dispatch *)self)->pool, helper == Py_True);
    Py_RETURN_NONE;
}

static PyObject *dispatch_ready(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(cw_pool_ready(((Dispatch *)self)->pool));
}

/* [(owner, number, worker, seconds, cell)] of the tasks that workers have; owner None for calls. */
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
        PyObject *told =
            Py_BuildValue("OKidI", entry.owner ? entry.owner : Py_None,
                          (unsigned long long)entry.number, worker, (double)elapsed_ns / 1e9, i);
        if (!told || PyList_Append(found, told))
            Py_CLEAR(found);
        Py_XDECREF(told);
    }
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
    return Py_BuildValue("IKKKK", info.state, info.tasks, info.busy_ns, info.bytes_in,
                         info.bytes_out);
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
     "(owner, number, kind, function, data): the cell, or -1."},
    {"submit_plain", dispatch_submit_plain, METH_VARARGS,
     "(owner, number, kind, function, object): the cell; -1: no room; -3: not plain."},
    {"submit_chunks", dispatch_submit_chunks, METH_VARARGS,
     "(owner, number, kind, function, items, chunksize, most): (sent, 0 or why it stopped)."},
    {"withdraw", dispatch_withdraw, METH_VARARGS,
     "(cell, owner): what it was, as delivered; None: it was taken."},
    {"withdraw_all", dispatch_withdraw_all, METH_O,
     "(owner or None): a list of what was not taken, as delivered."},
    {"collect", dispatch_collect, METH_NOARGS, "Delivers the answers that are there."},
    {"listen", dispatch_listen, METH_VARARGS,
     "(news, seconds): waits, delivers; False: no time left."},
    {"help", dispatch_help, METH_VARARGS, "(news, seconds): the helper's wait; delivers."},
    {"call", dispatch_call, METH_VARARGS,
     "(kind, described, function, object): (True, value), (None, message); None: not plain, or no "
     "room."},
    {"fail", dispatch_fail, METH_VARARGS, "(token or 0, exception): ends one call, or all."},
    {"bury", dispatch_bury, METH_VARARGS,
     "(worker): delivers what it had answered, returns what is lost."},
    {"close", dispatch_close, METH_O, "(closing): whether workers leave when nothing is ready."},
    {"use", dispatch_use, METH_VARARGS, "(workers): numbers from there on are not looked at."},
    {"shut", dispatch_shut, METH_NOARGS, "Takes no more tasks."},
    {"dismiss", dispatch_dismiss, METH_VARARGS, "(worker): it leaves after its task."},
    {"news", dispatch_news, METH_O, "(helper): the number that listen or help compare with."},
    {"tell", dispatch_tell, METH_O, "(helper): ends the waits of listeners, or of the helper."},
    {"ready", dispatch_ready, METH_NOARGS, "Tasks that nobody has taken."},
    {"running", dispatch_running, METH_NOARGS, "[(owner, number, worker, seconds, cell)]."},
    {"is_taken", dispatch_is_taken, METH_VARARGS, "(cell, owner)"},
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
    {Py_tp_doc,
     "Dispatch(address, nbytes, workers, cells, spin_seconds, deliver): the parent's end."},
    {0, NULL},
};
PyType_Spec dispatch_spec = {
    .name = "causeway._dispatch.Dispatch",
    .basicsize = sizeof(Dispatch),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
