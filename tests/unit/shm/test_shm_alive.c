/*
 * The promises of shm/base/alive.h: whoever gets a lock of a dead process finds its word dead,
 * however it died and whichever of its threads; and one that ends in order says so itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/alive.h"
#include "tests/support.h"

#define DEATHS 200

static char path[] = "/tmp/cableway-alive-XXXXXX";
static cw_a32 *word;

static void *sleep_on(void *unused) {
    pause();
    return unused;
}

/* Holds the lock, says that it lives, and sleeps, with other threads beside it. */
_Noreturn static void live(int ready) {
    static struct cw_alive_keeper keeper;
    pthread_t other;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX) < 0 || cw_alive_begin(&keeper, word) != 0)
        _exit(1);
    for (int i = 0; i < 2; i++)
        if (pthread_create(&other, NULL, sleep_on, NULL) != 0)
            _exit(1);
    if (write(ready, "r", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

static int setup(void **state) {
    (void)state;
    int fd = mkstemp(path);
    word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return fd < 0 || word == MAP_FAILED || close(fd) < 0 ? -1 : 0;
}

static int teardown(void **state) {
    (void)state;
    return unlink(path);
}

static void who_has_the_lock_of_the_dead_finds_the_word_dead(void **state) {
    (void)state;
    for (int i = 0; i < DEATHS; i++) {
        int ready[2];
        char byte;
        assert_int_equal(pipe(ready), 0);
        pid_t pid = fork();
        if (pid == 0)
            live(ready[1]);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        assert_true(cw_alive(word));
        int fd = open(path, O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0);
        if (i % 4 == 0) /* one that is stopped lives */
            kill(pid, SIGSTOP);
        assert_true(cw_alive(word));
        kill(pid, i % 2 ? SIGKILL : SIGTERM);
        if (i % 4 == 0)
            kill(pid, SIGCONT);
        assert_int_equal(flock(fd, LOCK_EX), 0);
        assert_false(cw_alive(word)); /* it was not waited for */
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        close(fd);
        close(ready[0]);
        close(ready[1]);
    }
}

static void one_that_ends_in_order_says_so(void **state) {
    (void)state;
    struct cw_alive_keeper keeper = {.word = NULL};
    cw_alive_end(&keeper);
    assert_int_equal(cw_alive_begin(&keeper, word), 0);
    assert_true(cw_alive(word));
    cw_alive_end(&keeper);
    cw_alive_end(&keeper);
    assert_false(cw_alive(word));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_has_the_lock_of_the_dead_finds_the_word_dead),
        cmocka_unit_test(one_that_ends_in_order_says_so),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
