/*
 * dispatch_arrays.c: `Fields`, what an Array of cableway.array holds, and what is done with many
 * arrays in one call: a copy of 1,000 pairs spent three quarters of its time in Python.
 *
 * The names of the fields and what they mean are the Array's; here they are references, NULL where
 * they were never set. Owner: the Array, under the GIL.
 */
#include "dispatch.h"

#include <stddef.h>

typedef struct {
    PyObject_HEAD PyObject *lease;
    PyObject *layout;
    PyObject *memory;
    PyObject *name;
    PyObject *offset;
    PyObject *described;
} Fields;

PyTypeObject *fields_type;

int fields_of(PyObject *object, struct array_fields *out) {
    if (!PyObject_TypeCheck(object, fields_type))
        return 0;
    const Fields *fields = (const Fields *)object;
    *out = (struct array_fields){fields->lease, fields->layout, fields->offset};
    return 1;
}

static int fields_traverse(PyObject *self, visitproc visit, void *arg) {
    Fields *fields = (Fields *)self;
    Py_VISIT(fields->lease);
    Py_VISIT(fields->layout);
    Py_VISIT(fields->memory);
    Py_VISIT(fields->name);
    Py_VISIT(fields->offset);
    Py_VISIT(fields->described);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int fields_clear(PyObject *self) {
    Fields *fields = (Fields *)self;
    Py_CLEAR(fields->lease);
    Py_CLEAR(fields->layout);
    Py_CLEAR(fields->memory);
    Py_CLEAR(fields->name);
    Py_CLEAR(fields->offset);
    Py_CLEAR(fields->described);
    return 0;
}

static void fields_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    PyObject_GC_UnTrack(self);
    fields_clear(self);
    release(self);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"_lease", T_OBJECT_EX, offsetof(Fields, lease), 0, NULL},
    {"_layout", T_OBJECT_EX, offsetof(Fields, layout), 0, NULL},
    {"_memory", T_OBJECT_EX, offsetof(Fields, memory), 0, NULL},
    {"_name", T_OBJECT_EX, offsetof(Fields, name), 0, NULL},
    {"_offset", T_OBJECT_EX, offsetof(Fields, offset), 0, NULL},
    {"_described", T_OBJECT_EX, offsetof(Fields, described), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, fields_dealloc},     {Py_tp_traverse, fields_traverse},
    {Py_tp_clear, fields_clear},         {Py_tp_members, members},
    {Py_tp_doc, "What an Array holds."}, {0, NULL},
};
PyType_Spec fields_spec = {
    .name = "cableway._dispatch.Fields",
    .basicsize = sizeof(Fields),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

/* ---- pairs of a copy ---- */

struct end {         /* of the last pair: most are parts of one array */
    PyObject *lease; /* the list `leases` has it */
    cw_array *array;
};

struct shape {
    PyObject *to, *of; /* layouts; the Arrays keep theirs */
    int64_t span, origin;
};

static int is_none(PyObject *object) {
    return !object || object == Py_None;
}

/* The array behind a lease as usable() lets it be used; leases keeps it, whoever closes the Array
 * meanwhile. 1; 0: it may not be used, or was closed by now; -1 with an exception. */
static int look_at_lease(struct end *end, PyObject *lease, PyObject *usable, PyObject *leases) {
    if (is_none(lease))
        return 0;
    if (end->lease == lease)
        return 1;
    if (PyList_Append(leases, lease))
        return -1;
    PyObject *may = PyObject_CallFunctionObjArgs(usable, lease, NULL);
    if (!may)
        return -1;
    int good = may == Py_True;
    Py_DECREF(may);
    PyObject *cell = good ? PyObject_GetAttrString(lease, "cell") : NULL;
    if (!cell)
        return good ? -1 : 0;
    end->array = lease_cell_array_in(cell);
    end->lease = end->array ? lease : NULL;
    Py_DECREF(cell);
    return end->array != NULL;
}

/* What describe() says of two layouts: as look_at_lease(). */
static int look_at_layouts(struct shape *shape, PyObject *to, PyObject *of, PyObject *describe) {
    long long span, origin;
    if (shape->to == to && shape->of == of)
        return 1;
    PyObject *told = PyObject_CallFunctionObjArgs(describe, to, of, NULL);
    int code = !told ? -1 : told == Py_None ? 0 : 1;
    if (code == 1 && !PyArg_ParseTuple(told, "LL", &span, &origin))
        code = -1;
    if (code == 1)
        *shape = (struct shape){.to = to, .of = of, .span = span, .origin = origin};
    Py_XDECREF(told);
    return code;
}

/* Where an array's lowest byte lies in its lease's. */
static int low_of(const Fields *fields, int64_t origin, uint64_t *out) {
    long long offset = PyLong_AsLongLong(fields->offset);
    if (offset == -1 && PyErr_Occurred())
        return -1;
    *out = (uint64_t)(offset - origin);
    return 1;
}

/*
 * (pairs, address, usable, describe, leases): fills the cw_pair at that address from a list of
 * (target, source), from the front on as long as they are Arrays that have looked at their layouts;
 * the rest, and what is to be refused, is left to Python. Returns how many were filled; leases, a
 * list, gets what must not go as long as they are used.
 */
PyObject *pairs_fill(PyObject *module, PyObject *args) {
    PyObject *list, *usable, *describe, *leases;
    unsigned long long address;
    struct end ends[2] = {{NULL, NULL}, {NULL, NULL}};
    struct shape shape = {NULL, NULL, 0, 0};
    Py_ssize_t i = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!KOOO!", &PyList_Type, &list, &address, &usable, &describe,
                          &PyList_Type, &leases))
        return NULL;
    cw_pair *out = (cw_pair *)(uintptr_t)address;
    for (Py_ssize_t count = PyList_Size(list); i < count && i < PyList_Size(list); i++) {
        PyObject *pair = PyList_GetItem(list, i);
        if (!PyTuple_CheckExact(pair) || PyTuple_Size(pair) != 2)
            break;
        PyObject *to = PyTuple_GetItem(pair, 0), *of = PyTuple_GetItem(pair, 1);
        if (!PyObject_TypeCheck(to, fields_type) || !PyObject_TypeCheck(of, fields_type))
            break;
        const Fields *target = (Fields *)to, *source = (Fields *)of;
        if (is_none(target->lease) || is_none(source->lease) || is_none(target->layout) ||
            is_none(source->layout) || is_none(target->offset) || is_none(source->offset))
            break;
        int code = look_at_layouts(&shape, target->layout, source->layout, describe);
        if (code == 1)
            code = look_at_lease(&ends[0], target->lease, usable, leases);
        if (code == 1)
            code = look_at_lease(&ends[1], source->lease, usable, leases);
        if (code == 1)
            code = low_of(target, shape.origin, &out[i].target_bytes);
        if (code == 1)
            code = low_of(source, shape.origin, &out[i].source_bytes);
        if (code < 0)
            return NULL;
        if (code == 0)
            break;
        out[i].target = ends[0].array;
        out[i].source = ends[1].array;
        out[i].size_bytes = (uint64_t)shape.span;
    }
    return PyLong_FromSsize_t(i);
}
