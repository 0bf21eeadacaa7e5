/*
 * dispatch_small.c: pickles of the smallest plain objects, written and read without the pickler,
 * which takes longer to begin than they take to write. See dispatch.h.
 *
 * They are pickles of protocol 5 as any other, made of few opcodes (no memo: nothing in them is
 * worth to be named twice), so that either side may leave either direction to the pickler. What is
 * read was written by another process and copied out of its reach (plain_loads_task): every length
 * is checked, and whatever is not known is left to the pickler as well.
 */
#include "dispatch.h"

#define DEPTH_MAX 4
#define STACK_MAX 64 /* objects that a reader keeps at a time */
#define TEXT_MAX  255

/* Opcodes; see Lib/pickletools.py. */
enum {
    OP_PROTO = 0x80,
    OP_NONE = 'N',
    OP_TRUE = 0x88,
    OP_FALSE = 0x89,
    OP_INT1 = 'K',
    OP_INT2 = 'M',
    OP_INT4 = 'J',
    OP_LONG1 = 0x8a,
    OP_FLOAT = 'G',
    OP_TEXT = 0x8c,
    OP_BYTES = 'C',
    OP_MARK = '(',
    OP_TUPLE = 't',
    OP_TUPLE0 = ')',
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_LIST = ']',
    OP_APPEND = 'a',
    OP_APPENDS = 'e',
    OP_STOP = '.'
};

/* ---- writing ---- */

struct writer {
    uint8_t *at, *end;
};

static int put(struct writer *w, uint8_t op, const void *data, Py_ssize_t nbytes) {
    if (w->end - w->at < nbytes + 1)
        return -1;
    *w->at++ = op;
    if (nbytes)
        memcpy(w->at, data, (size_t)nbytes);
    w->at += nbytes;
    return 0;
}

/* The low bytes of a number, the lowest first. */
static int put_number(struct writer *w, uint8_t op, uint64_t number, int nbytes) {
    uint8_t bytes[8];
    for (int i = 0; i < nbytes; i++)
        bytes[i] = (uint8_t)(number >> 8 * i);
    return put(w, op, bytes, nbytes);
}

static int put_int(struct writer *w, PyObject *object) {
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow)
        return -1;
    if (value >= 0 && value <= 0xff)
        return put_number(w, OP_INT1, (uint64_t)value, 1);
    if (value >= 0 && value <= 0xffff)
        return put_number(w, OP_INT2, (uint64_t)value, 2);
    if (value >= INT32_MIN && value <= INT32_MAX)
        return put_number(w, OP_INT4, (uint64_t)value, 4);
    if (w->end - w->at < 10)
        return -1;
    *w->at++ = OP_LONG1;
    return put_number(w, 8, (uint64_t)value, 8); /* its length takes the opcode's place */
}

static int put_float(struct writer *w, PyObject *object) {
    double value = PyFloat_AsDouble(object);
    uint64_t bits;
    uint8_t bytes[8];
    memcpy(&bits, &value, sizeof bits);
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(bits >> (56 - 8 * i));
    return put(w, OP_FLOAT, bytes, 8);
}

/* Text or bytes: an opcode, the length in one byte, the bytes. */
static int put_short(struct writer *w, uint8_t op, const char *data, Py_ssize_t nbytes) {
    if (nbytes > TEXT_MAX || w->end - w->at < nbytes + 2)
        return -1;
    *w->at++ = op;
    return put(w, (uint8_t)nbytes, data, nbytes);
}

static int put_text(struct writer *w, PyObject *object) {
    Py_ssize_t nbytes;
    if (PyUnicode_GetLength(object) > TEXT_MAX)
        return -1;
    const char *text = PyUnicode_AsUTF8AndSize(object, &nbytes);
    if (text)
        return put_short(w, OP_TEXT, text, nbytes);
    PyErr_Clear(); /* lone surrogates: the pickler knows how */
    return -1;
}

static int put_bytes(struct writer *w, PyObject *object) {
    char *data;
    Py_ssize_t nbytes;
    if (PyBytes_AsStringAndSize(object, &data, &nbytes)) {
        PyErr_Clear();
        return -1;
    }
    return put_short(w, OP_BYTES, data, nbytes);
}

