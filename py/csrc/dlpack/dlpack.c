/*
 * dlpack.c: the module cableway._dlpack, which wraps memory of ours in DLPack capsules, and reads
 * those of others.
 *
 * capsule(): the struct inside the capsule owns one reference to a Python object (the lease of the
 * memory), which its deleter gives back. Invariant: exactly one of the two calls the deleter, the
 * consumer that renamed the capsule or the capsule's own destructor. The deleter may come from any
 * thread, with or without the GIL. In a process that dies nothing is left to repair: leases end
 * with the process.
 *
 * look(): what a capsule of another library says. It is not consumed: whoever keeps it, or what it
 * was made of, keeps the memory.
 *
 * leaves(): leaves.c.
 *
 * Limited API of Python 3.10, so that one binary serves all versions from there on.
 */
#include "dlpack.h"

#include <stdlib.h>

static const char VERSIONED[] = "dltensor_versioned";

static void owner_release(void *owner) {
    if (!Py_IsInitialized())
        return; /* the interpreter is gone, and with it every lease */
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF((PyObject *)owner);
    PyGILState_Release(state);
}

void dl_legacy_delete(struct dl_managed *self) {
    owner_release(self->context);
    free(self);
}

static void versioned_delete(struct dl_managed_versioned *self) {
    owner_release(self->context);
    free(self);
}

static void capsule_destroy(PyObject *capsule) {
    PyObject *type, *value, *trace; /* an exception may be under way */

    PyErr_Fetch(&type, &value, &trace);
    if (PyCapsule_IsValid(capsule, VERSIONED)) {
        struct dl_managed_versioned *managed = PyCapsule_GetPointer(capsule, VERSIONED);
        managed->deleter(managed);
    } else if (PyCapsule_IsValid(capsule, DL_LEGACY)) {
        struct dl_managed *managed = PyCapsule_GetPointer(capsule, DL_LEGACY);
        managed->deleter(managed);
    }
    PyErr_Restore(type, value, trace);
}

