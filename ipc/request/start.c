/*
 * Starting a broker where none answers.
 *
 * The program: $CABLEWAY_BROKER, else cablewayd beside this library (the same folder, or ../bin),
 * else by PATH. In a program that runs with more rights than its caller (setuid, setgid, file
 * capabilities: AT_SECURE) nothing that the caller says counts, neither the environment nor
 * argv[0]: the broker is the one beside the shared library or in the system's folders, it gets no
 * environment but PATH, and is wholly the effective user's, so that the caller cannot signal it.
 *
 * The program detaches by itself (a session of its own, standard descriptors closed) and its
 * first process ends when the broker listens, or could not, or found that one runs already; it says
 * why on its standard error, which is a pipe to us. Two clients may do this at once: the broker's
 * lock decides, and both then connect.
 *
 * The program is a child's child. The child, made by a bare clone without an exit signal, executes
 * nothing (which would make it a child like any other) and hands the exit code on: no fork handlers
 * run, and the host program sees no SIGCHLD and no child of its own. Between clone and exec only
 * what is safe there is called: the process may have any number of threads.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ipc/request/start.h"
#include "shm/base/error.h"
#include "shm/base/wait.h"

#define PROGRAM        "cablewayd"
#define START_LIMIT_NS 8000000000
#define SECURE_PATH    "/usr/local/bin:/usr/bin:/bin"

extern char **environ;

#define EXIT_RUNS    3 /* as cablewayd --help says */
#define EXIT_NO_EXEC 127

/* Has this program more rights than who called it? */
static bool is_secure(void) {
    return getauxval(AT_SECURE) != 0;
}

/* Asked as execve() asks: by the rights that this program has. */
static bool is_program(const char *path) {
    return faccessat(AT_FDCWD, path, X_OK, is_secure() ? AT_EACCESS : 0) == 0;
}

/* The file that this function is in; of the program itself dladdr() knows no more than argv[0],
 * which is the caller's word. */
static bool find_self(char *real) {
    Dl_info info;
    struct link_map *map = NULL;
    if (!dladdr1((void *)(uintptr_t)&cw_start_broker, &info, (void **)&map, RTLD_DL_LINKMAP) ||
        !info.dli_fname)
        return false;
    if (map && *map->l_name)
        return realpath(map->l_name, real) != NULL;
    /* Whoever may link it into a folder of his own chooses what lies beside it. */
    return !is_secure() && realpath("/proc/self/exe", real) != NULL;
}

