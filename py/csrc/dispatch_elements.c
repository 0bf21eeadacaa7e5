/*
 * dispatch_elements.c: what an operation of a group is given, found in nanoseconds: the address,
 * the cw_array or none, the number of elements and the dtype's text. What is not found here is
 * found, or refused, by cableway._group.elements.
 *
 * Nothing is kept but layouts, which never change, and the texts of dtypes, which live as long as
 * the process. The array's memory is looked up anew each time.
 */
#include "dispatch.h"

static PyObject *array_type, *lease_type, *texts, *marks; /* given by elements_types(), for ever */
static PyObject *dtype_name, *base_name, *cell_name;

/* An ndarray, as NumPy's own headers lay it out for extensions (PyArrayObject_fields): the same in
 * all versions of NumPy 1 and 2, since macros that were compiled long ago read it. Reading it takes
 * no time; the buffer protocol takes some 60 ns an array. */
struct ndarray {
    PyObject_HEAD void *data;
    int ndim;
    Py_ssize_t *shape, *strides;
    PyObject *base; /* NULL: it owns its memory */
    PyObject *dtype;
    int flags;
};
#define C_CONTIGUOUS 0x1
#define WRITEABLE    0x400
#define WARNS        ((int)(1u << 31)) /* a write warns: NumPy does that where it is asked */
static int reads_ndarrays;             /* this NumPy's arrays are so, see laid_out() */

static int bytes_of(PyObject *object, int writable, void **data, Py_ssize_t *nbytes);

/* Is an ndarray of 3 by 5 elements of two bytes laid out so, and a view of it? What fails here is
 * no error: the buffer protocol is used then. */
static int laid_out(PyObject *type) {
    PyObject *made = PyObject_CallFunction(type, "(ii)s", 3, 5, "i2");
    PyObject *view = made ? PyObject_GetItem(made, Py_Ellipsis) : NULL;
    PyObject *dtype = made ? PyObject_GetAttr(made, dtype_name) : NULL;
    PyObject *flags = made ? PyObject_GetAttrString(made, "flags") : NULL;
    PyObject *number = flags ? PyObject_GetAttrString(flags, "num") : NULL;
    PyObject *size = PyObject_GetAttrString(type, "__basicsize__");
    Py_ssize_t nbytes = 0;
    void *data = NULL;
    int same = 0;
    if (view && dtype && number && size &&
        PyLong_AsSsize_t(size) >= (Py_ssize_t)sizeof(struct ndarray) &&
        bytes_of(made, 1, &data, &nbytes)) {
        const struct ndarray *own = (struct ndarray *)made, *its = (struct ndarray *)view;
        same = own->ndim == 2 && own->data == data && nbytes == 30 && own->shape[0] == 3 &&
               own->shape[1] == 5 && own->strides[0] == 10 && own->strides[1] == 2 && !own->base &&
               own->dtype == dtype && own->flags == (int)PyLong_AsLong(number) &&
               (own->flags & C_CONTIGUOUS) && (own->flags & WRITEABLE) && its->base == made &&
               its->data == data;
    }
    PyErr_Clear();
    Py_XDECREF(made);
    Py_XDECREF(view);
    Py_XDECREF(dtype);
    Py_XDECREF(flags);
    Py_XDECREF(number);
    Py_XDECREF(size);
    return same;
}

PyObject *elements_types(PyObject *module, PyObject *args) {
    PyObject *array, *lease, *known, *begun;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOO", &array, &lease, &known, &begun))
        return NULL;
    dtype_name = PyUnicode_InternFromString("dtype");
    base_name = PyUnicode_InternFromString("base");
    cell_name = PyUnicode_InternFromString("cell");
    if (!dtype_name || !base_name || !cell_name)
        return NULL;
    Py_INCREF(array);
    Py_INCREF(lease);
    Py_INCREF(known);
    Py_INCREF(begun);
    array_type = array;
    lease_type = lease;
    texts = known;
    marks = begun;
    reads_ndarrays = laid_out(array);
    return PyBool_FromLong(reads_ndarrays);
}

void layouts_note(struct layouts_known *known, PyObject *layout, PyObject *text,
                  unsigned long long count) {
    unsigned at = known->next++ % LAYOUTS_KNOWN;
    PyObject *old_layout = known->layout[at], *old_text = known->text[at];
    Py_INCREF(layout);
    Py_INCREF(text);
    known->layout[at] = layout;
    known->text[at] = text;
    known->count[at] = count;
    Py_XDECREF(old_layout);
    Py_XDECREF(old_text);
}

void layouts_forget(struct layouts_known *known) {
    for (unsigned i = 0; i < LAYOUTS_KNOWN; i++) {
        Py_CLEAR(known->layout[i]);
        Py_CLEAR(known->text[i]);
    }
}

/* The address of an array's lowest byte in this process. */
static uint8_t *lowest(const cw_array *array) {
    cw_layout layout;
    uint8_t *data = cw_array_data(array);
    cw_array_layout(array, &layout);
    for (uint32_t i = 0; i < layout.ndim; i++)
        if (layout.strides[i] < 0)
            return NULL;
    return data;
}

/* Is nothing of this process's begun on it, for which an operation would wait for ever? Of a GPU's
 * memory; cableway._group.gpu refuses it then. */
