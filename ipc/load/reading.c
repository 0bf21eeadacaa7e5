/*
 * A read of a checkpoint's tensors, by as many threads as there are CPUs, 16 at most.
 *
 * The reads are cut into pieces of 8 MiB, in the order in which they were given; a piece is of one
 * file and without gaps in it, so that many small tensors are one call. A thread claims the next
 * piece, reads it straight into host memory (or by a ring of pinned memory to a GPU, ring.c),
 * hashes it while it is warm, and claims the next.
 *
 * Invariants:
 *   - A piece is claimed by one thread, under the lock, and each byte is read and hashed once.
 *   - The hash of a tensor that lies in several pieces is continued in their order: who has a later
 *     one waits for `hashed`. Pieces are claimed in order, so who has the earliest one that is not
 *     done waits for nobody, and all go on.
 *   - `failed` is set once, by the first that fails; then nobody claims, and nobody waits.
 *   - reads[].hash is written by the thread that hashes the last byte.
 *
 * Owner: cw_reading_begin() to cw_reading_end(), which joins the threads: afterwards nothing writes
 * into the arrays any more. The memory is bounded: a piece of scratch or ring a thread, and a state
 * of the hash for each tensor that a piece has ended in. The process dies: its threads with it;
 * what was read lies in arrays that end with its session.
 */
#include "ipc/load/reading.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ipc/array/array.h"
#include "ipc/array/copy_bytes.h"
#include "ipc/client.h"
#include "ipc/load/checkpoint.h"
#include "ipc/load/ring.h"
#include "shm/base/error.h"
#include "shm/base/segment.h"
#include "shm/base/thread.h"
#include "shm/base/wait.h"

#define SEGMENTS_MAX 256u /* tensors of one piece */

#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

struct progress {        /* of one read; under the lock */
    XXH3_state_t *state; /* while it is hashed in several pieces */
    uint64_t hashed;
};

struct cw_reading {
    const cw_checkpoint *checkpoint;
    cw_read *reads; /* the caller's */
    uint32_t count;
    struct progress *progress;
    struct cw_ring *ring; /* NULL: nothing goes to a GPU */
    pthread_mutex_t lock;
    pthread_cond_t moved;   /* a hash went on, or it failed */
    uint32_t next;          /* the read that is claimed next, */
    uint64_t next_bytes;    /* and from where on */
    uint64_t claimed, done; /* pieces */
    uint64_t total_bytes;
    int failed; /* 0, or the first failure's code */
    char sentence[CW_DETAIL_MAX];
    int over; /* eventfd: written when all is done, or it failed */
    pthread_t threads[CW_READ_THREADS_MAX];
    unsigned thread_count;
};

struct segment { /* of one read */
    uint32_t read;
    uint64_t from_bytes, size_bytes;
    uint8_t *bytes; /* where they are in host memory, once they are read */
};

struct piece {
    uint32_t file, count;
    uint64_t offset_bytes, size_bytes; /* in the file */
    struct segment segments[SEGMENTS_MAX];
};

/* ---- claims ---- */

static uint64_t file_offset(const struct cw_reading *r, uint32_t read, uint64_t from_bytes) {
    const cw_read *what = &r->reads[read];
    return r->checkpoint->tensors[what->tensor].offset_bytes + what->skip_bytes + from_bytes;
}

/* Adds the next bytes to the piece, if they continue it. The lock is held. */
static bool claim_more(struct cw_reading *r, struct piece *piece) {
    const cw_read *what = &r->reads[r->next];
    uint32_t file = r->checkpoint->tensors[what->tensor].file;
    uint64_t offset = file_offset(r, r->next, r->next_bytes);
    uint64_t left = what->size_bytes - r->next_bytes,
             room = CW_READ_PIECE_BYTES - piece->size_bytes;
    if (piece->count && (file != piece->file || offset != piece->offset_bytes + piece->size_bytes))
        return false;
    if (!piece->count) {
        piece->file = file;
        piece->offset_bytes = offset;
    }
    uint64_t some = left < room ? left : room;
    piece->segments[piece->count++] =
        (struct segment){.read = r->next, .from_bytes = r->next_bytes, .size_bytes = some};
    piece->size_bytes += some;
    r->next_bytes += some;
    if (r->next_bytes == what->size_bytes) {
        r->next++;
        r->next_bytes = 0;
    }
    return true;
}

static bool claim(struct cw_reading *r, struct piece *piece) {
    piece->count = 0;
    piece->size_bytes = 0;
    pthread_mutex_lock(&r->lock);
    while (!r->failed && r->next < r->count && piece->count < SEGMENTS_MAX &&
           piece->size_bytes < CW_READ_PIECE_BYTES && claim_more(r, piece))
        ;
    r->claimed += piece->count > 0;
    pthread_mutex_unlock(&r->lock);
    return piece->count > 0;
}

