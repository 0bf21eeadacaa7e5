/*
 * Stepping by ptrace: see step.h.
 *
 * The marks are breakpoints that are compiled in (int3). At the second one the child stops behind
 * an int3 instruction, which no step inside an operation does.
 */
#include "tests/crash/step.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define REFUSED 78

void step_ready(void) {
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        _exit(REFUSED);
    __asm__ volatile("int3" ::: "memory");
}

void step_done(void) {
    __asm__ volatile("int3" ::: "memory");
}

static bool broken(pid_t pid, int status) {
    if (WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP)
        return false;
    if (WIFEXITED(status))
        printf("# the stepped child ended by itself with status %d\n", WEXITSTATUS(status));
    else if (WIFSIGNALED(status))
        printf("# the stepped child was ended by signal %d\n", WTERMSIG(status));
    else
        printf("# the stepped child %d stopped by signal %d\n", (int)pid, WSTOPSIG(status));
    return true;
}

static int wait_for(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, __WALL) < 0 && errno == EINTR)
        ;
    return status;
}

pid_t step_fork(void (*body)(void *context), void *context) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        body(context);
        _exit(0);
    }
    int status = wait_for(pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == REFUSED)
        return -1;
    if (broken(pid, status))
        abort();
    return pid;
}

/* Does the child stand behind an int3? The kernel says which of the two traps it was. */
static bool at_mark(pid_t pid) {
    siginfo_t info;
    return ptrace(PTRACE_GETSIGINFO, pid, NULL, &info) == 0 && info.si_code == SI_KERNEL;
}

enum step_end step_by(pid_t pid, uint64_t n, uint64_t *steps) {
    for (uint64_t i = 0; i < n; i++) {
        if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) != 0)
            return STEP_BROKEN;
        int status = wait_for(pid);
        if (broken(pid, status))
            return STEP_BROKEN;
        ++*steps;
        if (at_mark(pid))
            return STEP_OVER;
    }
    return STEP_KILLED;
}

void step_kill(pid_t pid) {
    kill(pid, SIGKILL);
    int status;
    do
        status = wait_for(pid);
    while (WIFSTOPPED(status));
}

void step_pin(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
}
