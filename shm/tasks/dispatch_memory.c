/*
 * Dispatch, memory that is kept idle: who is refused some asks the others for it; see dispatch.h.
 *
 * `wanted` counts requests. What a party has heeded is the number of the last one, and in bit 0
 * whether it gave something up then. Each `heeded` has one writer, its party; what stands there of
 * a dead one is not looked at, since it has no group, and who comes after it begins with all
 * heeded: it keeps nothing. A number comes again after 2^31 requests; who was stopped all that time
 * misses one.
 *
 * Whoever dies here leaves nothing: a request is one addition, an answer one store.
 */
#include "shm/tasks/dispatch_words.h"

#define NUMBER_MASK 0x7fffffffu

static cw_a32 *heeded_of(const struct cw_dispatch_view *view, uint32_t who) {
    return who == CW_DISPATCH_PARENT ? &view->words->heeded : &view->workers[who].heeded;
}

uint32_t cw_dispatch_ask(const struct cw_dispatch_view *view) {
    /* T56: before we look who sleeps (W2), and before the helper is told (T25); pairs with W1 and
     * T27, and then T57: else who is asked sleeps, and the asker waits for its whole limit. */
    uint32_t number = (CW_ADD(T56, &view->words->wanted, 1, seq_cst) + 1) & NUMBER_MASK;
    uint32_t count = workers_in_use(view);
    for (uint32_t w = 0; w < count; w++)
        cw_sleeper_wake(&view->workers[w].sleeper);
    cw_dispatch_tell(view, true);
    return number;
}

bool cw_dispatch_must_heed(const struct cw_dispatch_view *view, uint32_t who, uint32_t *number) {
    /* T57: after W1 or T27; pairs with T56. */
    *number = CW_LOAD(T57, &view->words->wanted, seq_cst) & NUMBER_MASK;
    /* T59: our own word. */
    return CW_LOAD(T59, heeded_of(view, who), relaxed) >> 1 != *number;
}

void cw_dispatch_heed(const struct cw_dispatch_view *view, uint32_t who, uint32_t number,
                      bool some) {
    uint32_t before = CW_LOAD(T59, heeded_of(view, who), relaxed);
    if ((int32_t)(before - (number << 1 | 1)) > 0)
        return; /* another thread has heeded a later one */
    some |= before >> 1 == number && (before & 1);
    /* T58: release: what was given up, the broker has been told of before; pairs with T60. */
    CW_STORE(T58, heeded_of(view, who), number << 1 | some, release);
}

static bool has_heeded(const struct cw_dispatch_view *view, uint32_t who, uint32_t number,
                       bool *some) {
    /* T60: acquire; pairs with T58. */
    uint32_t heeded = CW_LOAD(T60, heeded_of(view, who), acquire);
    bool done = (int32_t)(heeded - (number << 1)) >= 0;
    *some |= done && (heeded & 1);
    return done;
}

uint32_t cw_dispatch_unheeded(const struct cw_dispatch_view *view, uint32_t number, bool *some) {
    *some = false;
    uint32_t count = workers_in_use(view), missing = 0;
    for (uint32_t w = 0; w < count; w++)
        /* T61: advice: who is not there yet, or no more, keeps nothing. */
        if (CW_LOAD(T61, &view->workers[w].group, relaxed) &&
            CW_LOAD(T61, &view->workers[w].state, relaxed))
            missing += !has_heeded(view, w, number, some);
    return missing + !has_heeded(view, CW_DISPATCH_PARENT, number, some);
}
