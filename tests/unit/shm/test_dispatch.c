/*
 * Dispatch within one process: order, withdrawing, burying, leaving, waits, and what stands in the
 * shared words when somebody lies. tests/model runs every interleaving, tests/stress real threads
 * and processes, tests/crash deaths.
 */
#include <sys/time.h>

#define WORKERS 3u
#define CELLS   3u
#define GROUPS  2u
#define PLACES  4u /* of the queue */
#define SECOND  1000000000ll

#include "tests/unit/shm/dispatch_support.h"

static const struct cw_dispatch_view *view = &parent.view;

static int fresh(void **state) {
    (void)state;
    fresh_world(1);
    parent.view.spinners = CW_DISPATCH_SPINNERS;
    return 0;
}

static uint32_t submit(uint64_t value) {
    return submit_to(0, value);
}

static int take_cell(uint32_t w) {
    uint64_t place;
    return cw_dispatch_take(view, w, &place);
}

static uint32_t take(uint32_t w, uint64_t value) {
    return take_from(view, w, value);
}

static void nothing_to_collect(void) {
    uint32_t w;
    uint64_t place;
    assert_false(cw_dispatch_has_answer(&parent));
    assert_int_equal(cw_dispatch_collect(&parent, &w, &place), -EAGAIN);
}

static void bury_nothing(uint32_t w) {
    struct cw_dispatch_end end;
    assert_int_equal(cw_dispatch_bury(&parent, w, &end), -EAGAIN);
}

/* All cells are free, and the parts work as ever. */
static void goes_on(void) {
    for (uint64_t i = 0; i < CELLS; i++)
        submit(500 + i);
    assert_int_equal(cw_dispatch_reserve(&parent), -EAGAIN);
    for (uint64_t i = 0; i < CELLS; i++)
        answer_to(view, 2, take(2, 500 + i));
    for (uint64_t i = 0; i < CELLS; i++)
        collect(2, 500 + i);
    nothing_to_collect();
}

static void tasks_are_taken_in_order(void **state) {
    (void)state;
    for (uint64_t n = 0; n < 1000; n++) {
        submit(2 * n);
        submit(2 * n + 1);
        assert_int_equal(cw_dispatch_ready(view, 0), 2);
        uint32_t first = take(0, 2 * n), second = take(1, 2 * n + 1);
        assert_int_equal(cw_dispatch_ready(view, 0), 0);
        nothing_to_collect();
        answer_to(view, 1, second);
        collect(1, 2 * n + 1);
        answer_to(view, 0, first);
        collect(0, 2 * n);
        nothing_to_collect();
    }
}

static void nobody_is_hidden_by_a_quick_worker(void **state) {
    (void)state;
    submit(1);
    submit(2);
    uint32_t slow = take(2, 1), quick = take(0, 2);
    answer_to(view, 0, quick);
    answer_to(view, 2, slow);
    collect(0, 2);
    submit(3);
    answer_to(view, 0, take(0, 3));
    collect(2, 1);
    collect(0, 3);
}

static void who_has_a_task_is_known(void **state) {
    (void)state;
    int64_t elapsed_ns;
    uint32_t cell = submit(1);
    assert_int_equal(cw_dispatch_taker(&parent, cell, &elapsed_ns), -1);
    assert_int_equal(elapsed_ns, 0);
    assert_int_equal(take(1, 1), cell);
    usleep(2000);
    assert_int_equal(cw_dispatch_taker(&parent, cell, &elapsed_ns), 1);
    assert_true(elapsed_ns >= 2000000);
    assert_true(cw_dispatch_elapsed_ns(view, cell) >= elapsed_ns);
    answer_to(view, 1, cell);
    collect(1, 1);
    assert_int_equal(submit(2), cell);
    assert_int_equal(cw_dispatch_taker(&parent, cell, &elapsed_ns), -1);
    assert_int_equal(elapsed_ns, 0);
}

static void a_task_is_withdrawn_or_taken(void **state) {
    (void)state;
    uint32_t first = submit(1), second = submit(2), third = submit(3);
    assert_int_equal(cw_dispatch_withdraw(&parent, second), 0);
    cw_dispatch_free(&parent, second);
    assert_int_equal(take(0, 1), first);
    assert_int_equal(cw_dispatch_withdraw(&parent, first), -EBUSY);
    assert_int_equal(take(1, 3), third);
    assert_int_equal(cw_dispatch_withdraw(&parent, third), -EBUSY);
    answer_to(view, 0, first);
    answer_to(view, 1, third);
    assert_int_equal(cw_dispatch_withdraw(&parent, third), -EBUSY);
    collect(0, 1);
    collect(1, 3);
    goes_on();
}

