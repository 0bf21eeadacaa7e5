/*
 * Dispatch: which worker takes a task, how its answer comes back, who is woken for both, and what
 * a dead worker leaves (shm/tasks/dispatch.c), with one group. See dispatch_world.h for what the
 * scenarios share, groups.c for two groups.
 */
#include "dispatch_world.h"
#include "scenarios.h"

/* Where worker 1 is no thread but a word that says that it sleeps: it was woken, or for nothing. */
static void woken_if_ready(void) {
    MODEL_CHECK(nothing_ready() || atomic_load(&workers[1].sleeper.asleep) == 0);
}

/* ---- workers ---- */

static void all_by_0(void) {
    int cell;
    while ((cell = take(0)) >= 0)
        answer(0, cell);
    MODEL_CHECK(cell == -ESHUTDOWN);
}

/* Worker 1 has announced that it sleeps, and is about to. Once it is woken it would look. */
static void sleeps_1(void) {
    cw_sleeper_sleep(&workers[1].sleeper, FOR_EVER);
}

/* ---- taking ---- */

static void init_both_ready(void) {
    fresh(2, 0);
    submit(1);
    submit(2);
}

static void both_answered(void) {
    collect();
    MODEL_CHECK(ghost.collected[1] == 1 && ghost.collected[2] == 1);
}

static void init_two_cells(void) {
    fresh(2, 0);
}

static void init_one_sleeps(void) {
    fresh(2, 0);
    atomic_store(&workers[1].sleeper.asleep, 1);
}

/* Worker 0 may spin, worker 1 sleeps. */
static void init_one_spins(void) {
    fresh(2, 1);
    atomic_store(&workers[1].sleeper.asleep, 1);
}

static void parent_submits_one(void) {
    submit_and_wake(1);
}

static void parent_submits_two(void) {
    submit_and_wake(1);
    submit_and_wake(2);
}

/* Submits, and waits for the answers as a listener. */
static void parent_calls(void) {
    submit_and_wake(1);
    cw_dispatch_listen(&parent, 1);
    while (!ghost.collected[1]) {
        uint32_t was = cw_dispatch_news(&parent.view, false);
        MODEL_CHECK(cw_dispatch_wait(&parent, false, was, 0, FOR_EVER) == 0);
        collect();
    }
    cw_dispatch_listen(&parent, -1);
}

static void init_one_ready(void) {
    fresh(2, 0);
    submit(1);
}

/* One cell, one place in the queue: both are used again. */
static void init_one_cell(void) {
    fresh(1, 0);
    submit(1);
}

static void parent_takes_back(void) {
    int code = cw_dispatch_withdraw(&parent, 0);
    MODEL_CHECK(code == 0 || code == -EBUSY);
    if (code)
        return;
    ghost.withdrawn = 1;
    MODEL_CHECK(model_plain_read(&payload[0]) == 1);
    cw_dispatch_free(&parent, 0);
    submit_and_wake(2);
}

static void taken_or_withdrawn(void) {
    collect();
    MODEL_CHECK(ghost.collected[1] + ghost.withdrawn == 1);
    MODEL_CHECK(ghost.collected[2] == ghost.withdrawn);
}

/* A queue of two places is full of what was withdrawn behind a task that is READY. */
static void parent_fills_the_queue(void) {
    MODEL_CHECK(cw_dispatch_withdraw(&parent, 1) == 0);
    int code = cw_dispatch_submit(&parent, 0, 1);
    MODEL_CHECK(code == 0 || code == -EAGAIN);
    ghost.withdrawn = code != 0;
    if (code == 0)
        cw_dispatch_wake(&parent, 0, 1);
}

/* ---- leaving ---- */

static void parent_submits_and_closes(void) {
    submit_and_wake(1);
    cw_dispatch_close(&parent, true);
}

static void parent_closes(void) {
    cw_dispatch_close(&parent, true);
}

static void parent_dismisses_0(void) {
    cw_dispatch_order(&parent, 0, CW_ORDER_LEAVE);
}

static void parent_submits_and_dismisses_0(void) {
    submit_and_wake(1);
    cw_dispatch_order(&parent, 0, CW_ORDER_LEAVE);
}

static void first_answered(void) {
    collect();
    MODEL_CHECK(ghost.collected[1] == 1);
}

/* ---- memory that is kept idle ---- */

static void asks(void) {
    cw_dispatch_ask(&parent.view);
}

/* Who has heeded has given up what it keeps before. */
static void asks_and_looks(void) {
    bool some;
    uint32_t number = cw_dispatch_ask(&parent.view);
    if (cw_dispatch_unheeded(&parent.view, number, &some) == 0)
        MODEL_CHECK(some && model_plain_read(&note) == 1);
}

