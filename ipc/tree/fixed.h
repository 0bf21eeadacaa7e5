/*
 * Fixed addresses: one part of a tree, at addresses of this process that stay while the memory
 * there is exchanged. The struct is in array.h, since its arrays look at it; mount.c exchanges all
 * parts of a tree together.
 *
 * Invariants
 *   F1  What is mapped there is one slab, whole, read-only: that of `held`, whose lease keeps the
 *       block; or nothing is.
 *   F2  A slab may follow another one only if it is as long, on the same device, and the block
 *       begins at the same byte: so every leaf keeps its address.
 *   F3  The memory is exchanged, or taken away, in the state CHANGING alone: nobody pins it then,
 *       and the GPUs that may use it were drained.
 *   F4  Addresses are given back when the mount and all arrays are closed, never before.
 *
 * The mappings that others in this process have of the same slab are not these, and stay: arrays of
 * a plain cw_tree_part() lie there. So a block has two addresses in a process that opens it both
 * ways. Nobody writes there: parts are frozen.
 */
#ifndef CW_IPC_TREE_FIXED_H
#define CW_IPC_TREE_FIXED_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/array/array.h"

struct cw_next { /* what may follow */
    cw_array *held;
    uint64_t memory;
    bool same; /* it is there already */
};

/* Maps the block of held, which was opened without a mapping and is taken over on success. -ENODEV,
 * -EDQUOT, -EINVAL, -ECONNRESET. */
int cw_fixed_new(cw_client *client, cw_array *held, struct cw_fixed **out);
/* One more array on it. -EINVAL: it is parked. */
int cw_fixed_array(struct cw_fixed *fixed, cw_array **out);
/* Prepares to follow: next->held is there. Asks the broker. -EBADE: F2 does not hold. Changes
 * nothing; cw_next_drop() ends it. */
int cw_fixed_prepare(const struct cw_fixed *fixed, struct cw_next *next);
/* Ends what was prepared, or what was there before. */
void cw_next_drop(const struct cw_fixed *fixed, struct cw_next *next);
/* 1: its slab is as one that is made for this block alone (CW_OWN_SLAB), so that any version's may
 * follow; 0: it is not. Negative: it is not known where it lies. */
int cw_fixed_has_own_slab(const cw_array *held);
/* next and what is held change places. client->lock is held. */
void cw_fixed_adopt(struct cw_fixed *fixed, struct cw_next *next);

#endif