/* ---- bytes ---- */

static int short_file(const struct cw_checkpoint_file *file) {
    return cw_fail(-EPROTO, "%.300s was cut off while it was read: load it again", file->path);
}

/* Reads all of a piece into these parts, which it changes. */
static int read_parts(const struct cw_checkpoint_file *file, struct iovec *parts, uint32_t count,
                      uint64_t offset_bytes) {
    for (;;) {
        while (count && parts->iov_len == 0) /* else 0 bytes would look like the file's end */
            parts++, count--;
        if (count == 0)
            return 0;
        ssize_t got = preadv(file->fd, parts, (int)count, (off_t)offset_bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return cw_fail(-errno, "reading %.300s failed: %m", file->path);
        if (got == 0)
            return short_file(file);
        offset_bytes += (uint64_t)got;
        for (; count && (size_t)got >= parts->iov_len; parts++, count--)
            got -= (ssize_t)parts->iov_len;
        if (count) {
            parts->iov_base = (char *)parts->iov_base + got;
            parts->iov_len -= (size_t)got;
        }
    }
}

/* Maps whole pages by one call, which one by one takes as long as the copy. A hint. */
static void populate(uint8_t *bytes, uint64_t size_bytes) {
    uintptr_t first = ((uintptr_t)bytes + CW_PAGE - 1) / CW_PAGE * CW_PAGE,
              end = ((uintptr_t)bytes + size_bytes) / CW_PAGE * CW_PAGE;
    if (first < end)
        (void)madvise((void *)first, end - first, MADV_POPULATE_WRITE);
}

/* Straight into host memory. */
static int read_here(struct cw_reading *r, struct piece *piece) {
    struct iovec parts[SEGMENTS_MAX];
    for (uint32_t i = 0; i < piece->count; i++) {
        struct segment *segment = &piece->segments[i];
        const cw_read *what = &r->reads[segment->read];
        segment->bytes = what->array->bytes + what->offset_bytes + segment->from_bytes;
        populate(segment->bytes, segment->size_bytes);
        parts[i] = (struct iovec){segment->bytes, segment->size_bytes};
    }
    return read_parts(&r->checkpoint->files[piece->file], parts, piece->count, piece->offset_bytes);
}

/* Into a buffer of a piece's size. */
static int read_into(struct cw_reading *r, struct piece *piece, uint8_t *buffer) {
    struct iovec part = {buffer, piece->size_bytes};
    for (uint32_t i = 0; i < piece->count; i++) {
        piece->segments[i].bytes = buffer;
        buffer += piece->segments[i].size_bytes;
    }
    return read_parts(&r->checkpoint->files[piece->file], &part, 1, piece->offset_bytes);
}

/* ---- hashes ---- */

/* A tensor that lies in one piece. */
static bool is_whole(const struct cw_reading *r, const struct segment *segment) {
    return segment->size_bytes == r->reads[segment->read].size_bytes;
}

static int hash_part(struct cw_reading *r, const struct segment *segment) {
    struct progress *progress = &r->progress[segment->read];
    cw_read *what = &r->reads[segment->read];
    pthread_mutex_lock(&r->lock);
    while (progress->hashed != segment->from_bytes && !r->failed)
        pthread_cond_wait(&r->moved, &r->lock);
    int code = r->failed;
    pthread_mutex_unlock(&r->lock);
    if (code)
        return code;
    if (!progress->state) {
        progress->state = XXH3_createState();
        if (!progress->state)
            return cw_fail(-EDQUOT, "no memory to hash a tensor");
        XXH3_64bits_reset(progress->state);
    }
    XXH3_64bits_update(progress->state, segment->bytes, segment->size_bytes);
    if (segment->from_bytes + segment->size_bytes == what->size_bytes) {
        what->hash = XXH3_64bits_digest(progress->state);
        XXH3_freeState(progress->state);
        progress->state = NULL;
    }
    pthread_mutex_lock(&r->lock);
    progress->hashed += segment->size_bytes;
    pthread_cond_broadcast(&r->moved);
    pthread_mutex_unlock(&r->lock);
    return 0;
}

static int hash_piece(struct cw_reading *r, const struct piece *piece) {
    int code = 0;
    for (uint32_t i = 0; i < piece->count && code == 0; i++) {
        const struct segment *segment = &piece->segments[i];
        if (is_whole(r, segment))
            r->reads[segment->read].hash = XXH3_64bits(
                segment->size_bytes ? segment->bytes : (const void *)"", segment->size_bytes);
        else
            code = hash_part(r, segment);
    }
    return code;
}

/* ---- threads ---- */

static void tell_over(struct cw_reading *r) {
    uint64_t one = 1;
    ssize_t written = write(r->over, &one, sizeof one);
    (void)written; /* it cannot fail: nobody writes so often */
}

/* This thread's last failure is that of the whole read, unless there was one. */
static void fail(struct cw_reading *r, int code) {
    pthread_mutex_lock(&r->lock);
    bool first = !r->failed;
    if (first) {
        r->failed = code;
        strcpy(r->sentence, cw_detail());
        pthread_cond_broadcast(&r->moved);
    }
    pthread_mutex_unlock(&r->lock);
    if (first)
        tell_over(r);
}

static int send_piece(struct cw_reading *r, const struct piece *piece, struct cw_ring_slot *slot) {
    int code = 0;
    for (uint32_t i = 0; i < piece->count && code == 0; i++) {
        const struct segment *segment = &piece->segments[i];
        const cw_read *what = &r->reads[segment->read];
        if (segment->size_bytes)
            code = cw_ring_send(r->ring, slot,
                                what->array->bytes + what->offset_bytes + segment->from_bytes,
                                segment->bytes, segment->size_bytes);
    }
    return code;
}

static int do_piece(struct cw_reading *r, struct piece *piece, struct cw_ring_slot *slot,
                    uint8_t *scratch) {
    uint8_t *buffer = slot ? cw_ring_bytes(slot) : scratch;
    int code = buffer ? read_into(r, piece, buffer) : read_here(r, piece);
    if (code == 0 && slot)
        code = send_piece(r, piece, slot);
    if (code == 0 && slot)
        cw_copy_count(r->reads[0].array->client, CW_ROUTE_IN, piece->size_bytes);
    return code ? code : hash_piece(r, piece); /* while it goes */
}

static void note_done(struct cw_reading *r) {
    pthread_mutex_lock(&r->lock);
    bool last = ++r->done == r->claimed && r->next == r->count;
    pthread_mutex_unlock(&r->lock);
    if (last)
        tell_over(r);
}

/* One piece. A slot comes first: who has claimed a piece waits for none, and so the earliest piece
 * is always got on with. 1; 0: none is left; or a failure. */
static int next_piece(struct cw_reading *r, struct piece *piece, uint8_t *scratch) {
    struct cw_ring_slot *slot = NULL;
    int code = r->ring ? cw_ring_take(r->ring, &slot) : 0;
    if (code)
        return code;
    bool any = claim(r, piece);
    if (any)
        code = do_piece(r, piece, slot, scratch);
    if (slot)
        cw_ring_give(r->ring, slot);
    if (code == 0 && any)
        note_done(r);
    return code ? code : any;
}

static void *work(void *context) {
    struct cw_reading *r = context;
    struct piece *piece = malloc(sizeof *piece);
    bool hashes_only = !r->reads[0].array;
    uint8_t *scratch = hashes_only ? malloc(CW_READ_PIECE_BYTES) : NULL;
    int code = piece && (scratch || !hashes_only)
                   ? 1
                   : cw_fail(-EDQUOT, "no memory to read %.300s", r->checkpoint->path);
    while (code == 1)
        code = next_piece(r, piece, scratch);
    if (code)
        fail(r, code);
    free(scratch);
    free(piece);
    return NULL;
}

static unsigned threads_wanted(uint64_t total_bytes) {
    cpu_set_t cpus;
    uint64_t pieces = total_bytes / CW_READ_PIECE_BYTES + 1;
    unsigned wanted = 1;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0)
        wanted = (unsigned)CPU_COUNT(&cpus);
    wanted = wanted < CW_READ_THREADS_MAX ? wanted : CW_READ_THREADS_MAX;
    return pieces < wanted ? (unsigned)pieces : wanted;
}

