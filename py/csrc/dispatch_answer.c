/*
 * dispatch_answer.c: `Answer`, a worker's message with memory beside it, in the parent.
 *
 * The worker that sent it stays, and takes no other task, until the parent has opened that memory:
 * it alone holds it. So whatever becomes of the message here, the worker must hear that it need not
 * stay: because all is open, or because nobody will open it (it cannot be opened, nobody wants it,
 * who had it was interrupted).
 *
 * Invariant: each answer of that kind is released once (cw_pool_release): by who has opened it, or
 * has found that it cannot be; else when this object goes. It is one store, which needs no memory,
 * no descriptor and no broker. As long as it is not released, the worker keeps what goes with it,
 * so opening may be begun again.
 *
 * Owner: who has the object, under the GIL. Deaths: of the worker, see dispatch_reap(): its number
 * may be another one's by then, so what it had sent is released no more (`lives`). Of the parent:
 * its workers end. A forked child has copies of these objects, and releases none.
 */
#include "dispatch_parent.h"

PyTypeObject *answer_type;

typedef struct {
    PyObject_HEAD Dispatch *dispatch;
    PyObject *data; /* bytes: the message */
    uint32_t worker, life;
    char released;
} Answer;

static void release_worker(const Dispatch *d, uint32_t worker, uint32_t life) {
    if (dispatch_is_here(d) && d->lives[worker] == life)
        cw_pool_release(d->pool, worker);
}

PyObject *answer_new(Dispatch *d, const cw_task *task, PyObject *data) {
    uint32_t life = d->lives[task->worker];
    Answer *answer = data ? PyObject_GC_New(Answer, answer_type) : NULL;
    if (!answer) {
        Py_XDECREF(data);
        release_worker(d, task->worker, life);
        return NULL;
    }
    Py_INCREF((PyObject *)d);
    answer->dispatch = d;
    answer->data = data;
    answer->worker = task->worker;
    answer->life = life;
    answer->released = 0;
    PyObject_GC_Track((PyObject *)answer);
    return (PyObject *)answer;
}

void answer_release(PyObject *object) {
    Answer *answer = (Answer *)object;
    if (!object || Py_TYPE(object) != answer_type || answer->released)
        return;
    answer->released = 1;
    release_worker(answer->dispatch, answer->worker, answer->life);
}

static PyObject *answer_end(PyObject *self, PyObject *none) {
    (void)none;
    answer_release(self);
    Py_RETURN_NONE;
}

static int answer_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT((PyObject *)((Answer *)self)->dispatch);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void answer_dealloc(PyObject *self) {
    Answer *answer = (Answer *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    answer_release(self);
    Py_DECREF((PyObject *)answer->dispatch);
    Py_DECREF(answer->data);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"release", answer_end, METH_NOARGS,
     "(): its worker need stay no longer. May be repeated; else done when it goes."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"worker", T_UINT, offsetof(Answer, worker), READONLY, "The number of who has sent it."},
    {"data", T_OBJECT, offsetof(Answer, data), READONLY, "The message, as bytes."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, answer_dealloc},
    {Py_tp_traverse, answer_traverse},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_doc, "A worker's message, for which it stays until this is released."},
    {0, NULL},
};
PyType_Spec answer_spec = {
    .name = "cableway._dispatch.Answer",
    .basicsize = sizeof(Answer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};
