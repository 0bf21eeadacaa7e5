/*
 * Dispatch with two groups, within one process: whose task is whose, what is stolen and what is
 * not, looking at tasks without taking them, several tasks of one worker. tests/model runs every
 * interleaving, tests/crash deaths; one group is test_dispatch.c's.
 */
#define WORKERS 3u /* 0 and 1 are in group 0, 2 in group 1 */
#define CELLS   8u
#define GROUPS  2u
#define PLACES  CELLS
#define BEYOND  CW_DISPATCH_STEAL_BEYOND

#include "tests/unit/shm/dispatch_support.h"

static struct cw_dispatch_view views[WORKERS];

static int fresh(void **state) {
    (void)state;
    fresh_world(GROUPS);
    for (uint32_t w = 0; w < WORKERS; w++) {
        views[w] = parent.view;
        views[w].group = w / 2;
        cw_dispatch_assign(&parent, w, w / 2);
        assert_int_equal(cw_dispatch_join(&views[w], w), 0);
    }
    return 0;
}

static void submit_many(uint32_t group, uint64_t first, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        submit_to(group, first + i);
}

static uint32_t take(uint32_t w, uint64_t value) {
    return take_from(&views[w], w, value);
}

/* Nothing is there for it: it would sleep. */
static void takes_nothing(uint32_t w) {
    uint64_t place;
    cw_dispatch_close(&parent, true);
    assert_int_equal(cw_dispatch_take(&views[w], w, &place), -ESHUTDOWN);
    cw_dispatch_close(&parent, false);
}

static void answer(uint32_t w, uint32_t cell) {
    answer_to(&views[w], w, cell);
}

static void bury(uint32_t w, unsigned lost) {
    struct cw_dispatch_end end;
    int cell;
    for (; (cell = cw_dispatch_bury(&parent, w, &end)) >= 0; lost--) {
        assert_false(end.answered);
        cw_dispatch_free(&parent, (uint32_t)cell);
    }
    assert_int_equal(cell, -EAGAIN);
    assert_int_equal(lost, 0);
}

/* ---- whose tasks ---- */

static void each_group_takes_its_own_in_order(void **state) {
    (void)state;
    uint64_t known[2] = {0, 0};
    for (uint64_t n = 1; n < 1000; n++) {
        uint32_t first = submit_to(0, 2 * n), second = submit_to(1, 2 * n + 1);
        assert_true(places[first] % GROUPS == 0 && places[second] % GROUPS == 1);
        assert_true(n == 1 || (places[first] > known[0] && places[second] > known[1]));
        known[0] = places[first];
        known[1] = places[second];
        assert_int_equal(cw_dispatch_ready(&parent.view, 0), 1);
        assert_int_equal(cw_dispatch_ready(&parent.view, 1), 1);
        answer(2, take(2, 2 * n + 1));
        collect(2, 2 * n + 1);
        answer(n % 2, take(n % 2, 2 * n));
        collect(n % 2, 2 * n);
    }
}

static void what_is_within_the_bound_stays(void **state) {
    (void)state;
    submit_many(0, 1, 2 * BEYOND); /* two workers */
    takes_nothing(2);
    submit_many(1, 11, BEYOND);
    for (uint64_t i = 1; i <= 2 * BEYOND; i++)
        take(0, i);
    takes_nothing(0);
    bury(0, 2 * BEYOND);
}

static void what_is_beyond_the_bound_is_stolen_oldest_first(void **state) {
    (void)state;
    submit_many(0, 1, 2 * BEYOND + 1);
    answer(2, take(2, 1));
    collect(2, 1);
    takes_nothing(2);
    submit_to(0, 9);
    submit_to(1, 20);
    take(2, 20); /* its own come first */
    take(2, 2);
    takes_nothing(2);
    assert_int_equal(cw_dispatch_ready(&parent.view, 0), 2 * BEYOND);
}

static void a_stolen_task_is_lost_with_the_thief(void **state) {
    (void)state;
    submit_many(0, 1, 2 * BEYOND + 1);
    take(2, 1);
    bury(2, 1);
    take(0, 2);
    take(1, 3);
}

static void a_group_without_workers_keeps_nothing(void **state) {
    (void)state;
    submit_to(1, 1);
    takes_nothing(0);
    bury(2, 0);
    take(0, 1);
    submit_to(1, 2);
    cw_dispatch_assign(&parent, 2, 1); /* its successor is about to be started */
    takes_nothing(0);
    assert_int_equal(cw_dispatch_join(&views[2], 2), 0);
    take(2, 2);
}

