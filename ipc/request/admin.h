/*
 * What the library itself asks as an administrator does.
 */
#ifndef CW_IPC_REQUEST_ADMIN_H
#define CW_IPC_REQUEST_ADMIN_H

#include "ipc/cableway.h"
#include "ipc/wire.h"

#define CW_HOLDERS_LISTED 64u

/* Who holds a block (CW_BLOCK_ANY: any of the slab). pids: room for CW_HOLDERS_LISTED, or NULL. 0;
 * -ESTALE: it has gone; or another code of a call. Both are written on success alone. */
int cw_holders_ask(cw_client *client, uint32_t slab, uint32_t block, uint64_t gen,
                   struct cw_holders *head, uint32_t *pids);

#endif
