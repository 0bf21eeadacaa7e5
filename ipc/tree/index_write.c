/*
 * The index of a tree: see index.h. How one is written.
 *
 * The publisher's own arguments become bytes here. What cannot be in an index (paths twice, leaves
 * that overlap) is found by reading it again, as every reader does: so there is one check, and no
 * publisher writes what readers refuse. Pure functions.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/layout.h"
#include "ipc/tree/index.h"
#include "shm/base/error.h"

struct writing {
    uint8_t *bytes; /* NULL: only the sizes are counted */
    struct cw_index_leaf *leaves;
    int64_t *numbers;
    char *text;
    uint32_t leaf;
    uint64_t number_count, text_bytes;
    uint32_t dtype_at; /* of the leaf before */
    uint32_t dtype_bytes;
    const char *dtype;
};

static uint32_t add_text(struct writing *w, const char *text, size_t bytes) {
    if (w->bytes)
        memcpy(w->text + w->text_bytes, text, bytes + 1);
    w->text_bytes += bytes + 1;
    return (uint32_t)(w->text_bytes - bytes - 1);
}

static uint32_t add_numbers(struct writing *w, const int64_t *numbers, uint32_t count) {
    if (w->bytes && count)
        memcpy(w->numbers + w->number_count, numbers, count * sizeof *numbers);
    w->number_count += count;
    return (uint32_t)(w->number_count - count);
}

static bool is_c_order(const struct cw_shape *shape) {
    int64_t stride = shape->itemsize;
    for (uint32_t i = shape->ndim; i-- > 0;) {
        if (shape->strides[i] != stride)
            return false;
        stride *= shape->shape[i] ? shape->shape[i] : 1; /* it was looked at for overflow */
    }
    return true;
}

static int add_leaf(struct writing *w, const cw_leaf *leaf) {
    struct cw_shape shape;
    int code = cw_path_check(leaf->path);
    if (code == 0)
        code = cw_layout_resolve(&leaf->layout, &shape);
    if (code) {
        char why[CW_DETAIL_MAX];
        snprintf(why, sizeof why, "%s", cw_detail());
        return cw_fail(code, "leaf %u (\"%.200s\"): %.600s", w->leaf,
                       leaf->path ? leaf->path : "NULL", why);
    }
    cw_layout dense = leaf->layout;
    dense.strides = NULL; /* its product, too, is one that 63 bits can count */
    struct cw_shape as_dense;
    if (cw_layout_resolve(&dense, &as_dense) != 0)
        return cw_fail(-EINVAL, "leaf %u (\"%.200s\") repeats its elements: copy it first", w->leaf,
                       leaf->path);
    bool none = shape.span_bytes == 0, strided = !none && !is_c_order(&shape);
    size_t path_bytes = strlen(leaf->path);
    struct cw_index_leaf out = {.offset_bytes = none ? 0 : leaf->offset_bytes,
                                .size_bytes = shape.span_bytes,
                                .hash = leaf->flags & CW_LEAF_HASHED ? leaf->hash : 0,
                                .part = none ? 0 : leaf->part,
                                .alias = leaf->alias,
                                .path_bytes = (uint16_t)path_bytes,
                                .dtype_bytes = (uint16_t)shape.dtype_bytes,
                                .ndim = (uint8_t)shape.ndim,
                                .kind = (uint8_t)leaf->kind,
                                .flags = (uint8_t)leaf->flags,
                                .strided = strided,
                                .itemsize = shape.itemsize};
    out.path_at = add_text(w, leaf->path, path_bytes);
    if (!w->dtype || strcmp(w->dtype, leaf->layout.dtype) != 0) {
        w->dtype = leaf->layout.dtype;
        w->dtype_at = add_text(w, shape.dtype, shape.dtype_bytes);
    }
    out.dtype_at = w->dtype_at;
    out.shape_at = add_numbers(w, shape.shape, shape.ndim);
    if (strided)
        add_numbers(w, shape.strides, shape.ndim);
    if (w->bytes)
        w->leaves[w->leaf] = out;
    return 0;
}