static int not_begun(PyObject *lease) {
    PyObject *reference = PyWeakref_NewRef(lease, NULL);
    PyObject *found = reference ? PyDict_GetItemWithError(marks, reference) : NULL;
    Py_XDECREF(reference);
    if (!found) {
        int failed = PyErr_Occurred() != NULL;
        PyErr_Clear();
        return !failed;
    }
    return PyList_Check(found) && PyList_Size(found) == 0;
}

/* Bytes of one element, of a text that elements.py knows: the number at its end, or of a word. */
static Py_ssize_t itemsize_of(PyObject *text) {
    uint32_t size;
    return cw_dtype_size(PyBytes_AsString(text), &size) ? 0 : (Py_ssize_t)size;
}

static int of_array(const struct array_fields *fields, int writable,
                    const struct layouts_known *known, struct elements *out) {
    unsigned at = 0;
    if (!fields->lease || !fields->layout || !fields->offset ||
        (PyObject *)Py_TYPE(fields->lease) != lease_type)
        return 0;
    while (at < LAYOUTS_KNOWN && known->layout[at] != fields->layout)
        at++;
    if (at == LAYOUTS_KNOWN)
        return 0;
    PyObject *cell = PyObject_GetAttr(fields->lease, cell_name);
    cw_array *array = cell ? lease_cell_array_in(cell) : NULL;
    Py_XDECREF(cell);
    long long offset = PyLong_AsLongLong(fields->offset);
    if (PyErr_Occurred() || !array) {
        PyErr_Clear();
        return 0;
    }
    uint8_t *low = cw_array_gpu(array) < 0 || not_begun(fields->lease) ? lowest(array) : NULL;
    if (!low || cw_array_inherited(array) || (writable && cw_array_readonly(array)))
        return 0;
    Py_ssize_t itemsize = itemsize_of(known->text[at]);
    if (!itemsize)
        return 0;
    Py_INCREF(fields->lease);
    *out = (struct elements){{low + offset, array},
                             known->count[at],
                             known->count[at] * (size_t)itemsize,
                             known->text[at],
                             fields->lease};
    return 1;
}

/* The old calls of the buffer protocol: those that every Python with this limited API has. The
 * memory stays, since the caller holds the array, and it is not resized while it is used. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
int PyObject_AsReadBuffer(PyObject *object, const void **data, Py_ssize_t *nbytes);
int PyObject_AsWriteBuffer(PyObject *object, void **data, Py_ssize_t *nbytes);

static int bytes_of(PyObject *object, int writable, void **data, Py_ssize_t *nbytes) {
    const void *read = NULL;
    int code = writable ? PyObject_AsWriteBuffer(object, data, nbytes)
                        : PyObject_AsReadBuffer(object, &read, nbytes);
    if (code)
        PyErr_Clear();
    else if (!writable)
        *data = (void *)(uintptr_t)read;
    return code == 0;
}
#pragma GCC diagnostic pop

/* Does it own its memory, or is it a view of one that does? Then it is none of ours. */
static int owns(PyObject *object) {
    PyObject *base = PyObject_GetAttr(object, base_name);
    int own = base == Py_None;
    if (!base)
        PyErr_Clear();
    Py_XDECREF(base);
    return own;
}

/* Without a call to NumPy. */
static int of_known_ndarray(const struct ndarray *array, int writable, struct elements *out) {
    PyObject *text = PyDict_GetItemWithError(texts, array->dtype);
    const Py_ssize_t itemsize = text ? itemsize_of(text) : 0;
    unsigned long long count = 1;
    if (!itemsize || !(array->flags & C_CONTIGUOUS) ||
        (writable && (array->flags & (WRITEABLE | WARNS)) != WRITEABLE)) {
        PyErr_Clear();
        return 0;
    }
    for (int i = 0; i < array->ndim; i++)
        count *= (unsigned long long)array->shape[i];
    const unsigned long long nbytes = count * (unsigned long long)itemsize;
    if (nbytes > CW_GROUP_INLINE_MAX && array->base)
        return 0; /* it may be a view of one of ours */
    *out = (struct elements){{array->data, NULL}, count, nbytes, text, NULL};
    return 1;
}

static int of_ndarray(PyObject *object, int writable, struct elements *out) {
    Py_ssize_t nbytes, itemsize;
    void *data;
    if (reads_ndarrays)
        return of_known_ndarray((const struct ndarray *)object, writable, out);
    PyObject *dtype = PyObject_GetAttr(object, dtype_name);
    PyObject *text = dtype ? PyDict_GetItemWithError(texts, dtype) : NULL;
    Py_XDECREF(dtype);
    if (!text) {
        PyErr_Clear();
        return 0;
    }
    itemsize = itemsize_of(text);
    if (!itemsize || !bytes_of(object, writable, &data, &nbytes))
        return 0;
    if (nbytes > CW_GROUP_INLINE_MAX && !owns(object))
        return 0;
    *out = (struct elements){
        {data, NULL}, (unsigned long long)(nbytes / itemsize), (size_t)nbytes, text, NULL};
    return 1;
}

int elements_of(PyObject *object, int writable, const struct layouts_known *known,
                struct elements *out) {
    struct array_fields fields;
    if ((PyObject *)Py_TYPE(object) == array_type)
        return of_ndarray(object, writable, out);
    return array_type && fields_of(object, &fields) ? of_array(&fields, writable, known, out) : 0;
}

void elements_end(struct elements *elements) {
    Py_CLEAR(elements->lease);
}
