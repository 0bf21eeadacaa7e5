/*
 * Holders: which clients have a lease on a block, read from their lease tables at this moment.
 */
#ifndef CW_BROKER_MEMORY_HOLDERS_H
#define CW_BROKER_MEMORY_HOLDERS_H

#include <stdint.h>

#include "ipc/wire.h"

struct cwd_broker;

#define CWD_HOLDERS_LISTED 64u

/* Who holds one block, or any of the slab (CW_BLOCK_ANY): *head, and the pids of the first
 * CWD_HOLDERS_LISTED. 0, or -ESTALE. */
int cwd_holders_list(struct cwd_broker *broker, const struct cw_block_ref *ref,
                     struct cw_holders *head, uint32_t *pids);
/* How many hold each of count blocks (at most CW_BLOCKS_ASKED), with one look at every table. A
 * block that is gone has device_kind 0. */
void cwd_holders_count(struct cwd_broker *broker, const struct cw_block_name *asked, uint32_t count,
                       struct cw_block_holders *out);

#endif
