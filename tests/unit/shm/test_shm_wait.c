/*
 * The promises of shm/base/wait.h: no wake-up is lost, no system call where nobody sleeps, the dead
 * cost one call.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

#include "shm/base/wait.h"
#include "tests/support.h"

static void nobody_asleep_costs_no_system_call(void **state) {
    (void)state;
    struct cw_sleeper sleeper = {0};
    assert_false(cw_sleeper_wake(&sleeper));
    assert_false(cw_sleeper_claim(&sleeper));
}

static void one_waker_alone_claims_a_sleeper(void **state) {
    (void)state;
    struct cw_sleeper sleeper = {0};
    cw_sleeper_announce(&sleeper);
    assert_true(cw_sleeper_claim(&sleeper));
    assert_false(cw_sleeper_claim(&sleeper));
    assert_false(cw_sleeper_wake(&sleeper));
}

static void an_announcement_can_be_taken_back(void **state) {
    (void)state;
    struct cw_sleeper sleeper = {0};
    cw_sleeper_announce(&sleeper);
    cw_sleeper_cancel(&sleeper);
    assert_false(cw_sleeper_wake(&sleeper));
}

static void a_wake_between_announcement_and_sleep_is_not_lost(void **state) {
    (void)state;
    struct cw_sleeper sleeper = {0};
    cw_sleeper_announce(&sleeper);
    assert_true(cw_sleeper_wake(&sleeper));
    assert_int_equal(cw_sleeper_sleep(&sleeper, -1), 0); /* for ever, yet returns */
}

static void a_sleep_ends_at_its_timeout(void **state) {
    (void)state;
    struct cw_sleeper sleeper = {0};
    cw_sleeper_announce(&sleeper);
    int64_t begin = cw_now_ns();
    assert_int_equal(cw_sleeper_sleep(&sleeper, 20000000), -ETIMEDOUT);
    assert_true(cw_now_ns() - begin >= 20000000);
    assert_int_equal(cw_sleeper_sleep(&sleeper, 0), -ETIMEDOUT);
}

static void on_alarm(int number) {
    (void)number;
}

/* Whatever its handler's flags are: a wait without a limit is none that the kernel restarts. */
static void a_signal_ends_a_sleep(void **state) {
    (void)state;
    for (int restart = 0; restart < 2; restart++)
        for (int limited = 0; limited < 2; limited++) {
            struct sigaction action = {.sa_handler = on_alarm,
                                       .sa_flags = restart ? SA_RESTART : 0};
            struct sigaction old;
            sigaction(SIGALRM, &action, &old);
            struct cw_sleeper sleeper = {0};
            struct cw_bell bell = {.rings = 0};
            timer_t timer;
            assert_int_equal(timer_create(CLOCK_MONOTONIC, NULL, &timer), 0);
            struct itimerspec soon = {{0, 10000000}, {0, 10000000}};
            timer_settime(timer, 0, &soon, NULL);
            int64_t timeout_ns = limited ? 3600 * INT64_C(1000000000) : -1;
            cw_sleeper_announce(&sleeper);
            assert_int_equal(cw_sleeper_sleep(&sleeper, timeout_ns), -EINTR);
            assert_int_equal(cw_bell_sleep(&bell, cw_bell_announce(&bell), timeout_ns), -EINTR);
            timer_delete(timer);
            sigaction(SIGALRM, &old, NULL);
        }
}

struct shared {
    struct cw_sleeper sleeper;
    cw_a32 condition;
    cw_a32 awake;
};

/* The waiter's part as wait.h says it. */
static void wait_for_condition(struct shared *shared) {
    while (!atomic_load(&shared->condition)) {
        cw_sleeper_announce(&shared->sleeper);
        if (atomic_load(&shared->condition))
            break;
        cw_sleeper_sleep(&shared->sleeper, -1);
    }
    atomic_fetch_add(&shared->awake, 1);
}

static void a_sleeper_in_another_process_is_woken(void **state) {
    (void)state;
    struct shared *shared =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int round = 0; round < 20; round++) {
        atomic_store(&shared->condition, 0);
        pid_t pid = fork();
        if (pid == 0) {
            wait_for_condition(shared);
            _exit(0);
        }
        if (round % 2) /* both asleep and on the way there */
            while (!atomic_load(&shared->sleeper.asleep))
                sched_yield();
        atomic_store(&shared->condition, 1);
        cw_sleeper_wake(&shared->sleeper);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
    }
    munmap(shared, 4096);
}

struct belfry {
    struct cw_bell bell;
    cw_a32 condition, awake;
};

static void *wait_at_bell(void *context) {
    struct belfry *belfry = context;
    while (!atomic_load(&belfry->condition)) {
        uint32_t rings = cw_bell_announce(&belfry->bell);
        if (atomic_load(&belfry->condition))
            break;
        cw_bell_sleep(&belfry->bell, rings, -1);
    }
    atomic_fetch_add(&belfry->awake, 1);
    return NULL;
}

