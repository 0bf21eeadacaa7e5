/*
 * Log: see log.h. Used by the loop's thread alone. Each line is one write to a file opened for
 * appending, so that a killed broker leaves whole lines.
 *
 * No line is worth a wait: standard error may be a pipe that nobody reads, or a stopped terminal.
 * So it is opened once more for ourselves, not to block (the flag of the descriptor that we
 * inherited is others' as well); a socket is sent to without waiting. What does not go out is
 * counted, and so is what clients cause faster than LINES_A_SECOND; the next line that goes out
 * tells how many.
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

#include "shm/base/error.h"
#include "shm/base/wait.h"

#define LINES_AT_ONCE  500u
#define LINES_A_SECOND 20u

static struct {
    int fd;        /* 0: standard error */
    int errors_fd; /* standard error, opened anew not to block; 0: not looked at yet, -1: a socket,
                    * or what cannot be opened */
    double room;   /* lines that may be written now */
    int64_t room_ns;
    uint64_t left_out;
    int folder_fd;
    uint64_t size_bytes;
    char name[CW_ADDRESS_NAME_MAX];
} log_state;

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

/* A bucket that fills by LINES_A_SECOND. */
static bool may_say(void) {
    int64_t now_ns = cw_now_ns();
    if (!log_state.room_ns)
        log_state.room = LINES_AT_ONCE;
    else
        log_state.room += (double)(now_ns - log_state.room_ns) * 1e-9 * LINES_A_SECOND;
    log_state.room_ns = now_ns;
    if (log_state.room > LINES_AT_ONCE)
        log_state.room = LINES_AT_ONCE;
    if (log_state.room < 1)
        return false;
    log_state.room -= 1;
    return true;
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
                               "%llu lines before this were left out: more came than %u a second, "
                               "or nobody read them\n",
                               (unsigned long long)log_state.left_out, LINES_A_SECOND);
    if (put_line(line, length))
        log_state.left_out = 0;
}

void cwd_log(const char *format, ...) {
    char line[1024];
    if (!may_say()) {
        log_state.left_out++;
        return;
    }
    size_t length = begin_line(line, sizeof line);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + length, sizeof line - length - 1, format, arguments);
    va_end(arguments);
    length = strlen(line);
    for (size_t i = 0; i < length; i++) /* a client's name must not begin a line of its own */
        if ((unsigned char)line[i] < ' ')
            line[i] = '?';
    line[length++] = '\n';
    if (log_state.left_out)
        tell_left_out();
    if (!put_line(line, length))
        log_state.left_out++;
}
