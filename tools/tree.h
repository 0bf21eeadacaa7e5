/*
 * A tree as `stat` shows it: version, devices, metadata and leaves, as JSON. Texts for people are
 * made of the same.
 */
#ifndef CW_TOOLS_TREE_H
#define CW_TOOLS_TREE_H

#include <jansson.h>
#include <stdbool.h>

#include "ipc/cableway.h"

/* Adds what is known about all of it: version, leaves, parts, devices, layout_hash, content_hash
 * (null: a leaf has none) and meta (null: it is no JSON). */
void tree_add_json(const cw_tree *tree, json_t *to);
/* The devices of its parts, each once: "cpu", and the UUIDs of GPUs. */
json_t *tree_devices(const cw_tree *tree);
/* [{"path", "dtype", "shape", "bytes", "device", "tied_to"}]: device null: it has no bytes; tied_to
 * null, or the path of the earlier leaf that it is. 0 or the code of cw_tree_leaf(). */
int tree_leaves(const cw_tree *tree, json_t **out);
/* Its metadata. NULL: they are no JSON. */
json_t *tree_meta(const cw_tree *tree);

#endif
