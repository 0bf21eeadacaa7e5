/*
 * A read of a checkpoint's tensors, by as many threads as there are CPUs, 16 at most; and by 16
 * where files are not in the page cache, since a disk wants many requests at once.
 * What is small is read by the caller's thread, which is faster than to start one.
 *
 * The reads are cut into pieces of 4 MiB, in the order in which they were given; a piece is of one
 * file and without gaps in it, so that many small tensors are one call. A thread claims the next
 * piece, reads and hashes it (piece.c), straight into host memory or by a ring of pinned memory to
 * GPUs (ring.c), and claims the next.
 *
 * To several GPUs each byte is read once: pieces go to one after the other, over the bus of each,
 * and from there to the others, GPU to GPU. Where one GPU does not reach the other, the piece goes
 * to it from the ring, too.
 *
 * Invariants:
 *   - A piece is claimed by one thread, under the lock, and each byte is read and hashed once.
 *   - Hashes are sums (ipc/base/sum.h), so no thread waits for another's; a tensor is cut where a
 *     piece of the sum ends.
 *   - `failed` is set once, by the first that fails; then nobody claims.
 *   - reads[].hash is written under the lock, and is whole when the last piece is done.
 *
 * Owner: cw_reading_begin() to cw_reading_end(), which joins the threads: afterwards nothing writes
 * into the arrays any more. The memory is bounded: a buffer or a slot of the ring a thread. The
 * process dies: its threads with it; what was read lies in arrays that end with its session.
 */
#include "ipc/load/reading.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ipc/array/array.h"
#include "ipc/array/copy_bytes.h"
#include "ipc/base/sum.h"
#include "ipc/client.h"
#include "ipc/cuda/backend.h"
#include "ipc/load/checkpoint.h"
#include "ipc/load/piece.h"
#include "ipc/load/reads.h"
#include "ipc/load/ring.h"
#include "shm/base/error.h"
#include "shm/base/thread.h"
#include "shm/base/wait.h"

#define READ_HERE_BYTES (256ull << 10) /* are read before threads would have begun */

struct cw_reading {
    const cw_checkpoint *checkpoint;
    cw_read *reads; /* the caller's: count of each copy */
    uint32_t count, copies;
    struct cw_direct *files;
    struct cw_ring *ring; /* NULL: nothing goes to a GPU */
    uint64_t *reach;      /* of each copy's GPU: the copies to which it may copy */
    pthread_mutex_t lock;
    uint32_t next;          /* the read that is claimed next, */
    uint64_t next_bytes;    /* and from where on */
    uint64_t claimed, done; /* pieces */
    uint64_t total_bytes;
    cw_load_times spent;
    int failed; /* 0, or the first failure's code */
    char sentence[CW_DETAIL_MAX];
    int over; /* eventfd: written when all is done, or it failed; -1: no thread was started */
    pthread_t threads[CW_READ_THREADS_MAX];
    unsigned thread_count;
};

struct worker { /* a thread's own */
    struct cw_piece piece;
    unsigned lane; /* to which the piece goes first */
    uint8_t *buffer, *spare;
    cw_load_times spent;
};

/* ---- claims ---- */

/* What has no bytes is no part of a piece. The lock is held. */
static void pass_empty(struct cw_reading *r) {
    while (r->next < r->count && r->reads[r->next].size_bytes == 0)
        r->next++;
}

/* Adds the next bytes to the piece, if they continue it. The lock is held. */
static bool claim_more(struct cw_reading *r, struct cw_piece *piece) {
    const cw_read *what = &r->reads[r->next];
    const cw_tensor *tensor = &r->checkpoint->tensors[what->tensor];
    uint64_t offset = tensor->offset_bytes + what->skip_bytes + r->next_bytes;
    uint64_t left = what->size_bytes - r->next_bytes,
             room = CW_READ_PIECE_BYTES - piece->size_bytes;
    if (piece->count &&
        (tensor->file != piece->file || offset != piece->offset_bytes + piece->size_bytes))
        return false;
    uint64_t some = left <= room ? left : room / CW_SUM_PIECE * CW_SUM_PIECE;
    if (!some)
        return false;
    if (!piece->count) {
        piece->file = tensor->file;
        piece->offset_bytes = offset;
    }
    piece->segments[piece->count++] = (struct cw_stretch){
        .read = r->next,
        .from_bytes = r->next_bytes,
        .size_bytes = some,
        .bytes = what->array ? what->array->bytes + what->offset_bytes + r->next_bytes : NULL};
    piece->size_bytes += some;
    r->next_bytes += some;
    if (r->next_bytes == what->size_bytes) {
        r->next++;
        r->next_bytes = 0;
        pass_empty(r);
    }
    return true;
}

