/*
 * Every instruction: see every.h. The loop, once for all operations. Each child runs to the last
 * place on its way that is met for the first time, and steps from there: with steps alone a test
 * takes the square of its instructions, of which a sanitizer makes four times as many.
 */
#include "tests/crash/support/every.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <sys/types.h>
#include <cmocka.h>

#include "shm/base/trace.h"
#include "tests/crash/support/step.h"

static void child(void *context) {
    const struct every_operation *operation = context;
    if (operation->enter)
        operation->enter();
    cw_trace_moment(CW_TRACE_WAKE, 0, 0); /* its trace is there: to make one takes thousands */
    step_ready();
    operation->run();
    step_done();
}

/* The child at its first mark. */
static pid_t begin(const struct every_operation *operation) {
    operation->prepare();
    return step_fork(child, (void *)operation);
}

void at_every_instruction(void **state) {
    const struct every_operation *operation = *state;
    struct step_path path;
    operation->prepare();
    operation->run(); /* once here: what is bound lazily is bound before the first fork */
    pid_t pid = begin(operation);
    if (pid < 0) {
        print_message("skipped: ptrace is not allowed here\n");
        skip();
    }
    assert_int_equal(step_trace(pid, &path), STEP_OVER);
    step_kill(pid);
    operation->check();
    assert_true(path.count > operation->least);
    enum step_end end = STEP_KILLED;
    uint64_t n = 0, over = 0;
    for (; n < path.count || end != STEP_OVER; n++) {
        pid = begin(operation);
        end = step_to(pid, &path, n);
        step_kill(pid);
        assert_true(end == STEP_KILLED || end == STEP_OVER);
        over += end == STEP_OVER;
        operation->check();
    }
    assert_true(over - 1 <= path.count / 4); /* nearly all are killed */
    step_path_deinit(&path);
    print_message("# killed at each of %d instructions, but for %d runs that went a shorter way\n",
                  (int)n - 1, (int)over - 1);
}
