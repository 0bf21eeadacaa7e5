/*
 * Dispatch with two groups: what other groups steal beside takers, withdrawing and deaths; who is
 * woken for it; looking at tasks that nobody has taken; several tasks of one worker. See
 * dispatch_world.h for what the scenarios share.
 */
#include "dispatch_world.h"
#include "scenarios.h"

/* ---- stealing: worker 1 is in the other group, but where it says otherwise ---- */

static void init_two_in_0(void) {
    fresh_groups(2, 1);
    submit(1);
    submit(2);
}

static void init_two_in_1_and_1_sleeps(void) {
    fresh_groups(2, 1);
    submit_to(1, 1);
    submit_to(1, 2);
    atomic_store(&workers[1].sleeper.asleep, 1);
}

static void init_one_in_0(void) {
    fresh_groups(2, 1);
    submit(1);
}

static void init_two_groups(void) {
    fresh_groups(2, 1);
}

/* Nobody is in group 1; worker 1 is no thread but a word that says that it sleeps. */
static void init_both_in_0_and_1_sleeps(void) {
    fresh_groups(2, 0);
    atomic_store(&workers[1].sleeper.asleep, 1);
}

static void two_by_0(void) {
    one_by_0();
    one_by_0();
}

static void both_answered(void) {
    collect();
    MODEL_CHECK(ghost.collected[1] == 1 && ghost.collected[2] == 1);
}

static void one_answered(void) {
    MODEL_CHECK(collect() == 1);
}

/* Worker 0 is busy with something else. */
static void parent_submits_two_to_0(void) {
    submit_and_wake(1);
    submit_and_wake(2);
}

/* One may be woken for both: it wakes another for what it leaves. */
static void parent_submits_one_to_each(void) {
    submit_to(0, 1);
    submit_to(1, 2);
    cw_dispatch_wake(&parent, 1, 1);
    cw_dispatch_wake(&parent, 0, 1);
}

static void one_answered_and_woken(void) {
    MODEL_CHECK(collect() == 1);
    MODEL_CHECK(nothing_ready() || atomic_load(&workers[1].sleeper.asleep) == 0);
}

/* What was withdrawn from one group goes to the other, in the same cell. */
static void parent_takes_back_and_gives_to_1(void) {
    int code = cw_dispatch_withdraw(&parent, 0);
    MODEL_CHECK(code == 0 || code == -EBUSY);
    if (code)
        return;
    ghost.withdrawn = 1;
    MODEL_CHECK(model_plain_read(&payload[0]) == 1);
    cw_dispatch_free(&parent, 0);
    submit_to(1, 3);
    cw_dispatch_wake(&parent, 1, 1);
}

static void one_of_three(void) {
    MODEL_CHECK(collect() == 1);
    MODEL_CHECK(ghost.collected[1] + ghost.withdrawn <= 1 && ghost.collected[3] <= ghost.withdrawn);
}

/* ---- deaths ---- */

static void both_accounted(void) {
    collect();
    accounted(1);
    accounted(2);
}

static void both_accounted_and_woken(void) {
    both_accounted();
    MODEL_CHECK(!model_died(0) || nothing_ready() || atomic_load(&workers[1].sleeper.asleep) == 0);
}

static void first_accounted(void) {
    collect();
    accounted(1);
}

/* Has announced that it sleeps, and is about to; then it goes on as cw_dispatch_take() does. */
static void sleeper_by_1(void) {
    cw_sleeper_sleep(&workers[1].sleeper, FOR_EVER);
    one_by_1();
}

static void init_one_in_0_and_1_sleeps(void) {
    init_one_in_0();
    atomic_store(&workers[1].sleeper.asleep, 1);
}

/* ---- joining ---- */

static void init_nobody_has_joined(void) {
    fresh_groups(2, 1);
    atomic_store(&workers[0].group, 0);
    atomic_store(&workers[1].group, 0);
}

/* Worker 0, of the other group, sleeps: the parent's first look ends there. */
static void init_1_has_not_joined_and_0_sleeps(void) {
    fresh_groups(2, 1);
    atomic_store(&workers[1].group, 0);
    atomic_store(&workers[0].sleeper.asleep, 1);
}

static void joins_and_takes_one(void) {
    MODEL_CHECK(cw_dispatch_join(&views[0], 0) == 0);
    one_by_0();
}

static void joins_1_and_takes_one(void) {
    MODEL_CHECK(cw_dispatch_join(&views[1], 1) == 0);
    one_by_1();
}

static void sleeper_by_0(void) {
    cw_sleeper_sleep(&workers[0].sleeper, FOR_EVER);
    one_by_0();
}

static void parent_submits_one_to_1(void) {
    submit_to(1, 1);
    cw_dispatch_wake(&parent, 1, 1);
}

static void parent_submits_one(void) {
    submit_and_wake(1);
}

/* ---- several tasks of one worker ---- */

static void init_two_of_one_group(void) {
    fresh(2, 0);
    submit(1);
    submit(2);
}

static void both_by_0_the_last_first(void) {
    int first = take(0), second = take(0);
    answer(0, second);
    answer(0, first);
}

