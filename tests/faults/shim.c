/*
 * The library that makes calls fail: loaded by LD_PRELOAD, it stands between our programs and libc
 * for each allocation and each system call that can fail for want of something, or by a signal.
 *
 * Invariants: a call whose turn has not come (sites.c) goes to libc as it is. One that fails does
 * nothing at all, with one exception that is the kernel's own way: a recvmsg() that has no
 * descriptor left for what comes throws that away and says MSG_CTRUNC (error -1). What a kernel
 * never does is not done either: what does not wait is not interrupted, and what needs no memory
 * has it. close() and munmap() never fail: what could a caller do?
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/faults/sites.h"

/* ---- allocations: libc's own names, which need no dlsym() (it allocates) ---- */

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t bytes) {
    FAULTS_FAIL("malloc", NULL);
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
    FAULTS_FAIL("calloc", NULL);
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes) {
    FAULTS_FAIL("realloc", NULL);
    return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    FAULTS_FAIL("aligned_alloc", NULL);
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes) {
    int fault = faults_here("posix_memalign");
    if (fault)
        return fault;
    void *memory = __libc_memalign(alignment, bytes);
    if (!memory)
        return ENOMEM;
    *out = memory;
    return 0;
}

/* ---- all else ---- */

#define NEXT(name) ((__typeof__(&name))next(#name))
static void *next(const char *name) {
    return dlsym(RTLD_NEXT, name);
}

/* CALL(result, what it returns when it fails, name, parameters, arguments) */
#define CALL(type, failed, name, parameters, arguments)                                            \
    type name parameters {                                                                         \
        static __typeof__(&name) real;                                                             \
        if (!real)                                                                                 \
            real = NEXT(name);                                                                     \
        FAULTS_FAIL(#name, failed);                                                                \
        return real arguments;                                                                     \
    }

CALL(int, -1, memfd_create, (const char *name, unsigned flags), (name, flags))
CALL(int, -1, ftruncate, (int fd, off_t bytes), (fd, bytes))
CALL(int, -1, fallocate, (int fd, int mode, off_t at, off_t bytes), (fd, mode, at, bytes))
CALL(void *, MAP_FAILED, mmap, (void *at, size_t bytes, int how, int flags, int fd, off_t offset),
     (at, bytes, how, flags, fd, offset))
CALL(int, -1, mprotect, (void *at, size_t bytes, int how), (at, bytes, how))
CALL(int, -1, madvise, (void *at, size_t bytes, int advice), (at, bytes, advice))
CALL(int, -1, socket, (int domain, int type, int protocol), (domain, type, protocol))
CALL(int, -1, socketpair, (int domain, int type, int protocol, int ends[2]),
     (domain, type, protocol, ends))
CALL(int, -1, connect, (int fd, const struct sockaddr *to, socklen_t bytes), (fd, to, bytes))
CALL(int, -1, bind, (int fd, const struct sockaddr *to, socklen_t bytes), (fd, to, bytes))
CALL(int, -1, listen, (int fd, int most), (fd, most))
CALL(int, -1, accept4, (int fd, struct sockaddr *from, socklen_t *bytes, int flags),
     (fd, from, bytes, flags))
CALL(int, -1, setsockopt, (int fd, int level, int name, const void *value, socklen_t bytes),
     (fd, level, name, value, bytes))
CALL(ssize_t, -1, send, (int fd, const void *data, size_t bytes, int flags),
     (fd, data, bytes, flags))
CALL(ssize_t, -1, recv, (int fd, void *data, size_t bytes, int flags), (fd, data, bytes, flags))
CALL(ssize_t, -1, pwrite, (int fd, const void *data, size_t bytes, off_t at), (fd, data, bytes, at))
CALL(int, -1, epoll_create1, (int flags), (flags))
CALL(int, -1, epoll_ctl, (int fd, int what, int of, struct epoll_event *event),
     (fd, what, of, event))
CALL(int, -1, epoll_wait, (int fd, struct epoll_event *events, int most, int timeout),
     (fd, events, most, timeout))
CALL(int, -1, poll, (struct pollfd * fds, nfds_t count, int timeout), (fds, count, timeout))
CALL(int, -1, ppoll,
     (struct pollfd * fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask),
     (fds, count, timeout, mask))
CALL(int, -1, eventfd, (unsigned value, int flags), (value, flags))
CALL(int, -1, signalfd, (int fd, const sigset_t *mask, int flags), (fd, mask, flags))
CALL(int, -1, timerfd_create, (clockid_t clock, int flags), (clock, flags))
CALL(int, -1, pipe2, (int ends[2], int flags), (ends, flags))
CALL(int, -1, dup, (int fd), (fd))
CALL(int, -1, dup2, (int fd, int to), (fd, to))
CALL(int, -1, flock, (int fd, int how), (fd, how))
CALL(int, -1, mkdir, (const char *path, mode_t mode), (path, mode))
CALL(int, -1, unlink, (const char *path), (path))
CALL(int, -1, unlinkat, (int folder, const char *path, int flags), (folder, path, flags))
CALL(int, -1, rename, (const char *from, const char *to), (from, to))
CALL(int, -1, renameat, (int one, const char *from, int other, const char *to),
     (one, from, other, to))
CALL(ssize_t, -1, readlink, (const char *path, char *text, size_t bytes), (path, text, bytes))
CALL(FILE *, NULL, fopen, (const char *path, const char *how), (path, how))
CALL(FILE *, NULL, fopen64, (const char *path, const char *how), (path, how))
CALL(int, -1, nanosleep, (const struct timespec *time, struct timespec *left), (time, left))
CALL(pid_t, -1, waitpid, (pid_t pid, int *status, int flags), (pid, status, flags))
CALL(pid_t, -1, fork, (void), ())
CALL(int, -1, setenv, (const char *name, const char *value, int over), (name, value, over))

/* These return their error. */
#define CALL_CODE(name, parameters, arguments)                                                     \
    int name parameters {                                                                          \
        static __typeof__(&name) real;                                                             \
        if (!real)                                                                                 \
            real = NEXT(name);                                                                     \
        int fault = faults_here(#name);                                                            \
        return fault ? fault : real arguments;                                                     \
    }

CALL_CODE(pthread_create,
          (pthread_t * thread, const pthread_attr_t *how, void *(*run)(void *), void *context),
          (thread, how, run, context))
CALL_CODE(posix_spawn,
          (pid_t * pid, const char *path, const posix_spawn_file_actions_t *files,
           const posix_spawnattr_t *how, char *const arguments[], char *const environment[]),
          (pid, path, files, how, arguments, environment))

/* What can fail depends on what it is: a disk is full, a pipe needs a page, an eventfd has it all.
 */
ssize_t write(int fd, const void *data, size_t bytes) {
    static __typeof__(&write) real;
    struct stat is;
    if (!real)
        real = NEXT(write);
    int before = errno, known = fstat(fd, &is);
    errno = before;
    if (known == 0 && S_ISFIFO(is.st_mode))
        FAULTS_FAIL("write_pipe", -1);
    else if (known == 0 && S_ISREG(is.st_mode))
        FAULTS_FAIL("write_file", -1);
    return real(fd, data, bytes);
}

/* Only what may wait is interrupted. */
ssize_t read(int fd, void *data, size_t bytes) {
    static __typeof__(&read) real;
    struct stat is;
    if (!real)
        real = NEXT(read);
    int before = errno, known = fstat(fd, &is);
    bool waits = known == 0 && !S_ISREG(is.st_mode) && !(fcntl(fd, F_GETFL) & O_NONBLOCK);
    errno = before;
    if (waits)
        FAULTS_FAIL("read", -1);
    return real(fd, data, bytes);
}

static bool waits(int fd, int flags) {
    int before = errno;
    bool never = flags & MSG_DONTWAIT || fcntl(fd, F_GETFL) & O_NONBLOCK;
    errno = before;
    return !never;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    static __typeof__(&sendmsg) real;
    if (!real)
        real = NEXT(sendmsg);
    FAULTS_FAIL(waits(fd, flags)          ? "sendmsg_waiting"
                : message->msg_controllen ? "sendmsg_fds"
                                          : "sendmsg",
                -1);
    return real(fd, message, flags);
}

/* The descriptors that came are closed, as the kernel does where none is left. */
static void drop_descriptors(struct msghdr *message) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            close(fd);
        }
    }
    message->msg_controllen = 0;
    message->msg_flags |= MSG_CTRUNC;
}

