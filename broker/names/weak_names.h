/*
 * Weak names: names that last only as long as somebody has the array open, whoever put them. The
 * page of a group of processes has one.
 *
 * Such a name has no reference on its block: the block lives by the leases of those who have it
 * open (and by references of others, as ever). When the last of them closes it or dies, the block
 * is reclaimed, and with it goes the name.
 *
 * Invariants
 *   H1  An entry of the directory with CW_ENTRY_WEAK has one record here, and each record is of one
 *       such entry. A block has one at most.
 *   H2  The record goes with the entry: in the same call.
 *
 * Deaths: if the client that put it dies, the name stays as long as others have the array. One that
 * looked the name up and takes its lease while the block is reclaimed finds the block gone, or
 * keeps it (shm/blocks/block.h); in the former case the name is gone, too, within the same turn of
 * the loop. A damaged block's name goes with its slab.
 *
 * Owner: the loop's thread.
 */
#ifndef CW_BROKER_NAMES_WEAK_NAMES_H
#define CW_BROKER_NAMES_WEAK_NAMES_H

#include <stdint.h>

#include "ipc/wire.h"

struct cwd_broker;
struct cwd_weak_name;

/* Notes the name that is about to be put. 0, -EINVAL: the block has one; -EDQUOT. */
int cwd_weak_name_add(struct cwd_broker *broker, const struct cw_put *put, const char *key);
/* Its entry was removed or replaced, or was not put after all. */
void cwd_weak_name_forget(struct cwd_broker *broker, uint32_t slab, uint32_t block, uint64_t gen);
/* The block is free: ends its name, if it has one. */
void cwd_weak_name_end(struct cwd_broker *broker, uint32_t slab, uint32_t block, uint64_t gen);
/* The same of all blocks of a slab. */
void cwd_weak_names_end_in(struct cwd_broker *broker, uint32_t slab);
/* Tells the bridge of those that ended since the last call. */
void cwd_weak_names_tell(struct cwd_broker *broker);

#endif
