/*
 * dispatch_submit.c: how `Dispatch` submits tasks and takes them back; see dispatch_parent.c.
 */
#include "dispatch_parent.h"

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

/* Notes how many of a work's tasks are sent: here, where no signal's handler comes in between. */
static int note_sent(PyObject *work, uint64_t sent) {
    if (work == Py_None)
        return 0;
    PyObject *number = PyLong_FromUnsignedLongLong(sent);
    int code = number ? PyObject_SetAttrString(work, "sent", number) : -1;
    Py_XDECREF(number);
    return code;
}

int dispatch_has_group(Dispatch *d, unsigned group) {
    if (group < d->groups)
        return 0;
    PyErr_Format(PyExc_ValueError, "there are %u groups, and no group %u", d->groups, group);
    return -1;
}

long dispatch_put(Dispatch *d, uint32_t group, uint32_t kind, PyObject *function, const void *data,
                  Py_ssize_t nbytes) {
    cw_task task;
    if (dispatch_is_ours(d) || dispatch_has_group(d, group))
        return -2;
    if (d->shut)
        return -4;
    if (cw_pool_reserve(d->pool, &task))
        return -1;
    if (read_function(function, &task)) {
        cw_pool_free(d->pool, task.cell);
        return -2;
    }
    task.size_bytes = (uint32_t)nbytes;
    cw_task_write(&task, data, task.size_bytes);
    task.group = group;
    task.kind = kind;
    int code = cw_pool_submit(d->pool, &task);
    if (code) {
        cw_pool_free(d->pool, task.cell);
        if (code != -EAGAIN)
            raise_failure(code);
        return code == -EAGAIN ? -1 : -2;
    }
    d->under_way++;
    d->load[group]++;
    d->group_of[task.cell] = (uint8_t)group;
    return (long)task.cell;
}

void dispatch_own(Dispatch *d, long cell, PyObject *owner, uint64_t number, PyObject *payload) {
    Py_INCREF(owner);
    Py_XINCREF(payload);
    d->entries[cell] = (struct entry){.owner = owner, .payload = payload, .number = number};
}

/* The entry of a cell, whose references go over; the cell has none any more. */
struct entry dispatch_disown(Dispatch *d, uint32_t cell) {
    struct entry entry = d->entries[cell];
    d->entries[cell] = (struct entry){.owner = NULL};
    d->under_way--;
    d->load[d->group_of[cell]]--;
    return entry;
}

/* (owner, number, worker, kind, data, cell, payload); takes the references of entry and data over.
 */
PyObject *dispatch_told(struct entry *entry, uint32_t worker, uint32_t kind, PyObject *data,
                        uint32_t cell) {
    if (!entry->payload) {
        Py_INCREF(Py_None);
        entry->payload = Py_None;
    }
    return Py_BuildValue("NKIININ", entry->owner, (unsigned long long)entry->number, worker, kind,
                         data, cell, entry->payload);
}

/* Appends what was made to a list that may not be there yet. Takes entry over. */
int dispatch_append(PyObject **list, PyObject *entry) {
    if (entry && !*list)
        *list = PyList_New(0);
    int code = entry && *list ? PyList_Append(*list, entry) : -1;
    Py_XDECREF(entry);
    return code;
}

PyObject *dispatch_submit(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *work, *owner, *function, *payload;
    unsigned long long number;
    unsigned kind, group = 0;
    const char *data;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTuple(args, "OOKIOy#O|I", &work, &owner, &number, &kind, &function, &data,
                          &nbytes, &payload, &group))
        return NULL;
    if (nbytes > CW_POOL_DATA_MAX)
        return PyErr_Format(PyExc_ValueError, "a task's message has at most %d bytes, not %zd",
                            CW_POOL_DATA_MAX, nbytes);
    long cell = dispatch_put(d, group, kind, function, data, nbytes);
    if (cell == -2)
        return NULL;
    if (cell >= 0) {
        dispatch_own(d, cell, owner, number, payload);
        cw_pool_wake(d->pool, group, 1);
        if (note_sent(work, number + 1))
            return NULL;
    }
    return PyLong_FromLong(cell);
}

