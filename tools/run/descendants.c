/*
 * All processes that descend from this one, in its session: found in /proc, signalled by pidfd.
 *
 * The caller is a subreaper (PR_SET_CHILD_SUBREAPER): what loses its parent becomes its child, so
 * nobody gets away by a fork, except by a session of its own. A pid may be another
 * process's by the time it is signalled; so a pidfd is opened first, and then looked who it is.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "shm/base/pidfd.h"
#include "shm/base/wait.h"
#include "tools/cli.h"
#include "tools/run/job.h"

#define KILL_LIMIT_NS 10000000000 /* a process that the kernel holds is waited for so long */
#define LOOK_NS       5000000

struct process {
    pid_t pid, parent, session;
    bool ours;
};

struct processes {
    struct process *list;
    size_t count, room;
};

/* False: there is none, or it has ended. */
static bool look_at(pid_t pid, struct process *out) {
    char path[32], text[512], state;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0)
        return false;
    text[got] = 0;
    char *at = strrchr(text, ')'); /* the name may hold anything */
    int parent, session;
    if (!at || sscanf(at + 1, " %c %d %*d %d", &state, &parent, &session) != 3)
        return false;
    *out = (struct process){.pid = pid, .parent = parent, .session = session};
    return state != 'Z' && state != 'X';
}

static void list_all(struct processes *all) {
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        struct process found;
        if (*entry->d_name < '1' || *entry->d_name > '9' ||
            !look_at((pid_t)strtol(entry->d_name, NULL, 10), &found))
            continue;
        if (all->count == all->room) {
            all->room = all->room ? 2 * all->room : 256;
            all->list = realloc(all->list, all->room * sizeof *all->list);
            CW_ASSERT(all->list);
        }
        all->list[all->count++] = found;
    }
    if (folder)
        closedir(folder);
}

static int by_pid(const void *a, const void *b) {
    const struct process *left = a, *right = b;
    return (left->pid > right->pid) - (left->pid < right->pid);
}

static bool is_ours(const struct processes *all, pid_t pid) {
    struct process key = {.pid = pid}, *found;
    if (pid == getpid())
        return true;
    found = bsearch(&key, all->list, all->count, sizeof key, by_pid);
    return found && found->ours;
}

/* Marks those that descend from us. A parent may come behind its child in the list. */
static void mark_ours(struct processes *all) {
    if (all->count)
        qsort(all->list, all->count, sizeof *all->list, by_pid);
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < all->count; i++) {
            struct process *one = &all->list[i];
            if (one->ours || one->pid == getpid() || !is_ours(all, one->parent))
                continue;
            one->ours = more = true;
        }
    }
}

static void signal_one(const struct process *one, int signal) {
    struct process now;
    int fd = cw_pidfd_open(one->pid);
    if (fd < 0) {
        if (one->parent == getpid()) /* we have not reaped it: the pid is its own */
            kill(one->pid, signal);
        return;
    }
    if (look_at(one->pid, &now) && now.session == one->session &&
        (now.parent == one->parent || now.parent == getpid()))
        syscall(SYS_pidfd_send_signal, fd, signal, NULL, 0);
    close(fd);
}

unsigned job_signal_descendants(int signal) {
    struct processes all = {0};
    unsigned count = 0;
    pid_t session = getsid(0);
    list_all(&all);
    mark_ours(&all);
    for (size_t i = 0; i < all.count; i++) {
        struct process *one = &all.list[i];
        if (!one->ours || one->session != session)
            continue;
        count++;
        if (signal)
            signal_one(one, signal);
    }
    free(all.list);
    return count;
}

void job_kill_descendants(void) {
    int64_t until_ns = cw_now_ns() + KILL_LIMIT_NS;
    unsigned left;
    while ((left = job_signal_descendants(SIGKILL)) > 0) {
        if (cw_now_ns() > until_ns) {
            cli_error(CLI_FAILED, "%u processes of the job do not end after SIGKILL", left);
            return;
        }
        struct timespec pause = {.tv_nsec = LOOK_NS};
        nanosleep(&pause, NULL);
    }
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}
