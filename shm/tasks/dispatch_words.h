/*
 * Dispatch, what both sides share: see dispatch.h. Private to dispatch*.c.
 */
#ifndef CW_SHM_TASKS_DISPATCH_WORDS_H
#define CW_SHM_TASKS_DISPATCH_WORDS_H

#include "shm/tasks/dispatch.h"

#ifndef SPIN_LOOKS /* looks between two looks at the clock; the model check has its own */
#define SPIN_LOOKS 64
#endif

#define WORKER_SHIFT 4
#define PLACE_SHIFT  16
#define STATE_MASK   0xfull
#define WORKER_MASK  0xfffull

static inline uint64_t word_of(enum cw_cell_state state, uint32_t worker_plus_1, uint64_t place) {
    return place << PLACE_SHIFT | (uint64_t)worker_plus_1 << WORKER_SHIFT | (uint64_t)state;
}

static inline enum cw_cell_state state_of(uint64_t word) {
    return (enum cw_cell_state)(word & STATE_MASK);
}

static inline uint32_t worker_of(uint64_t word) { /* + 1; 0: nobody */
    return (uint32_t)(word >> WORKER_SHIFT & WORKER_MASK);
}

/* ---- the queues ---- */

static inline uint64_t place_of(const struct cw_dispatch_view *view, uint32_t group, uint64_t pos) {
    return pos * view->group_count + group;
}

static inline cw_a32 *entry_of(const struct cw_dispatch_view *view, uint32_t group, uint64_t pos) {
    return &view->queue[(uint64_t)group * view->queue_len + (pos & (view->queue_len - 1))];
}

static inline uint64_t tail_of(const struct cw_dispatch_view *view, uint32_t group) {
    /* T4: after T19 or W1; pairs with T3: else a task stays READY beside a worker that has just
     * stopped looking. Acquire: the queue's entry (T5) and the cell behind it. */
    return CW_LOAD(T4, &view->groups[group].tail, seq_cst);
}

static inline uint64_t head_of(const struct cw_dispatch_view *view, uint32_t group) {
    /* T7: relaxed: an old one names a place that is passed by, and the word there is another one.
     */
    return CW_LOAD(T7, &view->groups[group].head, relaxed);
}

static inline uint64_t ready_of(const struct cw_dispatch_view *view, uint32_t group) {
    uint64_t head = head_of(view, group), tail = tail_of(view, group);
    return tail > head ? tail - head : 0;
}

/* The place at head is not READY any more: head moves on, whoever finds it. */
static inline void pass_by(const struct cw_dispatch_view *view, uint32_t group, uint64_t head) {
    /* T8: one of those who found it; nothing is handed over by it. */
    CW_CAS(T8, &view->groups[group].head, &head, head + 1, release);
}

/* ---- who is there ---- */

static inline uint32_t workers_in_use(const struct cw_dispatch_view *view) {
    /* T40: private to the process. Whoever is started with a new number comes after it. */
    return CW_LOAD(T40, &view->worker_count, relaxed);
}

static inline bool is_of(const struct cw_dispatch_view *view, uint32_t w, uint32_t group) {
    /* T42: after W2 has seen it asleep: what it is was written before W1. And after our own W1;
     * pairs with T47 before W2: else a group's bound falls, and who sleeps does not see it. */
    return CW_LOAD(T42, &view->workers[w].group, seq_cst) == group + 1;
}

/* How many of a group's tasks another group may take; and, if there are any, whether the group has
 * no workers. */
uint64_t cw_dispatch_excess(const struct cw_dispatch_view *view, uint32_t group, bool *deserted);
/* Wakes sleepers of a group for tasks that are READY below tail beyond what its spinners will
 * take. */
void cw_dispatch_wake_own(const struct cw_dispatch_view *view, uint32_t group, uint64_t tail,
                          uint32_t most);
/* Wakes sleepers of other groups for tasks that these may take. */
void cw_dispatch_wake_thieves(const struct cw_dispatch_view *view, uint32_t group, uint32_t most);

static inline void awake(struct cw_sleeper *self) {
    /* T38: before we look at tail (T4) with a task in hand; pairs with T3 and then W2: else who
     * sees us asleep wakes us for a second task, and we look for it too early. */
    CW_STORE(T38, &self->asleep, 0, seq_cst);
}

#endif
