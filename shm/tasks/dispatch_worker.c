/*
 * Dispatch, the worker's side: takes tasks and answers them. See dispatch.h for the words, who owns
 * them, and what each death leaves behind.
 */
#include "shm/tasks/dispatch_words.h"
#include "shm/base/error.h"

int cw_dispatch_join(const struct cw_dispatch_view *view, uint32_t w) {
    cw_a32 *group = &view->workers[w].group;
    /* T46: what started us orders it. */
    uint32_t was = CW_LOAD(T46, group, relaxed);
    if (was != 0 && was != view->group + 1)
        return cw_fail(-EINVAL, "worker %u is in group %u, not in group %u", w, was - 1,
                       view->group);
    /* T42: who looks in which group we are has seen us asleep (W2): W1 orders it. */
    CW_STORE(T42, group, view->group + 1, relaxed);
    return 0;
}

uint32_t cw_dispatch_fellows(const struct cw_dispatch_view *view) {
    uint32_t found = 0;
    for (uint32_t w = 0; w < workers_in_use(view); w++)
        found += is_of(view, w, view->group);
    return found;
}

/* The first task of a group that is READY, taken for worker w. -EAGAIN: none. -EPROTO. */
static int take_first(const struct cw_dispatch_view *view, uint32_t group, uint32_t w,
                      uint64_t *place) {
    for (;;) {
        uint64_t head = head_of(view, group);
        uint64_t tail = tail_of(view, group);
        if (head >= tail)
            return -EAGAIN;
        /* We may have been overtaken in between. Behind T4 head is at least what the parent saw
         * when it submitted. At or beyond the tail that we know nothing may be passed by: who
         * submits there has not done so yet. */
        if (tail - head > view->queue_len && (head = head_of(view, group)) >= tail)
            return -EAGAIN;
        if (tail - head > view->queue_len)
            return cw_fail(-EPROTO, "a dispatch queue of %u places has %llu tasks", view->queue_len,
                           (unsigned long long)(tail - head));
        /* T5: relaxed: T4 ordered it. If head has moved on it may be a later place's; then the
         * word below is another one. */
        uint32_t number = CW_LOAD(T5, entry_of(view, group, head), relaxed);
        if (number >= view->cell_count)
            return cw_fail(-EPROTO, "a dispatch queue names the cell %u of %u", number,
                           view->cell_count);
        struct cw_cell *cell = &view->cells[number];
        *place = place_of(view, group, head);
        uint64_t word = word_of(CW_CELL_READY, 0, *place);
        /* T6: one of those who compete wins, and its number stands there. What lies in the cell was
         * there before tail (T3), which T4 has read. */
        bool taken = CW_CAS(T6, &cell->word, &word, word_of(CW_CELL_TAKEN, w + 1, *place), acquire);
        pass_by(view, group, head);
        if (!taken)
            continue;
        /* T10: advice for who looks how long a task runs; the parent put 0 there before T1. */
        CW_STORE(T10, &cell->taken_ns, (uint64_t)cw_now_ns(), relaxed);
        return (int)number;
    }
}

/* How long it still waits for tasks of its own before it takes those of which others have too many:
 * from the first look that shows them. */
static int64_t until_steal_ns(const struct cw_dispatch_view *view) {
    if (!view->steal_since_ns)
        return 0;
    int64_t now_ns = cw_now_ns();
    if (*view->steal_since_ns == 0)
        *view->steal_since_ns = now_ns;
    int64_t left_ns = *view->steal_since_ns + CW_DISPATCH_STEAL_AFTER_NS - now_ns;
    return left_ns > 0 ? left_ns : 0;
}

/* After how long a task of another group may be taken, 0: now, -1: there is none. A group without
 * workers is waited for by nobody. */
static int64_t steal_after_ns(const struct cw_dispatch_view *view, uint32_t group) {
    bool deserted;
    if (cw_dispatch_excess(view, group, &deserted) == 0)
        return -1;
    return deserted ? 0 : until_steal_ns(view);
}

/* One that another group has too many of, if we have waited long enough. */
static int steal(const struct cw_dispatch_view *view, uint32_t w, uint64_t *place) {
    int code = -EAGAIN;
    for (uint32_t i = 1; i < view->group_count && code == -EAGAIN; i++) {
        uint32_t group = (view->group + i) % view->group_count;
        if (steal_after_ns(view, group) == 0)
            code = take_first(view, group, w, place);
    }
    return code;
}

