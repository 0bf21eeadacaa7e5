/*
 * Large copies by several threads: see parallel_copy.h.
 *
 * The copy is cut into pieces, and each thread claims the next one, so a helper that begins late,
 * or never, costs nothing. Invariant: memory is touched only by who has claimed a piece, and the
 * caller returns when each piece was copied; so who comes later finds none, and touches nothing but
 * the job, which its last holder frees. The lock is held for the claims alone. A fork leaves the
 * child without helpers: the job of a copy in another thread stays there, some 100 bytes.
 */
#include "ipc/base/parallel_copy.h"

#include "ipc/base/past_caches.h"
#include "shm/base/thread.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES (2ull << 20)
#define HELPERS_MAX (CW_PARALLEL_COPY_THREADS - 1)

struct job {
    char *target;
    const char *source;
    uint64_t size_bytes, pieces;
    pthread_mutex_t lock;
    pthread_cond_t whole;     /* all pieces were copied */
    uint64_t claimed, copied; /* pieces */
    unsigned holders;         /* the caller and each helper */
};

/* Lets go of the job, so many times. */
static void drop(struct job *job, unsigned times) {
    pthread_mutex_lock(&job->lock);
    bool last = (job->holders -= times) == 0;
    pthread_mutex_unlock(&job->lock);
    if (!last)
        return;
    pthread_cond_destroy(&job->whole);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

/* Copies pieces until all are claimed. */
static void copy_pieces(struct job *job) {
    pthread_mutex_lock(&job->lock);
    while (job->claimed < job->pieces) {
        uint64_t begin = job->claimed++ * PIECE_BYTES, left_bytes = job->size_bytes - begin;
        pthread_mutex_unlock(&job->lock);
        cw_copy_past_caches(job->target + begin, job->source + begin,
                            left_bytes < PIECE_BYTES ? left_bytes : PIECE_BYTES);
        pthread_mutex_lock(&job->lock);
        if (++job->copied == job->pieces)
            pthread_cond_signal(&job->whole);
    }
    pthread_mutex_unlock(&job->lock);
}

static void *help(void *context) {
    copy_pieces(context);
    drop(context, 1);
    return NULL;
}

static unsigned start_helpers(struct job *job, unsigned wanted) {
    pthread_attr_t detached;
    pthread_t thread;
    unsigned started = 0;
    if (pthread_attr_init(&detached) != 0)
        return 0;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    while (started < wanted && cw_thread_start(&thread, &detached, help, job) == 0)
        started++;
    pthread_attr_destroy(&detached);
    return started;
}

/* False: no helper could be had, and nothing was copied. */
static bool copy_with_helpers(char *target, const char *source, uint64_t size_bytes) {
    unsigned wanted = cw_thread_spare_cpus(HELPERS_MAX);
    struct job *job = wanted ? malloc(sizeof *job) : NULL;
    if (!job)
        return false;
    *job = (struct job){.target = target,
                        .source = source,
                        .size_bytes = size_bytes,
                        .pieces = (size_bytes + PIECE_BYTES - 1) / PIECE_BYTES,
                        .lock = PTHREAD_MUTEX_INITIALIZER,
                        .whole = PTHREAD_COND_INITIALIZER,
                        .holders = wanted + 1};
    unsigned started = start_helpers(job, wanted);
    if (started) {
        copy_pieces(job);
        pthread_mutex_lock(&job->lock);
        while (job->copied < job->pieces)
            pthread_cond_wait(&job->whole, &job->lock);
        pthread_mutex_unlock(&job->lock);
    }
    drop(job, 1 + wanted - started);
    return started > 0;
}

void cw_copy_in_parallel(void *target, const void *source, uint64_t size_bytes) {
    char *to = target;
    const char *from = source;
    bool apart = to + size_bytes <= from || from + size_bytes <= to;
    if (!apart || size_bytes < CW_PAST_CACHES_BYTES)
        memmove(to, from, size_bytes);
    else if (!copy_with_helpers(to, from, size_bytes)) {
        if (size_bytes <= CW_PAST_CACHES_MOST)
            cw_copy_past_caches(to, from, size_bytes);
        else
            memmove(to, from, size_bytes);
    }
}