/* Beside the file that this function is in. */
static bool find_beside(char *path) {
    static const char *const places[] = {"", "../bin/", "bin/"};
    char real[PATH_MAX];
    if (!find_self(real))
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
    const char *at = is_secure() ? SECURE_PATH : getenv("PATH");
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
    const char *given = secure_getenv("CABLEWAY_BROKER");
    if (given && *given) {
        if (strlen(given) >= PATH_MAX || !is_program(given))
            return cw_fail(-ECONNRESET, "no broker runs, and CABLEWAY_BROKER=%.300s is no program",
                           given);
        strcpy(path, given);
        return 0;
    }
    if (find_beside(path) || find_in_path(path))
        return 0;
    if (is_secure())
        return cw_fail(-ECONNRESET,
                       "no broker runs, and the program " PROGRAM " was not found beside "
                       "libcableway.so nor in " SECURE_PATH "; the environment does not count in a "
                       "program with more rights than its caller: install it there, or start it");
    return cw_fail(-ECONNRESET, "no broker runs, and the program " PROGRAM " was not found beside "
                                "libcableway nor in PATH: set CABLEWAY_BROKER to it");
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

/* The child: becomes the program. errors is the pipe's write end. */
_Noreturn static void become_broker(const char *path, char *const argv[], int errors) {
    static char path_only[] = "PATH=" SECURE_PATH;
    char *const clean[] = {path_only, NULL};
    bool secure = is_secure();
    /* By the kernel's calls: glibc's would look for threads, which are not here. */
    if (secure && (syscall(SYS_setresgid, getegid(), getegid(), getegid()) != 0 ||
                   syscall(SYS_setresuid, geteuid(), geteuid(), geteuid()) != 0))
        _exit(EXIT_NO_EXEC);
    /* No descriptor more at any moment: the parent may have none left. */
    int kept = errors == 2 ? fcntl(2, F_SETFD, 0) : dup2(errors, 2);
    close_from(3);
    close(0);
    close(1);
    if (kept < 0 || open("/dev/null", O_RDWR) != 0 || dup2(0, 1) < 0)
        _exit(EXIT_NO_EXEC);
    execve(path, argv, secure ? clean : environ);
    _exit(EXIT_NO_EXEC);
}

/* The child: runs the program in a child of its own and ends with its exit code. */
_Noreturn static void run_program(const char *path, char *const argv[], int errors) {
    int status;
    default_signals();
    pid_t program = bare_fork();
    if (program == 0)
        become_broker(path, argv, errors);
    close_from(0); /* its end is to be the end of the pipe */
    while (program > 0 && waitpid(program, &status, __WALL) < 0 && errno == EINTR)
        continue;
    _exit(program > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE);
}

/* What the program says until its end, or until the time is over; one line of it. */
static void read_errors(int fd, char *text, size_t text_bytes) {
    int64_t end_ns = cw_now_ns() + START_LIMIT_NS;
    size_t length = 0;
    for (;;) {
        char buffer[256];
        int64_t left_ns = end_ns - cw_now_ns();
        struct pollfd poller = {.fd = fd, .events = POLLIN};
        int ready = left_ns > 0 ? poll(&poller, 1, (int)(left_ns / 1000000) + 1) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        ssize_t count = ready > 0 ? read(fd, buffer, sizeof buffer) : 0;
        if (count <= 0)
            break;
        size_t room = text_bytes - 1 - length, kept = (size_t)count < room ? (size_t)count : room;
        memcpy(text + length, buffer, kept);
        length += kept;
    }
    text[length] = 0;
    text[strcspn(text, "\n")] = 0;
}

/* The program's exit code; 0 when somebody else in this process waited for it, or it does not end.
 */
static int wait_for_exit(pid_t child) {
    int64_t end_ns = cw_now_ns() + START_LIMIT_NS;
    struct timespec pause = {.tv_nsec = 1000000};
    int status;
    for (;;) {
        pid_t ended = waitpid(child, &status, __WCLONE | WNOHANG);
        if (ended == child)
            return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
        if ((ended < 0 && errno != EINTR) || cw_now_ns() > end_ns)
            return 0;
        nanosleep(&pause, NULL);
    }
}

int cw_start_broker(const char *place) {
    char path[PATH_MAX], text[256];
    int code = find_program(path);
    if (code)
        return code;
    char *argv[] = {(char[]){PROGRAM}, (char[]){"--dir"}, (char *)(uintptr_t)place, NULL};
    int errors[2];
    if (pipe2(errors, O_CLOEXEC) < 0)
        return cw_fail(-EDQUOT, "no pipe could be made to start a broker: %m; %s",
                       cw_descriptor_remedy(errno));
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* no handler of ours runs in the child */
    pid_t child = bare_fork();
    if (child == 0)
        run_program(path, argv, errors[1]);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    code = child < 0 ? cw_fail(-EDQUOT, "no process could be made for a broker: %m") : 0;
    close(errors[1]);
    text[0] = 0;
    if (code == 0)
        read_errors(errors[0], text, sizeof text);
    close(errors[0]);
    if (code)
        return code;
    int exit_code = wait_for_exit(child);
    if (exit_code == 0 || exit_code == EXIT_RUNS)
        return 0;
    return cw_fail(-ECONNRESET, "no broker runs, and %.150s %s (exit code %d): %s", path,
                   exit_code == EXIT_NO_EXEC ? "could not be executed" : "could not start one",
                   exit_code, text[0] ? text : "it did not say why");
}
