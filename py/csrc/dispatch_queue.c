/*
 * dispatch_queue.c: `QueueEnd`, a process's end of a queue (cw_queue in ipc/cableway.h), and
 * `QueueItem`, an item that was taken and is not an object yet. The cw_queue stays the caller's.
 *
 * No item is lost by what a signal's handler raises. What was taken and not handed out is kept, in
 * the order in which it was taken, and is what the next get() of this process gives:
 *
 *   an object     a handler raised when it had been taken, or before Python had looked at it
 *   a QueueItem   one raised while it became an object; its arrays are in cells that it has, so
 *                 that unpickling may begin again (dispatch_lease_cell.c)
 *
 * put() and get() are called as `Uninterrupted`: handlers run before an item is put, and after one
 * is taken, where it can still be kept; after that, when the caller has it. A thread that waits for
 * an item in the queue is woken when one is kept.
 *
 * Descriptors (cableway._queue.descriptors) are brought up to date within put() and get(), and when
 * an item is kept.
 *
 * Owner: the GIL; while it waits, a thread has a QueueItem of its own. Deaths: what is kept goes
 * with the process, as what a getter had taken. A forked child has copies of the kept items, and
 * opens the queue anew, where it finds none of them.
 */
#include "dispatch.h"

#include <time.h>
#include <unistd.h>

#define SPARE_MAX 8 /* memory of items that is kept to be used again: 288 KiB each */

static cw_item spare[SPARE_MAX];
static unsigned spares;

/* ---- items ---- */

PyTypeObject *queue_item_type;

typedef struct {
    PyObject_HEAD cw_item item;
    PyObject *cells;  /* a tuple of LeaseCell, which have its arrays; NULL: not asked for */
    PyObject *opened; /* what its decoder notes, a dict; NULL: nothing yet */
    PyObject *error;  /* what plain_loads() raised; NULL: nothing */
    int status;       /* of the library: 0, or why there is no item */
} QueueItem;

static QueueItem *item_new(void) {
    QueueItem *made = PyObject_New(QueueItem, queue_item_type);
    if (!made)
        return NULL;
    made->item = spares ? spare[--spares] : (cw_item){.data = NULL};
    made->cells = made->opened = made->error = NULL;
    made->status = 0;
    return made;
}

