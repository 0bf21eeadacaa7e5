/*
 * Log: see log.h. Used by the loop's thread alone. Each line is one write to a file opened for
 * appending, so that a killed broker leaves whole lines.
 */
#include "broker/log.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shm/error.h"

static struct {
    int fd; /* 0: standard error */
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

void cwd_log(const char *format, ...) {
    char line[1024];
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &parts);
    size_t length = strftime(line, sizeof line, "%Y-%m-%d %H:%M:%S", &parts);
    length += (size_t)snprintf(line + length, sizeof line - length, ".%03ld cablewayd[%d] ",
                               now.tv_nsec / 1000000, (int)getpid());
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + length, sizeof line - length - 1, format, arguments);
    va_end(arguments);
    length = strlen(line);
    for (size_t i = 0; i < length; i++) /* a client's name must not begin a line of its own */
        if ((unsigned char)line[i] < ' ')
            line[i] = '?';
    line[length++] = '\n';
    int fd = cwd_log_fd();
    if (write(fd, line, length) > 0)
        log_state.size_bytes += length;
    if (log_state.fd > 0 && log_state.size_bytes > CWD_LOG_MAX_BYTES)
        rotate();
}
