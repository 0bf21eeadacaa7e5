/*
 * The promises of shm/blocks/fence.h: values only rise, a dead writer poisons, what was complete
 * stays good.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include "shm/base/error.h"
#include "shm/blocks/fence.h"
#include "tests/support.h"

static struct cw_fence fence;

static int fresh(void **state) {
    (void)state;
    memset(&fence, 0xa5, sizeof fence);
    cw_fence_init(&fence);
    return 0;
}

static void a_value_is_reached_once_it_is_completed(void **state) {
    (void)state;
    assert_int_equal(cw_fence_poll(&fence, 1), 0);
    assert_int_equal(cw_fence_poll(&fence, 0), 1);
    cw_fence_enqueue(&fence, 1);
    cw_fence_enqueue(&fence, 5);
    assert_int_equal(cw_fence_poll(&fence, 1), 0);
    cw_fence_complete(&fence, 1);
    assert_int_equal(cw_fence_poll(&fence, 1), 1);
    assert_int_equal(cw_fence_poll(&fence, 5), 0);
    cw_fence_complete(&fence, 5);
    assert_int_equal(cw_fence_poll(&fence, 3), 1);
    assert_int_equal(atomic_load(&fence.enqueued), 5);
}

static void a_wait_ends_at_its_timeout_with_a_sentence(void **state) {
    (void)state;
    int64_t begin = cw_now_ns();
    assert_int_equal(cw_fence_wait(&fence, 1, 30000000), -ETIMEDOUT);
    assert_true(cw_now_ns() - begin >= 30000000);
    assert_int_equal(cw_fence_wait(&fence, 1, 0), -ETIMEDOUT);
    assert_true(strlen(cw_detail()) > 0);
}

static void what_is_complete_needs_no_wait(void **state) {
    (void)state;
    cw_fence_complete(&fence, 7);
    assert_int_equal(cw_fence_wait(&fence, 7, -1), 0);
    assert_int_equal(cw_fence_wait(&fence, 7, 0), 0);
}

static void *wait_for_three(void *code) {
    *(int *)code = cw_fence_wait(&fence, 3, -1);
    return NULL;
}

static void all_waiters_wake_when_their_value_comes(void **state) {
    (void)state;
    pthread_t threads[4];
    int codes[4] = {1, 1, 1, 1};
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, wait_for_three, &codes[i]), 0);
    for (uint64_t value = 1; value <= 3; value++) {
        usleep(5000);
        cw_fence_complete(&fence, value);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(codes[i], 0);
    }
}

static void poison_ends_waits_and_keeps_what_was_complete(void **state) {
    (void)state;
    pthread_t thread;
    int code = 1;
    cw_fence_complete(&fence, 2);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_three, &code), 0);
    usleep(5000);
    assert_int_equal(cw_fence_poison(&fence), 2);
    pthread_join(thread, NULL);
    assert_int_equal(code, -EOWNERDEAD);
    assert_int_equal(cw_fence_poll(&fence, 2), 1);
    assert_int_equal(cw_fence_wait(&fence, 2, -1), 0);
    assert_int_equal(cw_fence_poll(&fence, 3), -EOWNERDEAD);
    assert_int_equal(cw_fence_wait(&fence, 3, -1), -EOWNERDEAD);
}

static void poison_repeated_keeps_the_note(void **state) {
    (void)state;
    cw_fence_complete(&fence, 4);
    for (int i = 0; i < 5; i++)
        assert_int_equal(cw_fence_poison(&fence), 4);
    assert_true(atomic_load(&fence.value) >= CW_FENCE_POISON);
}

static void poison_stored_again_covers_a_late_write(void **state) {
    (void)state;
    cw_fence_complete(&fence, 4);
    cw_fence_poison(&fence);
    atomic_store(&fence.value, 5); /* the device's, after its process died */
    /* Who waited for 5 may have been released by the poison, before the work behind 5 was done. */
    assert_int_equal(cw_fence_poll(&fence, 5), -EOWNERDEAD);
    assert_int_equal(cw_fence_poison(&fence), 4);
    assert_true(atomic_load(&fence.value) >= CW_FENCE_POISON);
    assert_int_equal(cw_fence_poll(&fence, 6), -EOWNERDEAD);
    assert_int_equal(cw_fence_poll(&fence, 5), -EOWNERDEAD);
    assert_int_equal(cw_fence_poll(&fence, 4), 1);
}