static void a_queue_full_of_withdrawn_tasks_waits_for_the_first(void **state) {
    (void)state;
    submit(1);
    for (uint64_t i = 0; i < PLACES - 1; i++) {
        uint32_t cell = submit(2);
        assert_int_equal(cw_dispatch_withdraw(&parent, cell), 0);
        cw_dispatch_free(&parent, cell);
    }
    int cell = cw_dispatch_reserve(&parent);
    assert_true(cell >= 0);
    assert_int_equal(cw_dispatch_submit(&parent, 0, (uint32_t)cell), -EAGAIN);
    uint32_t first = take(0, 1);
    shared.cells[cell].meta[0] = 3;
    assert_int_equal(cw_dispatch_submit(&parent, 0, (uint32_t)cell), 0);
    answer_to(view, 1, take(1, 3));
    collect(1, 3);
    answer_to(view, 0, first);
    collect(0, 1);
    goes_on();
}

/* ---- burying ---- */

static void what_a_dead_worker_had_comes_out(void **state) {
    (void)state;
    struct cw_dispatch_end end;
    submit(1);
    submit(2);
    uint32_t dead = take(0, 1), other = take(1, 2);
    assert_int_equal(cw_dispatch_bury(&parent, 0, &end), (int)dead);
    assert_false(end.answered);
    cw_dispatch_free(&parent, dead);
    bury_nothing(0);
    answer_to(view, 1, other);
    collect(1, 2);
    submit(3); /* the next of that number */
    answer_to(view, 0, take(0, 3));
    collect(0, 3);
    bury_nothing(2);
    goes_on();
}

static void an_answer_without_its_entry_counts(void **state) {
    (void)state;
    struct cw_dispatch_end end;
    submit(1);
    uint32_t cell = take(0, 1);
    answer_to(view, 0, cell);
    atomic_fetch_sub(&shared.workers[0].done, 1); /* as if it had died before */
    nothing_to_collect();
    assert_int_equal(cw_dispatch_bury(&parent, 0, &end), (int)cell);
    assert_true(end.answered);
    cw_dispatch_free(&parent, cell);
    bury_nothing(0);
    submit(2);
    answer_to(view, 0, take(0, 2));
    collect(0, 2);
    goes_on();
}

static void a_dead_worker_leaves_no_place_and_no_order(void **state) {
    (void)state;
    atomic_store(&shared.groups[0].spinner[1], 1);
    atomic_store(&shared.groups[0].spinner[2], 2);
    cw_dispatch_order(&parent, 0, CW_ORDER_LEAVE);
    assert_int_equal(take_cell(0), -ESHUTDOWN);
    bury_nothing(0);
    assert_int_equal(atomic_load(&shared.groups[0].spinner[1]), 0);
    assert_int_equal(atomic_load(&shared.groups[0].spinner[2]), 2);
    submit(1);
    answer_to(view, 0, take(0, 1));
    collect(0, 1);
}

/* ---- leaving ---- */

static void closing_lets_what_is_ready_be_taken(void **state) {
    (void)state;
    submit(1);
    cw_dispatch_close(&parent, true);
    answer_to(view, 0, take(0, 1));
    assert_int_equal(take_cell(0), -ESHUTDOWN);
    assert_int_equal(take_cell(1), -ESHUTDOWN);
    cw_dispatch_close(&parent, false);
    collect(0, 1);
    goes_on();
}

static void who_is_dismissed_leaves_tasks_to_others(void **state) {
    (void)state;
    submit(1);
    cw_dispatch_order(&parent, 0, CW_ORDER_LEAVE);
    assert_int_equal(take_cell(0), -ESHUTDOWN);
    answer_to(view, 1, take(1, 1));
    collect(1, 1);
}

/* ---- waiting; one other thread ---- */

static void *take_one(void *number) {
    uint32_t w = (uint32_t)(uintptr_t)number;
    int cell = take_cell(w);
    if (cell >= 0)
        answer_to(view, w, (uint32_t)cell);
    return (void *)(intptr_t)cell;
}

/* A thread that sleeps as worker w. */
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

