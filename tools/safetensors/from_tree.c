/*
 * A tree as a .safetensors file: see from_tree.h.
 *
 * Each leaf is written under its path. Paths are unique in a tree, so no two collide. The format
 * lets no two arrays share data: what is tied is written once for each path, so that a reader finds
 * all of them. Data stand in the order of falling sizes of an element, then of the leaves: so all
 * are aligned, without the holes that the format forbids.
 *
 * The tree is held, and never changes. One thread; nothing outlives the call.
 */
#include "tools/safetensors/from_tree.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "tools/cli.h"
#include "tools/elements.h"
#include "tools/safetensors/safetensors.h"

/* ---- metadata ---- */

static void add_text(json_t *texts, const char *key, json_t *value) {
    if (json_is_string(value)) {
        json_object_set(texts, key, value);
        return;
    }
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text)
        json_object_set_new(texts, key, json_string(text));
    free(text);
}

/*
 * The tree's metadata as the format has them, texts alone: other values as their JSON, and what is
 * no object as "meta". Of a tree that was loaded from files, what these said; from where it came is
 * not true of the new file. NULL: there are none.
 */
static json_t *texts_of(const char *name, const cw_tree_info *info) {
    const char *key;
    json_t *value;
    if (!info->meta_bytes)
        return NULL;
    json_t *meta = json_loadb(info->meta, info->meta_bytes, JSON_DECODE_ANY, NULL), *said = meta;
    if (!meta) { /* who puts a tree by C may put any bytes there */
        cli_note("note: the metadata of \"%s\" are no JSON, and are not in the file", name);
        return NULL;
    }
    json_t *of_files = json_object_get(meta, "metadata");
    if (json_is_object(json_object_get(meta, "source")) && json_is_object(of_files))
        said = of_files;
    json_t *texts = json_object();
    CW_ASSERT(texts);
    if (!json_is_object(meta))
        add_text(texts, "meta", meta);
    json_object_foreach(said, key, value) {
        add_text(texts, key, value);
    }
    json_decref(meta);
    if (json_object_size(texts))
        return texts;
    json_decref(texts);
    return NULL;
}

/* ---- leaves ---- */

struct place { /* of a leaf in the order of the file */
    uint32_t number, itemsize;
};

static int compare_places(const void *one, const void *other) {
    const struct place *left = one, *right = other;
    if (left->itemsize != right->itemsize)
        return left->itemsize > right->itemsize ? -1 : 1;
    return left->number < right->number ? -1 : left->number > right->number;
}

/* In which order the leaves are written; *out is to be freed. */
static int order(const cw_tree *tree, uint32_t count, struct place **out) {
    struct place *places = calloc((size_t)count + 1, sizeof *places);
    int code = 0;
    CW_ASSERT(places);
    for (uint32_t i = 0; i < count && code == 0; i++) {
        cw_leaf leaf;
        code = cw_tree_leaf(tree, i, &leaf);
        if (code == 0)
            places[i] = (struct place){i, leaf.layout.itemsize};
    }
    qsort(places, count, sizeof *places, compare_places);
    *out = places;
    return code;
}

static int write_header(int fd, const char *name, const cw_tree *tree, const cw_tree_info *info,
                        const struct place *places, uint64_t *data_bytes) {
    json_t *header = json_object(), *texts = texts_of(name, info);
    uint64_t header_bytes;
    char *text = NULL;
    CW_ASSERT(header);
    *data_bytes = 0;
    int code = texts ? safetensors_set_metadata(header, texts) : 0;
    for (uint32_t i = 0; i < info->leaves && code == 0; i++) {
        cw_leaf leaf;
        code = cw_tree_leaf(tree, places[i].number, &leaf);
        if (code == 0)
            code = safetensors_add(header, leaf.path, &leaf.layout, data_bytes);
    }
    if (code == 0)
        code = safetensors_format(header, &text, &header_bytes);
    if (code == 0)
        code = elements_write_bytes(fd, text, header_bytes);
    free(text);
    json_decref(texts);
    json_decref(header);
    return code;
}

/* parts: those that were opened so far. */
static int write_leaf(int fd, cw_client *client, const cw_tree *tree, uint32_t number,
                      cw_array **parts) {
    int64_t strides[CW_NDIM_MAX];
    cw_leaf leaf;
    int code = cw_tree_leaf(tree, number, &leaf);
    if (code || !leaf.size_bytes)
        return code;
    if (!leaf.layout.strides) {
        int64_t stride = leaf.layout.itemsize;
        for (uint32_t i = leaf.layout.ndim; i-- > 0; stride *= leaf.layout.shape[i])
            strides[i] = stride;
        leaf.layout.strides = strides;
    }
    if (!parts[leaf.part])
        code = cw_tree_part(tree, client, leaf.part, &parts[leaf.part]);
    return code ? code
                : elements_write(fd, parts[leaf.part], leaf.offset_bytes, &leaf.layout, false);
}

int safetensors_from_tree(int fd, const char *name, cw_client *client, const cw_tree *tree,
                          uint64_t *data_bytes) {
    cw_tree_info info;
    struct place *places;
    cw_tree_look_at(tree, &info);
    cw_array **parts = calloc((size_t)info.parts + 1, sizeof(void *));
    CW_ASSERT(parts);
    int code = order(tree, info.leaves, &places);
    if (code == 0)
        code = write_header(fd, name, tree, &info, places, data_bytes);
    for (uint32_t i = 0; i < info.leaves && code == 0; i++)
        code = write_leaf(fd, client, tree, places[i].number, parts);
    for (uint32_t i = 0; i < info.parts; i++)
        cw_array_close(parts[i]);
    free(parts);
    free(places);
    return code;
}