static bool claim(struct cw_reading *r, struct worker *w) {
    struct cw_piece *piece = &w->piece;
    piece->count = 0;
    piece->size_bytes = 0;
    pthread_mutex_lock(&r->lock);
    while (!r->failed && r->next < r->count && piece->count < CW_PIECE_SEGMENTS &&
           piece->size_bytes < CW_READ_PIECE_BYTES && claim_more(r, piece))
        ;
    w->lane = (unsigned)(r->claimed % r->copies);
    r->claimed += piece->count > 0;
    pthread_mutex_unlock(&r->lock);
    return piece->count > 0;
}

/* ---- to GPUs ---- */

/* Where a segment goes in a copy. */
static uint8_t *target_of(const struct cw_reading *r, uint32_t copy,
                          const struct cw_stretch *segment) {
    const cw_read *what = &r->reads[(uint64_t)copy * r->count + segment->read];
    return what->array->bytes + what->offset_bytes + segment->from_bytes;
}

/* Segments from there on that are one behind the other in host memory and in each copy. */
static uint32_t run_of(const struct cw_reading *r, const struct cw_piece *piece, uint32_t first,
                       uint64_t *size_bytes) {
    uint32_t end = first + 1;
    *size_bytes = piece->segments[first].size_bytes;
    for (; end < piece->count; end++) {
        for (uint32_t copy = 0; copy < r->copies; copy++)
            if (target_of(r, copy, &piece->segments[end]) !=
                target_of(r, copy, &piece->segments[first]) + *size_bytes)
                return end;
        *size_bytes += piece->segments[end].size_bytes;
    }
    return end;
}

/* To this lane, and from there, or from the ring, to all others. */
static int send_run(struct cw_reading *r, struct cw_ring_slot *slot, unsigned lane,
                    const struct cw_stretch *segment, uint64_t size_bytes) {
    uint8_t *first = target_of(r, lane, segment);
    cw_client *client = r->reads[0].array->client;
    int code = cw_ring_send(r->ring, slot, lane, first, segment->bytes, size_bytes);
    cw_copy_count(client, CW_ROUTE_IN, size_bytes);
    for (uint32_t copy = 0; copy < r->copies && code == 0; copy++) {
        bool reached = r->reach[lane] >> copy & 1;
        if (copy == lane)
            continue;
        uint8_t *target = target_of(r, copy, segment);
        code = reached ? cw_ring_spread(r->ring, slot, lane, target, first, size_bytes)
                       : cw_ring_send(r->ring, slot, copy, target, segment->bytes, size_bytes);
        cw_copy_count(client, reached ? CW_ROUTE_PEER : CW_ROUTE_IN, size_bytes);
    }
    return code;
}

static int send_piece(struct cw_reading *r, const struct worker *w, struct cw_ring_slot *slot) {
    const struct cw_piece *piece = &w->piece;
    int code = 0;
    for (uint32_t i = 0, next; i < piece->count && code == 0; i = next) {
        uint64_t size_bytes;
        next = run_of(r, piece, i, &size_bytes);
        code = send_run(r, slot, w->lane, &piece->segments[i], size_bytes);
    }
    return code;
}

/* ---- threads ---- */

static void tell_over(struct cw_reading *r) {
    uint64_t one = 1;
    if (r->over < 0) /* the caller's thread has read it */
        return;
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
    }
    pthread_mutex_unlock(&r->lock);
    if (first)
        tell_over(r);
}

/* What took until now since then, which becomes now. */
static uint64_t lap(int64_t *since_ns) {
    int64_t now_ns = cw_now_ns(), then_ns = *since_ns;
    *since_ns = now_ns;
    return (uint64_t)(now_ns - then_ns);
}

static int do_piece(struct cw_reading *r, struct worker *w, struct cw_ring_slot *slot) {
    int64_t since_ns = cw_now_ns();
    int code =
        cw_piece_read(&w->piece, &r->files[w->piece.file], slot ? cw_ring_bytes(slot) : w->buffer,
                      w->spare, &w->spent.direct_bytes);
    w->spent.file_ns += lap(&since_ns);
    if (code || !slot)
        return code;
    cw_ring_pin(r->ring, slot);
    w->spent.pin_ns += lap(&since_ns);
    code = send_piece(r, w, slot);
    w->spent.send_ns += lap(&since_ns);
    return code;
}

/* The lock is held. */
static void add_spent(struct cw_reading *r, struct worker *w) {
    r->spent.slot_ns += w->spent.slot_ns;
    r->spent.file_ns += w->spent.file_ns;
    r->spent.pin_ns += w->spent.pin_ns;
    r->spent.send_ns += w->spent.send_ns;
    r->spent.direct_bytes += w->spent.direct_bytes;
    w->spent = (cw_load_times){.slot_ns = 0};
}