static void item_dealloc(PyObject *self) {
    QueueItem *item = (QueueItem *)self;
    PyTypeObject *type = Py_TYPE(self);
    while (item->item.count)
        cw_array_close(item->item.arrays[--item->item.count]);
    if (spares < SPARE_MAX && item->item.data)
        spare[spares++] = item->item;
    else
        cw_item_deinit(&item->item);
    Py_XDECREF(item->cells);
    Py_XDECREF(item->opened);
    Py_XDECREF(item->error);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Its arrays, each in a cell that the item has as long as it is there. */
static PyObject *item_cells(PyObject *self, void *unused) {
    QueueItem *item = (QueueItem *)self;
    (void)unused;
    if (!item->cells) {
        PyObject *cells = PyTuple_New(item->item.count);
        for (uint32_t i = 0; cells && i < item->item.count; i++) {
            PyObject *cell = PyObject_CallFunctionObjArgs((PyObject *)lease_cell_type, NULL);
            if (!cell || PyTuple_SetItem(cells, i, cell))
                Py_CLEAR(cells);
        }
        if (!cells)
            return NULL;
        for (uint32_t i = 0; i < item->item.count; i++)
            lease_cell_put(PyTuple_GetItem(cells, i), item->item.arrays[i]);
        item->item.count = 0;
        item->cells = cells;
    }
    Py_INCREF(item->cells);
    return item->cells;
}

/* Its bytes, as long as it is there. */
static PyObject *item_data(PyObject *self, void *unused) {
    QueueItem *item = (QueueItem *)self;
    (void)unused;
    return PyMemoryView_FromMemory(item->item.data, (Py_ssize_t)item->item.size_bytes, PyBUF_READ);
}

static PyObject *item_opened(PyObject *self, void *unused) {
    QueueItem *item = (QueueItem *)self;
    (void)unused;
    if (!item->opened)
        item->opened = PyDict_New();
    Py_XINCREF(item->opened);
    return item->opened;
}

/* What plain_loads() raised, once. */
static PyObject *item_error(PyObject *self, void *unused) {
    QueueItem *item = (QueueItem *)self;
    (void)unused;
    PyObject *error = item->error;
    item->error = NULL;
    if (error)
        return error;
    Py_RETURN_NONE;
}

static PyMemberDef item_members[] = {
    {"status", T_INT, offsetof(QueueItem, status), READONLY,
     "0, or the library's code that says why there is no item."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef item_gets[] = {
    {"cells", item_cells, NULL, "A tuple of LeaseCell, which have its arrays.", NULL},
    {"data", item_data, NULL, "Its bytes, readable as long as it is there.", NULL},
    {"opened", item_opened, NULL, "A dict for what is open of it.", NULL},
    {"error", item_error, NULL, "What unpickling it raised, once; else None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot item_slots[] = {
    {Py_tp_dealloc, item_dealloc},
    {Py_tp_members, item_members},
    {Py_tp_getset, item_gets},
    {Py_tp_doc, "An item that was taken and is not an object yet, or why there is none."},
    {0, NULL},
};
PyType_Spec queue_item_spec = {
    .name = "cableway._dispatch.QueueItem",
    .basicsize = sizeof(QueueItem),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = item_slots,
};

/* ---- the end of a queue ---- */

#define EVENTFD_FULL ((1ull << 63) * 2 - 2) /* with so much in it an eventfd is not writable */

struct watch {
    int fd; /* an eventfd, the caller's; -1: nobody asked for it */
    int state;
};

typedef struct {
    PyObject_HEAD cw_queue *queue;
    Py_ssize_t data_max;    /* of one item */
    PyObject *kept;         /* a list: objects and QueueItems; NULL: there never was one */
    struct watch watch[2];  /* the readers', the writers' */
    volatile uint32_t word; /* changes when one is kept: ends the waits of get() */
} QueueEnd;

static int end_init(PyObject *self, PyObject *args, PyObject *kwds) {
    QueueEnd *end = (QueueEnd *)self;
    (void)kwds;
    unsigned long long queue;
    if (!PyArg_ParseTuple(args, "Kn", &queue, &end->data_max))
        return -1;
    end->queue = (cw_queue *)(uintptr_t)queue;
    end->watch[0].fd = end->watch[1].fd = -1;
    return 0;
}

static void end_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    Py_XDECREF(((QueueEnd *)self)->kept);
    release(self);
    Py_DECREF(type);
}

static Py_ssize_t kept_count(const QueueEnd *end) {
    return end->kept ? PyList_Size(end->kept) : 0;
}

static int is_full(const cw_queue_info *info) {
    return (info->max_items && info->items >= info->max_items) ||
           (info->max_bytes && info->bytes >= info->max_bytes);
}

/* Makes the descriptors say what is so now. The GIL makes looks follow one another. */
static void look(QueueEnd *end) {
    for (int writer = 0; writer < 2; writer++) {
        struct watch *watch = &end->watch[writer];
        if (watch->fd < 0)
            continue;
        cw_queue_info info;
        cw_queue_look_at(end->queue, &info);
        int state = writer ? is_full(&info) : info.items > 0 || kept_count(end) > 0;
        uint64_t word = writer ? EVENTFD_FULL : 1;
        if (state == watch->state)
            continue;
        if (state ? write(watch->fd, &word, sizeof word) : read(watch->fd, &word, sizeof word))
            watch->state = state;
    }
}

/* Puts a plain object if there is room now, and nobody else is putting: whether it did. Handlers
 * run before, and what they raise means that it did not. */
static PyObject *end_put(PyObject *self, PyObject *object) {
    QueueEnd *end = (QueueEnd *)self;
    PyObject *pickled = plain_dumps(object);
    char *data;
    Py_ssize_t nbytes;
    if (!pickled || PyBytes_AsStringAndSize(pickled, &data, &nbytes) || PyErr_CheckSignals()) {
        Py_XDECREF(pickled);
        return PyErr_Occurred() ? NULL : PyBool_FromLong(0);
    }
    int code = -EMSGSIZE;
    if (nbytes <= end->data_max) {
        Py_BEGIN_ALLOW_THREADS;
        code = cw_queue_put(end->queue, data, (uint64_t)nbytes, NULL, 0, 0, CW_QUEUE_TRY);
        Py_END_ALLOW_THREADS;
    }
    Py_DECREF(pickled);
    look(end);
    return PyBool_FromLong(code == 0);
}

/* Makes an object the next one to be given. 0, or -1: no memory. */
static int keep(QueueEnd *end, PyObject *object) {
    if (!end->kept)
        end->kept = PyList_New(0);
    int code = end->kept ? PyList_Insert(end->kept, 0, object) : -1;
    look(end);
    cw_queue_gets_end(end->queue, &end->word); /* others may wait for it */
    return code;
}

static PyObject *take_kept(QueueEnd *end) {
    PyObject *first = PyList_GetItem(end->kept, 0);
    Py_XINCREF(first);
    if (first && PyList_SetSlice(end->kept, 0, 1, NULL))
        Py_CLEAR(first);
    look(end);
    return first;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Takes an item: 0 or more, or why not; -EINTR: with a handler's exception; -EAGAIN: one is kept.
 */
static int take(QueueEnd *end, QueueItem *item, long long timeout_ns) {
    int64_t end_ns = timeout_ns > 0 ? now_ns() + timeout_ns : 0;
    for (;;) {
        uint32_t word = end->word;
        int code;
        int last = timeout_ns >= 0 && timeout_ns <= LOOK_NS;
        Py_BEGIN_ALLOW_THREADS;
        code = cw_queue_get_unless(end->queue, &item->item, last ? timeout_ns : LOOK_NS, &end->word,
                                   word);
        Py_END_ALLOW_THREADS;
        if (!last && (code == -ETIMEDOUT || code == -EBUSY)) /* the time is not over */
            code = -EINTR;
        if (code == -EAGAIN && !kept_count(end)) /* another thread has had it */
            code = -EINTR;
        if (code != -EINTR || PyErr_CheckSignals())
            return code;
        if (kept_count(end))
            return -EAGAIN;
        if (timeout_ns > 0) {
            int64_t left_ns = end_ns - now_ns();
            timeout_ns = left_ns > 0 ? left_ns : 0; /* below 0 it would be for ever */
        }
    }
}

/* The exception that is set, which is no more. */
static PyObject *caught(void) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && trace)
        PyException_SetTraceback(value, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

/* (timeout_ns): the object that is next. A QueueItem: it has arrays, or could not be unpickled, or
 * there is none: its status says why. */
static PyObject *end_get(PyObject *self, PyObject *given) {
    QueueEnd *end = (QueueEnd *)self;
    long long timeout_ns = PyLong_AsLongLong(given);
    if (timeout_ns == -1 && PyErr_Occurred())
        return NULL;
    if (kept_count(end))
        return take_kept(end);
    QueueItem *item = item_new();
    PyObject *found = (PyObject *)item;
    if (!item)
        return NULL;
    int code = take(end, item, timeout_ns);
    if (code == -EAGAIN || code == -EINTR) {
        Py_DECREF(found);
        return code == -EAGAIN ? take_kept(end) : NULL;
    }
    item->status = code < 0 ? code : 0;
    if (code == 0) {
        found = plain_loads(item->item.data, (uint32_t)item->item.size_bytes);
        if (found)
            Py_DECREF((PyObject *)item);
        else {
            found = (PyObject *)item;
            item->error = caught();
        }
    }
    look(end);
    if (code >= 0 && PyErr_CheckSignals()) { /* behind this call, its exception would lose it */
        PyObject *raised = caught();
        int kept = keep(end, found);
        Py_DECREF(found);
        if (kept == 0)
            PyErr_SetObject((PyObject *)Py_TYPE(raised), raised);
        Py_DECREF(raised);
        return NULL;
    }
    return found;
}

/* (object): it was got and not handed out: it is the next one. */
static PyObject *end_give_back(PyObject *self, PyObject *object) {
    if (keep((QueueEnd *)self, object))
        return NULL;
    Py_RETURN_NONE;
}

/* (writer, fd): keeps an eventfd up to date, which the caller closes when it is no more; -1: no
 * more. */
static PyObject *end_watch(PyObject *self, PyObject *args) {
    QueueEnd *end = (QueueEnd *)self;
    int writer, fd;
    if (!PyArg_ParseTuple(args, "pi", &writer, &fd))
        return NULL;
    end->watch[writer != 0] = (struct watch){.fd = fd};
    if (fd >= 0) /* else a forked child's, which has the parent's other one, too */
        look(end);
    Py_RETURN_NONE;
}

/* (writer): looks at the queue, and what that descriptor says since. */
static PyObject *end_look(PyObject *self, PyObject *writer) {
    QueueEnd *end = (QueueEnd *)self;
    int which = PyObject_IsTrue(writer);
    if (which < 0)
        return NULL;
    look(end);
    return PyBool_FromLong(end->watch[which].state);
}

static PyObject *end_kept(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromSsize_t(kept_count((QueueEnd *)self));
}

static PyMethodDef methods[] = {
    {"put", end_put, METH_O, "(object): whether it was plain, and there was room."},
    {"get", end_get, METH_O, "(timeout_ns): the object that is next, or a QueueItem."},
    {"give_back", end_give_back, METH_O, "(object): makes it the next one."},
    {"watch", end_watch, METH_VARARGS, "(writer, fd): keeps an eventfd up to date; -1: no more."},
    {"look", end_look, METH_O, "(writer): brings the eventfds up to date: what that one says."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef gets[] = {
    {"kept", end_kept, NULL, "How many items were taken and not handed out.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_init, end_init},
    {Py_tp_dealloc, end_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, gets},
    {Py_tp_doc, "QueueEnd(queue, data_max): by its address, and the most bytes of an item."},
    {0, NULL},
};
PyType_Spec queue_spec = {
    .name = "cableway._dispatch.QueueEnd",
    .basicsize = sizeof(QueueEnd),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
