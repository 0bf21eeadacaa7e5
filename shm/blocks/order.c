/*
 * Orders: see order.h for the record and its rules.
 *
 * The words lie in shared memory that every process with the slab open can write; each is copied
 * once and the copy is used. Who writes which word, and when, stands in order.h.
 */
#include "shm/blocks/order.h"

#include "shm/base/error.h"

void cw_order_clear(struct cw_order *order) {
    /* G0: the block is FREE and its owner is about to carve it: B7 publishes. */
    CW_STORE(G0, &order->turn, 0, relaxed);
    CW_STORE(G0, &order->write, 0, relaxed);
    CW_STORE(G0, &order->marks, 0, relaxed);
    for (unsigned i = 0; i < CW_ORDER_WAITED; i++)
        CW_STORE(G0, &order->waited[i], 0, relaxed);
    for (unsigned i = 0; i < CW_ORDER_READS; i++)
        CW_STORE(G0, &order->reads[i], 0, relaxed);
}

bool cw_order_unused(struct cw_order *order) {
    /* G6: after the last lease ended (B8 of the owner): who had used it stored before its drop. */
    uint64_t any = CW_LOAD(G6, &order->turn, relaxed) | CW_LOAD(G6, &order->write, relaxed);
    for (unsigned i = 0; i < CW_ORDER_READS; i++)
        any |= CW_LOAD(G6, &order->reads[i], relaxed);
    return any == 0;
}

bool cw_order_read_note(struct cw_order *order, cw_stamp stamp, unsigned *place, cw_stamp *before) {
    for (unsigned i = 0; i < CW_ORDER_READS; i++) {
        /* G7: our own stamp, or somebody's that we leave alone. */
        cw_stamp now = CW_LOAD(G7, &order->reads[i], relaxed);
        if (now && cw_stamp_fence(now) == cw_stamp_fence(stamp) &&
            CW_CAS(G1, &order->reads[i], &now, stamp, seq_cst)) {
            *place = i;
            *before = now;
            return true;
        }
    }
    for (unsigned i = 0; i < CW_ORDER_READS; i++)
        if (cw_order_read_replace(order, i, 0, stamp)) {
            *place = i;
            *before = 0;
            return true;
        }
    return false;
}

bool cw_order_read_replace(struct cw_order *order, unsigned place, cw_stamp passed,
                           cw_stamp stamp) {
    /* G1: before the look at the turn (G2); pairs with G3 and G4: either the writer sees that we
     * read, or we see that it writes. */
    return CW_CAS(G1, &order->reads[place], &passed, stamp, seq_cst);
}

void cw_order_read_undo(struct cw_order *order, unsigned place, cw_stamp stamp, cw_stamp before) {
    /* G8: nothing was done under it. Where the place changed meanwhile the stamp is gone anyway. */
    CW_CAS(G8, &order->reads[place], &stamp, before, acq_rel);
}

uint64_t cw_order_turn(struct cw_order *order) {
    /* G2: after G1; pairs with G3, and with G5: what the last writer left is seen. */
    return CW_LOAD(G2, &order->turn, seq_cst);
}

void cw_order_see(struct cw_order *order, struct cw_order_seen *out) {
    /* G9: ordered by G2 or G3, which read what G5 stored. */
    out->write = CW_LOAD(G9, &order->write, relaxed);
    out->marks = CW_LOAD(G9, &order->marks, relaxed);
    for (unsigned i = 0; i < CW_ORDER_WAITED; i++)
        out->waited[i] = CW_LOAD(G9, &order->waited[i], relaxed);
    /* G4: after G3; pairs with G1. */
    for (unsigned i = 0; i < CW_ORDER_READS; i++)
        out->reads[i] = CW_LOAD(G4, &order->reads[i], seq_cst);
}

cw_stamp cw_order_read_at(struct cw_order *order, unsigned place) {
    /* G4: after G3; pairs with G8: a stamp that was submitted is known to be before it changes. */
    return CW_LOAD(G4, &order->reads[place], seq_cst);
}

uint64_t cw_order_writes(struct cw_order *order) {
    /* G9: ordered by G2, which read what G5 stored. */
    return CW_LOAD(G9, &order->writes, relaxed);
}

bool cw_order_turn_take(struct cw_order *order, uint64_t who, uint64_t *holder) {
    *holder = 0;
    /* G3: before the look at the reads (G4); pairs with G1 and G2. */
    return CW_CAS(G3, &order->turn, holder, who, seq_cst);
}

void cw_order_written(struct cw_order *order, cw_stamp stamp, const cw_stamp *waited,
                      unsigned waited_count, uint64_t marks) {
    CW_ASSERT(waited_count <= CW_ORDER_WAITED);
    for (unsigned i = 0; i < CW_ORDER_WAITED; i++)
        CW_STORE(G10, &order->waited[i], i < waited_count ? waited[i] : 0, relaxed);
    CW_STORE(G10, &order->marks, marks, relaxed);
    CW_STORE(G10, &order->write, stamp, relaxed);
    CW_STORE(G10, &order->writes, CW_LOAD(G9, &order->writes, relaxed) + 1, relaxed);
}

void cw_order_turn_give(struct cw_order *order) {
    /* G5: publishes G10; pairs with G2 and G3. */
    CW_STORE(G5, &order->turn, 0, release);
}

/* Takes a stamp of the dead out; one that was not reached leaves CW_STAMP_DEAD, or nothing where
 * nobody asks what became of it. */
static void bury_stamp(cw_a64 *word, cw_stamp left, int (*died)(void *context, cw_stamp stamp),
                       void *context) {
    /* G11: the dead store no more; what others store meanwhile wins the word (G12). */
    cw_stamp stamp = CW_LOAD(G11, word, relaxed);
    int state = stamp ? died(context, stamp) : 0;
    if (state)
        CW_CAS(G12, word, &stamp, state < 0 ? left : 0, release);
}

void cw_order_bury(struct cw_order *order, int (*died)(void *context, cw_stamp stamp),
                   void *context) {
    uint64_t turn = CW_LOAD(G11, &order->turn, relaxed);
    for (unsigned i = 0; i < CW_ORDER_WAITED; i++)
        bury_stamp(&order->waited[i], CW_STAMP_DEAD, died, context);
    for (unsigned i = 0; i < CW_ORDER_READS; i++)
        bury_stamp(&order->reads[i], 0, died, context);
    if (turn && died(context, turn)) {
        /* Died inside its turn, and perhaps in the midst of work: nobody else writes this word
         * before the turn is given back, which publishes it. */
        CW_STORE(G12, &order->write, CW_STAMP_DEAD, relaxed);
        CW_CAS(G12, &order->turn, &turn, 0, release);
    } else
        bury_stamp(&order->write, CW_STAMP_DEAD, died, context);
}
