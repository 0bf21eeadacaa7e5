/*
 * Large copies by several threads: see parallel_copy.h.
 *
 * The copy is cut into pieces, and each thread claims the next one under the lock, so each byte is
 * written once, and a helper that begins late finds little or nothing left. Owner: the call; it
 * ends when its helpers have. A fork leaves the child without helpers, and without the call.
 */
#include "ipc/base/parallel_copy.h"

#include "ipc/base/past_caches.h"
#include "shm/base/thread.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define PIECE_BYTES (2ull << 20)
#define HELPERS_MAX 3u

struct work {
    char *target;
    const char *source;
    uint64_t size_bytes;
    pthread_mutex_t lock;
    uint64_t claimed_bytes;
};

static bool claim(struct work *work, uint64_t *begin_bytes, uint64_t *size_bytes) {
    pthread_mutex_lock(&work->lock);
    *begin_bytes = work->claimed_bytes;
    uint64_t left_bytes = work->size_bytes - work->claimed_bytes;
    *size_bytes = left_bytes < PIECE_BYTES ? left_bytes : PIECE_BYTES;
    work->claimed_bytes += *size_bytes;
    pthread_mutex_unlock(&work->lock);
    return left_bytes > 0;
}

static void *copy_pieces(void *context) {
    struct work *work = context;
    uint64_t begin_bytes, size_bytes;
    while (claim(work, &begin_bytes, &size_bytes))
        cw_copy_past_caches(work->target + begin_bytes, work->source + begin_bytes, size_bytes);
    return NULL;
}

/* False: no helper could be had, and nothing was copied. */
static bool copy_with_helpers(char *target, const char *source, uint64_t size_bytes) {
    struct work work = {target, source, size_bytes, PTHREAD_MUTEX_INITIALIZER, 0};
    pthread_t helpers[HELPERS_MAX];
    unsigned wanted = cw_thread_spare_cpus(HELPERS_MAX), started = 0;
    while (started < wanted && cw_thread_start(&helpers[started], NULL, copy_pieces, &work) == 0)
        started++;
    if (!started)
        return false;
    copy_pieces(&work);
    while (started)
        pthread_join(helpers[--started], NULL);
    pthread_mutex_destroy(&work.lock);
    return true;
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
