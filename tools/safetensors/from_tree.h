/*
 * A tree as a .safetensors file: `cableway get` of a tree.
 */
#ifndef CW_TOOLS_SAFETENSORS_FROM_TREE_H
#define CW_TOOLS_SAFETENSORS_FROM_TREE_H

#include "ipc/cableway.h"

/*
 * Writes all leaves to fd, each under its path, with the tree's metadata as texts. name is for
 * sentences. *data_bytes: of all leaves, as they were written. -ENOTSUP: the format has no such
 * dtype or name, or not so long a header; as cw_tree_part() and elements_write().
 */
int safetensors_from_tree(int fd, const char *name, cw_client *client, const cw_tree *tree,
                          uint64_t *data_bytes);

#endif