static void forget_steal_since(const struct cw_dispatch_view *view) {
    if (view->steal_since_ns)
        *view->steal_since_ns = 0;
}

/* The soonest of all groups. */
static int64_t soonest_steal_ns(const struct cw_dispatch_view *view) {
    int64_t soonest_ns = -1;
    for (uint32_t i = 1; i < view->group_count && soonest_ns != 0; i++) {
        int64_t after_ns = steal_after_ns(view, (view->group + i) % view->group_count);
        soonest_ns = after_ns < 0 ? soonest_ns : after_ns;
    }
    if (soonest_ns < 0)
        forget_steal_since(view);
    return soonest_ns;
}

/* ---- waiting ---- */

static int spinner_enter(const struct cw_dispatch_view *view, uint32_t w) {
    cw_a32 *spinner = view->groups[view->group].spinner;
    for (uint32_t i = 0; i < view->spinners; i++) {
        uint32_t nobody = 0;
        /* T17: advice. T18: the place is ours alone; who does not see it yet wakes one too many. */
        if (CW_LOAD(T17, &spinner[i], relaxed) == 0 &&
            CW_CAS(T18, &spinner[i], &nobody, w + 1, release))
            return (int)i;
    }
    return -EAGAIN;
}

static void spinner_leave(const struct cw_dispatch_view *view, int spinner) {
    /* T19: before tail is looked at (T4); pairs with T3 and then T20. */
    CW_STORE(T19, &view->groups[view->group].spinner[spinner], 0, seq_cst);
}

static bool ordered_to_leave(const struct cw_dispatch_view *view, uint32_t w) {
    /* T22: after W1; pairs with T21. */
    return CW_LOAD(T22, &view->workers[w].order, seq_cst) == CW_ORDER_LEAVE;
}

static bool is_closing(const struct cw_dispatch_view *view) {
    /* T24: after W1; pairs with T23. Also before a look for tasks: what was submitted before the
     * close is then seen. */
    return CW_LOAD(T24, &view->words->closing, seq_cst) != 0;
}

/* Spins for a task, if there is a place. A cell's number or -EAGAIN, -EPROTO. */
static int spin_for_task(const struct cw_dispatch_view *view, uint32_t w, uint64_t *place,
                         bool *counted) {
    int spinner = view->must_sleep ? -EAGAIN : spinner_enter(view, w), code = -EAGAIN;
    if (spinner < 0)
        return -EAGAIN;
    int64_t end_ns = cw_now_ns() + CW_SPIN_NS;
    do {
        for (int i = 0; i < SPIN_LOOKS && code == -EAGAIN; i++) {
            CW_PAUSE();
            if (head_of(view, view->group) < tail_of(view, view->group))
                code = take_first(view, view->group, w, place);
        }
        if (code == -EAGAIN)
            code = steal(view, w, place);
    } while (code == -EAGAIN && cw_now_ns() < end_ns);
    spinner_leave(view, spinner);
    *counted = true;
    return code;
}

/* Sleeps unless there is something to see, or until it may steal: who
 * was woken to do so does not rely on being woken again. */
static int sleep_for_task(const struct cw_dispatch_view *view, uint32_t w) {
    struct cw_sleeper *self = &view->workers[w].sleeper;
    cw_sleeper_announce(self);
    int64_t timeout_ns = soonest_steal_ns(view);
    uint32_t number;
    bool look = head_of(view, view->group) < tail_of(view, view->group) || timeout_ns == 0 ||
                is_closing(view) || ordered_to_leave(view, w) ||
                cw_dispatch_must_heed(view, w, &number);
    int code = look ? 0 : cw_sleeper_sleep(self, timeout_ns);
    awake(self);
    return code == -EINTR ? cw_fail(-EINTR, "a signal came while waiting for a task") : -EAGAIN;
}

/* Several tasks may have counted on us, and we have one or none. */
static void wake_another(const struct cw_dispatch_view *view) {
    cw_dispatch_wake_own(view, view->group, tail_of(view, view->group), 1);
    for (uint32_t i = 1; i < view->group_count; i++)
        cw_dispatch_wake_thieves(view, (view->group + i) % view->group_count, 1);
}