/* Copies a tuple of ints to out; 0, or -1 with an exception. */
static int dims_read(PyObject *tuple, Py_ssize_t ndim, int64_t *out) {
    for (Py_ssize_t i = 0; i < ndim; i++) {
        PyObject *item = PyTuple_GetItem(tuple, i);
        if (!item)
            return -1;
        out[i] = PyLong_AsLongLong(item);
        if (out[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

PyObject *dl_wrap(void *managed, const char *name, PyObject *owner) {
    PyObject *capsule = PyCapsule_New(managed, name, capsule_destroy);

    if (capsule)
        Py_INCREF(owner);
    else
        free(managed);
    return capsule;
}

PyDoc_STRVAR(
    capsule_doc,
    "capsule(owner, address, device, shape, strides, code, bits, lanes, flags, versioned)\n--\n\n"
    "A DLPack capsule over memory at address on a device (type, number), which owner keeps\n"
    "alive.\n"
    "strides count elements, of bits times lanes. flags and the name \"dltensor_versioned\" hold "
    "when versioned is true.");

static PyObject *capsule_new(PyObject *module, PyObject *args) {
    PyObject *owner, *shape, *strides;
    int device_type, device_id;
    unsigned long long address, flags;
    unsigned char code, bits;
    unsigned short lanes;
    int versioned;

    (void)module;
    if (!PyArg_ParseTuple(args, "OK(ii)O!O!bbHKp", &owner, &address, &device_type, &device_id,
                          &PyTuple_Type, &shape, &PyTuple_Type, &strides, &code, &bits, &lanes,
                          &flags, &versioned))
        return NULL;
    Py_ssize_t ndim = PyTuple_Size(shape);
    if (ndim != PyTuple_Size(strides) || ndim > 64) {
        PyErr_SetString(PyExc_ValueError, "shape and strides differ in length, or are too long");
        return NULL;
    }
    size_t head = versioned ? sizeof(struct dl_managed_versioned) : sizeof(struct dl_managed);
    uint8_t *memory = calloc(1, head + 2 * (size_t)ndim * sizeof(int64_t));
    if (!memory)
        return PyErr_NoMemory();
    int64_t *dims = (int64_t *)(memory + head);
    if (dims_read(shape, ndim, dims) || dims_read(strides, ndim, dims + ndim)) {
        free(memory);
        return NULL;
    }
    struct dl_tensor tensor = {
        .data = (void *)(uintptr_t)address,
        .device_type = device_type,
        .device_id = device_id,
        .ndim = (int32_t)ndim,
        .code = code,
        .bits = bits,
        .lanes = lanes,
        .shape = dims,
        .strides = dims + ndim,
    };
    if (versioned) {
        struct dl_managed_versioned *managed = (struct dl_managed_versioned *)memory;
        *managed = (struct dl_managed_versioned){1, 0, owner, versioned_delete, flags, tensor};
        return dl_wrap(managed, VERSIONED, owner);
    }
    struct dl_managed *managed = (struct dl_managed *)memory;
    *managed = (struct dl_managed){tensor, owner, dl_legacy_delete};
    return dl_wrap(managed, DL_LEGACY, owner);
}

/* A tuple of ndim numbers; None where there are none. */
static PyObject *dims_tuple(const int64_t *dims, int32_t ndim) {
    if (!dims)
        Py_RETURN_NONE;
    PyObject *tuple = PyTuple_New(ndim);
    for (int32_t i = 0; tuple && i < ndim; i++) {
        PyObject *item = PyLong_FromLongLong(dims[i]);
        if (!item || PyTuple_SetItem(tuple, i, item))
            Py_CLEAR(tuple);
    }
    return tuple;
}

PyDoc_STRVAR(look_doc,
             "look(capsule)\n--\n\n"
             "What a DLPack capsule says: address, device, shape, strides in elements (None: in C\n"
             "order), code, bits, lanes, flags. It is not consumed.");

static PyObject *capsule_look(PyObject *module, PyObject *capsule) {
    const struct dl_tensor *tensor;
    unsigned long long flags = 0;

    (void)module;
    if (PyCapsule_IsValid(capsule, VERSIONED)) {
        struct dl_managed_versioned *managed = PyCapsule_GetPointer(capsule, VERSIONED);
        if (managed->major > 1)
            return PyErr_Format(PyExc_BufferError, "DLPack %u is not known; 0 and 1 are",
                                managed->major);
        tensor = &managed->tensor;
        flags = managed->flags;
    } else if (PyCapsule_IsValid(capsule, DL_LEGACY)) {
        struct dl_managed *managed = PyCapsule_GetPointer(capsule, DL_LEGACY);
        tensor = &managed->tensor;
    } else {
        return PyErr_Format(PyExc_TypeError, "this is no DLPack capsule, or it was consumed");
    }
    if (tensor->ndim < 0 || tensor->ndim > 64 || (tensor->ndim && !tensor->shape))
        return PyErr_Format(PyExc_BufferError, "a DLPack capsule of %d axes", (int)tensor->ndim);
    PyObject *shape = dims_tuple(tensor->ndim ? tensor->shape : (int64_t[]){0}, tensor->ndim);
    PyObject *strides = shape ? dims_tuple(tensor->strides, tensor->ndim) : NULL;
    if (!strides) {
        Py_XDECREF(shape);
        return NULL;
    }
    return Py_BuildValue("K(ii)NNiiiK",
                         (unsigned long long)(uintptr_t)tensor->data + tensor->byte_offset,
                         (int)tensor->device_type, (int)tensor->device_id, shape, strides,
                         (int)tensor->code, (int)tensor->bits, (int)tensor->lanes, flags);
}

static PyMethodDef methods[] = {
    {"capsule", capsule_new, METH_VARARGS, capsule_doc},
    {"look", capsule_look, METH_O, look_doc},
    {"leaves", dl_leaves, METH_VARARGS, dl_leaves_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_dlpack",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__dlpack(void);
PyMODINIT_FUNC PyInit__dlpack(void) {
    return PyModule_Create(&definition);
}