static void a_bell_wakes_all_that_sleep_at_it(void **state) {
    (void)state;
    for (int round = 0; round < 50; round++) {
        struct belfry belfry = {0};
        pthread_t threads[4];
        for (int i = 0; i < 4; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, wait_at_bell, &belfry), 0);
        usleep(round % 2 ? 0 : 2000);
        atomic_store(&belfry.condition, 1);
        cw_bell_wake(&belfry.bell);
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(atomic_load(&belfry.awake), 4);
    }
}

static void a_bell_where_nobody_waits_costs_no_system_call(void **state) {
    (void)state;
    struct cw_bell bell = {0};
    assert_false(cw_bell_wake(&bell));
    (void)cw_bell_announce(&bell);
    assert_true(cw_bell_wake(&bell));
    assert_false(cw_bell_wake(&bell));
}

static void a_ring_between_announcement_and_sleep_is_not_lost(void **state) {
    (void)state;
    struct cw_bell bell = {0};
    uint32_t rings = cw_bell_announce(&bell);
    assert_true(cw_bell_wake(&bell));
    (void)cw_bell_announce(&bell); /* another sleeper's, which must not hide it */
    assert_int_equal(cw_bell_sleep(&bell, rings, -1), 0);
}

static void a_bell_is_roused_whatever_its_word_says(void **state) {
    (void)state;
    struct cw_bell bell = {0};
    uint32_t rings = cw_bell_announce(&bell);
    atomic_store(&bell.woken, 1); /* as if nobody slept */
    assert_false(cw_bell_wake(&bell));
    assert_int_equal(cw_bell_sleep(&bell, rings, 1000000), -ETIMEDOUT);
    cw_bell_rouse(&bell);
    assert_int_equal(cw_bell_sleep(&bell, rings, -1), 0);
}

/* The futex stands before the number moves, so the sleep does not end by itself. */
static void a_waker_that_died_before_its_call_leaves_it_to_the_next(void **state) {
    (void)state;
    struct belfry belfry = {0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wait_at_bell, &belfry), 0);
    while (!cw_bell_waits(&belfry.bell))
        sched_yield();
    usleep(50000);
    atomic_fetch_add(&belfry.bell.rings, 1); /* the dead one came so far (W11) */
    atomic_store(&belfry.condition, 1);
    assert_true(cw_bell_wake(&belfry.bell));
    pthread_join(thread, NULL);
    assert_false(cw_bell_wake(&belfry.bell));
}

static void a_sleeper_that_died_costs_one_call_once(void **state) {
    (void)state;
    struct shared *shared =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid = fork();
    if (pid == 0) {
        wait_for_condition(shared);
        _exit(0);
    }
    while (!atomic_load(&shared->sleeper.asleep))
        sched_yield();
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_true(cw_sleeper_wake(&shared->sleeper));
    assert_false(cw_sleeper_wake(&shared->sleeper));
    munmap(shared, 4096);
}

static void spinning_pays_only_for_an_awake_side_on_another_core(void **state) {
    (void)state;
    struct cw_sleeper sleeper = {0};
    assert_false(cw_sleeper_spin_pays(&sleeper)); /* unknown core */
    cpu_set_t before, one;
    sched_getaffinity(0, sizeof before, &before);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    cw_sleeper_here(&sleeper);
    assert_int_equal(atomic_load(&sleeper.core), sched_getcpu() + 1);
    assert_false(cw_sleeper_spin_pays(&sleeper)); /* our own core */
    atomic_store(&sleeper.core, (uint32_t)sched_getcpu() + 2);
    assert_true(cw_sleeper_spin_pays(&sleeper));
    cw_sleeper_announce(&sleeper);
    assert_false(cw_sleeper_spin_pays(&sleeper));
    sched_setaffinity(0, sizeof before, &before);
}

static void the_clock_only_rises(void **state) {
    (void)state;
    int64_t last = cw_now_ns();
    for (int i = 0; i < 10000; i++) {
        int64_t now = cw_now_ns();
        assert_true(now >= last);
        last = now;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_asleep_costs_no_system_call),
        cmocka_unit_test(one_waker_alone_claims_a_sleeper),
        cmocka_unit_test(an_announcement_can_be_taken_back),
        cmocka_unit_test(a_wake_between_announcement_and_sleep_is_not_lost),
        cmocka_unit_test(a_sleep_ends_at_its_timeout),
        cmocka_unit_test(a_signal_ends_a_sleep),
        cmocka_unit_test(a_sleeper_in_another_process_is_woken),
        cmocka_unit_test(a_bell_wakes_all_that_sleep_at_it),
        cmocka_unit_test(a_bell_where_nobody_waits_costs_no_system_call),
        cmocka_unit_test(a_ring_between_announcement_and_sleep_is_not_lost),
        cmocka_unit_test(a_bell_is_roused_whatever_its_word_says),
        cmocka_unit_test(a_waker_that_died_before_its_call_leaves_it_to_the_next),
        cmocka_unit_test(a_sleeper_that_died_costs_one_call_once),
        cmocka_unit_test(spinning_pays_only_for_an_awake_side_on_another_core),
        cmocka_unit_test(the_clock_only_rises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