int cw_dispatch_take(const struct cw_dispatch_view *view, uint32_t w, uint64_t *place) {
    bool counted = false; /* did we stand where others saw us spin, or sleep? */
    int code = -EAGAIN;
    while (code == -EAGAIN) {
        if (ordered_to_leave(view, w)) {
            code = -ESHUTDOWN;
            break;
        }
        uint32_t number;
        if (cw_dispatch_must_heed(view, w, &number)) {
            code = -EDQUOT;
            break;
        }
        bool closing = is_closing(view);
        code = take_first(view, view->group, w, place);
        if (code == -EAGAIN)
            code = steal(view, w, place);
        if (code == -EAGAIN && closing)
            code = -ESHUTDOWN;
        if (code == -EAGAIN)
            code = spin_for_task(view, w, place, &counted);
        if (code == -EAGAIN) {
            code = sleep_for_task(view, w);
            counted = true;
        }
    }
    if (code >= 0 && *place % view->group_count == view->group)
        forget_steal_since(view);
    if (counted)
        wake_another(view);
    return code;
}

bool cw_dispatch_is_taken(const struct cw_dispatch_view *view, uint32_t w, uint32_t cell) {
    if (cell >= view->cell_count)
        return false;
    /* T11: our own word since T6, if it is that. */
    uint64_t word = CW_LOAD(T11, &view->cells[cell].word, relaxed);
    return state_of(word) == CW_CELL_TAKEN && worker_of(word) == w + 1;
}

uint64_t cw_dispatch_taken_ns(const struct cw_dispatch_view *view, uint32_t cell) {
    return CW_LOAD(T10, &view->cells[cell].taken_ns, relaxed);
}

int64_t cw_dispatch_elapsed_ns(const struct cw_dispatch_view *view, uint32_t cell) {
    uint64_t taken_ns = cw_dispatch_taken_ns(view, cell);
    return taken_ns ? cw_now_ns() - (int64_t)taken_ns : 0;
}

static bool has_listeners(const struct cw_dispatch_view *view) {
    /* T13: after T12; pairs with T15 and then T14. */
    return CW_LOAD(T13, &view->words->listeners, seq_cst) != 0;
}

bool cw_dispatch_publish(const struct cw_dispatch_view *view, uint32_t w, uint32_t cell) {
    struct cw_dispatch_worker *self = &view->workers[w];
    /* T11: our own word since T6. */
    uint64_t taken = CW_LOAD(T11, &view->cells[cell].word, relaxed);
    uint64_t word = word_of(CW_CELL_DONE, w + 1, taken >> PLACE_SHIFT);
    /* T9: release: whoever dies behind it has written the whole answer. From here on it counts. */
    CW_STORE(T9, &view->cells[cell].word, word, release);
    uint64_t done = CW_LOAD(T11, &self->done, relaxed);
    /* T2: ordered by T12. */
    CW_STORE(T2, &view->done[(uint64_t)w * view->queue_len + (done & (view->queue_len - 1))], cell,
             relaxed);
    /* T12: before we look whether somebody listens (T13), or sleeps (W9); pairs with T15 or W8, and
     * then T14: else an answer lies there and nobody looks. Release: T2. */
    CW_STORE(T12, &self->done, done + 1, seq_cst);
    if (!has_listeners(view))
        return false;
    cw_bell_wake(&view->words->answers);
    return true;
}

/* Has the parent seen all our answers? */
static bool is_collected(const struct cw_dispatch_view *view, uint32_t w) {
    struct cw_dispatch_worker *self = &view->workers[w];
    /* T41: advice: who reads an old number wakes the helper for nothing. */
    return CW_LOAD(T41, &self->collected, relaxed) == CW_LOAD(T11, &self->done, relaxed);
}

void cw_dispatch_settle(const struct cw_dispatch_view *view, uint32_t w, int64_t wait_ns) {
    int64_t end_ns = wait_ns > 0 ? cw_now_ns() + wait_ns : 0;
    while (wait_ns > 0 && !has_listeners(view) && !is_collected(view, w) &&
           ready_of(view, view->group) == 0 && cw_now_ns() < end_ns)
        CW_PAUSE();
    if (is_collected(view, w))
        return;
    if (has_listeners(view))
        cw_bell_wake(&view->words->answers);
    else
        cw_bell_wake(&view->words->helper);
}

void cw_dispatch_state(const struct cw_dispatch_view *view, uint32_t w, uint32_t state) {
    /* T28: release; pairs with T29: what it left beside it. */
    CW_STORE(T28, &view->workers[w].state, state, release);
    cw_dispatch_tell(view, true);
}
