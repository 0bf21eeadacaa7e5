/*
 * Lease table: what one client holds, in memory that the broker can read.
 *
 * A slot is one word: 0, or (slab << 32) | (block + 1). It protects that block, whatever its
 * generation: while a slot names it, the broker does not free it. There is no count that somebody
 * could forget to lower: death empties the table.
 *
 * The client alone writes its slots (one process; its threads hold the client's lock); the broker
 * reads them. Stores are seq_cst (L1 take, L3 drop), the broker's loads too (L2): see block.h for
 * why. Before it stores into a slot that was never used the client raises `high` (L4), and the
 * broker reads `high` first (L5): a broker that L2 orders after L1 finds the slot below high.
 */
#ifndef CW_SHM_SESSION_LEASE_H
#define CW_SHM_SESSION_LEASE_H

#include "shm/base/atomic.h"

#define CW_LEASE_TABLE_SLOTS 4096u /* per table; further tables are added when it is full */

struct cw_lease_table {
    cw_a32 high; /* slots from here on were never used: a scan ends there. It never falls. A
                  * client that writes a wrong value loses its own leases */
    _Alignas(64) cw_a64 slots[CW_LEASE_TABLE_SLOTS];
};

static inline uint64_t cw_lease_slot(uint32_t slab, uint32_t block) {
    return ((uint64_t)slab << 32) | ((uint64_t)block + 1);
}
static inline uint32_t cw_lease_slab(uint64_t slot) {
    return (uint32_t)(slot >> 32);
}
static inline uint32_t cw_lease_block(uint64_t slot) {
    return (uint32_t)slot - 1;
}

/* Client: stores the slot (L1), before the block's word is checked. index < CW_LEASE_TABLE_SLOTS.
 */
void cw_lease_take(struct cw_lease_table *table, uint32_t index, uint32_t slab, uint32_t block);
/* Client: clears the slot (L3), before the block's word is looked at. */
void cw_lease_drop(struct cw_lease_table *table, uint32_t index);
/* Broker: how many slots to look at (L5), CW_LEASE_TABLE_SLOTS at most. Ask again for each scan. */
uint32_t cw_lease_count(struct cw_lease_table *table);
/* Broker: one slot (L2). */
uint64_t cw_lease_read(struct cw_lease_table *table, uint32_t index);

#endif
