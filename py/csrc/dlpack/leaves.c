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
    int special;
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
    PyObject *form_of; /* borrowed */
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

/* Asks for a dtype once, and keeps what was told. NULL with an exception. */
static const struct form *form_add(struct leaves *tree, const struct cw_index_leaf *leaf) {
    size_t bytes = (size_t)(tree->form_count + 1) * sizeof *tree->forms;
    struct form *more = realloc(tree->forms, bytes);

    if (!more) {
        PyErr_NoMemory();
        return NULL;
    }
    tree->forms = more;
    struct form *form = &more[tree->form_count];
    PyObject *told = PyObject_CallFunction(tree->form_of, "s#", tree->text + leaf->dtype_at,
                                           (Py_ssize_t)leaf->dtype_bytes);
    int read = told && PyArg_ParseTuple(told, "IbbHp", &form->itemsize, &form->code, &form->bits,
                                        &form->lanes, &form->special);
    Py_XDECREF(told);
    if (!read)
        return NULL;
    form->dtype_at = leaf->dtype_at;
    tree->form_count++;
    return form;
}

static const struct form *form_of(struct leaves *tree, const struct cw_index_leaf *leaf) {
    for (Py_ssize_t i = tree->form_count; i > 0; i--)
        if (tree->forms[i - 1].dtype_at == leaf->dtype_at)
            return &tree->forms[i - 1];
    return form_add(tree, leaf);
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

static PyObject *capsule_of(const struct leaves *tree, const struct cw_index_leaf *leaf,
                            const struct form *form) {
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

/* A new reference; None of a leaf without bytes. *special: Python has something left to do. */
static PyObject *tensor_of(struct leaves *tree, uint32_t number, PyObject *take, PyObject *made,
                           int *special) {
    const struct cw_index_leaf *leaf = &tree->leaf[number];
    const struct form *form = form_of(tree, leaf);

    if (!form)
        return NULL;
    *special = form->special || !leaf->size_bytes;
    if (leaf->alias && leaf->alias <= number) {
        PyObject *first = PyList_GetItem(made, leaf->alias - 1);
        Py_XINCREF(first);
        return first;
    }
    if (!leaf->size_bytes)
        Py_RETURN_NONE;
    PyObject *capsule = capsule_of(tree, leaf, form);
    PyObject *tensor = capsule ? PyObject_CallFunctionObjArgs(take, capsule, NULL) : NULL;
    Py_XDECREF(capsule);
    return tensor;
}

static int special_add(PyObject *special, uint32_t number, uint32_t alias) {
    PyObject *told = Py_BuildValue("II", number, alias);
    int failed = !told || PyList_Append(special, told);

    Py_XDECREF(told);
    return failed ? -1 : 0;
}

static int leaves_make(struct leaves *tree, PyObject *take, PyObject *paths, PyObject *made,
                       PyObject *special) {
    for (uint32_t number = 0; number < tree->count; number++) {
        const struct cw_index_leaf *leaf = &tree->leaf[number];
        int is_special = 0;
        PyObject *path = PyUnicode_FromStringAndSize(tree->text + leaf->path_at, leaf->path_bytes);
        PyObject *tensor = path ? tensor_of(tree, number, take, made, &is_special) : NULL;
        int failed = !tensor || PyList_Append(paths, path) || PyList_Append(made, tensor) ||
                     (is_special && special_add(special, number, leaf->alias));
        Py_XDECREF(path);
        Py_XDECREF(tensor);
        if (failed)
            return -1;
    }
    return 0;
}

const char dl_leaves_doc[] =
    "leaves(index, nbytes, form_of, places, take)\n--\n\n"
    "The paths of all leaves of a tree, and what take makes of a DLPack capsule over each; and of\n"
    "special ones number and alias: three lists. None stands for a leaf without bytes, which is\n"
    "special; what is tied is one object.\n\n"
    "index is the address of the tree's, checked, which the caller keeps. form_of tells of a "
    "dtype's\n"
    "text the bytes of an element, DLPack's code, bits and lanes, and whether it is special; it "
    "is\n"
    "asked once for each. places: of each part an object that keeps its memory, the address of "
    "its\n"
    "lowest byte, and its device as DLPack has it.";

PyObject *dl_leaves(PyObject *module, PyObject *args) {
    PyObject *places, *take, *found = NULL;
    struct leaves tree = {0};
    unsigned long long index, size_bytes;

    (void)module;
    if (!PyArg_ParseTuple(args, "KKOO!O", &index, &size_bytes, &tree.form_of, &PyList_Type, &places,
                          &take))
        return NULL;
    PyObject *paths = PyList_New(0), *made = PyList_New(0), *special = PyList_New(0);
    if (paths && made && special && !index_open(index, size_bytes, &tree) &&
        !places_read(places, &tree) && !leaves_make(&tree, take, paths, made, special))
        found = PyTuple_Pack(3, paths, made, special);
    Py_XDECREF(paths);
    Py_XDECREF(made);
    Py_XDECREF(special);
    free(tree.forms);
    free(tree.places);
    return found;
}
