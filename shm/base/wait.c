/*
 * Waiting and waking: see wait.h for the invariant.
 *
 * Each sleeper word belongs to the side that sleeps on it; the waking side only clears it. A
 * sleeper that dies leaves it set, which costs the next waker one system call; a waker's death is
 * seen by whoever watches that process.
 */
#include "shm/base/wait.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int64_t cw_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void cw_sleeper_here(struct cw_sleeper *self) {
    uint32_t core = (uint32_t)sched_getcpu() + 1;
    /* W5: advice only, no ordering; a store is saved where nothing changed, to leave the line
     * shared. */
    if (CW_LOAD(W5, &self->core, relaxed) != core)
        CW_STORE(W5, &self->core, core, relaxed);
}

bool cw_sleeper_spin_pays(const struct cw_sleeper *other) {
    /* W6: advice only: a wrong answer costs time and never correctness. */
    uint32_t core = CW_LOAD(W6, (cw_a32 *)&other->core, relaxed);
    if (CW_LOAD(W6, (cw_a32 *)&other->asleep, relaxed))
        return false;
    return core != 0 && core != (uint32_t)sched_getcpu() + 1;
}

bool cw_sleeper_elsewhere(const struct cw_sleeper *other) {
    uint32_t core = CW_LOAD(W6, (cw_a32 *)&other->core, relaxed);
    return core != (uint32_t)sched_getcpu() + 1;
}

void cw_sleeper_announce(struct cw_sleeper *self) {
    /* W1: before we look at the condition for the last time; pairs with W2 in cw_sleeper_claim;
     * else both sides look before the other's store is visible, and the wake-up is lost. */
    CW_STORE(W1, &self->asleep, 1, seq_cst);
}

void cw_sleeper_cancel(struct cw_sleeper *self) {
    /* W3: we are awake; a waker that still sees 1 makes one system call for nobody. */
    CW_STORE(W3, &self->asleep, 0, relaxed);
}

bool cw_sleeper_sleeps(const struct cw_sleeper *other) {
    /* W2: after the effect was published (seq_cst); pairs with W1. */
    return CW_LOAD(W2, (cw_a32 *)&other->asleep, seq_cst) != 0;
}

bool cw_sleeper_claim(struct cw_sleeper *other) {
    if (!cw_sleeper_sleeps(other))
        return false;
    /* W4: several wakers may see the 1; who takes it makes the system call. Release, so that the
     * sleeper which finds 0 in its futex call has seen our effect. */
    return CW_XCHG(W4, &other->asleep, 0, acq_rel) != 0;
}

/* For ever is a limit too, a far one: without one the kernel goes on waiting behind a signal whose
 * handler has SA_RESTART, with one it never does. So one rule holds whoever set up the handler. */
static int futex_sleep(cw_a32 *word, uint32_t value, int64_t timeout_ns) {
    struct timespec limit = {.tv_sec = CW_FAR_S};
    if (timeout_ns >= 0) {
        limit.tv_sec = timeout_ns / 1000000000;
        limit.tv_nsec = timeout_ns % 1000000000;
    }
    long result = syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0);
    int code = result == 0 ? 0 : -errno;
    if (code == -ETIMEDOUT && timeout_ns < 0)
        return 0; /* nobody waits so long; who does looks again */
    return code == -ETIMEDOUT || code == -EINTR ? code : 0;
}

int cw_sleeper_sleep(struct cw_sleeper *self, int64_t timeout_ns) {
    return futex_sleep(&self->asleep, 1, timeout_ns);
}

bool cw_sleeper_wake(struct cw_sleeper *other) {
    if (!cw_sleeper_claim(other))
        return false;
    syscall(SYS_futex, &other->asleep, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return true;
}

void cw_sleeper_rouse(struct cw_sleeper *other) {
    syscall(SYS_futex, &other->asleep, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

uint32_t cw_bell_announce(struct cw_bell *bell) {
    /* W7: pairs with W11: who reads the new number announces itself after W10 cleared the word. An
     * old number only makes the sleep end at once. */
    uint32_t rings = CW_LOAD(W7, &bell->rings, acquire);
    /* W8: before we look at the condition for the last time; pairs with W9. */
    CW_STORE(W8, &bell->sleeper.asleep, 1, seq_cst);
    return rings;
}

int cw_bell_sleep(struct cw_bell *bell, uint32_t rings, int64_t timeout_ns) {
    return futex_sleep(&bell->rings, rings, timeout_ns);
}

static void bell_move(struct cw_bell *bell) {
    /* W10: before the number moves (W11). It may clear the word of one who has just announced
     * itself and read the old number: the number has moved for that one too. */
    CW_STORE(W10, &bell->sleeper.asleep, 0, relaxed);
    /* W11: release, for W10 and for the effect; pairs with W7. */
    CW_ADD(W11, &bell->rings, 1, release);
    syscall(SYS_futex, &bell->rings, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool cw_bell_wake(struct cw_bell *bell) {
    /* W9: after the effect was published (seq_cst); pairs with W8. */
    if (!CW_LOAD(W9, &bell->sleeper.asleep, seq_cst))
        return false;
    bell_move(bell);
    return true;
}

void cw_bell_rouse(struct cw_bell *bell) {
    bell_move(bell);
}