/* Two threads of worker 0, which has both, share a lock. */
static void init_0_has_both(void) {
    init_two_of_one_group();
    MODEL_CHECK(take(0) == 0 && take(0) == 1);
    cw_dispatch_listen(&parent, 1);
}

static void answer_first(void) {
    answer(0, 0);
    unlock();
}

static void answer_second(void) {
    lock();
    answer(0, 1);
}

static void listener_waits_for_both(void) {
    for (unsigned left = 2; left > 0; left -= collect()) {
        uint32_t was = cw_dispatch_news(&parent.view, false);
        MODEL_CHECK(cw_dispatch_wait(&parent, false, was, 0, FOR_EVER) == 0);
    }
}

/* ---- a worker that is overtaken: the queue has one place, and nobody sleeps ---- */

static void init_one_place(void) {
    fresh(1, 0);
    submit(1);
    cw_dispatch_close(&parent, true);
}

static void one_if_any(uint32_t w) {
    int cell = take(w);
    MODEL_CHECK(cell >= 0 || cell == -ESHUTDOWN);
    if (cell >= 0)
        answer(w, cell);
}

static void one_by_0_if_any(void) {
    one_if_any(0);
}

static void two_by_1_if_any(void) {
    one_if_any(1);
    one_if_any(1);
}

static void parent_submits_whenever_it_can(void) {
    for (uint64_t value = 2; value <= 3; value++)
        if (collect() == 1)
            submit(value);
}

/* ---- peeking ---- */

static cw_a64 data[2]; /* of the one cell: the number of the task, twice */

static void write_data(uint64_t value) {
    uint64_t both[2] = {value, value};
    cw_dispatch_write(data, both, sizeof both);
}

static void init_one_to_look_at(void) {
    fresh(1, 0);
    write_data(1);
    submit(1);
}

static void one_by_0_into_its_data(void) {
    int cell = take(0);
    write_data(ANSWERED);
    answer(0, cell);
}

static void parent_collects_and_submits(void) {
    if (collect() == 0)
        return;
    write_data(2);
    submit(2);
}

static void looks(void) {
    uint64_t place, found[2];
    int cell = cw_dispatch_peek(&views[0], 0, &place);
    MODEL_CHECK(cell == 0 || cell == -EAGAIN);
    if (cell < 0)
        return;
    cw_dispatch_read(found, data, sizeof found);
    if (cw_dispatch_is_still(&views[0], 0, place))
        MODEL_CHECK(found[0] == place + 1 && found[1] == place + 1);
}

const struct model_scenario model_groups_scenarios[] = {
    DISPATCH("groups, own and stolen", "each task is taken once", init_two_in_0, 0, both_answered,
             nothing_ready, two_by_0, one_by_1),
    DISPATCH("groups, beyond the bound", "one of the other group is woken", init_two_groups, 0,
             one_answered, NULL, parent_submits_two_to_0, one_by_1),
    DISPATCH("groups, withdrawn or stolen", "the cell goes to the other group", init_two_in_0, 0,
             one_of_three, NULL, parent_takes_back_and_gives_to_1, one_by_1),
    DISPATCH("groups, nobody is in one", "nothing is left there beside a sleeper",
             init_both_in_0_and_1_sleeps, 0, one_answered_and_woken, NULL, one_by_0,
             parent_submits_one_to_each),
    DISPATCH("groups, joined", "who has just come sees the task, or is woken",
             init_nobody_has_joined, 0, one_answered, NULL, joins_and_takes_one,
             parent_submits_one),
    DISPATCH("groups, joined beside one that sleeps", "it sees the task, or one of them is woken",
             init_1_has_not_joined_and_0_sleeps, 0, one_answered, nothing_ready,
             joins_1_and_takes_one, parent_submits_one_to_1, sleeper_by_0),
    DISPATCH("groups, a thief dies", "what it had is lost, others are woken for the rest",
             init_two_in_1_and_1_sleeps, WORKER_0, both_accounted_and_woken, NULL, one_by_0,
             undertaker),
    DISPATCH("groups, the last of a group dies", "others take what is left", init_one_in_0,
             WORKER_0, first_accounted, nothing_ready, one_by_0, undertaker, one_by_1),
    DISPATCH("groups, the last of a group dies, one sleeps", "it is woken",
             init_one_in_0_and_1_sleeps, WORKER_0, first_accounted, nothing_ready, one_by_0,
             undertaker, sleeper_by_1),
    DISPATCH("dispatch, two tasks of one worker", "each is answered, or lost",
             init_two_of_one_group, WORKER_0, both_accounted, NULL, both_by_0_the_last_first,
             undertaker),
    DISPATCH("dispatch, two threads of one worker", "a listener collects both", init_0_has_both, 0,
             both_answered, NULL, answer_first, answer_second, listener_waits_for_both),
    DISPATCH("dispatch, overtaken", "what it finds old is passed by once", init_one_place, 0, NULL,
             NULL, one_by_0_if_any, two_by_1_if_any, parent_submits_whenever_it_can),
    DISPATCH("dispatch, looked at", "what is seen is the task's, whole", init_one_to_look_at, 0,
             NULL, NULL, one_by_0_into_its_data, parent_collects_and_submits, looks),
    {.name = NULL},
};
