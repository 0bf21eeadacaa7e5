/*
 * Starting a broker, detached from the process that needs one.
 *
 * The program: $CAUSEWAY_BROKER, else causewayd beside this library (the same folder, or ../bin),
 * else by PATH. The process: forked twice, so that it is nobody's child, in a session of its own,
 * with all descriptors closed but /dev/null as 0, 1 and 2 (so `script | cat` ends), in "/", with
 * default signals. Between fork and exec only what is safe there is called: the parent may have any
 * number of threads. The fork is a bare clone without an exit signal: no fork handlers run, the
 * host program sees no SIGCHLD and no child of its own.
 *
 * If two clients do this at once, both brokers run for a moment, and their lock file decides.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/client.h"

#define PROGRAM "causewayd"

extern char **environ;

struct verdict { /* what the new process says over the pipe */
    int pid;
    int error; /* errno of exec; 0 when only the pid is told */
};

static bool is_program(const char *path) {
    return access(path, X_OK) == 0;
}

/* Beside the file that this function is in. */
static bool find_beside(char *path) {
    static const char *const places[] = {"", "../bin/", "bin/"};
    Dl_info info;
    char real[PATH_MAX];
    if (!dladdr((void *)(uintptr_t)&cw_start_broker, &info) || !info.dli_fname ||
        !realpath(info.dli_fname, real))
        return false;
    char *slash = strrchr(real, '/');
    if (!slash)
        return false;
    slash[1] = 0;
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++)
        if (snprintf(path, PATH_MAX, "%s%s" PROGRAM, real, places[i]) < PATH_MAX &&
            is_program(path))
            return true;
    return false;
}

static bool find_in_path(char *path) {
    const char *at = getenv("PATH");
    while (at && *at) {
        size_t length = strcspn(at, ":");
        if (length && at[0] == '/' &&
            snprintf(path, PATH_MAX, "%.*s/" PROGRAM, (int)length, at) < PATH_MAX &&
            is_program(path))
            return true;
        at += length + (at[length] == ':');
    }
    return false;
}

static int find_program(char *path) {
    const char *given = getenv("CAUSEWAY_BROKER");
    if (given && *given) {
        if (strlen(given) >= PATH_MAX || !is_program(given))
            return cw_fail(-ECONNRESET, "no broker runs, and CAUSEWAY_BROKER=%.300s is no program",
                           given);
        strcpy(path, given);
        return 0;
    }
    if (find_beside(path) || find_in_path(path))
        return 0;
    return cw_fail(-ECONNRESET, "no broker runs, and the program " PROGRAM " was not found beside "
                                "libcauseway nor in PATH: set CAUSEWAY_BROKER to it");
}

static void close_from(int first) {
#ifdef SYS_close_range
    if (syscall(SYS_close_range, (unsigned)first, ~0u, 0) == 0)
        return;
#endif
    for (long fd = first, end = sysconf(_SC_OPEN_MAX); fd < end && fd < 65536; fd++)
        close((int)fd);
}

/* fork, and nothing else. */
static pid_t bare_fork(void) {
    return (pid_t)syscall(SYS_clone, 0, 0, 0, 0, 0);
}

static void default_signals(void) {
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigset_t none;
    for (int number = 1; number < NSIG; number++)
        sigaction(number, &action, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* The grandchild: becomes the broker. report is the pipe's write end. */
_Noreturn static void become_broker(const char *path, char *const argv[], int report) {
    /* Out of the way of 0 to 3 first; in the end the pipe is 3 (closed by exec) and nothing lies above. */
    int high = fcntl(report, F_DUPFD, 10), null = open("/dev/null", O_RDWR);
    if (high < 0 || null < 0 || dup2(null, 0) < 0 || dup2(0, 1) < 0 || dup2(0, 2) < 0 ||
        dup2(high, 3) < 0 || fcntl(3, F_SETFD, FD_CLOEXEC) < 0 || chdir("/") < 0)
        _exit(1);
    close_from(4);
    default_signals();
    struct verdict verdict = {.pid = (int)syscall(SYS_getpid)};
    ssize_t count = write(3, &verdict, sizeof verdict);
    execve(path, argv, environ);
    verdict.error = errno;
    count = write(3, &verdict, sizeof verdict);
    (void)count; /* a parent that does not listen any more needs no verdict */
    _exit(127);
}

/* Reads until the pipe closes: by exec, or with the process. */
static struct verdict read_verdict(int fd) {
    struct verdict verdict = {.pid = 0}, next;
    ssize_t count;
    while ((count = read(fd, &next, sizeof next)) != 0) {
        if (count == (ssize_t)sizeof next)
            verdict = next;
        else if (count > 0 || errno != EINTR)
            break;
    }
    return verdict;
}

int cw_start_broker(const char *place, int *pid) {
    char path[PATH_MAX];
    int code = find_program(path);
    if (code)
        return code;
    char *argv[] = {(char[]){PROGRAM}, (char[]){"--detached"}, (char[]){"--socket"},
                    (char *)(uintptr_t)place, NULL};
    int report[2];
    if (pipe2(report, O_CLOEXEC) < 0)
        return cw_fail(-EDQUOT, "no pipe could be made to start a broker: %m");
    pid_t child = bare_fork();
    if (child == 0) {
        setsid();
        pid_t grandchild = bare_fork();
        if (grandchild == 0)
            become_broker(path, argv, report[1]);
        _exit(grandchild < 0);
    }
    code = child < 0 ? cw_fail(-EDQUOT, "no process could be made for a broker: %m") : 0;
    close(report[1]);
    struct verdict verdict = read_verdict(report[0]);
    close(report[0]);
    if (child > 0)
        while (waitpid(child, NULL, __WCLONE) < 0 && errno == EINTR)
            ;
    if (code)
        return code;
    if (verdict.pid == 0 || verdict.error)
        return cw_fail(-ECONNRESET, "the broker %.300s could not be started: %s", path,
                       verdict.error ? strerror(verdict.error) : "the new process failed");
    *pid = verdict.pid;
    return 0;
}
