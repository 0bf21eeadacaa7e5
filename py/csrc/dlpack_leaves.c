/*
 * leaves(): all leaves of a tree as tensors of another library, in one call. A tree has up to
 * hundreds of thousands, and a loop in Python takes twice as long for each as the library itself.
 *
 * The index is the library's own copy, which was checked (ipc/tree/index.h): only its size is
 * looked at again.
 */
#include "dlpack.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/tree/index.h"

struct form { /* a dtype of the tree */
    uint32_t dtype_at, itemsize;
    uint8_t code, bits;
    uint16_t lanes;
};
struct place {       /* a part */
    PyObject *owner; /* borrowed from the caller's list */
    uint64_t address;
    int32_t device_type, device_id;
};
struct leaves {
    const struct cw_index_leaf *leaf;
    const int64_t *numbers;
    const char *text;
    uint32_t count;
    struct form *forms;
    struct place *places;
    Py_ssize_t form_count, place_count;
};

/* 0, or -1 with an exception. */
static int index_open(uint64_t address, uint64_t size_bytes, struct leaves *tree) {
    const struct cw_index_head *head = (const void *)(uintptr_t)address;
    const char *at = (const char *)(head + 1);

    if (size_bytes >= sizeof *head && size_bytes >= head->size_bytes) {
        uint64_t parts_bytes = head->parts * sizeof(struct cw_index_part);
        uint64_t leaves_bytes = head->leaves * sizeof(struct cw_index_leaf);
        uint64_t numbers_bytes = head->numbers * sizeof(int64_t);
        if (sizeof *head + parts_bytes + leaves_bytes + numbers_bytes + head->text_bytes <=
            size_bytes) {
            tree->count = head->leaves;
            tree->leaf = (const void *)(at + parts_bytes);
            tree->numbers = (const void *)(at + parts_bytes + leaves_bytes);
            tree->text = at + parts_bytes + leaves_bytes + numbers_bytes;
            return 0;
        }
    }
    PyErr_SetString(PyExc_ValueError, "the index of the tree is cut off");
    return -1;
}

static int forms_read(PyObject *list, struct leaves *tree) {
    tree->form_count = PyList_Size(list);
    tree->forms = calloc((size_t)tree->form_count + 1, sizeof *tree->forms);
    if (!tree->forms) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < tree->form_count; i++) {
        struct form *form = &tree->forms[i];
        PyObject *told = PyList_GetItem(list, i);
        if (!told || !PyArg_ParseTuple(told, "IIbbH", &form->dtype_at, &form->itemsize, &form->code,
                                       &form->bits, &form->lanes))
            return -1;
    }
    return 0;
}

static int places_read(PyObject *list, struct leaves *tree) {
    tree->place_count = PyList_Size(list);
    tree->places = calloc((size_t)tree->place_count + 1, sizeof *tree->places);
    if (!tree->places) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < tree->place_count; i++) {
        struct place *place = &tree->places[i];
        unsigned long long address;
        PyObject *told = PyList_GetItem(list, i);
        if (!told || !PyArg_ParseTuple(told, "OK(ii)", &place->owner, &address, &place->device_type,
                                       &place->device_id))
            return -1;
        place->address = address;
    }
    return 0;
}

static const struct form *form_of(const struct leaves *tree, uint32_t dtype_at) {
    for (Py_ssize_t i = 0; i < tree->form_count; i++)
        if (tree->forms[i].dtype_at == dtype_at)
            return &tree->forms[i];
    PyErr_SetString(PyExc_ValueError, "a dtype of the tree has no form");
    return NULL;
}

/* Shape and strides in elements, as DLPack has them. Returns the bytes from the lowest one to
 * element 0; -1 with an exception. */
static int64_t dims_fill(const struct leaves *tree, const struct cw_index_leaf *leaf,
                         uint32_t itemsize, int64_t *shape, int64_t *strides) {
    const int64_t *numbers = tree->numbers + leaf->shape_at;
    int64_t step = 1, origin = 0;

    memcpy(shape, numbers, leaf->ndim * sizeof *shape);
    for (int i = leaf->ndim - 1; i >= 0; i--) {
        if (!leaf->strided) {
            strides[i] = step;
            step *= shape[i];
            continue;
        }
        int64_t bytes = numbers[leaf->ndim + i];
        if (bytes % (int64_t)itemsize) {
            PyErr_SetString(PyExc_BufferError, "DLPack needs strides of whole elements, these are "
                                               "not; copy the array first");
            return -1;
        }
        strides[i] = bytes / (int64_t)itemsize;
        if (bytes < 0)
            origin -= (shape[i] - 1) * bytes;
    }
    return origin;
}

