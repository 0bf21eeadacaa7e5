/*
 * Dispatch, what both sides share: see dispatch.h. Private to dispatch.c and dispatch_worker.c.
 */
#ifndef CW_SHM_DISPATCH_WORDS_H
#define CW_SHM_DISPATCH_WORDS_H

#include "dispatch.h"

#ifndef SPIN_LOOKS /* looks between two looks at the clock; the model check has its own */
#define SPIN_LOOKS 64
#endif

#define WORKER_SHIFT 4
#define POS_SHIFT    16
#define STATE_MASK   0xfull
#define WORKER_MASK  0xfffull

static inline uint64_t word_of(enum cw_cell_state state, uint32_t worker_plus_1, uint64_t pos) {
    return pos << POS_SHIFT | (uint64_t)worker_plus_1 << WORKER_SHIFT | (uint64_t)state;
}

static inline enum cw_cell_state state_of(uint64_t word) {
    return (enum cw_cell_state)(word & STATE_MASK);
}

static inline uint32_t worker_of(uint64_t word) { /* + 1; 0: nobody */
    return (uint32_t)(word >> WORKER_SHIFT & WORKER_MASK);
}

/* ---- the queue ---- */

static inline uint64_t tail_of(const struct cw_dispatch_view *view) {
    /* T4: after T19 or W1; pairs with T3: else a task stays READY beside a worker that has just
     * stopped looking. Acquire: the queue's entry (T5) and the cell behind it. */
    return CW_LOAD(T4, &view->words->tail, seq_cst);
}

static inline uint64_t head_of(const struct cw_dispatch_view *view) {
    /* T7: relaxed: an old one names a place that is passed by, and the word there is another one.
     */
    return CW_LOAD(T7, &view->words->head, relaxed);
}

/* The place at head is not READY any more: head moves on, whoever finds it. */
static inline void pass_by(const struct cw_dispatch_view *view, uint64_t head) {
    /* T8: one of those who found it; nothing is handed over by it. */
    CW_CAS(T8, &view->words->head, &head, head + 1, release);
}

static inline uint32_t spinners_now(const struct cw_dispatch_view *view) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < view->spinners; i++)
        /* T20: after T3; pairs with T19 and then T4. */
        count += CW_LOAD(T20, &view->words->spinner[i], seq_cst) != 0;
    return count;
}

static inline uint32_t workers_in_use(const struct cw_dispatch_view *view) {
    /* T40: private to the process. Whoever is started with a new number comes after it. */
    return CW_LOAD(T40, &view->worker_count, relaxed);
}

/* Wakes sleepers for tasks that are READY below tail beyond what spinners will take. */
static inline void wake_for(const struct cw_dispatch_view *view, uint64_t tail, uint32_t most) {
    uint64_t head = head_of(view), ready = tail > head ? tail - head : 0;
    uint32_t spinners = ready ? spinners_now(view) : 0;
    if (ready <= spinners)
        return;
    if (most > ready - spinners)
        most = (uint32_t)(ready - spinners);
    uint32_t count = workers_in_use(view);
    for (uint32_t w = 0; w < count && most > 0; w++)
        most -= cw_sleeper_wake(&view->workers[w].sleeper);
}

static inline void awake(struct cw_sleeper *self) {
    /* T38: before we look at tail (T4) with a task in hand; pairs with T3 and then W2: else who
     * sees us asleep wakes us for a second task, and we look for it too early. */
    CW_STORE(T38, &self->asleep, 0, seq_cst);
}

#endif