static void a_fence_without_any_work_can_be_poisoned(void **state) {
    (void)state;
    assert_int_equal(cw_fence_poison(&fence), 0);
    assert_int_equal(cw_fence_poll(&fence, 1), -EOWNERDEAD);
}

static void on_alarm(int number) {
    (void)number;
}

static void a_signal_ends_a_wait(void **state) {
    (void)state;
    struct sigaction action = {.sa_handler = on_alarm}, old;
    sigaction(SIGALRM, &action, &old);
    timer_t timer;
    assert_int_equal(timer_create(CLOCK_MONOTONIC, NULL, &timer), 0);
    struct itimerspec soon = {{0, 10000000}, {0, 10000000}};
    timer_settime(timer, 0, &soon, NULL);
    assert_int_equal(cw_fence_wait(&fence, 1, -1), -EINTR);
    timer_delete(timer);
    sigaction(SIGALRM, &old, NULL);
}

static int enqueue_falling(void *context) {
    (void)context;
    fclose(stderr);
    cw_fence_enqueue(&fence, 3);
    cw_fence_enqueue(&fence, 3);
    return 0;
}

static int complete_poison(void *context) {
    (void)context;
    fclose(stderr);
    cw_fence_complete(&fence, CW_FENCE_POISON);
    return 0;
}

static void values_that_do_not_rise_are_our_own_fault(void **state) {
    (void)state;
    assert_int_equal(in_child(enqueue_falling, NULL), 128 + SIGABRT);
    assert_int_equal(in_child(complete_poison, NULL), 128 + SIGABRT);
}

static void a_fence_orders_work_of_two_processes(void **state) {
    (void)state;
    struct {
        struct cw_fence there, back;
        uint64_t value;
    } *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cw_fence_init(&shared->there);
    cw_fence_init(&shared->back);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        for (uint64_t n = 1; n <= 2000; n++) {
            if (cw_fence_wait(&shared->there, n, 5000000000) != 0 || shared->value != n)
                _exit(1);
            shared->value = n * 3;
            cw_fence_complete(&shared->back, n);
        }
        _exit(0);
    }
    for (uint64_t n = 1; n <= 2000; n++) {
        shared->value = n;
        cw_fence_complete(&shared->there, n);
        assert_int_equal(cw_fence_wait(&shared->back, n, 5000000000), 0);
        assert_int_equal(shared->value, n * 3);
    }
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    munmap(shared, 4096);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_value_is_reached_once_it_is_completed, fresh),
        cmocka_unit_test_setup(a_wait_ends_at_its_timeout_with_a_sentence, fresh),
        cmocka_unit_test_setup(what_is_complete_needs_no_wait, fresh),
        cmocka_unit_test_setup(all_waiters_wake_when_their_value_comes, fresh),
        cmocka_unit_test_setup(poison_ends_waits_and_keeps_what_was_complete, fresh),
        cmocka_unit_test_setup(poison_repeated_keeps_the_note, fresh),
        cmocka_unit_test_setup(poison_stored_again_covers_a_late_write, fresh),
        cmocka_unit_test_setup(a_fence_without_any_work_can_be_poisoned, fresh),
        cmocka_unit_test_setup(a_signal_ends_a_wait, fresh),
        cmocka_unit_test_setup(values_that_do_not_rise_are_our_own_fault, fresh),
        cmocka_unit_test_setup(a_fence_orders_work_of_two_processes, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
