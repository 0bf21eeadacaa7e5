/*
 * Closer: see closer.h. The queue lies between the loop's thread (push) and the helper (close),
 * under one lock that neither holds across a system call on a client's descriptor. If the helper
 * hangs, the queue grows with the descriptors, which max_fds bounds.
 */
#include "broker/closer.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "shm/atomic.h"
#include "shm/error.h"

#define STACK_BYTES (256u << 10) /* of addresses; a sanitizer needs more than 64 KiB of them */

struct cwd_closer {
    pthread_mutex_t lock;
    pthread_cond_t filled, ended_cond;
    pthread_t thread;
    int done_fd;
    bool running, stop, ended;
    int *fds; /* queue: first .. first + count */
    uint32_t first, count, room;
    cw_a64 pending, done;
};

static void *closer_main(void *context) {
    struct cwd_closer *c = context;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->count && !c->stop)
            pthread_cond_wait(&c->filled, &c->lock);
        if (!c->count)
            break;
        int fd = c->fds[c->first++];
        if (--c->count == 0)
            c->first = 0;
        pthread_mutex_unlock(&c->lock);
        close(fd);
        /* M1: figures only. */
        CW_ADD(M1, &c->done, 1, relaxed);
        CW_ADD(M1, &c->pending, -1, relaxed);
        pthread_mutex_lock(&c->lock);
        uint64_t one = 1;
        /* Full: it was told often enough. At the process's end nobody listens any more. */
        ssize_t told = c->count ? 0 : write(c->done_fd, &one, sizeof one);
        (void)told;
    }
    c->ended = true;
    pthread_cond_signal(&c->ended_cond);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static int start_thread(struct cwd_closer *c) {
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the loop's */
    int code = pthread_create(&c->thread, &attributes, closer_main, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    c->running = code == 0;
    return -code;
}

int cwd_closer_new(int done_fd, struct cwd_closer **out) {
    struct cwd_closer *c = calloc(1, sizeof *c);
    if (!c)
        return cw_fail(-EDQUOT, "no memory for the closing helper");
    c->done_fd = done_fd;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->filled, NULL);
    pthread_cond_init(&c->ended_cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *out = c;
    return 0;
}

/* Room for one more; the caller holds the lock. */
static bool make_room(struct cwd_closer *c) {
    if (c->first + c->count < c->room)
        return true;
    if (c->first) {
        for (uint32_t i = 0; i < c->count; i++)
            c->fds[i] = c->fds[c->first + i];
        c->first = 0;
        return true;
    }
    uint32_t room = c->room ? c->room * 2 : 64;
    int *fds = realloc(c->fds, room * sizeof *fds);
    if (!fds)
        return false;
    c->fds = fds;
    c->room = room;
    return true;
}

void cwd_closer_push(struct cwd_closer *c, int fd) {
    pthread_mutex_lock(&c->lock);
    bool queued = (c->running || start_thread(c) == 0) && make_room(c);
    if (queued) {
        c->fds[c->first + c->count++] = fd;
        CW_ADD(M1, &c->pending, 1, relaxed);
        pthread_cond_signal(&c->filled);
    }
    pthread_mutex_unlock(&c->lock);
    if (!queued) {
        close(fd);
        CW_ADD(M1, &c->done, 1, relaxed);
    }
}

uint64_t cwd_closer_pending(struct cwd_closer *c) {
    return CW_LOAD(M1, &c->pending, relaxed);
}

uint64_t cwd_closer_done(struct cwd_closer *c) {
    return CW_LOAD(M1, &c->done, relaxed);
}

void cwd_closer_free(struct cwd_closer *c) {
    if (!c)
        return;
    struct timespec limit;
    clock_gettime(CLOCK_MONOTONIC, &limit);
    limit.tv_sec += 1;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_signal(&c->filled);
    int waited = 0;
    while (c->running && !c->ended && waited == 0)
        waited = pthread_cond_timedwait(&c->ended_cond, &c->lock, &limit);
    bool hangs = c->running && !c->ended;
    pthread_mutex_unlock(&c->lock);
    if (hangs)
        return;
    if (c->running)
        pthread_join(c->thread, NULL);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->filled);
    pthread_cond_destroy(&c->ended_cond);
    free(c->fds);
    free(c);
}
