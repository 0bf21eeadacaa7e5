/*
 * Stepping by ptrace: see step.h.
 *
 * The marks are breakpoints that are compiled in (int3). At the second one the child stops behind
 * an int3 instruction, which no step inside an operation does.
 */
#include "tests/crash/support/step.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/user.h>
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

/* ---- paths ---- */

static uint64_t address_of(pid_t pid) {
    struct user_regs_struct registers;
    return ptrace(PTRACE_GETREGS, pid, NULL, &registers) == 0 ? registers.rip : 0;
}

static void path_add(struct step_path *path, uint64_t address) {
    if (path->count == path->room) {
        path->room = path->room ? path->room * 2 : 4096;
        path->at = realloc(path->at, path->room * sizeof *path->at);
        if (!path->at)
            abort();
    }
    path->at[path->count++] = address;
}

/* Marks first meetings, with an open-addressed set of addresses. */
static void path_mark(struct step_path *path) {
    uint64_t slots = 1;
    while (slots < path->count * 2 + 2)
        slots *= 2;
    uint64_t *set = calloc(slots, sizeof *set);
    path->first = calloc(path->count + 1, sizeof *path->first);
    if (!set || !path->first)
        abort();
    for (uint64_t i = 0; i < path->count; i++) {
        uint64_t n = path->at[i] * 0x9e3779b97f4a7c15u & (slots - 1);
        while (set[n] && set[n] != path->at[i])
            n = (n + 1) & (slots - 1);
        path->first[i] = !set[n];
        set[n] = path->at[i];
    }
    free(set);
}

enum step_end step_trace(pid_t pid, struct step_path *path) {
    *path = (struct step_path){0};
    enum step_end end = STEP_KILLED;
    uint64_t steps = 0;
    while (end == STEP_KILLED) {
        path_add(path, address_of(pid));
        end = step_by(pid, 1, &steps);
    }
    path_mark(path);
    return end;
}

void step_path_deinit(struct step_path *path) {
    free(path->at);
    free(path->first);
    *path = (struct step_path){0};
}

/* Runs the child to a breakpoint. STEP_KILLED: it stands there. */
static enum step_end run_to(pid_t pid, uint64_t address, long word) {
    void *place = (void *)(uintptr_t)address;
    if (ptrace(PTRACE_CONT, pid, NULL, NULL) != 0)
        return STEP_BROKEN;
    int status = wait_for(pid);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGTRAP)
        return STEP_TRAPPED;
    if (broken(pid, status))
        return STEP_BROKEN;
    struct user_regs_struct registers;
    if (ptrace(PTRACE_GETREGS, pid, NULL, &registers) != 0)
        return STEP_BROKEN;
    if (registers.rip != address + 1)
        return STEP_OVER; /* another path: at its second mark */
    registers.rip = address;
    if (ptrace(PTRACE_SETREGS, pid, NULL, &registers) != 0 ||
        ptrace(PTRACE_POKETEXT, pid, place, (void *)word) != 0)
        return STEP_BROKEN;
    return STEP_KILLED;
}

enum step_end step_to(pid_t pid, const struct step_path *path, uint64_t n) {
    uint64_t from = n < path->count ? n : path->count - 1, steps = 0;
    for (; from > 0; from--) {
        if (!path->first[from])
            continue;
        void *place = (void *)(uintptr_t)path->at[from];
        errno = 0;
        long word = ptrace(PTRACE_PEEKTEXT, pid, place, NULL);
        /* Some places cannot be written (the kernel's own page of code): step from an earlier one.
         */
        if (errno == 0 &&
            ptrace(PTRACE_POKETEXT, pid, place, (void *)((word & ~0xffl) | 0xcc)) == 0) {
            enum step_end end = run_to(pid, path->at[from], word);
            if (end != STEP_KILLED)
                return end;
            break;
        }
    }
    return step_by(pid, n - from, &steps);
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
