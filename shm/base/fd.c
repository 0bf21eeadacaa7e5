/*
 * Descriptors above standard error: see fd.h. Owns nothing.
 */
#include "shm/base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int cw_fd_above_stdio(int fd) {
    if (fd > STDERR_FILENO || fd < 0)
        return fd;
    int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
    close(fd);
    errno = error;
    return above;
}
