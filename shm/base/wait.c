/*
 * Waiting and waking: see wait.h for the invariant.
 *
 * Each sleeper word belongs to the side that sleeps on it; the waking side only clears it. A
 * sleeper that dies leaves it set, which costs the next waker one system call; a waker's death is
 * seen by whoever watches that process. At a bell the next waker does what a dead one left undone.
 */
#include "shm/base/wait.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shm/base/trace.h"

CW_THREAD_LOCAL int64_t cw_known_ns;

int64_t cw_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    cw_known_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    return cw_known_ns;
}

static void here(cw_a32 *word) {
    uint32_t core = (uint32_t)sched_getcpu() + 1;
    /* W5: advice only, no ordering; a store is saved where nothing changed, to leave the line
     * shared. */
    if (CW_LOAD(W5, word, relaxed) != core)
        CW_STORE(W5, word, core, relaxed);
}

static uint32_t core_of(const cw_a32 *word) {
    /* W6: advice only: a wrong answer costs time and never correctness. */
    return CW_LOAD(W6, (cw_a32 *)word, relaxed);
}

static bool elsewhere(const cw_a32 *word) {
    return core_of(word) != (uint32_t)sched_getcpu() + 1;
}

static bool known_elsewhere(const cw_a32 *word) {
    return core_of(word) != 0 && elsewhere(word);
}

void cw_sleeper_here(struct cw_sleeper *self) {
    here(&self->core);
}

bool cw_sleeper_spin_pays(const struct cw_sleeper *other) {
    return !CW_LOAD(W6, (cw_a32 *)&other->asleep, relaxed) && known_elsewhere(&other->core);
}

bool cw_sleeper_elsewhere(const struct cw_sleeper *other) {
    return elsewhere(&other->core);
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
static int futex_wait(cw_a32 *word, uint32_t value, int64_t timeout_ns) {
    struct timespec limit = {.tv_sec = CW_FAR_S};
    if (timeout_ns >= 0) {
        limit.tv_sec = timeout_ns / 1000000000;
        limit.tv_nsec = timeout_ns % 1000000000;
    }
    return syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0) == 0 ? 0 : -errno;
}

static int futex_sleep(cw_a32 *word, uint32_t value, int64_t timeout_ns) {
    struct cw_trace_span span = {.kind = CW_TRACE_WAIT};
    bool apart = cw_trace_top == NULL; /* a call without a span of its own */
    if (apart)
        cw_trace_enter(&span);
    bool quiet = cw_trace_sleeps_quietly(timeout_ns);
    int code = futex_wait(word, value, quiet ? CW_TRACE_QUIET_NS : timeout_ns);
    if (quiet && code == -ETIMEDOUT) {
        cw_trace_slept_quietly();
        code = futex_wait(word, value, timeout_ns < 0 ? -1 : timeout_ns - CW_TRACE_QUIET_NS);
    }
    if (apart)
        cw_trace_leave(&span, false);
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
    cw_trace_woke();
    return true;
}

void cw_sleeper_rouse(struct cw_sleeper *other) {
    syscall(SYS_futex, &other->asleep, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

uint32_t cw_bell_announce(struct cw_bell *bell) {
    /* W7: before W8, which orders it: a waker that counts us (W9) moves the number (W11) after we
     * have read it, so our sleep ends. An old number only makes the sleep end at once. */
    uint32_t rings = CW_LOAD(W7, &bell->rings, acquire);
    /* W8: before we look at the condition for the last time; pairs with W9. */
    CW_ADD(W8, &bell->announced, 1, seq_cst);
    return rings;
}

int cw_bell_sleep(struct cw_bell *bell, uint32_t rings, int64_t timeout_ns) {
    return futex_sleep(&bell->rings, rings, timeout_ns);
}

/* Ends all sleeps up to the announced one; woken: how many were before we looked. */
static void bell_move(struct cw_bell *bell, uint32_t woken, uint32_t announced) {
    /* W11: release, for the effect; pairs with W7. After W9: see W7. */
    CW_ADD(W11, &bell->rings, 1, release);
    syscall(SYS_futex, &bell->rings, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    /* W13: after the call, so that a death before it leaves it to the next waker. Another waker may
     * have noted more meanwhile; then ours is not needed. */
    (void)CW_CAS(W13, &bell->woken, &woken, announced, release);
    cw_trace_woke();
}

bool cw_bell_wake(struct cw_bell *bell) {
    /* W10: how many need no waker. Older is safe: then we make a call for nobody. */
    uint32_t woken = CW_LOAD(W10, &bell->woken, relaxed);
    /* W9: after the effect was published (seq_cst); pairs with W8. */
    uint32_t announced = CW_LOAD(W9, &bell->announced, seq_cst);
    if (announced == woken)
        return false;
    bell_move(bell, woken, announced);
    return true;
}

void cw_bell_rouse(struct cw_bell *bell) {
    uint32_t woken = CW_LOAD(W10, &bell->woken, relaxed); /* W10, W9: as above */
    bell_move(bell, woken, CW_LOAD(W9, &bell->announced, seq_cst));
}

bool cw_bell_waits(const struct cw_bell *bell) {
    /* W6: advice only. */
    return CW_LOAD(W6, (cw_a32 *)&bell->announced, relaxed) !=
           CW_LOAD(W6, (cw_a32 *)&bell->woken, relaxed);
}

void cw_bell_here(struct cw_bell *bell) {
    here(&bell->core);
}

bool cw_bell_elsewhere(const struct cw_bell *bell) {
    return elsewhere(&bell->core);
}

bool cw_bell_spin_pays(const struct cw_bell *bell) {
    return !cw_bell_waits(bell) && known_elsewhere(&bell->core);
}
