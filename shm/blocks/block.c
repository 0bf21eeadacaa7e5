/*
 * Block words: the state machine of block.h, one function an edge.
 *
 * The owner carves, takers rescue, the broker wants and retires. Every edge is one store or one
 * CAS, so no death leaves half of one. A word that other processes damaged makes an edge fail; it
 * never makes anyone loop: the CAS loops below are bounded by CW_BLOCK_TRIES.
 */
#include "shm/blocks/block.h"

#include "shm/base/error.h"

#define CW_BLOCK_TRIES 64

static uint64_t word_of(uint64_t gen, uint64_t bits) {
    return gen << CW_BLOCK_GEN_SHIFT | bits;
}

uint64_t cw_block_table_bytes(uint32_t capacity) {
    return sizeof(struct cw_block_table) + (uint64_t)capacity * sizeof(struct cw_block);
}

uint64_t cw_block_carve(struct cw_block *block, uint64_t offset_bytes, uint64_t length_bytes) {
    /* B8: nobody may take a FREE block; the owner alone leaves that state. Acquire pairs with B4.
     */
    uint64_t gen = cw_block_gen(CW_LOAD(B8, &block->word, acquire));
    CW_STORE(B9, &block->offset_bytes, offset_bytes, relaxed);
    CW_STORE(B9, &block->length_bytes, length_bytes, relaxed);
    /* B7: publishes offset and length; pairs with B1 in takers and with the adopter's load. */
    CW_STORE(B7, &block->word, word_of(gen, CW_BLOCK_LIVE), release);
    return gen;
}

void cw_block_freeze(struct cw_block *block, uint64_t gen) {
    /* B14: before the handle, or the name, by which others learn of it; that orders it. */
    CW_STORE(B14, &block->frozen, gen + 1, relaxed);
}

void cw_block_mark_queue(struct cw_block *block, uint64_t gen) {
    /* B21: a mark for watchers, who find a queue late or not at all without it. */
    CW_STORE(B21, &block->queue, gen + 1, relaxed);
}

bool cw_block_frozen(struct cw_block *block, uint64_t gen) {
    return CW_LOAD(B14, &block->frozen, relaxed) == gen + 1;
}

void cw_block_outdate(struct cw_block *block, uint64_t gen) {
    /* B20: before what publishes a newer array; that orders it for whoever has that. */
    if (CW_LOAD(B20, &block->outdated, relaxed) <= gen) /* not of a later generation */
        CW_STORE(B20, &block->outdated, gen + 1, relaxed);
}

bool cw_block_outdated(struct cw_block *block, uint64_t gen) {
    /* B20: behind the record (D4), and behind what told the reader of anything newer. */
    return CW_LOAD(B20, &block->outdated, relaxed) == gen + 1;
}

void cw_block_free_local(struct cw_block *block) {
    uint64_t word = CW_LOAD(B8, &block->word, acquire);
    CW_STORE(B7, &block->word, word_of(cw_block_gen(word) + 1, CW_BLOCK_FREE), release);
}

int cw_block_check(struct cw_block *block, uint64_t gen) {
    for (int tries = 0; tries < CW_BLOCK_TRIES; tries++) {
        /* B1: after our slot was stored (L1); pairs with B3 and the scan after it (L2): either the
         * broker sees our slot, or we see that it retires. */
        uint64_t word = CW_LOAD(B1, &block->word, seq_cst);
        if (cw_block_gen(word) != gen)
            return -ESTALE;
        switch (cw_block_state(word)) {
        case CW_BLOCK_LIVE:
            return 0;
        case CW_BLOCK_RETIRING:
            /* B2: competes with B4: who wins the word decides, and both know it. */
            CW_CAS(B2, &block->word, &word, word_of(gen, CW_BLOCK_LIVE | CW_BLOCK_WANTED), acq_rel);
            break;
        case CW_BLOCK_FREE:
        default:
            return -ESTALE;
        }
    }
    return cw_fail(-ESTALE, "the block's word never settled: its slab's table is damaged");
}

bool cw_block_drop_tells(struct cw_block *block) {
    /* B5: after our slot was cleared (L3); pairs with B6 and the scan after it (L2): either the
     * broker sees the slot empty, or we see that it wants to know. RETIRING counts as wanted: its
     * second scan may have met our slot, and then it restores the block and waits to be told. */
    uint64_t word = CW_LOAD(B5, &block->word, seq_cst);
    return (word & CW_BLOCK_WANTED) != 0 || cw_block_state(word) == CW_BLOCK_RETIRING;
}

