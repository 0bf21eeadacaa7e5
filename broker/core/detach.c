/*
 * Detaching: see detach.h. Two forks and a session of its own: no terminal, no process group, no
 * pipe of the starter is held, so that `script | cat` ends although script started a broker.
 */
#include "broker/core/detach.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "broker/broker.h"
#include "shm/base/error.h"

#define TELL_TRIES    100
#define TELL_PAUSE_NS 10000000

struct verdict {
    int exit_code;
    char text[CW_DETAIL_MAX];
};

_Noreturn static void wait_for_verdict(int fd, pid_t child) {
    struct verdict verdict;
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    ssize_t count;
    do
        count = read(fd, &verdict, sizeof verdict);
    while (count < 0 && errno == EINTR);
    if (count != (ssize_t)sizeof verdict) {
        fprintf(stderr, "cablewayd: the broker ended before it listened\n");
        _exit(CWD_EXIT_FAILED);
    }
    if (verdict.text[0])
        fprintf(stderr, "cablewayd: %.*s\n", (int)sizeof verdict.text, verdict.text);
    _exit(verdict.exit_code);
}

/* Descriptors 0 to 2 to /dev/null, fd to 3, all others closed. */
static int keep_only(int fd) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0)
        return cw_fail(-errno, "opening /dev/null failed: %m");
    for (int i = 0; i < 3; i++)
        if (dup2(null, i) < 0)
            return cw_fail(-errno, "closing the standard descriptors failed: %m");
    if (fd != 3) {
        if (dup2(fd, 3) < 0)
            return cw_fail(-errno, "moving a descriptor failed: %m");
    }
    fcntl(3, F_SETFD, FD_CLOEXEC);
    if (syscall(SYS_close_range, 4, ~0u, 0) < 0)
        for (int i = 4; i < 65536; i++)
            close(i);
    return 3;
}

int cwd_detach(void) {
    int ends[2];
    sigset_t none;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return cw_fail(-errno, "making a pipe failed: %m");
    pid_t child = fork();
    if (child < 0)
        return cw_fail(-errno, "fork failed: %m");
    if (child > 0) {
        close(ends[1]);
        wait_for_verdict(ends[0], child);
    }
    /* A descriptor below 3 that the starter had closed would be overwritten below. */
    int fd = fcntl(ends[1], F_DUPFD_CLOEXEC, 3);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    for (int i = 1; i < NSIG; i++)
        signal(i, SIG_DFL); /* what the starter ignored or caught is not ours */
    if (fd < 0 || setsid() < 0)
        return cw_fail(-errno, "setsid failed: %m");
    child = fork();
    if (child < 0)
        return cw_fail(-errno, "fork failed: %m");
    if (child > 0)
        _exit(0);
    if (chdir("/") < 0)
        return cw_fail(-errno, "changing to / failed: %m");
    return keep_only(fd);
}

void cwd_detach_tell(int fd, int exit_code, const char *text) {
    struct verdict verdict = {.exit_code = exit_code};
    if (fd < 0)
        return;
    snprintf(verdict.text, sizeof verdict.text, "%s", text);
    /* An empty pipe takes a page, for which there may be no memory just now. Other failures: the
     * starter is gone, and nobody is there to be told. */
    const struct timespec pause = {.tv_nsec = TELL_PAUSE_NS};
    for (int i = 0; i < TELL_TRIES && write(fd, &verdict, sizeof verdict) < 0; i++) {
        CW_ASSERT(errno != EFAULT);
        if (errno != ENOMEM && errno != EINTR)
            break;
        nanosleep(&pause, NULL);
    }
    close(fd);
}