static int put_object(struct writer *w, PyObject *object, int depth);

static int put_tuple(struct writer *w, PyObject *tuple, int depth) {
    static const uint8_t ends[] = {OP_TUPLE0, OP_TUPLE1, OP_TUPLE2, OP_TUPLE3, OP_TUPLE};
    Py_ssize_t size = PyTuple_Size(tuple);
    if (depth >= DEPTH_MAX || size > STACK_MAX / 2 || (size > 3 && put(w, OP_MARK, NULL, 0)))
        return -1;
    for (Py_ssize_t i = 0; i < size; i++)
        if (put_object(w, PyTuple_GetItem(tuple, i), depth + 1))
            return -1;
    return put(w, ends[size < 4 ? size : 4], NULL, 0);
}

static int put_object(struct writer *w, PyObject *object, int depth) {
    PyTypeObject *type = Py_TYPE(object);
    if (type == &PyLong_Type)
        return put_int(w, object);
    if (type == &PyTuple_Type)
        return put_tuple(w, object, depth);
    if (object == Py_None)
        return put(w, OP_NONE, NULL, 0);
    if (object == Py_True || object == Py_False)
        return put(w, object == Py_True ? OP_TRUE : OP_FALSE, NULL, 0);
    if (type == &PyFloat_Type)
        return put_float(w, object);
    if (type == &PyUnicode_Type)
        return put_text(w, object);
    if (type == &PyBytes_Type)
        return put_bytes(w, object);
    return -1;
}

/* A list that is all there is: within others the same one might stand twice, and must come out as
 * one. */
static int put_list(struct writer *w, PyObject *list) {
    Py_ssize_t size = PyList_Size(list);
    if (size > STACK_MAX / 2 || put(w, OP_LIST, NULL, 0) || (size > 1 && put(w, OP_MARK, NULL, 0)))
        return -1;
    for (Py_ssize_t i = 0; i < size; i++)
        if (put_object(w, PyList_GetItem(list, i), 1))
            return -1;
    return size == 0 ? 0 : put(w, size == 1 ? OP_APPEND : OP_APPENDS, NULL, 0);
}

Py_ssize_t small_dump(PyObject *object, void *out, Py_ssize_t most) {
    struct writer writer = {.at = out, .end = (uint8_t *)out + most};
    uint8_t protocol = 5;
    int is_list = Py_TYPE(object) == &PyList_Type;
    if (put(&writer, OP_PROTO, &protocol, 1) ||
        (is_list ? put_list(&writer, object) : put_object(&writer, object, 0)) ||
        put(&writer, OP_STOP, NULL, 0))
        return -1;
    return writer.at - (uint8_t *)out;
}

/* ---- reading ---- */

struct reader {
    const uint8_t *at, *end;
    PyObject *stack[STACK_MAX]; /* NULL: a mark */
    int depth;
};

/* So many bytes; NULL where they are not there. */
static const uint8_t *take(struct reader *r, Py_ssize_t nbytes) {
    const uint8_t *found = r->at;
    if (r->end - r->at < nbytes)
        return NULL;
    r->at += nbytes;
    return found;
}

/* The next byte, -1 at the end. */
static int take_byte(struct reader *r) {
    return r->at < r->end ? *(const volatile uint8_t *)r->at++ : -1;
}

static uint64_t number_of(const uint8_t *bytes, int nbytes) {
    uint64_t number = 0;
    for (int i = 0; i < nbytes; i++)
        number |= (uint64_t)bytes[i] << 8 * i;
    return number;
}

static PyObject *read_number(struct reader *r, int op) {
    int nbytes = op == OP_INT1 ? 1 : op == OP_INT2 ? 2 : op == OP_INT4 ? 4 : 8;
    if (op == OP_LONG1 && take_byte(r) != 8)
        return NULL;
    const uint8_t *bytes = take(r, nbytes);
    if (!bytes)
        return NULL;
    uint64_t number = number_of(bytes, nbytes);
    return PyLong_FromLongLong(op == OP_INT4 ? (int32_t)(uint32_t)number : (int64_t)number);
}