/* ---- the whole ---- */

/* All to host memory, all to one GPU, or all to nowhere; within tensors and arrays. */
static int check_reads(const cw_checkpoint *c, const cw_read *reads, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        const cw_read *what = &reads[i];
        if (what->tensor >= c->tensor_count)
            return cw_fail(-EINVAL, "read %u: tensor %u of %u", i, what->tensor, c->tensor_count);
        uint64_t size = c->tensors[what->tensor].size_bytes;
        if (what->skip_bytes > size || what->size_bytes > size - what->skip_bytes)
            return cw_fail(-EINVAL, "read %u goes beyond its tensor of %llu bytes", i,
                           (unsigned long long)size);
        if (!what->array != !reads->array)
            return cw_fail(-EINVAL, "read %u: either all reads have an array, or none has", i);
        if (!what->array)
            continue;
        int code = cw_array_ours(what->array);
        if (code)
            return code;
        if (what->array->evict || what->array->readonly ||
            what->offset_bytes > what->array->size_bytes ||
            what->size_bytes > what->array->size_bytes - what->offset_bytes)
            return cw_fail(-EINVAL, "read %u does not lie in its array, or cannot be written", i);
        if (cw_array_gpu(what->array) != cw_array_gpu(reads->array))
            return cw_fail(-EINVAL, "read %u: arrays of one read lie on one device", i);
    }
    return 0;
}

