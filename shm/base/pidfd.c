/*
 * Pidfds: see pidfd.h. Owns nothing.
 */
#include "shm/base/pidfd.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "shm/base/fd.h"

const char *cw_pidfd_remedy(int error) {
    switch (error) {
    case ENOSYS:
        return "Linux 5.3 or newer is needed, or a sandbox whose seccomp profile, or a valgrind "
               "which, knows pidfd_open";
    case EPERM:
    case EACCES:
        return "a seccomp profile or security module forbids it: allow pidfd_open in the container "
               "or sandbox";
    case ESRCH:
        return "the process is not there";
    default:
        return cw_descriptor_remedy(error);
    }
}

static int code_of(int error) {
    switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
        return -EDQUOT;
    case EACCES:
        return -EPERM;
    default:
        return -error;
    }
}

int cw_pidfd_open(pid_t pid) {
    int fd = cw_fd_above_stdio((int)syscall(SYS_pidfd_open, pid, 0));
    if (fd >= 0)
        return fd;
    int error = errno;
    return cw_fail(code_of(error), "watching process %d failed: pidfd_open: %s; %s", (int)pid,
                   strerror(error), cw_pidfd_remedy(error));
}
