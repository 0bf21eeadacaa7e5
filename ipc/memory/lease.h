/*
 * Leases of this client: what it holds, block by block. The caller holds client->lock.
 */
#ifndef CW_IPC_MEMORY_LEASE_H
#define CW_IPC_MEMORY_LEASE_H

#include <stdint.h>

#include "ipc/cableway.h"
#include "shm/base/segment.h"
#include "shm/session/lease.h"

#define CW_LEASE_TABLES_MAX 256u

struct cw_slab;

struct cw_leases {
    struct cw_lease_table *tables[CW_LEASE_TABLES_MAX];
    struct cw_segment segments[CW_LEASE_TABLES_MAX]; /* of all but the first */
    uint32_t tables_count;
    uint32_t *free; /* stack of free slots */
    uint32_t free_count;
    uint32_t held;
};

/* Makes sure that so many leases may be taken at once. May give the lock up meanwhile: whatever is
 * not held may be gone afterwards. 0, -EDQUOT, -EINTR, -ECONNRESET. */
int cw_leases_room(cw_client *client, uint32_t count);
int cw_leases_init(cw_client *client);
void cw_leases_deinit(cw_client *client);
/* Takes one more hold on generation gen of a block. There is room. 0, -ESTALE. */
int cw_lease_hold(cw_client *client, struct cw_slab *slab, uint32_t block, uint64_t gen);
/* For a block that is still FREE and about to be carved: only the slot is stored. There is room. */
void cw_lease_hold_new(cw_client *client, struct cw_slab *slab, uint32_t block);
/* Undoes that, if nothing was carved. */
void cw_lease_unhold_new(cw_client *client, struct cw_slab *slab, uint32_t block);
/* Gives one hold back. The last one tells the broker where it must, and frees our own private
 * blocks. */
void cw_lease_release(cw_client *client, struct cw_slab *slab, uint32_t block, uint64_t gen);

#endif
