/*
 * The promise to programs that are started without standard input, output and error, as daemons
 * are: no descriptor of the library's gets one of these numbers, so that a printf() goes nowhere,
 * and not into the broker's socket, or into an array.
 *
 * A child closes the three and does what a client does; after each step it looks at them.
 */
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/unit/ipc/client_support.h"

static int told = -1;  /* a copy of standard error */
static bool began_low; /* a descriptor was doubled from below 3 on */

/* Every call of it in this program: what a doubled descriptor is called at first shows here alone,
 * since it may be closed again before anybody looks. */
int fcntl(int fd, int command, ...) {
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    if (command == F_DUPFD || command == F_DUPFD_CLOEXEC)
        began_low |= (long)argument < 3;
    return (int)syscall(SYS_fcntl, fd, command, argument);
}

static void closed_still(int line) {
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) >= 0 || began_low) {
            dprintf(told, "line %d: descriptor %d is open%s\n", line, fd,
                    began_low ? ", or was" : "");
            _exit(99);
        }
}

#define STEP(call)                                                                                 \
    do {                                                                                           \
        int code_ = (call);                                                                        \
        if (code_ < 0) {                                                                           \
            dprintf(told, "line %d: %d: %s\n", __LINE__, code_, cw_error());                       \
            _exit(98);                                                                             \
        }                                                                                          \
        closed_still(__LINE__);                                                                    \
    } while (0)

static void use_all(void) {
    static const int64_t shape = 100;
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &shape, .dtype = "|u1"};
    cw_client *client, *other;
    STEP(cw_connect(NULL, NULL, 0, &client)); /* starts a broker */
    STEP(cw_connect(NULL, NULL, 0, &other));
    cw_array *array, *found;
    STEP(cw_array_new(client, "cpu", &layout, CW_ZERO, &array));
    STEP(cw_array_put(array, "x", 0, NULL, 0));
    STEP(cw_get(other, "x", 0, &found));
    cw_handle handle;
    STEP(cw_array_export(array, 1, &handle));
    cw_array *opened;
    STEP(cw_array_open(other, &handle, &layout, 0, &opened));

    int theirs = memfd_create("theirs", 0); /* somebody else's, which is nobody's fault */
    int high = (int)syscall(SYS_fcntl, theirs, F_DUPFD, 10);
    close(theirs);
    if (high < 0 || ftruncate(high, 4096) < 0)
        _exit(97);
    cw_array *adopted;
    STEP(cw_array_adopt(client, high, 0, &layout, &adopted));
    STEP(cw_array_put(adopted, "adopted", 0, NULL, 0));

    cw_array *memory;
    cw_queue *queue;
    cw_item item = {0};
    STEP(cw_queue_new(client, 0, 0, &memory));
    STEP(cw_queue_open(memory, &queue));
    STEP(cw_queue_put(queue, "x", 1, NULL, 0, 0, -1));
    STEP(cw_queue_get(queue, &item, -1));
    int plane;
    STEP(cw_pool_allocate(cw_pool_bytes(2, 4, 1), &plane));

    pid_t child = fork(); /* the parent's arrays are kept for it, by a pipe */
    if (child == 0) {
        closed_still(__LINE__);
        _exit(memcmp(cw_array_data(array), cw_array_data(found), 100) ? 1 : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status)
        _exit(96);
    closed_still(__LINE__);
    STEP(cw_ping(client));
    STEP(cw_broker_stop(client));
}

static void a_program_without_stdio_has_none_of_the_librarys(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        told = (int)syscall(SYS_fcntl, 2, F_DUPFD, 50);
        for (int fd = 0; fd < 3; fd++)
            close(fd);
        use_all();
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void) {
    set_broker_path();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_program_without_stdio_has_none_of_the_librarys,
                                        folder_make, folder_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