static void a_sleeper_is_woken_for_a_task(void **state) {
    (void)state;
    pthread_t thread = sleeping_worker(1);
    uint32_t cell = submit(1);
    cw_dispatch_wake(&parent, 0, 5);
    assert_int_equal(result_of(thread), cell);
    collect(1, 1);
}

static void a_sleeper_is_woken_to_leave(void **state) {
    (void)state;
    pthread_t thread = sleeping_worker(1);
    cw_dispatch_order(&parent, 1, CW_ORDER_LEAVE);
    assert_int_equal(result_of(thread), -ESHUTDOWN);
    thread = sleeping_worker(2);
    cw_dispatch_close(&parent, true);
    assert_int_equal(result_of(thread), -ESHUTDOWN);
}

static void on_signal(int number) {
    (void)number;
}

/* Its result, after signals until it has ended: one that comes before its system call ends nothing.
 */
static int result_of_interrupted(pthread_t thread) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    void *result;
    sigaction(SIGUSR1, &action, NULL);
    do {
        usleep(30000);
        pthread_kill(thread, SIGUSR1);
    } while (pthread_tryjoin_np(thread, &result) != 0);
    return (int)(intptr_t)result;
}

static void a_signal_ends_a_workers_sleep(void **state) {
    (void)state;
    pthread_t thread = sleeping_worker(0);
    assert_int_equal(result_of_interrupted(thread), -EINTR);
    goes_on();
}

static void *wait_as_listener(void *was) {
    return (void *)(intptr_t)cw_dispatch_wait(&parent, false, (uint32_t)(uintptr_t)was, 0, -1);
}

static void *wait_as_helper(void *was) {
    return (void *)(intptr_t)cw_dispatch_wait(&parent, true, (uint32_t)(uintptr_t)was, 0, -1);
}

static pthread_t sleeping_waiter(bool helper) {
    struct cw_bell *bell = helper ? &shared.words.helper : &shared.words.answers;
    pthread_t thread;
    uint32_t was = cw_dispatch_news(view, helper);
    assert_int_equal(pthread_create(&thread, NULL, helper ? wait_as_helper : wait_as_listener,
                                    (void *)(uintptr_t)was),
                     0);
    while (!cw_bell_waits(bell))
        usleep(100);
    usleep(20000);
    return thread;
}

static void a_wait_ends_by_time_news_or_a_signal(void **state) {
    (void)state;
    for (int helper = 0; helper < 2; helper++) {
        uint32_t was = cw_dispatch_news(view, helper);
        assert_int_equal(cw_dispatch_wait(&parent, helper, was, 0, 0), -ETIMEDOUT);
        assert_int_equal(cw_dispatch_wait(&parent, helper, was, SECOND / 1000, 0), -ETIMEDOUT);
        assert_int_equal(cw_dispatch_wait(&parent, helper, was, SECOND / 1000, SECOND / 100),
                         -ETIMEDOUT);
        cw_dispatch_tell(view, helper);
        assert_int_equal(cw_dispatch_wait(&parent, helper, was, 0, -1), 0);
        pthread_t thread = sleeping_waiter(helper);
        cw_dispatch_tell(view, helper);
        assert_int_equal(result_of(thread), 0);
        thread = sleeping_waiter(helper);
        assert_int_equal(result_of_interrupted(thread), -EINTR);
    }
}

static void an_answer_wakes_listeners_or_else_the_helper(void **state) {
    (void)state;
    submit(1);
    submit(2);
    uint32_t first = take(0, 1), second = take(1, 2);
    pthread_t helper = sleeping_waiter(true);
    cw_dispatch_listen(&parent, 1);
    pthread_t listener = sleeping_waiter(false);
    answer_to(view, 0, first);
    assert_int_equal(result_of(listener), 0);
    usleep(20000);
    assert_true(cw_bell_waits(&shared.words.helper)); /* nobody rang there */
    collect(0, 1);
    cw_dispatch_listen(&parent, -1);
    answer_to(view, 1, second);
    assert_int_equal(result_of(helper), 0);
    collect(1, 2);
}

static void a_state_wakes_the_helper(void **state) {
    (void)state;
    pthread_t helper = sleeping_waiter(true);
    cw_dispatch_state(view, 2, 9);
    assert_int_equal(result_of(helper), 0);
    assert_int_equal(atomic_load(&shared.workers[2].state), 9);
}

/* As where whoever was to wake them died before that: they sleep, and no waker sees it. */
static void unseen(struct cw_bell *bell) {
    atomic_store(&bell->woken, atomic_load(&bell->announced));
}