static void heeds_0(void) {
    uint32_t number;
    MODEL_CHECK(take(0) == -EDQUOT);
    MODEL_CHECK(cw_dispatch_must_heed(&views[0], 0, &number));
    cw_dispatch_heed(&views[0], 0, number, true);
}

static void helper_heeds(void) {
    for (;;) {
        uint32_t number, was = cw_dispatch_news(&parent.view, true);
        if (cw_dispatch_must_heed(&parent.view, CW_DISPATCH_PARENT, &number)) {
            model_plain_write(&note, 1);
            cw_dispatch_heed(&parent.view, CW_DISPATCH_PARENT, number, true);
            return;
        }
        MODEL_CHECK(cw_dispatch_wait(&parent, true, was, 0, FOR_EVER) == 0);
    }
}

/* ---- answers ---- */

/* Each worker has a task. */
static void take_in_init(uint32_t w) {
    MODEL_CHECK(take(w) == (int)w);
}

static void init_0_has_one(void) {
    fresh(2, 0);
    submit(1);
    take_in_init(0);
}

static void init_both_have_one(void) {
    init_both_ready();
    take_in_init(0);
    take_in_init(1);
}

static void init_both_have_one_and_one_listens(void) {
    init_both_have_one();
    cw_dispatch_listen(&parent, 1);
}

static void init_0_has_one_and_one_listens(void) {
    init_0_has_one();
    cw_dispatch_listen(&parent, 1);
}

static void answer_by_0(void) {
    answer(0, 0);
}

static void answer_by_1(void) {
    answer(1, 1);
}

/* Unlocks first: the model's lock begins taken. */
static void listener_leaves(void) {
    cw_dispatch_listen(&parent, -1);
    collect();
    unlock();
}

static void listener_comes_and_leaves(void) {
    cw_dispatch_listen(&parent, 1);
    unlock();
    if (!ghost.collected[1]) {
        ghost.waits[0]++;
        MODEL_CHECK(cw_dispatch_wait(&parent, false, 0, 0, FOR_EVER) == 0);
    }
    lock();
    cw_dispatch_listen(&parent, -1);
    collect();
    unlock();
}

static void helper_collects(void) {
    while (!ghost.collected[1]) {
        ghost.waits[1]++;
        uint32_t was = cw_dispatch_news(&parent.view, true);
        MODEL_CHECK(cw_dispatch_wait(&parent, true, was, 0, FOR_EVER) == 0);
        lock();
        collect();
        unlock();
    }
}

static bool first_collected(void) {
    return ghost.collected[1];
}

static bool no_answer_left(void) {
    return !cw_dispatch_has_answer(&parent);
}

static void listener_waits_for_both(void) {
    while (!ghost.collected[1] || !ghost.collected[2]) {
        uint32_t was = cw_dispatch_news(&parent.view, false);
        MODEL_CHECK(cw_dispatch_wait(&parent, false, was, 0, FOR_EVER) == 0);
        collect();
    }
}

/* ---- news ---- */

static void worker_states(void) {
    model_plain_write(&note, 5);
    cw_dispatch_state(&parent.view, 0, 7);
}

static void helper_is_told(void) {
    MODEL_CHECK(cw_dispatch_wait(&parent, true, 0, 0, FOR_EVER) == 0);
    /* T29: as ipc/tasks/pool.c does. */
    MODEL_CHECK(CW_LOAD(T29, &workers[0].state, acquire) == 7);
    MODEL_CHECK(model_plain_read(&note) == 5);
}

static void helper_looks(void) {
    if (CW_LOAD(T29, &workers[0].state, acquire) == 7)
        MODEL_CHECK(model_plain_read(&note) == 5);
}

static void helper_tells(void) {
    model_plain_write(&note, 5);
    cw_dispatch_tell(&parent.view, false);
}

static void listener_is_told(void) {
    MODEL_CHECK(cw_dispatch_wait(&parent, false, 0, 0, FOR_EVER) == 0);
    MODEL_CHECK(model_plain_read(&note) == 5);
}

static void listener_compares_news(void) {
    if (cw_dispatch_news(&parent.view, false) != 0)
        MODEL_CHECK(model_plain_read(&note) == 5);
}

/* ---- what waits for a cell ----
 *
 * The row of what waits is the caller's: here a count, changed and read as the orders of T52 and
 * T53 need it at least (in Python the GIL orders more). Two tasks wait in it, worker 0 has one that
 * is not answered, and somebody listens, so that the helper does not hear of answers.
 */
static cw_a32 row;

static void init_two_wait_and_one_listens(void) {
    init_0_has_one_and_one_listens();
    atomic_store(&row, 2);
}

