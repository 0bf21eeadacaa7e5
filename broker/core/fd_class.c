/*
 * Classes of descriptors: see fd_class.h. Pure look-ups, from any thread, no state.
 */
#include "broker/core/fd_class.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "shm/base/error.h"

#define TMPFS_FILE_SYSTEM 0x01021994

/* What /proc says that fd is, as text. Paths begin with '/', so no file name can look like the
 * kernel's own words. False: it cannot be told now. */
static bool read_link(int fd, char *text, size_t text_bytes) {
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t count = readlink(path, text, text_bytes - 1);
    text[count > 0 ? count : 0] = 0;
    return count >= 0 || errno != ENOMEM;
}

static int begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

enum cwd_fd_class cwd_fd_class(int fd) {
    char text[256];
    if (fcntl(fd, F_GET_SEALS) >= 0)
        return CWD_FD_MEMORY;
    if (!read_link(fd, text, sizeof text))
        return CWD_FD_UNKNOWN;
    if (begins(text, "anon_inode:[pidfd]") || begins(text, "pidfd:["))
        return CWD_FD_PIDFD;
    if (begins(text, "pipe:["))
        return CWD_FD_PIPE;
    if (begins(text, "/dev/nvidia"))
        return CWD_FD_GPU;
    return CWD_FD_OTHER;
}

int cwd_fd_refuse(enum cwd_fd_class is, const char *sentence) {
    if (is == CWD_FD_UNKNOWN)
        return cw_fail(-EDQUOT, "the kernel has no memory left to tell what a descriptor is");
    return cw_fail(-EPROTO, "%s", sentence);
}

pid_t cwd_fd_pid(int fd) {
    char path[40], text[1024];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    int info = open(path, O_RDONLY | O_CLOEXEC);
    if (info < 0)
        return errno == ENOENT ? 0
                               : cw_fail(-EDQUOT, "the broker cannot look whose a pidfd is: %m; %s",
                                         cw_descriptor_remedy(errno));
    ssize_t count = read(info, text, sizeof text - 1);
    close(info);
    text[count > 0 ? count : 0] = 0;
    const char *at = strstr(text, "\nPid:");
    long pid = at ? strtol(at + 5, NULL, 10) : 0;
    return pid > 0 ? (pid_t)pid : 0;
}

int cwd_fd_memory(int fd, struct cwd_fd_memory *out) {
    struct stat status;
    struct statfs system;
    char text[256];
    int seals = fcntl(fd, F_GET_SEALS); /* first: it proves that the next two cannot block */
    if (seals < 0)
        return cw_fail(-EPROTO, "a descriptor that should be shared memory is none");
    if (fstat(fd, &status) < 0 || fstatfs(fd, &system) < 0)
        return cw_fail(-EPROTO, "looking at shared memory failed: %m");
    if (!read_link(fd, text, sizeof text))
        return cwd_fd_refuse(CWD_FD_UNKNOWN, "");
    *out = (struct cwd_fd_memory){
        .size_bytes = status.st_size > 0 ? (uint64_t)status.st_size : 0,
        .seals = seals,
        .is_memfd = system.f_type == TMPFS_FILE_SYSTEM && begins(text, "/memfd:"),
    };
    return 0;
}

uint64_t cwd_fd_inode(int fd) {
    struct stat status;
    return fstat(fd, &status) == 0 ? status.st_ino : 0;
}
