/*
 * Workers killed with SIGKILL at every instruction of taking a task, of the own group or another
 * one, and answering it, of being woken for one and waking the next, of answering somebody who
 * sleeps. After each death every task is READY, answered, or comes out of the burial, the others
 * take what is READY, and another worker goes on in the dead one's place. At random, with
 * processes: crash_pool.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "shm/tasks/dispatch.h"
#include "shm/base/error.h"
#include "tests/crash/support/every.h"
#include "tests/crash/support/step.h"
#include "tests/support.h"

#define WORKERS 2u
#define CELLS   2u
#define GROUPS  2u

static struct shared {
    struct cw_dispatch_words words;
    struct cw_dispatch_group groups[GROUPS];
    struct cw_dispatch_worker workers[WORKERS];
    struct cw_cell cells[CELLS];
    cw_a32 queue[GROUPS * CELLS], done[WORKERS * CELLS];
    uint64_t tails[GROUPS], heads[GROUPS];
    uint32_t free_cells[CELLS];
    uint64_t places[CELLS];
    cw_a64 seen[WORKERS];
    struct cw_dispatch_parent parent; /* the submitter is a child of its own */
    atomic_bool killed;
} * shared;
static struct cw_dispatch_parent *parent;
static struct cw_dispatch_view views[WORKERS]; /* of each worker */
static pid_t submitter;

static void fresh(void) {
    memset(shared, 0, sizeof *shared);
    for (uint32_t i = 0; i < CELLS; i++) {
        shared->free_cells[i] = CELLS - 1 - i;
        shared->places[i] = CW_DISPATCH_NOWHERE;
    }
    shared->parent = (struct cw_dispatch_parent){
        .view = {.words = &shared->words,
                 .groups = shared->groups,
                 .workers = shared->workers,
                 .cells = shared->cells,
                 .queue = shared->queue,
                 .done = shared->done,
                 .worker_count = WORKERS,
                 .cell_count = CELLS,
                 .queue_len = CELLS,
                 .group_count = 1},
        .tail = shared->tails,
        .head = shared->heads,
        .free = shared->free_cells,
        .free_count = CELLS,
        .place = shared->places,
        .seen = shared->seen,
    };
    parent = &shared->parent;
    for (uint32_t w = 0; w < WORKERS; w++)
        views[w] = parent->view;
}

/* Tasks come to group 0; who is in which one, GROUPS: nobody has joined. */
static void fresh_groups(uint32_t group_of_0, uint32_t group_of_1) {
    const uint32_t groups[WORKERS] = {group_of_0, group_of_1};
    fresh();
    parent->view.group_count = GROUPS;
    for (uint32_t w = 0; w < WORKERS; w++) {
        views[w] = parent->view;
        views[w].group = groups[w];
        CW_ASSERT(cw_dispatch_join(&views[w], w) == 0);
    }
}

static void submit(uint64_t value) {
    int cell = cw_dispatch_reserve(parent);
    CW_ASSERT(cell >= 0);
    for (unsigned i = 0; i < 6; i++)
        shared->cells[cell].meta[i] = value + i;
    CW_ASSERT(cw_dispatch_submit(parent, 0, (uint32_t)cell) == 0);
}

static void submit_two(void) {
    submit(1000);
    submit(2000);
}

static void all_sleep(void) {
    cw_bell_announce(&shared->words.answers);
    cw_bell_announce(&shared->words.helper);
    cw_sleeper_announce(&shared->workers[1].sleeper);
}

static void two_are_ready(void) {
    fresh();
    submit_two();
}

static void two_are_ready_and_all_sleep(void) {
    two_are_ready();
    all_sleep();
}

static void two_are_ready_and_one_listens(void) {
    two_are_ready_and_all_sleep();
    cw_dispatch_listen(parent, 1);
}

/* Both would steal. */
static void two_are_ready_of_another_group_and_all_sleep(void) {
    fresh_groups(1, 1);
    submit_two();
    all_sleep();
}