static void who_has_just_run_out_waits_before_it_steals(void **state) {
    (void)state;
    int64_t steal_since_ns = 0;
    views[2].steal_since_ns = &steal_since_ns;
    submit_many(0, 1, 7);
    takes_nothing(2);
    assert_true(steal_since_ns > 0); /* since now */
    steal_since_ns -= CW_DISPATCH_STEAL_AFTER_NS;
    int64_t since_ns = steal_since_ns;
    take(2, 1);
    take(2, 2); /* it goes on at once */
    assert_int_equal(steal_since_ns, since_ns);
    submit_to(1, 10);
    take(2, 10);
    assert_int_equal(steal_since_ns, 0); /* until it has one of its own */
    takes_nothing(2);
    take(0, 3);
    bury(0, 1);
    bury(1, 0);
    take(2, 4); /* nobody is left to wait for */
}

static void a_worker_is_of_the_group_it_was_assigned_to(void **state) {
    (void)state;
    struct cw_dispatch_view other = views[0];
    other.group = 1;
    assert_int_equal(cw_dispatch_join(&other, 0), -EINVAL);
    assert_non_null(strstr(cw_detail(), "worker 0 is in group 0, not in group 1"));
    bury(0, 0);
    assert_int_equal(cw_dispatch_join(&other, 0), 0); /* nobody had assigned it */
    submit_to(1, 1);
    uint64_t place;
    assert_true(cw_dispatch_take(&other, 0, &place) >= 0);
}

/* ---- who is woken ---- */

static void *take_one(void *number) {
    uint32_t w = (uint32_t)(uintptr_t)number;
    uint64_t place;
    int cell = cw_dispatch_take(&views[w], w, &place);
    return (void *)(intptr_t)(cell < 0 ? cell : (int)shared.cells[cell].meta[0]);
}

static pthread_t sleeping_worker(uint32_t w) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, take_one, (void *)(uintptr_t)w), 0);
    while (!atomic_load(&shared.workers[w].sleeper.asleep))
        usleep(100);
    usleep(20000);
    return thread;
}

static int result_of(pthread_t thread) {
    void *result;
    assert_int_equal(pthread_join(thread, &result), 0);
    return (int)(intptr_t)result;
}

static void within_the_bound_only_the_own_are_woken(void **state) {
    (void)state;
    pthread_t thread = sleeping_worker(2), own = sleeping_worker(1);
    submit_to(0, 1);
    cw_dispatch_wake(&parent, 0, 9);
    assert_int_equal(result_of(own), 1);
    assert_true(atomic_load(&shared.workers[2].sleeper.asleep));
    submit_to(1, 2);
    cw_dispatch_wake(&parent, 1, 9);
    assert_int_equal(result_of(thread), 2);
}

static void beyond_the_bound_one_of_another_group_is_woken(void **state) {
    (void)state;
    pthread_t thread = sleeping_worker(2);
    submit_many(0, 1, 2 * BEYOND);
    cw_dispatch_wake(&parent, 0, 2 * BEYOND);
    assert_true(atomic_load(&shared.workers[2].sleeper.asleep));
    submit_to(0, 9);
    cw_dispatch_wake(&parent, 0, 1);
    assert_int_equal(result_of(thread), 1);
}

static void a_burial_wakes_those_who_may_steal_then(void **state) {
    (void)state;
    pthread_t thread = sleeping_worker(1);
    submit_to(1, 1);
    cw_dispatch_wake(&parent, 1, 1);
    assert_true(atomic_load(&shared.workers[1].sleeper.asleep));
    bury(2, 0);
    assert_int_equal(result_of(thread), 1);
}

/* ---- several tasks of one worker ---- */

static void tasks_are_answered_in_any_order(void **state) {
    (void)state;
    submit_many(0, 1, 3);
    uint32_t first = take(0, 1), second = take(0, 2), third = take(0, 3);
    answer(0, second);
    collect(0, 2);
    answer(0, third);
    answer(0, first);
    collect(0, 3);
    collect(0, 1);
}

static void all_that_a_dead_worker_had_comes_out(void **state) {
    (void)state;
    struct cw_dispatch_end end;
    submit_many(0, 1, 3);
    uint32_t begun = take(0, 1), answered = take(0, 2), not_begun = take(0, 3);
    uint64_t known[CELLS];
    memcpy(known, places, sizeof known);
    answer(0, answered);
    atomic_fetch_sub(&shared.workers[0].done, 1);       /* as if it had died before */
    atomic_store(&shared.cells[not_begun].taken_ns, 0); /* and before this, too */
    for (unsigned i = 0; i < 3; i++) {
        int cell = cw_dispatch_bury(&parent, 0, &end);
        assert_true(cell == (int)begun || cell == (int)answered || cell == (int)not_begun);
        assert_int_equal(end.answered, cell == (int)answered);
        assert_int_equal(end.begun, cell != (int)not_begun);
        assert_int_equal(end.place, known[cell]);
        cw_dispatch_free(&parent, (uint32_t)cell);
    }
    bury(0, 0);
}

