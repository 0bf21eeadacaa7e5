/*
 * Orders: see order.h for the record and its rules.
 *
 * The words lie in shared memory that every process with the slab open can write; each is copied
 * once and the copy is used. Who writes which word, and when, stands in order.h.
 */
#include "order.h"

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
