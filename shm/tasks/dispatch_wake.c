/*
 * Dispatch, who is woken for tasks, by the parent and by workers; see dispatch.h.
 *
 * With one group nobody steals: then these looks are not made at all.
 */
#include "shm/tasks/dispatch_words.h"

/* Most of the time nobody sleeps, and this look is all: the words that it reads change only when
 * somebody falls asleep or is woken, where head and the spinners' places change with each task. Who
 * falls asleep after it looks at the tails itself, after W1. */
static bool anybody_sleeps(const struct cw_dispatch_view *view) {
    uint32_t count = workers_in_use(view);
    for (uint32_t w = 0; w < count; w++)
        if (cw_sleeper_sleeps(&view->workers[w].sleeper))
            return true;
    return false;
}

static uint32_t spinners_now(const struct cw_dispatch_view *view, uint32_t group) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < view->spinners; i++)
        /* T20: after T3; pairs with T19 and then T4. */
        count += CW_LOAD(T20, &view->groups[group].spinner[i], seq_cst) != 0;
    return count;
}

/* Wakes sleepers that are of this group, or are not. */
static void wake_sleepers(const struct cw_dispatch_view *view, uint32_t group, bool own,
                          uint32_t most) {
    uint32_t count = workers_in_use(view);
    for (uint32_t w = 0; w < count && most > 0; w++) {
        struct cw_sleeper *sleeper = &view->workers[w].sleeper;
        /* W2 before T42, of each: anybody_sleeps() may have seen another one. */
        if (cw_sleeper_sleeps(sleeper) && (view->group_count == 1 || is_of(view, w, group) == own))
            most -= cw_sleeper_wake(sleeper);
    }
}

void cw_dispatch_wake_own(const struct cw_dispatch_view *view, uint32_t group, uint64_t tail,
                          uint32_t most) {
    if (!anybody_sleeps(view))
        return;
    uint64_t head = head_of(view, group), ready = tail > head ? tail - head : 0;
    uint32_t spinners = ready ? spinners_now(view, group) : 0;
    if (ready <= spinners)
        return;
    if (most > ready - spinners)
        most = (uint32_t)(ready - spinners);
    wake_sleepers(view, group, true, most);
}

uint64_t cw_dispatch_excess(const struct cw_dispatch_view *view, uint32_t group, bool *deserted) {
    uint64_t ready = ready_of(view, group), bound = 0;
    uint32_t count = workers_in_use(view);
    for (uint32_t w = 0; w < count && bound < ready; w++)
        if (is_of(view, w, group))
            bound += CW_DISPATCH_STEAL_BEYOND;
    *deserted = bound == 0;
    return ready > bound ? ready - bound : 0;
}

void cw_dispatch_wake_thieves(const struct cw_dispatch_view *view, uint32_t group, uint32_t most) {
    bool deserted;
    if (!anybody_sleeps(view))
        return;
    uint64_t excess = cw_dispatch_excess(view, group, &deserted);
    if (excess > 0)
        wake_sleepers(view, group, false, excess < most ? (uint32_t)excess : most);
}
