/*
 * Place: see rendezvous.h. If the broker is killed the kernel gives the flock back; socket and line
 * stay, and the next broker takes them over. The lock file itself is never removed: who waits for a
 * lock on a removed file would hold a lock that nobody else sees.
 */
#include "broker/core/rendezvous.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "broker/core/log.h"
#include "shm/base/error.h"
#include "shm/base/pidfd.h"

#define BACKLOG    128
#define LOCK_LOOKS 100 /* 10 ms apart */

/* Has the process ended, be it that nobody has waited for it yet? What cannot be told is no. */
static bool has_ended(pid_t pid) {
    int fd = cw_pidfd_open(pid);
    if (fd < 0)
        return fd == -ESRCH;
    struct pollfd end = {.fd = fd, .events = POLLIN};
    bool ended = poll(&end, 1, 0) > 0;
    close(fd);
    return ended;
}

static int runs_already(const struct cwd_broker *b, const struct cw_lock_line *line) {
    return cw_fail(-EEXIST,
                   "a broker runs already: pid %d, socket %.200s; it keeps its options: "
                   "`cableway stop` says what would be lost and ends it, then start it anew",
                   (int)line->pid, b->address.socket_path);
}

/* Takes the lock. Held by another: a broker with line and socket listens; without one of them it
 * begins or ends, and is given a moment to show which. So is one whose line names a process that
 * has ended: it was killed while it started a program, and the child has the lock until it is that
 * program. (Or it runs in another pid namespace: then it is told of at the end of the moment.) */
static int take_lock(struct cwd_broker *b) {
    struct cw_lock_line line = {.pid = 0};
    const char *socket_name = b->address.socket_name;
    const struct timespec moment = {.tv_nsec = 10000000};
    for (int i = 0; i < LOCK_LOOKS; i++) {
        if (flock(b->lock_fd, LOCK_EX | LOCK_NB) == 0)
            return 0;
        if (errno != EWOULDBLOCK)
            return cw_fail(-errno, "locking %.200s failed: %m", b->address.lock_path);
        if (cw_address_read_lock(&b->address, b->folder_fd, &line) == 0 &&
            faccessat(b->folder_fd, socket_name, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
            if (!has_ended(line.pid))
                return runs_already(b, &line);
        } else
            line.pid = 0;
        nanosleep(&moment, NULL);
    }
    if (line.pid)
        return runs_already(b, &line);
    return cw_fail(-EEXIST,
                   "a broker holds %.200s and does not listen: it begins, ends, or hangs; try "
                   "again, and if it stays so, end that cablewayd",
                   b->address.lock_path);
}

int cwd_rendezvous_lock(struct cwd_broker *b, const struct cwd_options *options,
                        enum cwd_exit *exit_code) {
    *exit_code = CWD_EXIT_FOLDER;
    int code = cw_address_find(options->place, &b->address);
    if (code == 0)
        code = cw_address_open_folder(&b->address, true, &b->folder_fd);
    if (code)
        return code;
    *exit_code = CWD_EXIT_FAILED;
    b->lock_fd = openat(b->folder_fd, b->address.lock_name,
                        O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (b->lock_fd < 0)
        return cw_fail(-errno, "opening %.200s failed: %m", b->address.lock_path);
    code = take_lock(b);
    if (code) {
        close(b->lock_fd);
        b->lock_fd = -1; /* not ours: leaving must not touch it */
        *exit_code = code == -EEXIST ? CWD_EXIT_RUNS : CWD_EXIT_FAILED;
        return code;
    }
    if (ftruncate(b->lock_fd, 0) < 0)
        return cw_fail(-errno, "emptying %.200s failed: %m", b->address.lock_path);
    return options->foreground ? 0 : cwd_log_open(&b->address, b->folder_fd);
}

static int write_line(struct cwd_broker *b) {
    char line[96];
    int length = snprintf(line, sizeof line, "%d %d %llu\n", (int)getpid(), b->root_segment.fd,
                          (unsigned long long)b->instance);
    /* One write: a reader sees no line, or the whole one. */
    if (pwrite(b->lock_fd, line, (size_t)length, 0) != length)
        return cw_fail(-EIO, "writing %.200s failed: %m", b->address.lock_path);
    return 0;
}

int cwd_rendezvous_listen(struct cwd_broker *b) {
    struct sockaddr_un name;
    socklen_t length;
    struct stat status;
    b->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (b->listen_fd < 0)
        return cw_fail(-errno, "making the socket failed: %m");
    /* We hold the lock: whatever lies there is stale. */
    if (unlinkat(b->folder_fd, b->address.socket_name, 0) < 0 && errno != ENOENT)
        return cw_fail(-errno, "removing the stale %.200s failed: %m", b->address.socket_path);
    cw_address_sockaddr(&b->address, b->folder_fd, &name, &length);
    mode_t before = umask(0177);
    int result = bind(b->listen_fd, (struct sockaddr *)&name, length);
    int error = errno;
    umask(before);
    if (result < 0 || listen(b->listen_fd, BACKLOG) < 0)
        return cw_fail(result < 0 ? -error : -errno, "listening at %.200s failed: %s",
                       b->address.socket_path, strerror(result < 0 ? error : errno));
    if (fstatat(b->folder_fd, b->address.socket_name, &status, AT_SYMLINK_NOFOLLOW) < 0 ||
        !S_ISSOCK(status.st_mode))
        return cw_fail(-EPERM,
                       "the socket %.200s is not where it was made: another program "
                       "changed the folder; start the broker again",
                       b->address.socket_path);
    return write_line(b);
}

/* The line goes last: who finds none may remove the folder. */
void cwd_rendezvous_withdraw(struct cwd_broker *b) {
    if (b->listen_fd >= 0) {
        struct cw_address fast_path = b->address;
        (void)unlinkat(b->folder_fd, b->address.socket_name, 0);
        cw_address_to_fast_path(&fast_path);
        (void)unlinkat(b->folder_fd, fast_path.socket_name, 0); /* our bridge's, if one ran */
        close(b->listen_fd);
    }
    b->listen_fd = -1;
    if (b->lock_fd >= 0 && ftruncate(b->lock_fd, 0) < 0)
        cwd_log_error(0, "emptying %.200s failed: %m", b->address.lock_path);
}

void cwd_rendezvous_leave(struct cwd_broker *b) {
    cwd_rendezvous_withdraw(b);
    cwd_log_close();
    if (b->lock_fd >= 0)
        close(b->lock_fd);
    if (b->folder_fd >= 0)
        close(b->folder_fd);
    b->lock_fd = b->folder_fd = -1;
}
