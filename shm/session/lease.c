/*
 * Lease slots: one-word operations; block.h tells why each is seq_cst.
 * The client writes, the broker reads; the client's death empties the table (the broker forgets
 * it).
 */
#include "shm/session/lease.h"

#include "shm/base/error.h"

void cw_lease_take(struct cw_lease_table *table, uint32_t index, uint32_t slab, uint32_t block) {
    CW_ASSERT(index < CW_LEASE_TABLE_SLOTS);
    /* L4: before the slot is stored (L1); pairs with L5, before L2. This process alone raises it.
     */
    if (index >= CW_LOAD(L4, &table->high, relaxed))
        CW_STORE(L4, &table->high, index + 1, seq_cst);
    /* L1: before the block's word is loaded (B1); pairs with L2 after B3. */
    CW_STORE(L1, &table->slots[index], cw_lease_slot(slab, block), seq_cst);
}

void cw_lease_drop(struct cw_lease_table *table, uint32_t index) {
    CW_ASSERT(index < CW_LEASE_TABLE_SLOTS);
    /* L3: before the block's word is loaded (B5); pairs with L2 after B6. Our last reads and writes
     * of the array come before it (release), so that its next owner's do not meet them. */
    CW_STORE(L3, &table->slots[index], 0, seq_cst);
}

uint32_t cw_lease_count(struct cw_lease_table *table) {
    /* L5: after B6 or B3, before L2; pairs with L4. */
    uint32_t high = CW_LOAD(L5, &table->high, seq_cst);
    return high < CW_LEASE_TABLE_SLOTS ? high : CW_LEASE_TABLE_SLOTS;
}

uint64_t cw_lease_read(struct cw_lease_table *table, uint32_t index) {
    /* L2: after B6 or B3; pairs with L1 and L3. */
    return CW_LOAD(L2, &table->slots[index], seq_cst);
}