static ssize_t receive_without(int fd, struct msghdr *message, int flags) {
    static __typeof__(&recvmsg) real;
    if (!real)
        real = NEXT(recvmsg);
    ssize_t length = real(fd, message, flags);
    if (length >= 0 && message->msg_controllen)
        drop_descriptors(message);
    return length;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    static __typeof__(&recvmsg) real;
    if (!real)
        real = NEXT(recvmsg);
    int fault = faults_here(waits(fd, flags) ? "recvmsg_waiting" : "recvmsg");
    if (fault < 0)
        return receive_without(fd, message, flags);
    if (fault) {
        errno = fault;
        return -1;
    }
    return real(fd, message, flags);
}

/* ---- those with a last argument that may be missing ---- */

#define LAST(type, after)                                                                          \
    ({                                                                                             \
        va_list rest_;                                                                             \
        va_start(rest_, after);                                                                    \
        type last_ = va_arg(rest_, type);                                                          \
        va_end(rest_);                                                                             \
        last_;                                                                                     \
    })

int open(const char *path, int flags, ...) {
    static __typeof__(&open) real;
    mode_t mode = LAST(mode_t, flags);
    if (!real)
        real = NEXT(open);
    FAULTS_FAIL("open", -1);
    return real(path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...) {
    static __typeof__(&openat) real;
    mode_t mode = LAST(mode_t, flags);
    if (!real)
        real = NEXT(openat);
    FAULTS_FAIL("openat", -1);
    return real(folder, path, flags, mode);
}

int fcntl(int fd, int what, ...) {
    static __typeof__(&fcntl) real;
    void *value = LAST(void *, what);
    if (!real)
        real = NEXT(fcntl);
    if (what == F_DUPFD || what == F_DUPFD_CLOEXEC)
        FAULTS_FAIL("fcntl_dup", -1);
    else if (what == F_SETPIPE_SZ)
        FAULTS_FAIL("fcntl_pipe", -1);
    return real(fd, what, value);
}

long syscall(long number, ...) {
    static __typeof__(&syscall) real;
    long a[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(rest, long);
    va_end(rest);
    if (!real)
        real = NEXT(syscall);
    const char *name = number == SYS_pidfd_open                                    ? "pidfd_open"
                       : number == SYS_close_range                                 ? "close_range"
                       : number == SYS_clone                                       ? "clone"
                       : number == SYS_futex && (a[1] & 127) == 0 /* FUTEX_WAIT */ ? "futex_wait"
                                                                                   : NULL;
    if (name)
        FAULTS_FAIL(name, -1);
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