static void note_done(struct cw_reading *r, struct worker *w) {
    const struct cw_piece *piece = &w->piece;
    pthread_mutex_lock(&r->lock);
    add_spent(r, w);
    for (uint32_t i = 0; i < piece->count; i++)
        r->reads[piece->segments[i].read].hash += piece->segments[i].sum;
    bool last = ++r->done == r->claimed && r->next == r->count;
    pthread_mutex_unlock(&r->lock);
    if (last)
        tell_over(r);
}

/* One piece. 1; 0: none is left; or a failure. */
static int next_piece(struct cw_reading *r, struct worker *w) {
    struct cw_ring_slot *slot = NULL;
    int64_t since_ns = cw_now_ns();
    int code = r->ring ? cw_ring_take(r->ring, &slot) : 0;
    if (code)
        return code;
    w->spent.slot_ns += lap(&since_ns);
    bool any = claim(r, w);
    if (any)
        code = do_piece(r, w, slot);
    if (slot)
        cw_ring_give(r->ring, slot);
    if (code == 0 && any)
        note_done(r, w);
    return code ? code : any;
}

/* A buffer of a piece, if none is in the ring: into which it is read, or by which. */
static bool make_buffer(struct worker *w, const struct cw_reading *r) {
    bool to_host = r->reads[0].array && !r->ring;
    if (r->ring || (to_host && r->total_bytes <= READ_HERE_BYTES))
        return true;
    uint8_t *made = aligned_alloc(CW_READ_ALIGN, CW_READ_BUFFER_BYTES);
    *(to_host ? &w->spare : &w->buffer) = made;
    return made;
}

static void *work(void *context) {
    struct cw_reading *r = context;
    struct worker *w = calloc(1, sizeof *w);
    int code = w && make_buffer(w, r)
                   ? 1
                   : cw_fail(-EDQUOT, "no memory to read %.300s", r->checkpoint->path);
    while (code == 1)
        code = next_piece(r, w);
    if (code)
        fail(r, code);
    if (w) {
        free(w->buffer);
        free(w->spare);
    }
    free(w);
    return NULL;
}

/* Is a file that is read not in the page cache? */
static bool is_cold(const struct cw_reading *r) {
    for (uint32_t i = 0; i < r->count; i++) {
        const struct cw_direct *file = &r->files[r->checkpoint->tensors[r->reads[i].tensor].file];
        const cw_tensor *tensor = &r->checkpoint->tensors[r->reads[i].tensor];
        if (r->reads[i].size_bytes >= CW_READ_PIECE_BYTES &&
            !cw_direct_cached(file, tensor->offset_bytes + r->reads[i].skip_bytes,
                              r->reads[i].size_bytes))
            return true;
    }
    return false;
}

static unsigned threads_wanted(const struct cw_reading *r) {
    cpu_set_t cpus;
    uint64_t pieces = r->total_bytes / CW_READ_PIECE_BYTES + 1;
    unsigned wanted = 1;
    if (pieces > 1 && sched_getaffinity(0, sizeof cpus, &cpus) == 0)
        wanted = is_cold(r) ? CW_READ_THREADS_MAX : (unsigned)CPU_COUNT(&cpus);
    wanted = wanted < CW_READ_THREADS_MAX ? wanted : CW_READ_THREADS_MAX;
    return pieces < wanted ? (unsigned)pieces : wanted;
}

/* ---- the whole ---- */

