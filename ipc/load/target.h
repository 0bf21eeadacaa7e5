/*
 * One name of a load, and the memory into which its tensors are read. See target.c.
 */
#ifndef CW_IPC_LOAD_TARGET_H
#define CW_IPC_LOAD_TARGET_H

#include "ipc/base/name_key.h"
#include "ipc/cableway.h"

struct cw_target {
    char *name, *device; /* device NULL: any */
    struct cw_name_key key;
    uint64_t after; /* the version that the name meant when we looked; 0: none */
    uint64_t token; /* of our CLAIM; 0: there is none */
    cw_tree *tree;  /* found or published; NULL: it is missing */
    cw_read *reads; /* while it is read: one for each tensor, in the load's */
    cw_array **parts;
    uint32_t part_count;
};

/* name and device become the target's own. As cw_tree_put(), -EDQUOT; deinit in any case. */
int cw_target_init(struct cw_target *target, cw_client *client, const char *name,
                   const char *device);
void cw_target_deinit(struct cw_target *target);
/* Whether each tensor's name can be a path of a tree. -EINVAL. */
int cw_target_check_paths(const cw_checkpoint *c);
/* Where each tensor goes (reads, which the caller has made), and memory for all of them. */
int cw_target_allocate(struct cw_target *target, cw_client *client,
                       const cw_checkpoint *checkpoint);
/* Gives its arrays back. */
void cw_target_empty(struct cw_target *target);

#endif
