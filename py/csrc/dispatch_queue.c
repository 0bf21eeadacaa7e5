/*
 * dispatch_queue.c: `QueueEnd`, the short way through a queue (cw_queue in ipc/cableway.h) for
 * plain objects. All else, and every refusal, is left to cableway.queue, which does it anew by
 * CFFI. The end and the item stay the caller's.
 */
#include "dispatch.h"

typedef struct {
    PyObject_HEAD cw_queue *queue;
    Py_ssize_t data_max; /* of one item */
} QueueEnd;

static int end_init(PyObject *self, PyObject *args, PyObject *kwds) {
    QueueEnd *end = (QueueEnd *)self;
    (void)kwds;
    unsigned long long queue;
    if (!PyArg_ParseTuple(args, "Kn", &queue, &end->data_max))
        return -1;
    end->queue = (cw_queue *)(uintptr_t)queue;
    return 0;
}

static void end_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* Puts a plain object if there is room now, and nobody else is putting: whether it did. */
static PyObject *end_put(PyObject *self, PyObject *object) {
    QueueEnd *end = (QueueEnd *)self;
    PyObject *pickled = plain_dumps(object);
    char *data;
    Py_ssize_t nbytes;
    if (!pickled || PyBytes_AsStringAndSize(pickled, &data, &nbytes)) {
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
    return PyBool_FromLong(code == 0);
}

/*
 * (slot, address of its cw_item, timeout_ns): the object taken. When it did not come, or comes with
 * arrays, slot.status is what the library said, and slot itself comes back.
 */
static PyObject *end_get(PyObject *self, PyObject *args) {
    QueueEnd *end = (QueueEnd *)self;
    PyObject *slot;
    unsigned long long address;
    long long timeout_ns;
    if (!PyArg_ParseTuple(args, "OKL", &slot, &address, &timeout_ns))
        return NULL;
    cw_item *item = (cw_item *)(uintptr_t)address;
    int code;
    Py_BEGIN_ALLOW_THREADS;
    code = cw_queue_get(end->queue, item, timeout_ns);
    Py_END_ALLOW_THREADS;
    if (code == 0)
        return plain_loads(item->data, (uint32_t)item->size_bytes);
    PyObject *status = PyLong_FromLong(code);
    if (!status || PyObject_SetAttrString(slot, "status", status)) {
        Py_XDECREF(status);
        return NULL;
    }
    Py_DECREF(status);
    Py_INCREF(slot);
    return slot;
}

static PyMethodDef methods[] = {
    {"put", end_put, METH_O, "(object): whether it was plain, and there was room."},
    {"get", end_get, METH_VARARGS, "(slot, address, timeout_ns): the object, or slot."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_init, end_init},
    {Py_tp_dealloc, end_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, "QueueEnd(queue, data_max): by its address, and the most bytes of an item."},
    {0, NULL},
};
PyType_Spec queue_spec = {
    .name = "cableway._dispatch.QueueEnd",
    .basicsize = sizeof(QueueEnd),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