/* Moves the word of generation gen from one pattern of state bits to another; one CAS decides. */
#define EDGE(label, block, gen, from, to, order)                                                   \
    ({                                                                                             \
        uint64_t expected = word_of((gen), (from));                                                \
        CW_CAS(label, &(block)->word, &expected, word_of((gen) + ((to) == CW_BLOCK_FREE), (to)),   \
               order);                                                                             \
    })

bool cw_block_want(struct cw_block *block, uint64_t gen) {
    /* B6: before the scan (L2); pairs with B5. A word that is WANTED already is as good: it became
     * so by an earlier B6. */
    uint64_t word = word_of(gen, CW_BLOCK_LIVE);
    if (CW_CAS(B6, &block->word, &word, word_of(gen, CW_BLOCK_LIVE | CW_BLOCK_WANTED), seq_cst))
        return true;
    return cw_block_gen(word) == gen && (word & CW_BLOCK_WANTED) != 0;
}

bool cw_block_unwant(struct cw_block *block, uint64_t gen) {
    /* B10: spares droppers from telling; a dropper that still sees WANTED tells for nothing. */
    return EDGE(B10, block, gen, CW_BLOCK_LIVE | CW_BLOCK_WANTED, CW_BLOCK_LIVE, acq_rel);
}

bool cw_block_retire(struct cw_block *block, uint64_t gen) {
    /* B3: before the second scan (L2); pairs with B1. */
    return EDGE(B3, block, gen, CW_BLOCK_LIVE | CW_BLOCK_WANTED, CW_BLOCK_RETIRING, seq_cst);
}

bool cw_block_commit(struct cw_block *block, uint64_t gen) {
    /* B4: competes with B2. Release: the last user's drop, which we saw, comes before the owner's
     * reuse. */
    return EDGE(B4, block, gen, CW_BLOCK_RETIRING, CW_BLOCK_FREE, acq_rel);
}

bool cw_block_restore(struct cw_block *block, uint64_t gen) {
    return EDGE(B11, block, gen, CW_BLOCK_RETIRING, CW_BLOCK_LIVE | CW_BLOCK_WANTED, acq_rel);
}

/* ---- a whole slab ---- */

bool cw_table_keep(struct cw_block_table *table) {
    /* B15: after our slot was stored (L1); pairs with B17 and the scan after it (L2): either the
     * broker sees our slot, or we see that it takes the slab back. */
    uint32_t word = CW_LOAD(B15, &table->withdrawn, seq_cst);
    if (word != CW_TABLE_WITHDRAWING)
        return word == CW_TABLE_OPEN;
    /* B16: competes with B18: who wins the word decides, and both know it. */
    return CW_CAS(B16, &table->withdrawn, &word, CW_TABLE_OPEN, acq_rel) || word == CW_TABLE_OPEN;
}

bool cw_table_withdrawn(struct cw_block_table *table) {
    return CW_LOAD(B15, &table->withdrawn, seq_cst) == CW_TABLE_WITHDRAWN;
}

bool cw_table_withdraw(struct cw_block_table *table) {
    uint32_t word = CW_TABLE_OPEN;
    /* B17: before the scan (L2); pairs with B15. */
    return CW_CAS(B17, &table->withdrawn, &word, CW_TABLE_WITHDRAWING, seq_cst);
}

bool cw_table_commit(struct cw_block_table *table) {
    uint32_t word = CW_TABLE_WITHDRAWING;
    return CW_CAS(B18, &table->withdrawn, &word, CW_TABLE_WITHDRAWN, acq_rel);
}

void cw_table_restore(struct cw_block_table *table) {
    uint32_t word = CW_TABLE_WITHDRAWING;
    (void)CW_CAS(B19, &table->withdrawn, &word, CW_TABLE_OPEN, acq_rel); /* false: kept already */
}

void cw_table_reset(struct cw_block_table *table) {
    /* B19: the message that tells the new owner of the slab orders it. */
    CW_STORE(B19, &table->withdrawn, CW_TABLE_OPEN, relaxed);
}