/* Worker 1 may steal once worker 0 is dead, and not before. */
static void two_are_ready_within_the_bound_and_all_sleep(void) {
    fresh_groups(0, 1);
    submit_two();
    all_sleep();
}

static void nobody_has_joined(void) {
    fresh();
    parent->view.group_count = GROUPS;
    for (uint32_t w = 0; w < WORKERS; w++)
        views[w] = parent->view;
    submit_two();
}

/* Worker 1 seems to sleep; once worker 0 does too, or is dead, two tasks come, for one of them. */
static void submit_once_all_sleep(void) {
    cw_sleeper_announce(&shared->workers[1].sleeper);
    fflush(NULL);
    submitter = fork();
    if (submitter != 0)
        return;
    while (!atomic_load(&shared->killed) && !atomic_load(&shared->workers[0].sleeper.asleep))
        sched_yield();
    submit(1000);
    submit(2000);
    cw_dispatch_wake(parent, 0, 1);
    _exit(0);
}

static void two_come_once_all_sleep(void) {
    fresh();
    submit_once_all_sleep();
}

static void two_come_to_another_group_once_all_sleep(void) {
    fresh_groups(1, 1);
    submit_once_all_sleep();
}

static int take(uint32_t w) {
    uint64_t place;
    return cw_dispatch_take(&views[w], w, &place);
}

static void answer(uint32_t w, int cell) {
    if (!cw_dispatch_publish(&views[w], w, (uint32_t)cell))
        cw_dispatch_settle(&views[w], w, 0);
}

static void work_on(int cell) {
    for (unsigned i = 0; i < 6; i++)
        shared->cells[cell].meta[i] += 5;
}

static void take_and_answer(void) {
    int cell = take(0);
    if (cell < 0)
        _exit(9);
    work_on(cell);
    answer(0, cell);
}

static void take_two_and_answer_the_last_first(void) {
    int first = take(0), second = take(0);
    if (first < 0 || second < 0)
        _exit(9);
    work_on(second);
    work_on(first);
    answer(0, second);
    answer(0, first);
}

static void join_and_take_and_answer(void) {
    if (cw_dispatch_join(&views[0], 0) != 0)
        _exit(9);
    take_and_answer();
}

static void look_at_both(void) {
    for (uint32_t nth = 0; nth < 2; nth++) {
        uint64_t place, meta[6];
        int cell = cw_dispatch_peek(&views[0], nth, &place);
        if (cell != (int)nth)
            _exit(9);
        cw_dispatch_read(meta, shared->cells[cell].meta, sizeof meta);
        if (!cw_dispatch_is_still(&views[0], (uint32_t)cell, place) || meta[5] != meta[0] + 5)
            _exit(9);
    }
}

static void take_and_leave(void) {
    if (take(0) != -ESHUTDOWN)
        _exit(9);
}

static uint64_t value_of(int cell, uint64_t more) {
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(shared->cells[cell].meta[i], shared->cells[cell].meta[0] + i);
    return shared->cells[cell].meta[0] - more;
}

static unsigned collect(unsigned first, unsigned *answered) {
    uint32_t w;
    uint64_t place;
    int cell;
    unsigned count = 0;
    for (; (cell = cw_dispatch_collect(parent, &w, &place)) >= 0; count++) {
        uint64_t value = value_of(cell, 5);
        assert_true(value % 1000 == 0 && value / 1000 >= first);
        answered[value / 1000]++;
        cw_dispatch_free(parent, (uint32_t)cell);
    }
    assert_int_equal(cell, -EAGAIN);
    return count;
}

static void one_by(uint32_t w) {
    int cell = take(w);
    assert_true(cell >= 0);
    for (unsigned i = 0; i < 6; i++)
        shared->cells[cell].meta[i] += 5;
    answer(w, cell);
}

