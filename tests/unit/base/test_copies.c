/* Large copies of host memory: past the caches, and by several threads (ipc/base/parallel_copy.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/parallel_copy.h"
#include "ipc/base/past_caches.h"
#include "shm/base/thread.h"

#define PAGE  4096u
#define GUARD 0xa5

static void past_the_caches_each_byte_arrives_alone(void **state) {
    (void)state;
    uint8_t *source = malloc(PAGE), *target = malloc(PAGE);
    assert_non_null(source);
    assert_non_null(target);
    for (size_t i = 0; i < PAGE; i++)
        source[i] = (uint8_t)(i * 7 + i / 256);
    for (size_t to = 0; to < 70; to += 3)
        for (size_t from = 0; from < 70; from += 5)
            for (size_t size = 0; size < 700; size += size < 300 ? 1 : 37) {
                memset(target, GUARD, PAGE);
                cw_copy_past_caches(target + to, source + from, size);
                assert_memory_equal(target + to, source + from, size);
                for (size_t i = 0; i < 1024; i++)
                    if (i < to || i >= to + size)
                        assert_int_equal(target[i], GUARD);
            }
    free(source);
    free(target);
}

static void past_the_caches_a_large_one_arrives(void **state) {
    (void)state;
    size_t size = CW_PAST_CACHES_BYTES + 12345;
    uint8_t *source = malloc(size), *target = calloc(size + 2, 1);
    assert_non_null(source);
    assert_non_null(target);
    for (size_t i = 0; i < size; i++)
        source[i] = (uint8_t)(i * 31 + i / 65536);
    cw_copy_past_caches(target + 1, source, size);
    assert_int_equal(target[0], 0);
    assert_int_equal(target[size + 1], 0);
    assert_memory_equal(target + 1, source, size);
    free(source);
    free(target);
}

static void copy_in_parallel(size_t size, size_t shift) {
    uint8_t *source = malloc(size + 1), *target = calloc(size + shift + 1, 1);
    assert_non_null(source);
    assert_non_null(target);
    for (size_t i = 0; i < size; i++)
        source[i] = (uint8_t)(i * 31 + i / 65536 + 1);
    cw_copy_in_parallel(target + shift, source, size);
    for (size_t i = 0; i < shift; i++)
        assert_int_equal(target[i], 0);
    assert_int_equal(target[shift + size], 0);
    assert_int_equal(memcmp(target + shift, source, size), 0);
    free(source);
    free(target);
}

static void in_parallel_each_byte_arrives_alone(void **state) {
    (void)state;
    const size_t sizes[] = {0,
                            1,
                            CW_PAST_CACHES_BYTES - 1,
                            CW_PAST_CACHES_BYTES,
                            CW_PAST_CACHES_BYTES + 12345,
                            CW_PAST_CACHES_MOST + 54321};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        copy_in_parallel(sizes[i], i);
}

static void in_parallel_on_one_cpu(void **state) {
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
        if (CPU_ISSET(cpu, &before))
            CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(cw_thread_spare_cpus(3), 0);
    copy_in_parallel(CW_PAST_CACHES_BYTES + 1, 0);
    copy_in_parallel(CW_PAST_CACHES_MOST + 1, 0);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void in_parallel_what_overlaps_is_moved(void **state) {
    (void)state;
    size_t size = CW_PAST_CACHES_BYTES + PAGE;
    uint8_t *bytes = malloc(size + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i <= size; i++)
        bytes[i] = (uint8_t)(i * 31 + i / 65536);
    cw_copy_in_parallel(bytes + 1, bytes, size);
    for (size_t i = 0; i < size; i++)
        if (bytes[i + 1] != (uint8_t)(i * 31 + i / 65536))
            fail_msg("byte %zu", i);
    free(bytes);
}

static _Atomic bool forks_end;

static void *fork_again_and_again(void *context) {
    int *bad = context;
    while (!forks_end) {
        int status;
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            ++*bad;
    }
    return NULL;
}

static void in_parallel_while_another_thread_forks(void **state) {
    (void)state;
    pthread_t forks;
    int bad = 0;
    forks_end = false;
    assert_int_equal(pthread_create(&forks, NULL, fork_again_and_again, &bad), 0);
    for (size_t i = 0; i < 20; i++)
        copy_in_parallel(CW_PAST_CACHES_BYTES + i, 1);
    forks_end = true;
    assert_int_equal(pthread_join(forks, NULL), 0);
    assert_int_equal(bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(past_the_caches_each_byte_arrives_alone),
        cmocka_unit_test(past_the_caches_a_large_one_arrives),
        cmocka_unit_test(in_parallel_each_byte_arrives_alone),
        cmocka_unit_test(in_parallel_on_one_cpu),
        cmocka_unit_test(in_parallel_what_overlaps_is_moved),
        cmocka_unit_test(in_parallel_while_another_thread_forks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