/* Who clears a word and dies before its system call leaves somebody asleep whom nobody sees. */
static void a_burial_wakes_whoever_was_to_be_woken_by_the_dead(void **state) {
    (void)state;
    pthread_t worker = sleeping_worker(1), listener = sleeping_waiter(false);
    submit(1);
    submit(2);
    uint32_t cell = take(2, 1); /* for the listener to see */
    atomic_store(&shared.workers[1].sleeper.asleep, 0);
    unseen(&shared.words.answers);
    cw_dispatch_wake(&parent, 0, 5);
    answer_to(view, 2, cell);
    bury_nothing(0);
    assert_true(result_of(worker) >= 0);
    assert_int_equal(result_of(listener), 0);
    collect(1, 2);
    collect(2, 1);
}

static void news_wake_whoever_was_to_be_woken_by_the_dead(void **state) {
    (void)state;
    pthread_t helper = sleeping_waiter(true);
    unseen(&shared.words.helper);
    cw_dispatch_tell(view, true);
    assert_int_equal(result_of(helper), 0);
}

static void a_task_left_to_a_stopped_spinner_is_taken_by_another(void **state) {
    (void)state;
    pthread_t worker = sleeping_worker(1);
    atomic_store(&shared.groups[0].spinner[0], 1); /* worker 0, stopped */
    submit(1);
    cw_dispatch_wake(&parent, 0, 1);
    usleep(20000);
    assert_true(atomic_load(&shared.workers[1].sleeper.asleep));
    assert_int_equal(cw_dispatch_wait(&parent, false, 0, 0, 20 * SECOND), 0);
    assert_true(result_of(worker) >= 0);
    collect(1, 1);
}

/* ---- lies ---- */

static void a_lie_in_the_queue_is_told(void **state) {
    (void)state;
    submit(1);
    atomic_store(&shared.queue[0], CELLS);
    assert_int_equal(take_cell(0), -EPROTO);
    assert_non_null(strstr(cw_detail(), "names the cell 3 of 3"));
    atomic_store(&shared.queue[0], UINT32_MAX);
    assert_int_equal(take_cell(0), -EPROTO);
    atomic_store(&shared.queue[0], 1); /* not its cell: the task is passed by */
    cw_dispatch_close(&parent, true);
    assert_int_equal(take_cell(0), -ESHUTDOWN);
}

static void lies_about_tail_and_head_are_told(void **state) {
    (void)state;
    submit(1);
    atomic_store(&shared.groups[0].tail, PLACES + 1);
    assert_int_equal(take_cell(0), -EPROTO);
    atomic_store(&shared.groups[0].tail, UINT64_MAX);
    assert_int_equal(take_cell(0), -EPROTO);
    atomic_store(&shared.groups[0].tail, 1);
    atomic_store(&shared.groups[0].head, 7);
    assert_int_equal(cw_dispatch_ready(view, 0), 0);
    int cell;
    for (unsigned i = 1; i < PLACES; i++) { /* to where head matters */
        cell = cw_dispatch_reserve(&parent);
        assert_int_equal(cw_dispatch_submit(&parent, 0, (uint32_t)cell), 0);
        assert_int_equal(cw_dispatch_withdraw(&parent, (uint32_t)cell), 0);
        cw_dispatch_free(&parent, (uint32_t)cell);
    }
    cell = cw_dispatch_reserve(&parent);
    assert_int_equal(cw_dispatch_submit(&parent, 0, (uint32_t)cell), -EPROTO);
    atomic_store(&shared.groups[0].head, UINT64_MAX - 1);
    assert_int_equal(cw_dispatch_submit(&parent, 0, (uint32_t)cell), -EPROTO);
    atomic_store(&shared.groups[0].head, 0);
    assert_int_equal(cw_dispatch_submit(&parent, 0, (uint32_t)cell), -EAGAIN); /* 1 is READY */
    take(0, 1);
    assert_int_equal(cw_dispatch_submit(&parent, 0, (uint32_t)cell), 0);
}

static void says_what(uint32_t w, const char *what) {
    uint32_t by = 99;
    uint64_t place;
    assert_int_equal(cw_dispatch_collect(&parent, &by, &place), -EPROTO);
    assert_int_equal(by, w);
    assert_non_null(strstr(cw_detail(), what));
}

