/*
 * dispatch_plain.c: plain objects and their pickles; see dispatch.h.
 *
 * The scan is bounded (bytes of the pickle, depth), so that a large object costs a little before it
 * goes the other way, and is not pickled twice. It counts what the pickle has at least: texts and
 * bytes as if they had stood there before. An object of others that stands there several times is
 * counted each time: where that is too much, it goes the other way.
 */
#include "dispatch.h"

#define DEPTH_MAX   4
#define FLOAT_BYTES 9
#define OTHER_BYTES 2 /* of all else but None and booleans; of another one, what names it */

static PyObject *dumps, *loads, *protocol;
static PyObject *ndarray, *scalars; /* NumPy's types; NULL until told */

int plain_init(void) {
    PyObject *pickle = PyImport_ImportModule("_pickle");
    if (!pickle)
        return -1;
    dumps = PyObject_GetAttrString(pickle, "dumps");
    loads = PyObject_GetAttrString(pickle, "loads");
    protocol = PyLong_FromLong(5);
    Py_DECREF(pickle);
    return dumps && loads && protocol ? 0 : -1;
}

PyObject *plain_numpy(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *array_type, *scalar_types;
    if (!PyArg_ParseTuple(args, "OO!", &array_type, &PyTuple_Type, &scalar_types))
        return NULL;
    Py_INCREF(array_type);
    Py_INCREF(scalar_types);
    Py_XDECREF(ndarray);
    Py_XDECREF(scalars);
    ndarray = array_type;
    scalars = scalar_types;
    Py_RETURN_NONE;
}

/* A small array without objects in it? */
static int is_small_array(PyObject *array) {
    static PyObject *nbytes_name, *dtype_name, *hasobject_name;
    if (!nbytes_name) {
        nbytes_name = PyUnicode_InternFromString("nbytes");
        dtype_name = PyUnicode_InternFromString("dtype");
        hasobject_name = PyUnicode_InternFromString("hasobject");
    }
    PyObject *nbytes = PyObject_GetAttr(array, nbytes_name);
    long size = nbytes ? PyLong_AsLong(nbytes) : -1;
    Py_XDECREF(nbytes);
    PyObject *dtype =
        size >= 0 && size < CW_POOL_DATA_MAX ? PyObject_GetAttr(array, dtype_name) : NULL;
    PyObject *hasobject = dtype ? PyObject_GetAttr(dtype, hasobject_name) : NULL;
    int small = hasobject == Py_False;
    Py_XDECREF(hasobject);
    Py_XDECREF(dtype);
    PyErr_Clear();
    return small;
}

/* Bytes that a number takes in a pickle, at least. */
static int number_bytes(PyObject *number) {
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow || value > INT32_MAX || value < INT32_MIN)
        return 6;
    return value < 0 || value > 0xffff ? 5 : value > 0xff ? 3 : 2;
}

static int is_plain(PyObject *object, int depth, int *left_bytes) {
    PyTypeObject *type = Py_TYPE(object);
    *left_bytes -= object == Py_None || type == &PyBool_Type ? 1
                   : type == &PyLong_Type                    ? number_bytes(object)
                   : type == &PyFloat_Type                   ? FLOAT_BYTES
                                                             : OTHER_BYTES;
    if (*left_bytes < 0)
        return 0;
    if (object == Py_None || type == &PyBool_Type || type == &PyFloat_Type ||
        type == &PyLong_Type || type == &PyComplex_Type)
        return 1;
    if (type == &PyUnicode_Type)
        return PyUnicode_GetLength(object) < CW_POOL_DATA_MAX;
    if (type == &PyBytes_Type)
        return PyBytes_Size(object) < CW_POOL_DATA_MAX;
    if (depth < DEPTH_MAX && type == &PyTuple_Type) {
        Py_ssize_t size = PyTuple_Size(object);
        for (Py_ssize_t i = 0; i < size; i++)
            if (!is_plain(PyTuple_GetItem(object, i), depth + 1, left_bytes))
                return 0;
        return 1;
    }
    if (depth < DEPTH_MAX && type == &PyList_Type) {
        for (Py_ssize_t i = 0; i < PyList_Size(object); i++)
            if (!is_plain(PyList_GetItem(object, i), depth + 1, left_bytes))
                return 0;
        return 1;
    }
    if (depth < DEPTH_MAX && type == &PyDict_Type) {
        PyObject *key, *value;
        Py_ssize_t at = 0;
        while (PyDict_Next(object, &at, &key, &value))
            if (!is_plain(key, depth + 1, left_bytes) || !is_plain(value, depth + 1, left_bytes))
                return 0;
        return 1;
    }
    if ((PyObject *)type == ndarray)
        return is_small_array(object);
    if (scalars) {
        Py_ssize_t size = PyTuple_Size(scalars);
        for (Py_ssize_t i = 0; i < size; i++)
            if ((PyObject *)type == PyTuple_GetItem(scalars, i))
                return 1;
    }
    return 0;
}

PyObject *plain_dumps(PyObject *object) {
    int left_bytes = CW_POOL_DATA_MAX;
    if (!is_plain(object, 0, &left_bytes))
        return NULL;
    PyObject *pickled = PyObject_CallFunctionObjArgs(dumps, object, protocol, NULL);
    if (pickled && PyBytes_Size(pickled) > CW_POOL_DATA_MAX)
        Py_CLEAR(pickled);
    /* What has failed is told by who encodes it as a message, to whom it concerns. */
    if (!pickled && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
    return pickled;
}

PyObject *plain_loads(const void *data, uint32_t size_bytes) {
    PyObject *small = small_load(data, size_bytes);
    if (small)
        return small;
    PyObject *view = PyMemoryView_FromMemory((char *)(uintptr_t)data, size_bytes, PyBUF_READ);
    if (!view)
        return NULL;
    PyObject *object = PyObject_CallFunctionObjArgs(loads, view, NULL);
    Py_DECREF(view);
    return object;
}

PyObject *plain_loads_task(const cw_task *task) {
    uint8_t copy[CW_POOL_DATA_MAX];
    uint32_t size_bytes = task->size_bytes < sizeof copy ? task->size_bytes : sizeof copy;
    memcpy(copy, task->data, size_bytes);
    return plain_loads(copy, size_bytes);
}
