/*
 * Barrier: members of a group meet. Each member has a slot, and is the only one who says there that
 * it has arrived; each reads the slots of all others. There is no counter that a death could leave
 * wrong, and nobody who is last has anything to do for the rest.
 *
 * A meeting has a number (from 1, the same for all members; it may wrap around) and a mark of what
 * is met for. Number and mark are one word, so that who compares one word knows both: the other one
 * is here, and for the same thing. A slot has two such words, for meetings of even and of odd
 * number.
 *
 *   member:  what it wrote before; arrived[number & 1] = number, mark (N1); wakes its bell (W9)
 *   others:  for each slot: arrived[number & 1] is the expected word (N2): go on
 *            not yet: spin; announce at that slot's bell (W8); look again (N3), look whether the
 *            group is broken (N5); sleep
 *
 * Invariants
 * - Nobody begins meeting n + 1 before all have arrived at n. So while anyone reads the words of
 *   meeting n, nobody writes those of n + 2, which lie in the same place: what a member writes into
 *   memory of its own for meeting n, by the number's parity, stays until all have read it.
 * - Who has seen a member arrive sees what that member wrote before.
 * - One word of the group says that it is broken (N4). It is set once, by a compare-and-swap, and
 *   whoever sets it rouses the bell of each slot. A sleeper reads the bell's number before it looks
 *   at that word: it sees it set, or the number is an old one, and its sleep ends. If the one who
 * set it dies before it has roused all, the rest sleep until their own next look: nobody sleeps for
 * longer than he says.
 *
 * Deaths. A member that dies before N1 has not arrived, after it it has; its slot is written by
 * nobody else. Between N1 and the wake-up: sleepers sleep until their time is out, and look. So the
 * callers give each sleep a limit, and look after each whether those who are missing live.
 */
#ifndef CW_SHM_TASKS_BARRIER_H
#define CW_SHM_TASKS_BARRIER_H

#include <errno.h>

#include "shm/base/wait.h"

#define CW_BARRIER_BROUGHT 16 /* bytes */

struct cw_barrier_slot { /* 64 bytes, shared; written by its member, but for the bell */
    cw_a64 arrived[2];
    struct cw_bell bell; /* who waits for this member sleeps here */
    /* What goes with the arrival, by the number's parity: who sees one has the other in its cache.
     * Plain memory: written before N1, read after N2. */
    uint8_t brought[2][CW_BARRIER_BROUGHT];
};
_Static_assert(sizeof(struct cw_barrier_slot) == 64, "layout");

/* The word for a meeting. */
static inline uint64_t cw_barrier_word(uint32_t number, uint32_t mark) {
    return (uint64_t)mark << 32 | number;
}

/* Says that the member has arrived, and wakes who sleeps for it. Everything that others are to read
 * was written before. */
void cw_barrier_arrive(struct cw_barrier_slot *self, uint64_t word);

/* Has that member arrived? 1 yes, 0 not yet, -EBADMSG: it has, for something else. Never blocks. */
static inline int cw_barrier_look(const struct cw_barrier_slot *other, uint64_t word) {
    /* N2: pairs with N1: what the other one wrote before it arrived. */
    uint64_t seen = CW_LOAD(N2, (cw_a64 *)(uintptr_t)&other->arrived[word & 1], acquire);
    return seen == word ? 1 : (uint32_t)seen != (uint32_t)word ? 0 : -EBADMSG;
}

/*
 * Sleeps until that member has arrived, the group is broken (its word is not as_it_was any more),
 * limit_ns have passed (< 0: for ever), or for nothing: the caller looks again. 0, -EINTR.
 */
int cw_barrier_sleep(struct cw_barrier_slot *other, uint64_t word, cw_a64 *broken,
                     uint64_t as_it_was, int64_t limit_ns);
/* Breaks the group, if its word is as it was: whether the caller did. It then rouses all slots. */
bool cw_barrier_break(cw_a64 *broken, uint64_t as_it_was, uint64_t word);
/* The word that says whether the group is broken. */
static inline uint64_t cw_barrier_broken(const cw_a64 *broken) {
    /* N6: a look: who misses it meets the death itself, or the end of its time. All that it tells
     * is in the word. */
    return CW_LOAD(N6, (cw_a64 *)(uintptr_t)broken, relaxed);
}
/* Ends the sleeps of all who wait for that member. */
void cw_barrier_rouse(struct cw_barrier_slot *slot);

#endif
