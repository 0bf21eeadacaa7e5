/*
 * A tree as JSON: see tree.h. It is held, and never changes; none of its memory is mapped, so that
 * a process without its GPUs can look at it. One thread.
 */
#include "tools/tree.h"

#include <stdio.h>
#include <string.h>

#include "ipc/wire.h"
#include "shm/base/error.h"
#include "tools/elements.h"
#include "tools/output.h"

/* Of the index, as docs/PROTOCOL.md has its form; the library has checked it. */
#define INDEX_HEAD_BYTES 128u
struct part {
    uint32_t slab, block;
    uint64_t gen, offset_bytes, size_bytes;
    uint32_t device_kind, reserved0;
    uint8_t device_uuid[16];
    uint64_t reserved;
};
_Static_assert(sizeof(struct part) == 64, "layout");

static json_t *device_of(const cw_tree_info *info, uint32_t number) {
    struct part part;
    char text[64] = "GPU";
    size_t used = 3;
    memcpy(&part, (const char *)info->index + INDEX_HEAD_BYTES + number * sizeof part, sizeof part);
    if (part.device_kind != CW_DEVICE_CUDA)
        return json_string("cpu");
    for (unsigned i = 0; i < sizeof part.device_uuid; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%02x",
                                 i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                                 part.device_uuid[i]);
    return json_string(text);
}

json_t *tree_devices(const cw_tree *tree) {
    cw_tree_info info;
    json_t *devices = json_array();
    CW_ASSERT(devices);
    cw_tree_look_at(tree, &info);
    for (uint32_t i = 0; i < info.parts; i++) {
        json_t *device = device_of(&info, i), *known;
        size_t at;
        bool there = false;
        json_array_foreach(devices, at, known) {
            there = there || json_equal(known, device);
        }
        if (!there)
            json_array_append(devices, device);
        json_decref(device);
    }
    return devices;
}

json_t *tree_meta(const cw_tree *tree) {
    cw_tree_info info;
    cw_tree_look_at(tree, &info);
    return json_loadb(info.meta, info.meta_bytes, JSON_DECODE_ANY, NULL);
}

static json_t *hash_json(uint64_t hash) {
    char text[20];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return json_string(text);
}

void tree_add_json(const cw_tree *tree, json_t *to) {
    cw_tree_info info;
    cw_tree_look_at(tree, &info);
    json_t *meta = tree_meta(tree);
    json_object_set_new(to, "version", json_integer((json_int_t)info.version));
    json_object_set_new(to, "leaves", json_integer(info.leaves));
    json_object_set_new(to, "parts", json_integer(info.parts));
    json_object_set_new(to, "devices", tree_devices(tree));
    json_object_set_new(to, "layout_hash", hash_json(info.layout_hash));
    json_object_set_new(to, "content_hash",
                        info.content_hash ? hash_json(info.content_hash) : json_null());
    json_object_set_new(to, "meta", meta ? meta : json_null());
}

static json_t *leaf_json(const cw_tree *tree, const cw_tree_info *info, const cw_leaf *leaf) {
    json_t *shape = json_array(), *tied = json_null();
    cw_leaf earlier;
    for (uint32_t i = 0; i < leaf->layout.ndim; i++)
        json_array_append_new(shape, json_integer(leaf->layout.shape[i]));
    if (leaf->alias && cw_tree_leaf(tree, leaf->alias - 1, &earlier) == 0)
        tied = output_json_text(earlier.path);
    return json_pack("{s:o, s:o, s:o, s:I, s:o, s:o}", "path", output_json_text(leaf->path),
                     "dtype", output_json_text(leaf->layout.dtype), "shape", shape, "bytes",
                     (json_int_t)elements_nbytes(&leaf->layout), "device",
                     leaf->size_bytes ? device_of(info, leaf->part) : json_null(), "tied_to", tied);
}

int tree_leaves(const cw_tree *tree, json_t **out) {
    cw_tree_info info;
    json_t *leaves = json_array();
    int code = 0;
    CW_ASSERT(leaves);
    cw_tree_look_at(tree, &info);
    for (uint32_t i = 0; i < info.leaves && code == 0; i++) {
        cw_leaf leaf;
        code = cw_tree_leaf(tree, i, &leaf);
        if (code == 0)
            json_array_append_new(leaves, leaf_json(tree, &info, &leaf));
    }
    if (code)
        json_decref(leaves);
    else
        *out = leaves;
    return code;
}
