/*
 * Closer: see closer.h. The queue lies between the loop's thread (push) and the helper (close),
 * under one lock that neither holds across a system call on a client's descriptor. If the helper
 * hangs, the queue grows with the descriptors, which max_fds bounds.
 */
#include "broker/core/closer.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "shm/base/atomic.h"
#include "shm/base/error.h"
#include "shm/base/thread.h"

#define STACK_BYTES (256u << 10) /* of addresses; a sanitizer needs more than 64 KiB of them */

struct closing {
    int fd;
    uint64_t empty_bytes; /* to be made free before; 0: none */
};

struct cwd_closer {
    pthread_mutex_t lock;
    pthread_cond_t filled, ended_cond;
    pthread_t thread;
    int done_fd;
    bool running, stop, ended;
    struct closing *queue; /* first .. first + count */
    uint32_t first, count, room;
    cw_a64 pending, done;
};

static void close_one(struct closing entry) {
    /* What cannot be emptied (its maker kept the right to write) stays until nobody maps it. */
    if (entry.empty_bytes)
        (void)fallocate(entry.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                        (off_t)entry.empty_bytes);
    close(entry.fd);
}

static void *closer_main(void *context) {
    struct cwd_closer *c = context;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->count && !c->stop)
            pthread_cond_wait(&c->filled, &c->lock);
        if (!c->count)
            break;
        struct closing entry = c->queue[c->first++];
        if (--c->count == 0)
            c->first = 0;
        pthread_mutex_unlock(&c->lock);
        close_one(entry);
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
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    int code = cw_thread_start(&c->thread, &attributes, closer_main, c);
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
            c->queue[i] = c->queue[c->first + i];
        c->first = 0;
        return true;
    }
    uint32_t room = c->room ? c->room * 2 : 64;
    struct closing *queue = realloc(c->queue, room * sizeof *queue);
    if (!queue)
        return false;
    c->queue = queue;
    c->room = room;
    return true;
}

static void push(struct cwd_closer *c, struct closing entry) {
    pthread_mutex_lock(&c->lock);
    bool queued = (c->running || start_thread(c) == 0) && make_room(c);
    if (queued) {
        c->queue[c->first + c->count++] = entry;
        CW_ADD(M1, &c->pending, 1, relaxed);
        pthread_cond_signal(&c->filled);
    }
    pthread_mutex_unlock(&c->lock);
    if (!queued) {
        close_one(entry);
        CW_ADD(M1, &c->done, 1, relaxed);
    }
}

void cwd_closer_push(struct cwd_closer *c, int fd) {
    push(c, (struct closing){.fd = fd});
}

void cwd_closer_push_empty(struct cwd_closer *c, int fd, uint64_t size_bytes) {
    push(c, (struct closing){.fd = fd, .empty_bytes = size_bytes});
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
    free(c->queue);
    free(c);
}
