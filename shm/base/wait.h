/*
 * Waiting: spin for about the price of one wake-up while the other side runs on another core, else
 * sleep. A waker makes a system call only if someone sleeps.
 *
 * Invariant: a sleeper stores asleep=1 (W1, seq_cst), checks its condition once more (seq_cst load)
 * and only then sleeps. A waker makes the condition true (seq_cst store) and then loads asleep (W2,
 * seq_cst). In the single order of these four, one of the two sees the other: no wake-up is lost.
 *
 * Between clients the sleeper sleeps on the word itself (shared futex); towards the broker it
 * sleeps in poll or epoll on an eventfd. Only one thread may sleep on such a word. If several do, a
 * bell is needed: otherwise one of them, which announces itself anew, hides from another that the
 * word was cleared, and that wake-up is lost (the model check found this).
 *
 * A sleeper that dies leaves asleep=1: the next waker makes one system call that wakes nobody, and
 * clears it. A waker that dies before W2, or between clearing the word and its system call, wakes
 * nobody. So whoever waits for a process also watches for that process's death, and whoever notices
 * it rouses the sleeper, whatever the word says.
 *
 * A bell does not depend on that: announcements are counted, and what a waker has done is noted
 * only after its system call. Invariant: each of the first `woken` announced sleeps has ended, or
 * ends at once. So a waker that dies at any moment leaves either all awake or `announced` ahead of
 * `woken`, and the next waker makes the call. (Before, a dead waker's cleared word hid the sleepers
 * from all later ones.)
 */
#ifndef CW_SHM_BASE_WAIT_H
#define CW_SHM_BASE_WAIT_H

#include "shm/base/atomic.h"
#include "shm/base/error.h"

#define CW_SPIN_NS 50000u     /* about one wake-up of a sleeping core (FACTS.md: 41 to 52 us) */
#define CW_FAR_S   1000000000 /* seconds that no sleep lasts: the limit of one for ever */

struct cw_sleeper { /* shared; written by the sleeping side, cleared by the waker */
    cw_a32 asleep;  /* 1: sleeps, or is about to */
    cw_a32 core;    /* core it last ran on + 1; 0 unknown */
};

/* Publishes the core that the caller runs on. Cheap (no system call). */
void cw_sleeper_here(struct cw_sleeper *self);
/* May it pay to spin for other? It is on another core than ours, and not asleep. */
bool cw_sleeper_spin_pays(const struct cw_sleeper *other);
/* Did other last run on another core than the caller, or nobody knows where? */
bool cw_sleeper_elsewhere(const struct cw_sleeper *other);
/* Announces sleep (W1). The caller then looks at its condition and sleeps only if it still does not
 * hold. */
void cw_sleeper_announce(struct cw_sleeper *self);
/* Takes the announcement back. Without it the next waker makes one system call for nobody. */
void cw_sleeper_cancel(struct cw_sleeper *self);
/*
 * Sleeps on the futex until woken, a signal, or timeout_ns (< 0: for ever). Blocks. One thread
 * alone sleeps on one word. Returns 0 (woken, or the word had changed), -ETIMEDOUT, -EINTR: a
 * signal's handler ran, with SA_RESTART or without.
 */
int cw_sleeper_sleep(struct cw_sleeper *self, int64_t timeout_ns);
/* After the effect was published: is someone asleep (W2)? */
bool cw_sleeper_sleeps(const struct cw_sleeper *other);
/* After the effect was published: was someone asleep (W2)? Clears the word; the caller wakes. */
bool cw_sleeper_claim(struct cw_sleeper *other);
/* claim, and a futex wake if so. Returns true if a system call was made. */
bool cw_sleeper_wake(struct cw_sleeper *other);
/* A futex wake whatever the word says: for who noticed a death. The sleeper looks again. */
void cw_sleeper_rouse(struct cw_sleeper *other);

struct cw_bell {      /* 16 bytes, shared; zeros are a bell that nobody waits at */
    cw_a32 announced; /* sleeps that were announced here so far */
    cw_a32 core;      /* core on which one that sleeps here last ran + 1; 0 unknown */
    cw_a32 rings;     /* the futex: rises with each wake-up */
    cw_a32 woken;     /* so many of the announced were woken for certain */
};

/* Publishes the core that the caller runs on. Cheap (no system call). */
void cw_bell_here(struct cw_bell *bell);
/* May it pay to spin for those who sleep here? Nobody does, and the last ran on another core. */
bool cw_bell_spin_pays(const struct cw_bell *bell);
/* Did the last that slept here run on another core than the caller, or nobody knows where? */
bool cw_bell_elsewhere(const struct cw_bell *bell);
/* Has anybody announced a sleep that no waker is known to have ended? */
bool cw_bell_waits(const struct cw_bell *bell);
/* Announces sleep (W8) and returns the number to sleep on. The caller then looks at its condition.
 */
uint32_t cw_bell_announce(struct cw_bell *bell);
/* Sleeps until the bell rings; any number of threads and processes may. As cw_sleeper_sleep(). */
int cw_bell_sleep(struct cw_bell *bell, uint32_t rings, int64_t timeout_ns);
/* After the effect was published: wakes all who sleep here. Returns true if a system call was made.
 */
bool cw_bell_wake(struct cw_bell *bell);
/* The same, also where nobody seems to sleep: for who noticed a death. */
void cw_bell_rouse(struct cw_bell *bell);

/* CLOCK_MONOTONIC in ns. */
int64_t cw_now_ns(void);
/* What cw_now_ns() last returned in this thread; 0: it was not called. Reading the clock takes 20
 * to 70 ns, which is much for who only wants to know about when it is. */
extern CW_THREAD_LOCAL int64_t cw_known_ns;
/* When a time that began then is over: timeout_ns later, INT64_MAX (for ever) where that cannot be
 * counted or timeout_ns < 0. The one place where a caller's time is added to the clock. */
static inline int64_t cw_end_ns(int64_t begun_ns, int64_t timeout_ns) {
    int64_t end_ns;
    return timeout_ns < 0 || __builtin_add_overflow(begun_ns, timeout_ns, &end_ns) ? INT64_MAX
                                                                                   : end_ns;
}
/* How long poll() may wait for what is left: at least 1 ms of it, as many as an int holds. */
static inline int cw_poll_ms(int64_t left_ns) {
    int64_t ms = left_ns / 1000000 + 1;
    return left_ns <= 0 ? 0 : ms > INT32_MAX ? INT32_MAX : (int)ms;
}

#endif