/* Sends one of them, or drops it. */
static void take_out_of_row(void) {
    if (CW_ADD(ROW, &row, UINT32_MAX, seq_cst) == 1)
        cw_dispatch_emptied(&parent);
}

static void helper_waits_for_empty_row(void) {
    for (;;) {
        uint32_t was = cw_dispatch_news(&parent.view, true);
        cw_dispatch_ask_emptied(&parent);
        if (CW_LOAD(ROW, &row, seq_cst) == 0)
            return;
        ghost.waits[1]++;
        MODEL_CHECK(cw_dispatch_wait(&parent, true, was, 0, FOR_EVER) == 0);
    }
}

/* Something comes into the row beside who takes the last thing out, and is taken out later. */
static void put_into_row_and_take_out(void) {
    CW_ADD(ROW, &row, 1, seq_cst);
    take_out_of_row();
}

static void init_one_waits_and_one_listens(void) {
    init_0_has_one_and_one_listens();
    atomic_store(&row, 1);
}

/* ---- deaths: of thread 0, worker 0 ---- */

static void parent_submits_one_and_buries(void) {
    submit_and_wake(1);
    undertaker();
}

/* One of them is woken, and wakes the other in its turn. */
static void parent_submits_two_for_one_and_buries(void) {
    submit(1);
    submit(2);
    cw_dispatch_wake(&parent, 0, 1);
    undertaker();
}

static void first_accounted(void) {
    collect();
    accounted(1);
}

static void both_accounted(void) {
    first_accounted();
    accounted(2);
    MODEL_CHECK(ghost.lost[1] + ghost.lost[2] <= 1);
}

static void first_accounted_and_woken(void) {
    first_accounted();
    woken_if_ready();
}

/* After the burial, another worker of the same number. */
static void parent_buries_and_submits(void) {
    undertaker();
    submit(2);
}

static void successor(void) {
    model_wait(0, 1u << 1); /* it is started by the parent */
    if (model_died(0))
        while (!nothing_ready())
            one_by_0();
    else
        one_by_1();
}

static void successor_answered(void) {
    collect();
    MODEL_CHECK(ghost.collected[1] + ghost.lost[1] == 1 && ghost.collected[2] == 1);
}

/* Who is told of a death is awake, though the dead one was about to ring the same bell. */
static void watcher_tells(void) {
    model_wait(0, 1u << 0);
    cw_dispatch_tell(&parent.view, false);
}

static void watcher_tells_helper(void) {
    model_wait(0, 1u << 0);
    cw_dispatch_tell(&parent.view, true);
}

/* Has announced that it sleeps, and is about to: it goes on as cw_dispatch_wait() does. */
static void listener_sleeps(void) {
    cw_bell_sleep(&words.answers, 0, FOR_EVER);
    MODEL_CHECK(cw_dispatch_wait(&parent, false, 0, 0, FOR_EVER) == 0);
}

static void helper_sleeps(void) {
    cw_bell_sleep(&words.helper, 0, FOR_EVER);
    while (cw_dispatch_news(&parent.view, true) == 0) {
        collect();
        MODEL_CHECK(cw_dispatch_wait(&parent, true, 0, 0, FOR_EVER) == 0);
    }
    if (model_died(0))
        bury(0);
}

static void init_0_has_one_and_helper_sleeps(void) {
    init_0_has_one();
    atomic_store(&words.helper.announced, 1);
}

static void init_0_has_one_and_listener_sleeps(void) {
    init_0_has_one_and_one_listens();
    atomic_store(&words.answers.announced, 1);
}

static void init_both_have_one_and_listener_sleeps(void) {
    init_both_have_one_and_one_listens();
    atomic_store(&words.answers.announced, 1);
}

/* After the burial: nobody is left to wake who sleeps but this answer. */
static void answer_by_1_later(void) {
    model_wait(0, 1u << 1);
    answer_by_1();
}

