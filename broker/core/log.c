/*
 * Log: see log.h. Used by the loop's thread alone. Each line is one write to a file opened for
 * appending, so that a killed broker leaves whole lines.
 *
 * No line is worth a wait: standard error may be a pipe that nobody reads, or a stopped terminal.
 * So it is opened once more for ourselves, not to block (the flag of the descriptor that we
 * inherited is others' as well); a socket is sent to without waiting. What does not go out is
 * counted, and so is what comes faster than max_log_lines, or about one process faster than
 * max_pid_log_lines: one that floods the log leaves room for what others cause. The next line that
 * goes out tells how many.
 */
#include "broker/core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "broker/core/errors.h"
#include "broker/session/pace.h"
#include "shm/base/error.h"
#include "shm/base/wait.h"

static struct {
    int fd;        /* 0: standard error */
    int errors_fd; /* standard error, opened anew not to block; 0: not looked at yet, -1: a socket,
                    * or what cannot be opened */
    uint64_t lines, pid_lines; /* a second */
    struct cwd_bucket all;
    struct cwd_pace pace;
    uint64_t left_out;
    int folder_fd;
    uint64_t size_bytes;
    char name[CW_ADDRESS_NAME_MAX];
} log_state = {.lines = 20, .pid_lines = 5};

void cwd_log_limits(uint64_t lines, uint64_t pid_lines) {
    log_state.lines = lines;
    log_state.pid_lines = pid_lines;
}

static int open_file(void) {
    int fd = openat(log_state.folder_fd, log_state.name,
                    O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    struct stat status;
    if (fd < 0)
        return cw_fail(-errno, "opening the log %s failed: %m", log_state.name);
    log_state.size_bytes = fstat(fd, &status) == 0 ? (uint64_t)status.st_size : 0;
    log_state.fd = fd;
    return 0;
}

int cwd_log_open(const struct cw_address *address, int folder_fd) {
    log_state.folder_fd = folder_fd;
    snprintf(log_state.name, sizeof log_state.name, "%s", address->log_name);
    return open_file();
}

void cwd_log_close(void) {
    if (log_state.fd > 0)
        close(log_state.fd);
    log_state.fd = 0;
}

static void rotate(void) {
    char old[CW_ADDRESS_NAME_MAX + 4];
    snprintf(old, sizeof old, "%s.1", log_state.name);
    if (renameat(log_state.folder_fd, log_state.name, log_state.folder_fd, old) < 0)
        return;
    int before = log_state.fd;
    if (open_file() == 0)
        close(before);
}

int cwd_log_fd(void) {
    return log_state.fd > 0 ? log_state.fd : STDERR_FILENO;
}

/* Writes a line to standard error. Never blocks. */
static bool write_errors(const char *line, size_t length) {
    if (!log_state.errors_fd) {
        int fd = open("/proc/self/fd/2", O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        log_state.errors_fd = fd > STDERR_FILENO ? fd : -1;
    }
    if (log_state.errors_fd > 0)
        return write(log_state.errors_fd, line, length) > 0;
    if (send(STDERR_FILENO, line, length, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        return true;
    struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
    return errno == ENOTSOCK && poll(&room, 1, 0) > 0 && room.revents & POLLOUT &&
           write(STDERR_FILENO, line, length) > 0;
}

static bool put_line(const char *line, size_t length) {
    bool written =
        log_state.fd > 0 ? write(log_state.fd, line, length) > 0 : write_errors(line, length);
    if (written)
        log_state.size_bytes += length;
    if (log_state.fd > 0 && log_state.size_bytes > CWD_LOG_MAX_BYTES)
        rotate();
    return written;
}

/* Of what a process has caused too much of, nothing is taken from the room of all. */
static bool may_say(pid_t pid) {
    int64_t now_ns = cw_now_ns();
    double lines = (double)log_state.lines, pid_lines = (double)log_state.pid_lines;
    return (!pid ||
            cwd_pace_take(&log_state.pace, pid, pid_lines, pid_lines * CWD_LOG_AT_ONCE, now_ns)) &&
           cwd_bucket_take(&log_state.all, lines, lines * CWD_LOG_AT_ONCE, now_ns);
}

static size_t begin_line(char *line, size_t line_bytes) {
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &parts);
    size_t length = strftime(line, line_bytes, "%Y-%m-%d %H:%M:%S", &parts);
    return length + (size_t)snprintf(line + length, line_bytes - length, ".%03ld cablewayd[%d] ",
                                     now.tv_nsec / 1000000, (int)getpid());
}

static void tell_left_out(void) {
    char line[256];
    size_t length = begin_line(line, sizeof line);
    length += (size_t)snprintf(line + length, sizeof line - length,
                               "%llu lines before this were left out: more came than max_log_lines "
                               "(%llu a second) or max_pid_log_lines (%llu) allow, or nobody read "
                               "them; `cableway log` counts all errors\n",
                               (unsigned long long)log_state.left_out,
                               (unsigned long long)log_state.lines,
                               (unsigned long long)log_state.pid_lines);
    if (put_line(line, length))
        log_state.left_out = 0;
}

static void leave_out(void) {
    log_state.left_out++;
    cwd_errors_line_left_out();
}

/* text: made harmless. */
static void say(pid_t pid, const char *text) {
    char line[1024];
    if (!may_say(pid)) {
        leave_out();
        return;
    }
    size_t length = begin_line(line, sizeof line);
    length += (size_t)snprintf(line + length, sizeof line - length - 1, "%s", text);
    if (length > sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    if (log_state.left_out)
        tell_left_out();
    if (!put_line(line, length))
        leave_out();
}

/* A client's name must not begin a line of its own. */
static void make_harmless(char *text) {
    for (; *text; text++) {
        if ((unsigned char)*text < ' ')
            *text = '?';
    }
}

void cwd_log(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    make_harmless(text);
    say(0, text);
}

void cwd_log_error(pid_t pid, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    make_harmless(text);
    cwd_errors_note(pid, text);
    say(pid, text);
}