/* Buries worker 0, which may have had so many; the others take what is READY; then all goes on. */
static void accounted(unsigned most) {
    unsigned answered[5] = {0}, lost = 0;
    struct cw_dispatch_end end;
    int cell;
    collect(1, answered);
    while ((cell = cw_dispatch_bury(parent, 0, &end)) >= 0) {
        if (end.answered)
            answered[value_of(cell, 5) / 1000]++;
        else
            lost++;
        cw_dispatch_free(parent, (uint32_t)cell);
    }
    assert_int_equal(cell, -EAGAIN);
    assert_true(answered[1] <= 1 && answered[2] <= 1 && answered[1] + answered[2] + lost <= most);
    if (cw_dispatch_ready(&parent->view, 0))
        assert_false(atomic_load(&shared->workers[1].sleeper.asleep));
    cw_dispatch_close(parent, true);
    while ((cell = take(1)) >= 0) {
        for (unsigned i = 0; i < 6; i++)
            shared->cells[cell].meta[i] += 5;
        answer(1, cell);
    }
    assert_int_equal(cell, -ESHUTDOWN);
    collect(1, answered);
    assert_true(answered[1] <= 1 && answered[2] <= 1);
    assert_int_equal(answered[1] + answered[2] + lost, 2);
    cw_dispatch_close(parent, false);
    assert_int_equal(parent->free_count, CELLS);
    submit(3000);
    submit(4000);
    one_by(0); /* the next of that number */
    one_by(1);
    collect(3, answered);
    assert_true(answered[3] == 1 && answered[4] == 1);
}

static void all_accounted(void) {
    accounted(1);
}

static void both_accounted(void) {
    accounted(2);
}

static void none_was_taken(void) {
    accounted(0);
}

static void all_accounted_once_submitted(void) {
    atomic_store(&shared->killed, true);
    int status;
    assert_int_equal(waitpid(submitter, &status, 0), submitter);
    assert_int_equal(status, 0);
    all_accounted();
}

static void closed(void) {
    fresh();
    cw_dispatch_close(parent, true);
}

static void nothing_left(void) {
    struct cw_dispatch_end end;
    assert_int_equal(cw_dispatch_bury(parent, 0, &end), -EAGAIN);
    cw_dispatch_close(parent, false);
    unsigned answered[5] = {0};
    submit(3000);
    one_by(0);
    assert_int_equal(collect(3, answered), 1);
}

static void state(void) {
    cw_dispatch_state(&views[0], 0, 3);
}

#define TEST(name, prepare, run, check, least) EVERY_TEST(name, prepare, NULL, run, check, least)

int main(void) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    step_pin();
    const struct CMUnitTest tests[] = {
        TEST(a_task_is_ready_lost_or_answered, two_are_ready, take_and_answer, all_accounted, 100),
        TEST(the_same_while_the_helper_sleeps, two_are_ready_and_all_sleep, take_and_answer,
             all_accounted, 100),
        TEST(the_same_while_a_listener_sleeps, two_are_ready_and_one_listens, take_and_answer,
             all_accounted, 100),
        TEST(who_is_woken_and_wakes_leaves_nobody_asleep, two_come_once_all_sleep, take_and_answer,
             all_accounted_once_submitted, 100),
        TEST(a_task_of_another_group_the_same, two_are_ready_of_another_group_and_all_sleep,
             take_and_answer, all_accounted, 100),
        TEST(who_is_woken_for_another_group_leaves_nobody_asleep,
             two_come_to_another_group_once_all_sleep, take_and_answer,
             all_accounted_once_submitted, 100),
        TEST(the_last_of_a_group_leaves_its_tasks_to_others,
             two_are_ready_within_the_bound_and_all_sleep, take_and_answer, all_accounted, 100),
        TEST(several_tasks_of_one_worker_are_lost_or_answered, two_are_ready_and_all_sleep,
             take_two_and_answer_the_last_first, both_accounted, 200),
        TEST(who_has_just_joined_the_same, nobody_has_joined, join_and_take_and_answer,
             all_accounted, 100),
        TEST(looking_leaves_nothing, two_are_ready, look_at_both, none_was_taken, 50),
        TEST(leaving_leaves_nothing, closed, take_and_leave, nothing_left, 10),
        TEST(a_state_leaves_nothing, closed, state, nothing_left, 10),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
