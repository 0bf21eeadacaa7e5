/*
 * Metadata of a named array: the fixed binary form of a cw_layout, as it stands in directory
 * records and in PUT messages. Never a pickle: whoever reads it checks every field.
 *
 *   struct cw_meta, then ndim shapes (int64_t), then ndim strides in bytes (int64_t), then
 * dtype_bytes of the dtype's text (UTF-8, not terminated). All little-endian. Nothing follows.
 *
 * The record's offset_bytes and size_bytes name the lowest byte and the span of the array within
 * its block. Element 0 lies at the lowest byte, or, where strides are negative, so far above it
 * that the lowest element of the layout begins there: origin = sum over the axes with a negative
 * stride of (shape - 1) * -stride.
 */
#ifndef CW_IPC_BASE_META_H
#define CW_IPC_BASE_META_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/layout.h"

#define CW_META_VERSION 1u

struct cw_meta {
    uint16_t version; /* CW_META_VERSION */
    uint16_t ndim;
    uint32_t itemsize;
    uint16_t dtype_bytes;
    uint16_t flags;    /* 0 */
    uint32_t reserved; /* 0 */
};
_Static_assert(sizeof(struct cw_meta) == 16, "layout");

/* What stands in a record in place of a layout if it is a tree's (CW_ENTRY_TREE): what `ls` tells
 * without its index. */
#define CW_META_TREE_VERSION 2u
struct cw_meta_tree {
    uint16_t version, reserved; /* CW_META_TREE_VERSION, 0 */
    uint32_t leaves, parts;
    uint32_t device_kind; /* where its parts lie; 0: on several devices, or it has none */
    uint64_t total_bytes; /* of its leaves */
    uint8_t device_uuid[16];
};
_Static_assert(sizeof(struct cw_meta_tree) == 40, "layout");
/* 0 or -EPROTO. */
int cw_meta_tree_decode(const void *buffer, uint32_t buffer_bytes, struct cw_meta_tree *out);

/* The same of another node's tree: it describes a replica of the bytes of its index, in which parts
 * are named as that node names them. Which version it is stands here, since the index does not say
 * it. */
#define CW_META_REMOTE_TREE_VERSION 3u
#define CW_META_INDEX_MAX           (1ull << 30) /* bytes of an index */
struct cw_meta_remote_tree {
    struct cw_meta_tree tree;   /* its version is CW_META_REMOTE_TREE_VERSION */
    uint64_t instance, version; /* of the owner's broker, and which put of it; neither is 0 */
};
_Static_assert(sizeof(struct cw_meta_remote_tree) == 56, "layout");
/* Does it begin as one does? */
bool cw_meta_is_remote_tree(const void *buffer, uint32_t buffer_bytes);
/* size_bytes: of the index. 0 or -EPROTO. */
int cw_meta_remote_tree_decode(const void *buffer, uint32_t buffer_bytes, uint64_t size_bytes,
                               struct cw_meta_remote_tree *out);

/* Of a tree that is put onto another node, beside the bytes of its index. */
#define CW_META_PUT_TREE_VERSION 4u
struct cw_meta_put_tree {
    uint16_t version, reserved; /* CW_META_PUT_TREE_VERSION, 0 */
    uint32_t reserved1;         /* 0 */
    uint64_t if_version;        /* as of PUT_TREE */
    uint64_t parts_bytes;       /* of all its parts, as far as its leaves need them */
};
_Static_assert(sizeof(struct cw_meta_put_tree) == 24, "layout");
/* size_bytes: of the index. 0 or -EPROTO. */
int cw_meta_put_tree_decode(const void *buffer, uint32_t buffer_bytes, uint64_t size_bytes,
                            struct cw_meta_put_tree *out);

#define CW_META_BYTES_MAX (sizeof(struct cw_meta) + CW_NDIM_MAX * 16 + CW_DTYPE_MAX)

/* Writes a resolved layout to buffer (CW_META_BYTES_MAX bytes). Returns the bytes written. */
uint32_t cw_meta_encode(const struct cw_shape *shape, void *buffer);
/* Reads and checks metadata; what it describes must fit into size_bytes. *out points into itself
 * only. Returns 0 or -EPROTO. */
int cw_meta_decode(const void *buffer, uint32_t buffer_bytes, uint64_t size_bytes,
                   struct cw_shape *out);
/* The same, and as a layout that points into the shape. Both are as they were unless 0 is
 * returned. */
int cw_meta_layout(const void *buffer, uint32_t buffer_bytes, uint64_t size_bytes,
                   struct cw_shape *shape, cw_layout *layout);

#endif
