/*
 * What a loaded tree says of where it came from. See origin.c.
 */
#ifndef CW_IPC_LOAD_ORIGIN_H
#define CW_IPC_LOAD_ORIGIN_H

#include <stdint.h>

#include "ipc/load/checkpoint.h"

/* The metadata of a tree that is made of a checkpoint, for free(); members: as below, or NULL. 0,
 * -EDQUOT. */
int cw_origin_write(const cw_checkpoint *checkpoint, const char *members, char **meta,
                    uint64_t *meta_bytes);
/* The members of a JSON object that the caller adds, for free(): "" of none. -EINVAL: it is none,
 * or has what we write there ourselves. -EDQUOT. */
int cw_origin_members(const char *object, uint64_t size_bytes, char **members);
/* Was the tree that has these metadata made of these files? 1, 0, -EDQUOT. */
int cw_origin_same(const cw_checkpoint *checkpoint, const void *meta, uint64_t meta_bytes);
/* -EEXIST, with a sentence that tells of both and what to do. */
int cw_origin_differs(const cw_checkpoint *checkpoint, const char *name, const void *meta,
                      uint64_t meta_bytes);

#endif