/* Pickles and submits a plain object. As submit(); -3: not plain. */
long dispatch_submit_object(Dispatch *d, uint32_t group, uint32_t kind, PyObject *function,
                            PyObject *object) {
    char small[SMALL_MAX], *data;
    Py_ssize_t nbytes = small_dump(object, small, SMALL_MAX);
    if (nbytes >= 0)
        return dispatch_put(d, group, kind, function, small, nbytes);
    PyObject *pickled = plain_dumps(object);
    if (!pickled)
        return PyErr_Occurred() ? -2 : -3;
    long cell = PyBytes_AsStringAndSize(pickled, &data, &nbytes)
                    ? -2
                    : dispatch_put(d, group, kind, function, data, nbytes);
    Py_DECREF(pickled);
    return cell;
}

PyObject *dispatch_submit_plain(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *work, *owner, *function, *object;
    unsigned long long number;
    unsigned kind, group = 0;
    if (!PyArg_ParseTuple(args, "OOKIOO|I", &work, &owner, &number, &kind, &function, &object,
                          &group))
        return NULL;
    long cell = dispatch_submit_object(d, group, kind, function, object);
    if (cell == -2)
        return NULL;
    if (cell >= 0) {
        dispatch_own(d, cell, owner, number, NULL);
        cw_pool_wake(d->pool, group, 1);
        if (note_sent(work, number + 1))
            return NULL;
    }
    return PyLong_FromLong(cell);
}

/* Chunks of items, a task each, from chunk `number` on: as many as there is room for and most. */
PyObject *dispatch_submit_chunks(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *work, *owner, *function, *items;
    unsigned long long number;
    unsigned kind, group = 0;
    Py_ssize_t chunksize, most;
    if (!PyArg_ParseTuple(args, "OOKIOO!nn|I", &work, &owner, &number, &kind, &function,
                          &PyTuple_Type, &items, &chunksize, &most, &group))
        return NULL;
    Py_ssize_t size = PyTuple_Size(items), sent = 0;
    long cell = 0;
    for (; sent < most && (Py_ssize_t)number * chunksize < size; sent++, number++) {
        Py_ssize_t first = (Py_ssize_t)number * chunksize;
        Py_ssize_t last = size - first > chunksize ? first + chunksize : size;
        PyObject *chunk = PyTuple_GetSlice(items, first, last);
        if (!chunk)
            return NULL;
        cell = dispatch_submit_object(d, group, kind, function, chunk);
        Py_DECREF(chunk);
        if (cell < 0)
            break;
        dispatch_own(d, cell, owner, number, NULL);
        if (note_sent(work, number + 1)) {
            cell = -2;
            break;
        }
    }
    if (sent)
        cw_pool_wake(d->pool, group, (uint32_t)sent);
    if (cell == -2)
        return NULL;
    return Py_BuildValue("nl", sent, cell < 0 ? cell : 0L);
}

PyObject *dispatch_withdraw(PyObject *self, PyObject *args) {
    Dispatch *d = (Dispatch *)self;
    PyObject *owner;
    unsigned long cell;
    if (!PyArg_ParseTuple(args, "kO", &cell, &owner) || dispatch_is_ours(d))
        return NULL;
    if (cell >= d->cells || d->entries[cell].owner != owner ||
        cw_pool_withdraw(d->pool, (uint32_t)cell))
        Py_RETURN_NONE;
    struct entry entry = dispatch_disown(d, (uint32_t)cell);
    cw_pool_free(d->pool, (uint32_t)cell);
    Py_INCREF(Py_None);
    return dispatch_told(&entry, 0, 0, Py_None, (uint32_t)cell);
}

/* Takes back all that no worker has taken yet, or what of it belongs to one owner. */
PyObject *dispatch_withdraw_all(PyObject *self, PyObject *owner) {
    Dispatch *d = (Dispatch *)self;
    PyObject *found = dispatch_is_ours(d) ? NULL : PyList_New(0);
    for (uint32_t i = 0; found && i < d->cells; i++) {
        if (!d->entries[i].owner || (owner != Py_None && d->entries[i].owner != owner) ||
            cw_pool_withdraw(d->pool, i))
            continue;
        struct entry entry = dispatch_disown(d, i);
        cw_pool_free(d->pool, i);
        Py_INCREF(Py_None);
        if (dispatch_append(&found, dispatch_told(&entry, 0, 0, Py_None, i)))
            Py_CLEAR(found);
    }
    return found;
}
