/*
 * The structures of DLPack 1.0, as its specification lays them out, and what the files of the
 * module cableway._dlpack share.
 */
#ifndef CWPY_DLPACK_H
#define CWPY_DLPACK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define DL_LEGACY "dltensor"

struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides; /* strides in elements */
    uint64_t byte_offset;
};
struct dl_managed { /* DL_LEGACY */
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
};
struct dl_managed_versioned { /* "dltensor_versioned" */
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct dl_managed_versioned *self);
    uint64_t flags;
    struct dl_tensor tensor;
};

/* The deleter of a struct that one malloc() holds, and whose context is a reference to an object.
 */
void dl_legacy_delete(struct dl_managed *self);
/* A capsule over such a struct. Takes a reference to owner; frees managed if it fails. */
PyObject *dl_wrap(void *managed, const char *name, PyObject *owner);

extern const char dl_leaves_doc[];
PyObject *dl_leaves(PyObject *module, PyObject *args);

#endif
