/*
 * Parts of a tree with memory of their own, which is what a mount needs (mount.c): then the part of
 * any other version may follow at the same addresses.
 *
 * Large parts have it: cw_array_new() with CW_APART. Small ones share a slab with other arrays, as
 * do parts that were put without a copy, and some that came from another node. Of such a part the
 * mount gets a copy, which is this process's alone and frozen like the part: of a small one that is
 * a page of host memory, or a granule (2 MiB) of a GPU. So only who asks for addresses of his own
 * pays, and not every tree that is put: a slab costs the broker descriptors, and it has 4096.
 *
 * The copy's lease is the mount's. If this process dies it ends, and nobody else knows of it. It
 * needs the broker, as any new array. The tree's own lease stays, so that the version can still be
 * sent and got.
 */
#ifndef CW_IPC_TREE_OWN_SLAB_H
#define CW_IPC_TREE_OWN_SLAB_H

#include "ipc/cableway.h"

/* Opens a part, unmapped, or makes its copy. stream: that must not be under capture where GPU
 * memory is copied. -EINVAL: a stream is captured, or the tree's values change in place. -EDQUOT:
 * no memory for the copy. -EINTR: nothing was done. */
int cw_part_in_own_slab(const cw_tree *tree, cw_client *client, uint32_t number, void *stream,
                        cw_array **out);
/* An array of so many bytes. flags: as cw_array_new() has them, and CW_OWN_SLAB. */
int cw_part_bytes(cw_client *client, const char *device, uint64_t size_bytes, uint32_t flags,
                  cw_array **out);

#endif
