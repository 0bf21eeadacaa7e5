/*
 * Tasks: see task.h. The word is kept per thread; a fork makes the child's copy void.
 */
#include "shm/base/task.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shm/base/error.h"

#define TID_BITS 22u
#define TID_MASK CW_TASK_TID_MASK

static CW_THREAD_LOCAL uint64_t self_word;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void forget_self(void) {
    self_word = 0; /* the child has this thread alone */
}

static void watch_forks(void) {
    pthread_atfork(NULL, NULL, forget_self);
}

/* What /proc tells of a thread. */
struct seen {
    char state;
    uint64_t start;
    unsigned long threads; /* of its process, as far as they have not ended */
};

/* 0, -ESRCH when there is no such thread, -EAGAIN when it cannot be told. */
static int look(uint32_t tid, struct seen *seen) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? -ESRCH : -EAGAIN;
    ssize_t got = read(fd, text, sizeof text - 1);
    int error = errno;
    close(fd);
    if (got <= 0)
        return got < 0 && error == ESRCH ? -ESRCH : -EAGAIN;
    text[got] = 0;
    char *at = strrchr(text, ')'); /* the name may hold anything */
    if (!at || at[1] != ' ' || !at[2])
        return -EAGAIN;
    seen->state = at[2];
    at += 3;
    seen->threads = 0;
    for (int field = 3; field < 21 && at; field++) { /* at stands behind that field */
        if (field == 19)
            seen->threads = strtoul(at, NULL, 10);
        at = strchr(at + 1, ' ');
    }
    if (!at)
        return -EAGAIN;
    seen->start = strtoull(at + 1, NULL, 10);
    return 0;
}

static uint64_t word_of(uint32_t tid, uint64_t start) {
    return start << TID_BITS | (tid & TID_MASK);
}

uint64_t cw_task_self(void) {
    if (self_word)
        return self_word;
    pthread_once(&once, watch_forks);
    uint32_t tid = (uint32_t)syscall(SYS_gettid);
    struct seen seen;
    /* Without /proc nobody can tell that we died, and nobody takes us for dead. */
    if (look(tid, &seen) != 0)
        return word_of(tid, 0);
    self_word = word_of(tid, seen.start);
    return self_word;
}

uint64_t cw_task_process(void) {
    uint32_t pid = (uint32_t)getpid();
    struct seen seen;
    return word_of(pid, look(pid, &seen) ? 0 : seen.start);
}

static bool ended(char state) {
    return state == 'Z' || state == 'X' || state == 'x';
}

/* 1: the thread that the word names is there, and *seen tells of it; 0: it is not; -1: who knows?
 */
static int find(uint64_t task, struct seen *seen) {
    uint32_t tid = task & TID_MASK;
    int code = look(tid, seen);
    if (code)
        return code == -ESRCH ? 0 : -1;
    if (task >> TID_BITS == 0)
        return -1; /* it could not tell its start: its number is all that is known */
    return word_of(tid, seen->start) == task;
}

bool cw_task_process_runs(uint64_t process) {
    struct seen seen;
    int found = find(process, &seen);
    /* A first thread that has ended stays, as a zombie, until the others have. */
    return found < 0 || (found && (!ended(seen.state) || seen.threads > 1));
}

bool cw_task_runs(uint64_t task) {
    struct seen seen;
    int found = find(task, &seen);
    return found < 0 || (found && !ended(seen.state));
}

bool cw_task_ready(uint64_t task) {
    struct seen seen;
    return look(task & TID_MASK, &seen) == 0 && seen.state == 'R';
}

uint64_t cw_task_world(void) {
    struct stat pids, times;
    if (stat("/proc/self/ns/pid", &pids) != 0)
        return 0;
    if (stat("/proc/self/ns/time", &times) != 0)
        times.st_ino = 0; /* a kernel without them */
    return (uint64_t)pids.st_ino << 32 ^ (uint64_t)times.st_ino;
}
