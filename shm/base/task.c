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

/* State and start of a thread. 0, -ESRCH when there is none, -EAGAIN when it cannot be told. */
static int look(uint32_t tid, char *state, uint64_t *start) {
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
    *state = at[2];
    at += 3;
    for (int field = 3; field < 21 && at; field++) /* at stands behind field 3; the 22nd is it */
        at = strchr(at + 1, ' ');
    if (!at)
        return -EAGAIN;
    *start = strtoull(at + 1, NULL, 10);
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
    char state;
    uint64_t start;
    /* Without /proc nobody can tell that we died, and nobody takes us for dead. */
    if (look(tid, &state, &start) != 0)
        return word_of(tid, 0);
    self_word = word_of(tid, start);
    return self_word;
}

bool cw_task_runs(uint64_t task) {
    uint32_t tid = task & TID_MASK;
    char state;
    uint64_t start;
    int code = look(tid, &state, &start);
    if (code)
        return code != -ESRCH;
    if (task >> TID_BITS == 0)
        return true; /* it could not tell its start: its number is all that is known */
    return word_of(tid, start) == task && state != 'Z' && state != 'X' && state != 'x';
}

bool cw_task_ready(uint64_t task) {
    char state;
    uint64_t start;
    return look(task & TID_MASK, &state, &start) == 0 && state == 'R';
}

uint64_t cw_task_world(void) {
    struct stat pids, times;
    if (stat("/proc/self/ns/pid", &pids) != 0)
        return 0;
    if (stat("/proc/self/ns/time", &times) != 0)
        times.st_ino = 0; /* a kernel without them */
    return (uint64_t)pids.st_ino << 32 ^ (uint64_t)times.st_ino;
}
