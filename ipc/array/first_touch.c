/*
 * Host memory that nobody has written yet: its first write, and its first mapping.
 *
 * The pages of a slab are there when it is made, but the kernel neither clears nor maps them before
 * somebody touches them. One by one, that takes as long as twice the copy itself. Two ways take
 * less, and go on side by side:
 *   - write() into the file copies into a page without clearing or mapping it first. Writers of one
 *     file exclude each other, so the caller's thread alone does this, from the front;
 *   - MADV_POPULATE_WRITE clears and maps many pages by one call. The helpers do this piece by
 *     piece, from the back, and copy by the mapping, until both ends meet.
 * On two cores 256 MiB take 53 ms so, 75 by write() alone, 99 by populating alone.
 *
 * A piece is claimed by one thread under the lock and copied by it alone, so each byte is written
 * once, and by both ways to the same pages of the same file. A page that two pieces share is
 * cleared by the kernel under its lock once, whoever comes first.
 *
 * Owner: the call. Helpers exist only while it runs; where there can be none (one CPU, a limit on
 * threads) the caller does everything. If the process dies, the array has some of the bytes, as
 * with any copy.
 */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/array/array.h"
#include "ipc/client.h"
#include "ipc/array/first_touch.h"
#include "ipc/memory/slab.h"
#include "ipc/request/socket.h"
#include "shm/base/thread.h"

#define PIECE_BYTES     (1ull << 20)
#define FILE_TIMEOUT_NS (10 * 1000 * 1000) /* a broker that answers does so in 0.1 ms */
#define HELPERS_MAX     3u
#define HELPER_BYTES    (4ull << 20) /* a helper pays from so much on */

#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

struct work {
    uint8_t *target;
    const uint8_t *source; /* NULL: the pages are mapped, nothing is copied */
    uint64_t size_bytes;
    int fd; /* the file behind target; -1: there is only the mapping */
    uint64_t file_bytes;
    pthread_mutex_t lock;
    uint64_t front, back; /* pieces from front to back are nobody's yet */
};

static bool claim(struct work *work, bool front, uint64_t *begin_bytes, uint64_t *size_bytes) {
    pthread_mutex_lock(&work->lock);
    bool any = work->front < work->back;
    if (any)
        *begin_bytes = (front ? work->front++ : --work->back) * PIECE_BYTES;
    pthread_mutex_unlock(&work->lock);
    if (any)
        *size_bytes = work->size_bytes - *begin_bytes < PIECE_BYTES
                          ? work->size_bytes - *begin_bytes
                          : PIECE_BYTES;
    return any;
}

/* Whole pages alone; whatever else lies on the first and the last one. An older kernel does not
 * know it, and the pages come one by one. */
static void populate(uint8_t *target, uint64_t size_bytes) {
    uintptr_t first = ((uintptr_t)target + CW_PAGE - 1) / CW_PAGE * CW_PAGE;
    uintptr_t end = ((uintptr_t)target + size_bytes) / CW_PAGE * CW_PAGE;
    if (first < end)
        (void)madvise((void *)first, end - first, MADV_POPULATE_WRITE);
}

static void by_mapping(const struct work *work, uint64_t begin_bytes, uint64_t size_bytes) {
    populate(work->target + begin_bytes, size_bytes);
    if (work->source)
        memcpy(work->target + begin_bytes, work->source + begin_bytes, size_bytes);
}

static void by_file(const struct work *work, uint64_t begin_bytes, uint64_t size_bytes) {
    while (size_bytes) {
        ssize_t written = pwrite(work->fd, work->source + begin_bytes, size_bytes,
                                 (off_t)(work->file_bytes + begin_bytes));
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) { /* whatever it has against it: the mapping takes the bytes */
            memcpy(work->target + begin_bytes, work->source + begin_bytes, size_bytes);
            return;
        }
        begin_bytes += (uint64_t)written;
        size_bytes -= (uint64_t)written;
    }
}

static void *helper(void *argument) {
    struct work *work = argument;
    uint64_t begin_bytes, size_bytes;
    while (claim(work, false, &begin_bytes, &size_bytes))
        by_mapping(work, begin_bytes, size_bytes);
    return NULL;
}

/* As many as there are other CPUs for this thread, and as the work is worth. */
static unsigned helpers_wanted(uint64_t size_bytes) {
    unsigned others = cw_thread_spare_cpus(HELPERS_MAX);
    return size_bytes / HELPER_BYTES < others ? (unsigned)(size_bytes / HELPER_BYTES) : others;
}

static void run(struct work *work) {
    pthread_t helpers[HELPERS_MAX];
    unsigned wanted = helpers_wanted(work->size_bytes), started = 0;
    uint64_t begin_bytes, size_bytes;
    pthread_mutex_init(&work->lock, NULL);
    work->front = 0;
    work->back = (work->size_bytes + PIECE_BYTES - 1) / PIECE_BYTES;
    while (started < wanted && cw_thread_start(&helpers[started], NULL, helper, work) == 0)
        started++;
    while (claim(work, true, &begin_bytes, &size_bytes)) {
        if (work->fd >= 0 && work->source)
            by_file(work, begin_bytes, size_bytes);
        else
            by_mapping(work, begin_bytes, size_bytes);
    }
    while (started)
        pthread_join(helpers[--started], NULL);
    pthread_mutex_destroy(&work->lock);
}

bool cw_fresh_take(cw_array *array) {
    /* K22: threads may write parts of one array; one of them is the first. */
    if (!CW_LOAD(K22, &array->fresh, relaxed) || !CW_XCHG(K22, &array->fresh, 0, relaxed))
        return false;
    if (cw_client_usable(array->client)) /* its process has forked since, or the broker is gone */
        return false;
    pthread_mutex_lock(&array->client->lock);
    const struct cw_extent *extent = array->slab->locals[array->block].extent;
    bool known = !extent || extent->published; /* others may have written it since */
    pthread_mutex_unlock(&array->client->lock);
    return !known;
}

void cw_fresh_prefault(void *target, uint64_t size_bytes) {
    struct work work = {.target = target, .size_bytes = size_bytes, .fd = -1};
    if (size_bytes >= CW_FRESH_PREFAULT_BYTES)
        run(&work);
}

void cw_fresh_write(cw_array *target, uint64_t target_bytes, const void *source,
                    uint64_t size_bytes) {
    struct work work = {.target = target->bytes + target_bytes,
                        .source = source,
                        .size_bytes = size_bytes,
                        .fd = -1};
    if (size_bytes < CW_FRESH_PREFAULT_BYTES) {
        memcpy(work.target, source, size_bytes);
        return;
    }
    if (size_bytes >= CW_FRESH_WRITE_BYTES) {
        int64_t before = cw_socket_limit(FILE_TIMEOUT_NS);
        pthread_mutex_lock(&target->client->lock);
        if (cw_slab_file(target->client, target->home_slab, &work.fd) == 0)
            work.file_bytes = (uint64_t)(work.target - (uint8_t *)target->mapping->base);
        pthread_mutex_unlock(&target->client->lock);
        cw_socket_unlimit(before);
    }
    run(&work);
    if (work.fd >= 0)
        close(work.fd);
}

void cw_array_prefault(cw_array *array) {
    if (array && cw_fresh_take(array))
        cw_fresh_prefault(array->bytes, array->size_bytes);
}
