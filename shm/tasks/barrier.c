/*
 * Barrier: see barrier.h for the protocol and for what each death leaves behind. A member's words
 * are its own; the bell belongs to those who sleep at it.
 */
#include "shm/tasks/barrier.h"

void cw_barrier_arrive(struct cw_barrier_slot *self, uint64_t word) {
    /* N1: before W9, which looks for sleepers; pairs with W8 and then N3, else a sleeper sleeps on
     * beside one who has arrived. Release: pairs with N2. */
    CW_STORE(N1, &self->arrived[word & 1], word, seq_cst);
    cw_bell_wake(&self->bell);
}

int cw_barrier_sleep(struct cw_barrier_slot *other, uint64_t word, cw_a64 *broken,
                     uint64_t as_it_was, int64_t limit_ns) {
    uint32_t rings = cw_bell_announce(&other->bell);
    /* N3: after W8; pairs with N1 before W9. */
    uint32_t seen = (uint32_t)CW_LOAD(N3, &other->arrived[word & 1], seq_cst);
    /* N5: after W7, which pairs with W11 of the rouse behind N4: this sees N4, or the number that
     * was read is an old one, and the sleep ends at once. */
    if (seen == (uint32_t)word || CW_LOAD(N5, broken, relaxed) != as_it_was)
        return 0;
    int code = cw_bell_sleep(&other->bell, rings, limit_ns);
    return code == -EINTR ? code : 0;
}

bool cw_barrier_break(cw_a64 *broken, uint64_t as_it_was, uint64_t word) {
    /* N4: before W11 in the rouse of each slot; one of those who notice wins. */
    return CW_CAS(N4, broken, &as_it_was, word, release);
}

void cw_barrier_rouse(struct cw_barrier_slot *slot) {
    cw_bell_rouse(&slot->bell);
}