/* ---- looking ---- */

static void sees(uint32_t w, uint32_t nth, uint64_t value) {
    uint64_t place, found;
    int cell = cw_dispatch_peek(&views[w], nth, &place);
    assert_true(cell >= 0);
    assert_int_equal(place, places[cell]);
    cw_dispatch_read(&found, shared.cells[cell].meta, sizeof found);
    assert_true(cw_dispatch_is_still(&views[w], (uint32_t)cell, place));
    assert_int_equal(found, value);
}

static void sees_nothing(uint32_t w, uint32_t nth) {
    uint64_t place;
    assert_int_equal(cw_dispatch_peek(&views[w], nth, &place), -EAGAIN);
}

static void ready_tasks_of_the_own_group_are_seen(void **state) {
    (void)state;
    sees_nothing(0, 0);
    submit_many(0, 1, 4);
    uint32_t other = submit_to(1, 9);
    for (uint32_t i = 0; i < 4; i++)
        sees(i % 2, i, i + 1);
    sees_nothing(0, 4);
    sees_nothing(0, UINT32_MAX);
    sees(2, 0, 9);
    sees_nothing(2, 1);
    uint64_t place = places[other];
    assert_int_equal(take(2, 9), other);
    assert_false(cw_dispatch_is_still(&views[2], other, place));
    answer(2, other);
    collect(2, 9);
    assert_int_equal(submit_to(0, 5), other); /* the same cell, another place */
    assert_false(cw_dispatch_is_still(&views[2], other, place));
    sees(0, 4, 5);
    sees_nothing(2, 0);
}

static void what_was_taken_or_withdrawn_is_passed_over(void **state) {
    (void)state;
    submit_many(0, 1, 2);
    uint32_t third = submit_to(0, 3);
    submit_to(0, 4);
    take(1, 1);
    assert_int_equal(cw_dispatch_withdraw(&parent, third), 0);
    cw_dispatch_free(&parent, third);
    sees(0, 0, 2);
    sees(0, 1, 4);
    sees_nothing(0, 2);
}

static void a_lie_in_the_queue_is_told(void **state) {
    (void)state;
    uint64_t place;
    submit_to(0, 1);
    atomic_store(&shared.queue[0], CELLS);
    assert_int_equal(cw_dispatch_peek(&views[0], 0, &place), -EPROTO);
    assert_non_null(strstr(cw_detail(), "names the cell 8 of 8"));
    atomic_store(&shared.queue[0], 5);
    sees_nothing(0, 0);
    atomic_store(&shared.groups[0].tail, UINT64_MAX);
    sees_nothing(0, 0);
}

static void words_are_copied_whole_and_no_further(void **state) {
    (void)state;
    cw_a64 words[9];
    uint8_t from[72], to[72];
    for (uint32_t size = 0; size <= 64; size++) {
        for (uint32_t i = 0; i < 72; i++)
            from[i] = (uint8_t)(i * 7 + size);
        memset(words, 0xee, sizeof words);
        memset(to, 0xdd, sizeof to);
        cw_dispatch_write(words, from, size);
        assert_true(words[(size + 7) / 8] == 0xeeeeeeeeeeeeeeeeull);
        cw_dispatch_read(to, words, size);
        assert_memory_equal(to, from, size);
        assert_int_equal(to[size], 0xdd);
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup(name, fresh)
    const struct CMUnitTest tests[] = {
        TEST(each_group_takes_its_own_in_order),
        TEST(what_is_within_the_bound_stays),
        TEST(what_is_beyond_the_bound_is_stolen_oldest_first),
        TEST(a_stolen_task_is_lost_with_the_thief),
        TEST(a_group_without_workers_keeps_nothing),
        TEST(who_has_just_run_out_waits_before_it_steals),
        TEST(a_worker_is_of_the_group_it_was_assigned_to),
        TEST(within_the_bound_only_the_own_are_woken),
        TEST(beyond_the_bound_one_of_another_group_is_woken),
        TEST(a_burial_wakes_those_who_may_steal_then),
        TEST(tasks_are_answered_in_any_order),
        TEST(all_that_a_dead_worker_had_comes_out),
        TEST(ready_tasks_of_the_own_group_are_seen),
        TEST(what_was_taken_or_withdrawn_is_passed_over),
        TEST(a_lie_in_the_queue_is_told),
        TEST(words_are_copied_whole_and_no_further),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