static void reading_free(struct cw_reading *r) {
    for (uint32_t i = 0; r->progress && i < r->count; i++)
        if (r->progress[i].state)
            XXH3_freeState(r->progress[i].state);
    cw_ring_close(r->ring);
    free(r->progress);
    if (r->over >= 0)
        close(r->over);
    pthread_cond_destroy(&r->moved);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static int start(struct cw_reading *r) {
    unsigned wanted = threads_wanted(r->total_bytes);
    int gpu = r->count && r->reads[0].array ? cw_array_gpu(r->reads[0].array) : -1;
    int code = gpu >= 0 ? cw_ring_open(gpu, wanted, &r->ring) : 0;
    if (code)
        return code;
    if (r->count == 0)
        tell_over(r);
    while (r->count && r->thread_count < wanted &&
           cw_thread_start(&r->threads[r->thread_count], NULL, work, r) == 0)
        r->thread_count++;
    return r->thread_count || !r->count
               ? 0
               : cw_fail(-EDQUOT, "no thread could be started to read %.300s", r->checkpoint->path);
}

int cw_reading_begin(const cw_checkpoint *checkpoint, cw_read *reads, uint32_t count,
                     cw_reading **out) {
    if (!checkpoint || (count && !reads) || !out)
        return cw_needs("a checkpoint, reads and a place for the reading");
    int code = check_reads(checkpoint, reads, count);
    if (code)
        return code;
    struct cw_reading *r = calloc(1, sizeof *r);
    if (!r)
        return cw_fail(-EDQUOT, "no memory to read %.300s", checkpoint->path);
    r->checkpoint = checkpoint;
    r->reads = reads;
    r->count = count;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->moved, NULL);
    r->progress = calloc((size_t)count + 1, sizeof *r->progress);
    r->over = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (uint32_t i = 0; i < count; i++)
        r->total_bytes += reads[i].size_bytes;
    if (!r->progress || r->over < 0)
        code = cw_fail(-EDQUOT, "no memory or descriptor to read %.300s: %m", checkpoint->path);
    if (code == 0)
        code = start(r);
    if (code)
        reading_free(r);
    else
        *out = r;
    return code;
}

int cw_reading_wait(cw_reading *r, int64_t timeout_ns) {
    if (!r)
        return cw_needs("a reading");
    int64_t end_ns = cw_end_ns(cw_now_ns(), timeout_ns);
    struct pollfd over = {.fd = r->over, .events = POLLIN};
    for (;;) {
        int64_t left = end_ns == INT64_MAX ? CW_FAR_S * 1000000000LL : end_ns - cw_now_ns();
        struct timespec limit = {.tv_sec = left > 0 ? left / 1000000000 : 0,
                                 .tv_nsec = left > 0 ? left % 1000000000 : 0};
        int count = ppoll(&over, 1, &limit, NULL);
        if (count < 0)
            return cw_fail(-errno, "a signal came while %.200s was read", r->checkpoint->path);
        if (count > 0)
            break;
        if (end_ns != INT64_MAX)
            return cw_fail(-ETIMEDOUT, "reading %.200s takes longer than %.3f s",
                           r->checkpoint->path, (double)timeout_ns / 1e9);
    }
    pthread_mutex_lock(&r->lock);
    int code = r->failed;
    pthread_mutex_unlock(&r->lock);
    if (code)
        return cw_fail(code, "%s", r->sentence);
    code = r->ring ? cw_ring_settle(r->ring) : 0;
    return code ? code : cw_checkpoint_unchanged(r->checkpoint);
}

void cw_reading_end(cw_reading *r) {
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    if (!r->failed && (r->next < r->count || r->done < r->claimed)) {
        r->failed = -ECANCELED;
        pthread_cond_broadcast(&r->moved);
    }
    pthread_mutex_unlock(&r->lock);
    while (r->thread_count)
        pthread_join(r->threads[--r->thread_count], NULL);
    reading_free(r);
}