static void an_answer_to_nothing_is_told(void **state) {
    (void)state;
    uint32_t lies[] = {0, 2, CELLS, UINT32_MAX}; /* another's, free, out of range */
    submit(1);
    uint32_t cell = take(0, 1);
    assert_int_equal(cell, 0);
    for (unsigned i = 0; i < 4; i++) {
        atomic_store(&shared.done[PLACES + i % PLACES], lies[i]);
        atomic_store(&shared.workers[1].done, i + 1);
        says_what(1, "whose task it did not have");
    }
    atomic_store(&shared.done[PLACES], 0); /* as if it had taken it */
    atomic_store(&shared.cells[0].word, atomic_load(&shared.cells[0].word) + (1 << 4) + 1);
    atomic_store(&shared.workers[1].done, 5);
    atomic_fetch_add(&shared.cells[0].word, 1ull << 16);
    says_what(1, "whose task it did not have");
    atomic_fetch_sub(&shared.cells[0].word, (1ull << 16) + (1 << 4) + 1);
    answer_to(view, 0, cell);
    collect(0, 1);
    bury_nothing(1);
    goes_on();
}

static void answering_twice_is_told(void **state) {
    (void)state;
    submit(1);
    uint32_t cell = take(0, 1);
    answer_to(view, 0, cell);
    answer_to(view, 0, cell);
    collect(0, 1);
    says_what(0, "whose task it did not have");
    nothing_to_collect();
    goes_on();
}

static void a_count_of_answers_that_cannot_be_is_told(void **state) {
    (void)state;
    submit(1);
    uint32_t cell = take(1, 1);
    uint64_t counts[] = {CELLS + 1, UINT64_MAX, 1ull << 63, 0};
    for (unsigned i = 0; i < 4; i++) {
        atomic_store(&shared.workers[0].done, counts[i]);
        says_what(0, i == 3 ? "more, to 3 cells" : "answers more");
        nothing_to_collect();
    }
    bury_nothing(0);
    answer_to(view, 1, cell);
    collect(1, 1);
    goes_on();
}

static void a_cell_whose_word_makes_no_sense_comes_out(void **state) {
    (void)state;
    uint64_t lies[] = {0, 0xf, UINT64_MAX, 1ull << 16 | 1, 9 << 4 | CW_CELL_TAKEN, CW_CELL_DONE};
    for (unsigned i = 0; i < sizeof lies / sizeof *lies; i++) {
        fresh(NULL);
        struct cw_dispatch_end end = {.answered = true};
        submit(1);
        submit(2);
        uint32_t cell = take(0, 1), other = take(1, 2);
        atomic_store(&shared.cells[cell].word, lies[i]);
        nothing_to_collect();
        assert_int_equal(cw_dispatch_bury(&parent, 0, &end), (int)cell);
        assert_false(end.answered);
        cw_dispatch_free(&parent, cell);
        bury_nothing(0);
        answer_to(view, 1, other);
        collect(1, 2);
        goes_on();
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup(name, fresh)
    const struct CMUnitTest tests[] = {
        TEST(tasks_are_taken_in_order),
        TEST(nobody_is_hidden_by_a_quick_worker),
        TEST(who_has_a_task_is_known),
        TEST(a_task_is_withdrawn_or_taken),
        TEST(a_queue_full_of_withdrawn_tasks_waits_for_the_first),
        TEST(what_a_dead_worker_had_comes_out),
        TEST(an_answer_without_its_entry_counts),
        TEST(a_dead_worker_leaves_no_place_and_no_order),
        TEST(closing_lets_what_is_ready_be_taken),
        TEST(who_is_dismissed_leaves_tasks_to_others),
        TEST(a_sleeper_is_woken_for_a_task),
        TEST(a_sleeper_is_woken_to_leave),
        TEST(a_signal_ends_a_workers_sleep),
        TEST(a_wait_ends_by_time_news_or_a_signal),
        TEST(an_answer_wakes_listeners_or_else_the_helper),
        TEST(a_state_wakes_the_helper),
        TEST(a_burial_wakes_whoever_was_to_be_woken_by_the_dead),
        TEST(news_wake_whoever_was_to_be_woken_by_the_dead),
        TEST(a_task_left_to_a_stopped_spinner_is_taken_by_another),
        TEST(a_lie_in_the_queue_is_told),
        TEST(lies_about_tail_and_head_are_told),
        TEST(an_answer_to_nothing_is_told),
        TEST(answering_twice_is_told),
        TEST(a_count_of_answers_that_cannot_be_is_told),
        TEST(a_cell_whose_word_makes_no_sense_comes_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