static PyObject *read_float(struct reader *r) {
    const uint8_t *bytes = take(r, 8);
    if (!bytes)
        return NULL;
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | bytes[i];
    double value;
    memcpy(&value, &bits, sizeof value);
    return PyFloat_FromDouble(value);
}

static PyObject *read_short(struct reader *r, int op) {
    int length = take_byte(r);
    const char *bytes = length < 0 ? NULL : (const char *)take(r, length);
    if (!bytes)
        return NULL;
    return op == OP_BYTES ? PyBytes_FromStringAndSize(bytes, length)
                          : PyUnicode_DecodeUTF8(bytes, length, "strict");
}

/* The topmost so many objects as a tuple; -1: all above the topmost mark. */
static PyObject *read_tuple(struct reader *r, int size) {
    int marked = size < 0, from = r->depth;
    while (from > 0 && r->stack[from - 1] && (marked || r->depth - from < size))
        from--;
    if (marked ? from == 0 : r->depth - from < size)
        return NULL;
    PyObject *tuple = PyTuple_New(r->depth - from);
    if (!tuple)
        return NULL;
    for (int i = from; i < r->depth; i++)
        PyTuple_SetItem(tuple, i - from, r->stack[i]);
    r->depth = from - marked;
    return tuple;
}

/* Appends the topmost object, or all above the topmost mark, to the list below. */
static int read_append(struct reader *r, int marked) {
    int from = r->depth - 1, code = 0;
    while (marked && from >= 0 && r->stack[from])
        from--;
    int at = from - 1; /* of the list; from: of the mark or of the one object */
    if (at < 0 || !r->stack[at] || Py_TYPE(r->stack[at]) != &PyList_Type)
        return -1;
    for (int i = from + marked; i < r->depth && code == 0; i++)
        code = r->stack[i] ? PyList_Append(r->stack[at], r->stack[i]) : -1;
    while (r->depth > from) {
        r->depth--;
        Py_XDECREF(r->stack[r->depth]);
    }
    return code;
}

static PyObject *read_object(struct reader *r, int op) {
    switch (op) {
    case OP_INT1:
    case OP_INT2:
    case OP_INT4:
    case OP_LONG1:
        return read_number(r, op);
    case OP_FLOAT:
        return read_float(r);
    case OP_TEXT:
    case OP_BYTES:
        return read_short(r, op);
    case OP_TUPLE0:
    case OP_TUPLE1:
    case OP_TUPLE2:
    case OP_TUPLE3:
        return read_tuple(r, op == OP_TUPLE0 ? 0 : op - OP_TUPLE1 + 1);
    case OP_TUPLE:
        return read_tuple(r, -1);
    case OP_LIST:
        return PyList_New(0);
    default: {
        PyObject *known = op == OP_NONE    ? Py_None
                          : op == OP_TRUE  ? Py_True
                          : op == OP_FALSE ? Py_False
                                           : NULL;
        Py_XINCREF(known);
        return known;
    }
    }
}

PyObject *small_load(const void *data, uint32_t size_bytes) {
    struct reader reader = {.at = data, .end = (const uint8_t *)data + size_bytes};
    PyObject *found = NULL;
    int op = -1;
    if (take_byte(&reader) == OP_PROTO && take_byte(&reader) == 5)
        while (reader.depth < STACK_MAX && (op = take_byte(&reader)) >= 0 && op != OP_STOP) {
            if (op == OP_APPEND || op == OP_APPENDS) {
                if (read_append(&reader, op == OP_APPENDS))
                    break;
                continue;
            }
            PyObject *next = op == OP_MARK ? NULL : read_object(&reader, op);
            if (!next && op != OP_MARK)
                break;
            reader.stack[reader.depth++] = next;
        }
    if (op == OP_STOP && reader.depth == 1)
        found = reader.stack[--reader.depth];
    while (reader.depth > 0)
        Py_XDECREF(reader.stack[--reader.depth]);
    if (!found)
        PyErr_Clear(); /* the pickler says it */
    return found;
}
