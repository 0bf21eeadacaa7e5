/*
 * Fence words on the CPU: see fence.h for the rules.
 *
 * One writer a fence (a stream of one process); any number of readers; the broker poisons when the
 * writer is dead. Several may wait: they sleep at the fence's bell.
 */
#include "shm/blocks/fence.h"

#include "shm/base/error.h"

void cw_fence_init(struct cw_fence *fence) {
    CW_STORE(F0, &fence->value, 0, relaxed);
    CW_STORE(F0, &fence->enqueued, 0, relaxed);
    CW_STORE(F0, &fence->completed, 0, relaxed);
    CW_STORE(F0, &fence->final, 0, relaxed);
    CW_STORE(F0, &fence->waiters.announced, 0, relaxed);
    CW_STORE(F0, &fence->waiters.core, 0, relaxed);
    CW_STORE(F0, &fence->waiters.rings, 0, relaxed);
    CW_STORE(F0, &fence->waiters.woken, 0, relaxed);
}

void cw_fence_enqueue(struct cw_fence *fence, uint64_t value) {
    /* F1: published before the work is submitted, so that who is told of value finds it here. */
    CW_ASSERT(value > CW_LOAD(F1, &fence->enqueued, relaxed) && value < CW_FENCE_POISON);
    CW_STORE(F1, &fence->enqueued, value, release);
}

void cw_fence_complete(struct cw_fence *fence, uint64_t value) {
    CW_ASSERT(value < CW_FENCE_POISON);
    /* F2: publishes the work up to value; pairs with F3. seq_cst for the look at the waiters (W9).
     */
    CW_STORE(F2, &fence->value, value, seq_cst);
    cw_bell_wake(&fence->waiters);
}

int cw_fence_poll(struct cw_fence *fence, uint64_t value) {
    /* F3: pairs with F2, and after W8 with F2 again: a waiter that announced itself sees the value
     * or is seen. */
    uint64_t now = CW_LOAD(F3, &fence->value, seq_cst);
    /* F4: pairs with F6: the dead writer's work. Noted before the poison (F5), so who saw that sees
     * it. The note decides, whatever a late write has put over the poison meanwhile: who was
     * released by the poison did not wait for it. */
    uint64_t note = CW_LOAD(F4, &fence->completed, acquire);
    if (note >= CW_FENCE_POISON)
        return note - CW_FENCE_POISON >= value ? 1 : -EOWNERDEAD;
    return now < CW_FENCE_POISON ? now >= value : -EOWNERDEAD;
}

bool cw_fence_submitted(struct cw_fence *fence, uint64_t value) {
    /* F7: pairs with F1. */
    return CW_LOAD(F7, &fence->enqueued, acquire) >= value;
}

int cw_fence_wait(struct cw_fence *fence, uint64_t value, int64_t timeout_ns) {
    int64_t end_ns = timeout_ns < 0 ? 0 : cw_end_ns(cw_now_ns(), timeout_ns);
    int64_t spin_end_ns = cw_now_ns() + CW_SPIN_NS;
    for (;;) {
        int done = cw_fence_poll(fence, value);
        if (done)
            return done > 0 ? 0
                            : cw_fail(done, "the producer died before it completed %llu",
                                      (unsigned long long)value);
        int64_t now_ns = cw_now_ns();
        if (timeout_ns >= 0 && now_ns >= end_ns)
            return cw_fail(-ETIMEDOUT, "the fence did not reach %llu in %.3f s",
                           (unsigned long long)value, (double)timeout_ns / 1e9);
        if (now_ns < spin_end_ns) {
            CW_PAUSE();
            continue;
        }
        uint32_t rings = cw_bell_announce(&fence->waiters);
        if (cw_fence_poll(fence, value) != 0)
            continue;
        if (cw_bell_sleep(&fence->waiters, rings, timeout_ns < 0 ? -1 : end_ns - now_ns) == -EINTR)
            return cw_fail(-EINTR, "a signal came while waiting for a fence");
    }
}

uint64_t cw_fence_poison(struct cw_fence *fence) {
    /* F6: the completed value is noted once, before the first poison. Nobody else writes the note:
     * the writer is dead, and that it is came through the kernel. What lands in value later comes
     * from a device. */
    uint64_t now = CW_LOAD(F6, &fence->value, relaxed);
    uint64_t note = CW_LOAD(F6, &fence->completed, relaxed);
    if (note < CW_FENCE_POISON) {
        note = CW_FENCE_POISON + (now < CW_FENCE_POISON ? now : 0);
        CW_STORE(F6, &fence->completed, note, release);
    } else if (now >= CW_FENCE_POISON)
        return note - CW_FENCE_POISON; /* nothing has landed since */
    /* F5: publishes the note and the dead writer's work; pairs with F3. It needs no look at the
     * waiters: the bell is roused in any case, the writer may have died in the middle of a wake-up.
     */
    CW_STORE(F5, &fence->value, CW_FENCE_POISON, release);
    cw_bell_rouse(&fence->waiters);
    return note - CW_FENCE_POISON;
}

void cw_fence_finish(struct cw_fence *fence) {
    /* F8: after the last poison; what landed before comes before whoever reads it. */
    CW_STORE(F8, &fence->final, 1, release);
}

bool cw_fence_is_final(struct cw_fence *fence) {
    return CW_LOAD(F8, &fence->final, acquire) != 0;
}
