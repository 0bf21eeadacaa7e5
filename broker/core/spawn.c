/*
 * Spawning: see spawn.h. One posix_spawn, which takes as long as an exec does.
 */
#include "broker/core/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/core/log.h"
#include "broker/roles/verdict.h"
#include "shm/base/error.h"
#include "shm/base/pidfd.h"

int cwd_spawn_find(const char *program, const char *variable, char *path) {
    const char *given = secure_getenv(variable);
    if (given && *given) {
        if (snprintf(path, PATH_MAX, "%s", given) >= PATH_MAX) {
            errno = ENAMETOOLONG;
            return -ENAMETOOLONG;
        }
    } else {
        ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - NAME_MAX - 1);
        if (length < 0)
            return cw_fail(-EDQUOT, "finding %s beside cablewayd failed: %m", program);
        path[length] = 0;
        char *slash = strrchr(path, '/');
        if (slash)
            snprintf(slash + 1, NAME_MAX, "%s", program);
    }
    return access(path, X_OK) == 0 ? 0 : -ENOENT;
}

int cwd_spawn(const char *path, char *const argv[], char *const environment[], int tell_fd,
              pid_t *pid, int *pidfd) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    int error = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!error)
        error = posix_spawn_file_actions_adddup2(&files, cwd_log_fd(), STDERR_FILENO);
    if (!error)
        error = posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    if (!error && tell_fd >= 0)
        error = posix_spawn_file_actions_adddup2(&files, tell_fd, CWD_TELL_FD);
    posix_spawnattr_init(&how);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setsigdefault(&how, &all);
    if (!error)
        error = posix_spawn(pid, path, &files, &how, argv, environment);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    if (error)
        return cw_fail(error == EAGAIN || error == ENOMEM ? -EDQUOT : -ENOENT,
                       "starting %.300s failed: %s", path, strerror(error));
    *pidfd = cw_pidfd_open(*pid);
    if (*pidfd >= 0)
        return 0;
    int code = *pidfd; /* the sentence says why: no descriptor, or the call is forbidden */
    kill(*pid, SIGKILL);
    waitpid(*pid, NULL, 0);
    *pid = 0;
    *pidfd = -1;
    return code;
}
