/*
 * dispatch.c: the module causeway._dispatch; see dispatch.h. Its types are in dispatch_parent.c and
 * dispatch_worker.c.
 */
#include "dispatch.h"

PyObject *raise_failure(int code) {
    PyObject *errors = PyImport_ImportModule("causeway.errors");
    PyObject *made =
        errors ? PyObject_CallMethod(errors, "from_status", "is", code, cw_error()) : NULL;
    if (made)
        PyErr_SetObject((PyObject *)Py_TYPE(made), made);
    Py_XDECREF(made);
    Py_XDECREF(errors);
    return NULL;
}

static PyObject *pool_bytes(PyObject *module, PyObject *args) {
    (void)module;
    unsigned workers, cells;
    if (!PyArg_ParseTuple(args, "II", &workers, &cells))
        return NULL;
    return PyLong_FromUnsignedLongLong(cw_pool_bytes(workers, cells));
}

static PyMethodDef functions[] = {
    {"pool_bytes", pool_bytes, METH_VARARGS, "Bytes of memory for so many workers and cells."},
    {"set_numpy", plain_numpy, METH_VARARGS, "Tells the array type and a tuple of scalar types."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "causeway._dispatch",
    .m_doc = "The hot path of the Pool: tasks and answers through shared memory.",
    .m_size = -1,
    .m_methods = functions,
};

static int add_type(PyObject *module, const char *name, PyType_Spec *spec) {
    PyObject *type = PyType_FromSpec(spec);
    return type ? PyModule_AddObject(module, name, type) : -1;
}

PyMODINIT_FUNC PyInit__dispatch(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && (plain_init() || add_type(module, "Dispatch", &dispatch_spec) ||
                   add_type(module, "WorkerEnd", &worker_spec) ||
                   PyModule_AddIntConstant(module, "DATA_MAX", CW_POOL_DATA_MAX) ||
                   PyModule_AddIntConstant(module, "FUNCTION_MAX", CW_POOL_FUNCTION_MAX) ||
                   PyModule_AddIntConstant(module, "FUNCTION_SLOTS", CW_POOL_FUNCTION_SLOTS) ||
                   PyModule_AddIntConstant(module, "CELLS_MAX", CW_POOL_CELLS_MAX) ||
                   PyModule_AddIntConstant(module, "WORKERS_MAX", CW_POOL_WORKERS_MAX)))
        Py_CLEAR(module);
    return module;
}
