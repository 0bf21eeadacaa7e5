/*
 * Metadata: a layout to bytes and back; see meta.h for the form.
 *
 * The bytes come from another client by way of the broker: decoding checks them all, and what it
 * returns may be trusted. Pure functions, from any thread.
 */
#include "ipc/base/meta.h"

#include <string.h>

#include "shm/base/error.h"

uint32_t cw_meta_encode(const struct cw_shape *shape, void *buffer) {
    struct cw_meta meta = {.version = CW_META_VERSION,
                           .ndim = (uint16_t)shape->ndim,
                           .itemsize = shape->itemsize,
                           .dtype_bytes = (uint16_t)shape->dtype_bytes};
    uint8_t *at = buffer;
    size_t axes = shape->ndim * sizeof(int64_t);
    memcpy(at, &meta, sizeof meta);
    at += sizeof meta;
    memcpy(at, shape->shape, axes);
    at += axes;
    memcpy(at, shape->strides, axes);
    at += axes;
    memcpy(at, shape->dtype, shape->dtype_bytes);
    at += shape->dtype_bytes;
    return (uint32_t)(at - (uint8_t *)buffer);
}

int cw_meta_decode(const void *buffer, uint32_t buffer_bytes, uint64_t size_bytes,
                   struct cw_shape *out) {
    struct cw_meta meta;
    const uint8_t *at = buffer;
    if (buffer_bytes < sizeof meta)
        return cw_fail(-EPROTO, "metadata of %u bytes is too short", buffer_bytes);
    memcpy(&meta, at, sizeof meta);
    at += sizeof meta;
    if (meta.version != CW_META_VERSION)
        return cw_fail(-EPROTO, "metadata of version %u, this library reads version %u",
                       meta.version, CW_META_VERSION);
    if (meta.flags || meta.reserved)
        return cw_fail(-EPROTO, "metadata with flags that version %u does not know",
                       CW_META_VERSION);
    size_t axes = meta.ndim * sizeof(int64_t);
    if (meta.ndim > CW_NDIM_MAX || meta.dtype_bytes == 0 || meta.dtype_bytes > CW_DTYPE_MAX ||
        buffer_bytes != sizeof meta + 2 * axes + meta.dtype_bytes)
        return cw_fail(-EPROTO, "malformed metadata: its lengths contradict each other");
    out->ndim = meta.ndim;
    out->itemsize = meta.itemsize;
    out->dtype_bytes = meta.dtype_bytes;
    memcpy(out->shape, at, axes);
    at += axes;
    memcpy(out->strides, at, axes);
    at += axes;
    memcpy(out->dtype, at, meta.dtype_bytes);
    out->dtype[meta.dtype_bytes] = 0;
    if (cw_shape_check_dtype(out) != 0)
        return cw_fail(-EPROTO, "malformed metadata: invalid dtype: %.300s",
                       (const char *)out->dtype);
    if (cw_shape_measure(out) != 0)
        return cw_fail(-EPROTO, "malformed metadata: invalid shape");
    if (out->span_bytes > size_bytes)
        return cw_fail(-EPROTO, "malformed metadata: it spans %llu bytes, the array has %llu",
                       (unsigned long long)out->span_bytes, (unsigned long long)size_bytes);
    return 0;
}

int cw_meta_tree_decode(const void *buffer, uint32_t buffer_bytes, struct cw_meta_tree *out) {
    struct cw_meta_tree meta;
    if (buffer_bytes != sizeof meta)
        return cw_fail(-EPROTO, "a tree's metadata has %zu bytes, here are %u", sizeof meta,
                       buffer_bytes);
    memcpy(&meta, buffer, sizeof meta);
    if (meta.version != CW_META_TREE_VERSION || meta.reserved)
        return cw_fail(-EPROTO, "a tree's metadata of version %u, this library reads version %u",
                       meta.version, CW_META_TREE_VERSION);
    *out = meta;
    return 0;
}

bool cw_meta_is_remote_tree(const void *buffer, uint32_t buffer_bytes) {
    uint16_t version = 0;
    if (buffer_bytes >= sizeof version)
        memcpy(&version, buffer, sizeof version);
    return version == CW_META_REMOTE_TREE_VERSION;
}

int cw_meta_remote_tree_decode(const void *buffer, uint32_t buffer_bytes, uint64_t size_bytes,
                               struct cw_meta_remote_tree *out) {
    struct cw_meta_remote_tree meta;
    if (buffer_bytes != sizeof meta)
        return cw_fail(-EPROTO, "metadata of another node's tree has %zu bytes, here are %u",
                       sizeof meta, buffer_bytes);
    memcpy(&meta, buffer, sizeof meta);
    if (meta.tree.version != CW_META_REMOTE_TREE_VERSION || meta.tree.reserved || !meta.instance ||
        !meta.version)
        return cw_fail(-EPROTO, "malformed metadata of another node's tree");
    if (size_bytes == 0 || size_bytes > CW_META_INDEX_MAX)
        return cw_fail(-EPROTO, "the index of a tree cannot have %llu bytes",
                       (unsigned long long)size_bytes);
    *out = meta;
    return 0;
}

int cw_meta_put_tree_decode(const void *buffer, uint32_t buffer_bytes, uint64_t size_bytes,
                            struct cw_meta_put_tree *out) {
    struct cw_meta_put_tree meta;
    if (buffer_bytes != sizeof meta)
        return cw_fail(-EPROTO, "metadata of a tree that is put has %zu bytes, here are %u",
                       sizeof meta, buffer_bytes);
    memcpy(&meta, buffer, sizeof meta);
    if (meta.version != CW_META_PUT_TREE_VERSION || meta.reserved || meta.reserved1 ||
        meta.parts_bytes >> 48 || size_bytes == 0 || size_bytes > CW_META_INDEX_MAX)
        return cw_fail(-EPROTO, "malformed metadata of a tree that is put");
    *out = meta;
    return 0;
}

int cw_meta_layout(const void *buffer, uint32_t buffer_bytes, uint64_t size_bytes,
                   struct cw_shape *shape, cw_layout *layout) {
    struct cw_shape read;
    int code = cw_meta_decode(buffer, buffer_bytes, size_bytes, &read);
    if (code)
        return code;
    *shape = read;
    *layout = (cw_layout){.ndim = shape->ndim,
                          .itemsize = shape->itemsize,
                          .shape = shape->shape,
                          .strides = shape->strides,
                          .dtype = shape->dtype};
    return 0;
}