static int add_leaves(struct writing *w, const cw_leaf *leaves, uint32_t count) {
    int code = 0;
    w->number_count = w->text_bytes = 0;
    w->dtype = NULL;
    for (w->leaf = 0; w->leaf < count && code == 0; w->leaf++)
        code = add_leaf(w, &leaves[w->leaf]);
    return code;
}

static int check_counts(uint32_t part_count, uint32_t leaf_count, uint64_t meta_bytes) {
    if (leaf_count > CW_LEAVES_MAX)
        return cw_fail(-EDQUOT,
                       "a tree of %u leaves was asked for, %u are possible: split the tree",
                       leaf_count, CW_LEAVES_MAX);
    if (part_count > CW_PARTS_MAX)
        return cw_fail(-EDQUOT,
                       "the leaves lie in %u pieces of memory, %u are possible: "
                       "copy them into fewer",
                       part_count, CW_PARTS_MAX);
    if (meta_bytes > CW_TREE_META_MAX)
        return cw_fail(
            -EDQUOT,
            "%llu bytes of metadata, %u are possible: keep less there, or put it as a leaf",
            (unsigned long long)meta_bytes, CW_TREE_META_MAX);
    return 0;
}

int cw_index_write(const struct cw_index_part *parts, uint32_t part_count, const cw_leaf *leaves,
                   uint32_t leaf_count, const void *meta, uint64_t meta_bytes, uint8_t **bytes,
                   uint64_t *size_bytes) {
    struct writing w = {.bytes = NULL};
    int code = check_counts(part_count, leaf_count, meta_bytes);
    if (code == 0)
        code = add_leaves(&w, leaves, leaf_count);
    if (code)
        return code;
    const uint64_t fixed = sizeof(struct cw_index_head) +
                           part_count * sizeof(struct cw_index_part) +
                           leaf_count * sizeof(struct cw_index_leaf);
    const uint64_t size = fixed + w.number_count * sizeof(int64_t) + w.text_bytes + meta_bytes;
    if (size > CW_INDEX_BYTES_MAX)
        return cw_fail(-EDQUOT,
                       "the index would have %llu bytes, %llu are possible: give it fewer leaves "
                       "or shorter paths",
                       (unsigned long long)size, CW_INDEX_BYTES_MAX);
    uint8_t *made = malloc(size);
    if (!made)
        return cw_fail(-EDQUOT, "no memory for an index of %llu bytes", (unsigned long long)size);
    struct cw_index_head *head = (void *)made;
    *head = (struct cw_index_head){.magic = CW_INDEX_MAGIC,
                                   .version = CW_INDEX_VERSION,
                                   .size_bytes = size,
                                   .parts = part_count,
                                   .leaves = leaf_count,
                                   .numbers = (uint32_t)w.number_count,
                                   .text_bytes = (uint32_t)w.text_bytes,
                                   .meta_bytes = meta_bytes};
    if (part_count)
        memcpy(head + 1, parts, part_count * sizeof *parts);
    w.bytes = made;
    w.leaves = (void *)(made + sizeof *head + part_count * sizeof *parts);
    w.numbers = (void *)(made + fixed);
    w.text = (char *)(w.numbers + w.number_count);
    code = add_leaves(&w, leaves, leaf_count);
    if (code) {
        free(made);
        return code;
    }
    if (meta_bytes)
        memcpy(w.text + w.text_bytes, meta, meta_bytes);
    for (uint32_t i = 0; i < leaf_count; i++)
        head->total_bytes += w.leaves[i].alias ? 0 : w.leaves[i].size_bytes;
    head->layout_hash = cw_index_layout_hash(head);
    head->content_hash = cw_index_content_hash(head);
    *bytes = made;
    *size_bytes = size;
    return 0;
}
