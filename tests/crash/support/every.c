/* Every instruction: see every.h. The loop, once for all operations. */
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

void at_every_instruction(void **state) {
    struct every_operation *operation = *state;
    operation->prepare();
    operation->run(); /* once here: what is bound lazily is bound before the first fork */
    for (uint64_t n = 0;; n++) {
        operation->prepare();
        pid_t pid = step_fork(child, operation);
        if (pid < 0) {
            print_message("skipped: ptrace is not allowed here\n");
            skip();
        }
        uint64_t steps = 0;
        enum step_end end = step_by(pid, n, &steps);
        step_kill(pid);
        assert_int_not_equal(end, STEP_BROKEN);
        operation->check();
        if (end == STEP_OVER) {
            assert_true(n > operation->least);
            print_message("# killed at each of %d instructions\n", (int)n);
            return;
        }
    }
}