const struct model_scenario model_dispatch_scenarios[] = {
    DISPATCH("dispatch, two take", "each task is taken once", init_both_ready, 0, both_answered,
             NULL, one_by_0, one_by_1),
    DISPATCH("dispatch, a call", "neither sleeps through the other", init_two_cells, 0, NULL, NULL,
             one_by_0, parent_calls),
    DISPATCH("dispatch, one spins", "it sees the task, or is woken", init_one_spins, 0, NULL, NULL,
             one_by_0, parent_submits_one),
    DISPATCH("dispatch, two tasks, one spins", "nobody sleeps beside a task", init_one_spins, 0,
             woken_if_ready, NULL, one_by_0, parent_submits_two),
    DISPATCH("dispatch, withdrawn", "taken or withdrawn, and the cell is used again",
             init_one_ready, 0, taken_or_withdrawn, NULL, one_by_0, parent_takes_back),
    DISPATCH("dispatch, withdrawn, one cell", "what a slow worker reads is not taken for it",
             init_one_cell, 0, taken_or_withdrawn, NULL, one_by_0, parent_takes_back),
    DISPATCH("dispatch, a full queue", "a place is used when it was passed by", init_both_ready, 0,
             NULL, NULL, one_by_0, parent_fills_the_queue),
    DISPATCH("dispatch, closed", "who goes to sleep leaves", init_two_cells, 0, NULL, NULL,
             all_by_0, parent_closes),
    DISPATCH("dispatch, submitted and closed", "nobody leaves beside a task", init_two_cells, 0,
             first_answered, NULL, all_by_0, parent_submits_and_closes),
    DISPATCH("dispatch, dismissed", "who goes to sleep leaves", init_two_cells, 0, NULL, NULL,
             all_by_0, parent_dismisses_0),
    DISPATCH("dispatch, dismissed beside a task", "another is woken for it", init_one_spins, 0,
             woken_if_ready, NULL, all_by_0, parent_submits_and_dismisses_0),
    DISPATCH("dispatch, memory is wanted", "who goes to sleep heeds it", init_two_cells, 0, NULL,
             NULL, heeds_0, asks),
    DISPATCH("dispatch, memory is wanted of the parent", "its helper heeds it", init_two_cells, 0,
             NULL, NULL, helper_heeds, asks_and_looks),
    DISPATCH("dispatch, two answers", "a listener collects both",
             init_both_have_one_and_one_listens, 0, NULL, NULL, answer_by_0, answer_by_1,
             listener_waits_for_both),
    DISPATCH("dispatch, the listener leaves", "it collects, or the helper",
             init_0_has_one_and_one_listens, 0, NULL, first_collected, answer_by_0, listener_leaves,
             helper_collects),
    DISPATCH("dispatch, a listener comes and leaves", "it collects, or the helper", init_0_has_one,
             0, NULL, first_collected, answer_by_0, listener_comes_and_leaves, helper_collects),
    DISPATCH("dispatch, a state", "the helper hears of it, and what came before", init_two_cells, 0,
             NULL, NULL, worker_states, helper_is_told),
    DISPATCH("dispatch, a state looked at", "what came before it is seen", init_two_cells, 0, NULL,
             NULL, worker_states, helper_looks),
    DISPATCH("dispatch, told", "a listener hears, and what came before", init_two_cells, 0, NULL,
             NULL, helper_tells, listener_is_told),
    DISPATCH("dispatch, news", "what came before them is seen", init_two_cells, 0, NULL, NULL,
             helper_tells, listener_compares_news),
    DISPATCH("dispatch, the row", "who closes hears that nothing waits any more",
             init_two_wait_and_one_listens, 0, NULL, NULL, take_out_of_row, take_out_of_row,
             helper_waits_for_empty_row),
    DISPATCH("dispatch, the row is filled again", "who closes hears that nothing waits any more",
             init_one_waits_and_one_listens, 0, NULL, NULL, take_out_of_row,
             put_into_row_and_take_out, helper_waits_for_empty_row),
    DISPATCH("dispatch, a worker dies", "its task is READY, lost or answered", init_one_ready,
             WORKER_0, first_accounted, NULL, one_by_0, undertaker),
    DISPATCH("dispatch, a worker dies that spins", "another is woken for what is READY",
             init_one_spins, WORKER_0, first_accounted_and_woken, NULL, one_by_0,
             parent_submits_one_and_buries),
    DISPATCH("dispatch, a worker dies that wakes another", "the other takes what is READY",
             init_one_sleeps, WORKER_0, both_accounted, nothing_ready, one_by_0,
             parent_submits_two_for_one_and_buries, sleeps_1),
    DISPATCH("dispatch, a successor", "it goes on where the dead one was", init_one_ready, WORKER_0,
             successor_answered, NULL, one_by_0, parent_buries_and_submits, successor),
    DISPATCH("dispatch, a worker dies at the listeners' bell", "who listens hears of the answer",
             init_0_has_one_and_listener_sleeps, WORKER_0, NULL, NULL, answer_by_0, watcher_tells,
             listener_sleeps),
    DISPATCH("dispatch, a worker dies at the helper's bell", "the helper hears of the death",
             init_0_has_one_and_helper_sleeps, WORKER_0, first_accounted, NULL, answer_by_0,
             watcher_tells_helper, helper_sleeps),
    DISPATCH("dispatch, buried beside a listener", "it hears of another's answer",
             init_both_have_one_and_listener_sleeps, WORKER_0, NULL, no_answer_left, answer_by_0,
             undertaker, listener_sleeps, answer_by_1_later),
    {.name = NULL},
};