static void reading_free(struct cw_reading *r) {
    cw_ring_close(r->ring);
    for (uint32_t i = 0; r->files && i < r->checkpoint->file_count; i++)
        cw_direct_deinit(&r->files[i]);
    free(r->files);
    free(r->reach);
    if (r->over >= 0)
        close(r->over);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* Lets each copy's GPU write to the memory of the others, where it reaches them. */
static int admit(struct cw_reading *r, const int *gpus) {
    for (uint32_t from = 0; from < r->copies; from++)
        for (uint32_t to = 0; to < r->copies; to++) {
            struct cw_gpu *source, *target;
            int code = cw_gpu_get(gpus[from], &source);
            if (code == 0)
                code = cw_gpu_get(gpus[to], &target);
            if (code)
                return code;
            if (from == to || !cw_gpu_reaches(source, target))
                continue;
            cw_read *reads = &r->reads[(uint64_t)to * r->count];
            const cw_array *last = NULL;
            for (uint32_t i = 0; i < r->count && code == 0; i++)
                if (reads[i].array != last) {
                    last = reads[i].array;
                    code = cw_cuda_admit(source, cw_copy_end_of(reads[i].array, 0).mapping);
                }
            if (code)
                return code;
            r->reach[from] |= 1ull << to;
        }
    return 0;
}

static int open_ring(struct cw_reading *r, unsigned threads) {
    int gpus[CW_RING_GPUS_MAX] = {0};
    for (uint32_t copy = 0; copy < r->copies; copy++)
        gpus[copy] = cw_array_gpu(r->reads[(uint64_t)copy * r->count].array);
    int code = cw_ring_open(gpus, r->copies, threads, &r->ring);
    return code ? code : admit(r, gpus);
}

/* A failure is the read's, which tells it when it is waited for. */
static int start(struct cw_reading *r) {
    unsigned wanted = threads_wanted(r);
    bool to_gpu = r->count && r->reads[0].array && cw_array_gpu(r->reads[0].array) >= 0;
    int code = to_gpu && r->total_bytes ? open_ring(r, wanted) : 0;
    if (code)
        return code;
    if (r->total_bytes && r->total_bytes <= READ_HERE_BYTES)
        (void)work(r);
    if (r->total_bytes <= READ_HERE_BYTES)
        return 0;
    r->over = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->over < 0)
        return cw_fail(-EDQUOT, "no descriptor to read %.300s: %m", r->checkpoint->path);
    while (r->thread_count < wanted &&
           cw_thread_start(&r->threads[r->thread_count], NULL, work, r) == 0)
        r->thread_count++;
    return r->thread_count
               ? 0
               : cw_fail(-EDQUOT, "no thread could be started to read %.300s", r->checkpoint->path);
}

/* What has no bytes is hashed here; where the files are. */
static int prepare(struct cw_reading *r) {
    const cw_checkpoint *c = r->checkpoint;
    r->files = calloc((size_t)c->file_count + 1, sizeof *r->files);
    r->reach = calloc(r->copies, sizeof *r->reach);
    if (!r->reach) { /* files that were not made are not ended */
        free(r->files);
        r->files = NULL;
    }
    if (!r->files)
        return cw_fail(-EDQUOT, "no memory to read %.300s", c->path);
    for (uint32_t i = 0; i < c->file_count; i++)
        cw_direct_init(&r->files[i], c->files[i].path, c->files[i].fd);
    for (uint32_t i = 0; i < r->count; i++) {
        r->total_bytes += r->reads[i].size_bytes;
        r->reads[i].hash = r->reads[i].size_bytes ? 0 : cw_sum(NULL, 0, 0);
    }
    for (uint32_t i = 0; r->total_bytes > READ_HERE_BYTES && i < c->file_count; i++)
        if (c->files[i].status.st_size > 0)
            cw_direct_ask(&r->files[i], (uint64_t)c->files[i].status.st_size);
    pass_empty(r);
    return 0;
}

int cw_reading_begin_copies(const cw_checkpoint *checkpoint, cw_read *reads, uint32_t count,
                            uint32_t copies, cw_reading **out) {
    int code = cw_reads_check(checkpoint, reads, count, copies);
    if (code)
        return code;
    struct cw_reading *r = calloc(1, sizeof *r);
    if (!r)
        return cw_fail(-EDQUOT, "no memory to read %.300s", checkpoint->path);
    r->checkpoint = checkpoint;
    r->reads = reads;
    r->count = count;
    r->copies = copies;
    pthread_mutex_init(&r->lock, NULL);
    r->over = -1;
    code = prepare(r);
    if (code == 0)
        code = start(r);
    if (code)
        reading_free(r);
    else
        *out = r;
    return code;
}

int cw_reading_begin(const cw_checkpoint *checkpoint, cw_read *reads, uint32_t count,
                     cw_reading **out) {
    if (!checkpoint || (count && !reads) || !out)
        return cw_needs("a checkpoint, reads and a place for the reading");
    return cw_reading_begin_copies(checkpoint, reads, count, 1, out);
}

int cw_reading_wait(cw_reading *r, int64_t timeout_ns) {
    if (!r)
        return cw_needs("a reading");
    int64_t end_ns = cw_end_ns(cw_now_ns(), timeout_ns);
    struct pollfd over = {.fd = r->over, .events = POLLIN};
    while (r->over >= 0) {
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
    if (!r->failed && (r->next < r->count || r->done < r->claimed))
        r->failed = -ECANCELED;
    pthread_mutex_unlock(&r->lock);
    while (r->thread_count)
        pthread_join(r->threads[--r->thread_count], NULL);
    reading_free(r);
}

void cw_reading_times(cw_reading *r, cw_load_times *out) {
    pthread_mutex_lock(&r->lock);
    out->slot_ns += r->spent.slot_ns;
    out->file_ns += r->spent.file_ns;
    out->pin_ns += r->spent.pin_ns;
    out->send_ns += r->spent.send_ns;
    out->direct_bytes += r->spent.direct_bytes;
    out->threads = r->thread_count;
    pthread_mutex_unlock(&r->lock);
}