static PyObject *capsule_of(const struct leaves *tree, const struct cw_index_leaf *leaf) {
    const struct form *form = form_of(tree, leaf->dtype_at);

    if (!form)
        return NULL;
    if (leaf->part >= tree->place_count)
        return PyErr_Format(PyExc_ValueError, "the tree's part %u is not there", leaf->part);
    const struct place *place = &tree->places[leaf->part];
    struct dl_managed *managed = malloc(sizeof *managed + 2 * leaf->ndim * sizeof(int64_t));
    if (!managed)
        return PyErr_NoMemory();
    int64_t *dims = (int64_t *)(managed + 1);
    int64_t origin = dims_fill(tree, leaf, form->itemsize, dims, dims + leaf->ndim);
    if (origin < 0) {
        free(managed);
        return NULL;
    }
    uint64_t address = place->address + leaf->offset_bytes + (uint64_t)origin;
    *managed = (struct dl_managed){
        .tensor = {.data = (void *)(uintptr_t)address,
                   .device_type = place->device_type,
                   .device_id = place->device_id,
                   .ndim = leaf->ndim,
                   .code = form->code,
                   .bits = form->bits,
                   .lanes = form->lanes,
                   .shape = dims,
                   .strides = dims + leaf->ndim},
        .context = place->owner,
        .deleter = dl_legacy_delete,
    };
    return dl_wrap(managed, DL_LEGACY, place->owner);
}

/* A new reference; None of a leaf without bytes. */
static PyObject *tensor_of(const struct leaves *tree, uint32_t number, PyObject *take,
                           PyObject *made) {
    const struct cw_index_leaf *leaf = &tree->leaf[number];

    if (leaf->alias && leaf->alias <= number) {
        PyObject *first = PyList_GetItem(made, leaf->alias - 1);
        Py_XINCREF(first);
        return first;
    }
    if (!leaf->size_bytes)
        Py_RETURN_NONE;
    PyObject *capsule = capsule_of(tree, leaf);
    PyObject *tensor = capsule ? PyObject_CallFunctionObjArgs(take, capsule, NULL) : NULL;
    Py_XDECREF(capsule);
    return tensor;
}

/* Both lists grow together, so that what is there at an error is whole. */
static int leaves_make(const struct leaves *tree, PyObject *take, PyObject *paths, PyObject *made) {
    for (uint32_t number = 0; number < tree->count; number++) {
        const struct cw_index_leaf *leaf = &tree->leaf[number];
        PyObject *path = PyUnicode_FromStringAndSize(tree->text + leaf->path_at, leaf->path_bytes);
        PyObject *tensor = path ? tensor_of(tree, number, take, made) : NULL;
        int failed = !tensor || PyList_Append(paths, path) || PyList_Append(made, tensor);
        Py_XDECREF(path);
        Py_XDECREF(tensor);
        if (failed)
            return -1;
    }
    return 0;
}

const char dl_leaves_doc[] =
    "leaves(index, nbytes, forms, places, take)\n--\n\n"
    "The paths of all leaves of a tree, and what take makes of a DLPack capsule over each: two\n"
    "lists. None stands for a leaf without bytes; what is tied is one object.\n\n"
    "index is the address of the tree's, checked, which the caller keeps. forms: of each dtype "
    "where it stands in the index's text, the\n"
    "bytes of an element, and DLPack's code, bits and lanes. places: of each part an object that\n"
    "keeps its memory, the address of its lowest byte, and its device as DLPack has it.";

PyObject *dl_leaves(PyObject *module, PyObject *args) {
    PyObject *forms, *places, *take, *found = NULL;
    struct leaves tree = {0};
    unsigned long long index, size_bytes;

    (void)module;
    if (!PyArg_ParseTuple(args, "KKO!O!O", &index, &size_bytes, &PyList_Type, &forms, &PyList_Type,
                          &places, &take))
        return NULL;
    PyObject *paths = PyList_New(0), *made = PyList_New(0);
    if (paths && made && !index_open(index, size_bytes, &tree) && !forms_read(forms, &tree) &&
        !places_read(places, &tree) && !leaves_make(&tree, take, paths, made))
        found = PyTuple_Pack(2, paths, made);
    Py_XDECREF(paths);
    Py_XDECREF(made);
    free(tree.forms);
    free(tree.places);
    return found;
}
