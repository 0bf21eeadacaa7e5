/*
 * Staging: see staging.h.
 */
#include "broker/bridge/serve/staging.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/deferred.h"
#include "broker/bridge/serve/parked_reads.h"
#include "broker/bridge/serve/staging_buffers.h"
#include "broker/bridge/serve/upload.h"
#include "broker/bridge/wire/checksum.h"
#include "broker/bridge/wire/frame.h"
#include "ipc/array/mover_copy.h"
#include "ipc/base/name_key.h"

#define FILLS_MOST       3u /* at once: one is copied while the others' copy jobs are on their way */
#define CHUNK_SHARE      8u         /* of an array, within these bounds: */
#define CHUNK_LEAST      (1u << 20) /* the mover registers memory from here on */
#define CHUNK_MOST       (8u << 20) /* long beside the way of a copy job through the broker */
#define BACKOFF_LEAST_NS 200000
#define BACKOFF_MOST_NS  10000000
#define SAY_NS           5000000000 /* a READ that waits so long for a write is told so */
#define PROBE_NS         1000000000 /* how often it is looked whether the broker stands, meanwhile */

struct task { /* of a helper */
    struct cwb_work work;
    struct cwb_staging *staging;
    struct cwb_staging_buffer *buffer;
    uint64_t from_bytes, to_bytes, length_bytes; /* in the array, in the ring */
    cw_array *ring;
    uint64_t writes;
};

struct cwb_staging {
    struct cwb_bridge *bridge;
    struct cwb_upload *upload; /* NULL: ended */
    cw_array *array, *ring; /* on the GPU; in host memory, NULL until the last write is complete */
    struct cwb_staging_buffers buffers; /* in the ring */
    uint32_t tail_bytes;                /* of the next chunk, that a buffer has, too */
    uint64_t filled;                    /* chunks: so many were begun to be filled, in order */
    struct cwb_sum *sum;
    uint64_t writes; /* to the array, when its bytes began to be copied */
    struct cwb_parked_read *parked;
    bool closing, hashing, looking;
    int64_t look_ns, backoff_ns; /* when to look again; 0: not */
    uint32_t fills, tasks;       /* helpers at it */
    int status;                  /* below 0: it failed, detail says how */
    char detail[CW_DETAIL_MAX];
    struct cwb_staging *prev, *next;             /* of the bridge */
    struct task look, hash, filling[FILLS_MOST]; /* as many as there may be; buffer NULL: free */
};

static void go(struct cwb_staging *staging);

static void begin(struct cwb_staging *staging, struct task *task, void (*run)(struct cwb_work *),
                  void (*done)(struct cwb_work *)) {
    task->work = (struct cwb_work){.run = run, .done = done};
    task->staging = staging;
    staging->tasks++;
    cwb_work_begin(staging->bridge->mover_helpers, &task->work);
}

static void release(struct cwb_staging *staging) {
    if (staging->upload || staging->tasks)
        return;
    DL_DELETE(staging->bridge->stagings, staging);
    cw_array_close(staging->array);
    cw_array_close(staging->ring);
    cwb_sum_free(staging->sum);
    cwb_staging_buffers_deinit(&staging->buffers);
    free(staging);
}

/* The helper is done; false: so is the staging, which may be gone now. */
static bool ended(struct task *task) {
    struct cwb_staging *staging = task->staging;
    staging->tasks--;
    if (!staging->upload) {
        release(staging);
        return false;
    }
    return true;
}

/* Who asked for the hash hears it, with this thread's sentence. The staging may end with it. */
static void tell_closing(struct cwb_staging *staging, int status, uint64_t value) {
    struct cwb_upload *upload = staging->upload;
    staging->closing = false;
    cwb_upload_staged(upload, status, value);
    cwb_upload_unref(upload);
}

static void fail(struct cwb_staging *staging, int status, const char *detail) {
    if (staging->status == 0) {
        staging->status = status;
        strcpy(staging->detail, detail);
    }
    staging->look_ns = 0;
    cw_fail(staging->status, "%s", staging->detail);
    cwb_parked_reads_refuse(&staging->parked, staging->status);
    if (!staging->closing)
        return;
    cw_fail(staging->status, "%s", staging->detail);
    tell_closing(staging, staging->status, 0);
}

/* ---- the last write, and the ring ---- */

static void look(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_staging *staging = task->staging;
    int code = cwb_local_written(staging->array, &task->writes) ? cw_array_wait(staging->array, 0)
                                                                : -ETIMEDOUT;
    if (code == 0)
        code = cwb_local_make(staging->bridge, cwb_staging_buffers_bytes(&staging->buffers),
                              &task->ring);
    cwb_work_set(work, code);
}

static void looked(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_staging *staging = task->staging;
    staging->looking = false;
    if (!staging->upload)
        cw_array_close(task->ring);
    if (ended(task)) {
        if (work->code == -ETIMEDOUT) {
            staging->look_ns = staging->bridge->loop.now_ns + staging->backoff_ns;
            staging->backoff_ns =
                staging->backoff_ns < BACKOFF_MOST_NS ? 2 * staging->backoff_ns : BACKOFF_MOST_NS;
            staging->bridge->tick_now = true;
        } else if (work->code) {
            fail(staging, work->code, work->detail);
        } else {
            staging->ring = task->ring;
            staging->writes = task->writes;
            staging->buffers.bytes = cw_array_lowest(task->ring);
            go(staging);
        }
    }
}

/* Who waits hears that this is no standstill, and asks again: a write may take as long as it likes.
 * A broker that stands looks the same from here, since its answer is waited for then; so it is
 * asked for a sign of life, and the second time who waits hears that there is none. Returns when
 * the next one is to. */
static int64_t say_so(struct cwb_staging *staging) {
    const int64_t now_ns = staging->bridge->loop.now_ns;
    struct cwb_parked_read *parked;
    while ((parked = staging->parked) && now_ns - parked->since_ns >= SAY_NS) {
        struct cwb_parked_read what = *parked;
        int code = cwb_deferred_probe(staging->bridge);
        if (code == 0 && staging->ring)
            return now_ns + PROBE_NS; /* the mover copies, by way of the broker */
        cwb_parked_read_remove(parked);
        if (code == 0)
            code =
                cw_fail(-EINPROGRESS, "the last write to the array is not complete yet: ask again");
        cwb_parked_read_refuse(&what, code);
    }
    return staging->parked ? staging->parked->since_ns + SAY_NS : INT64_MAX;
}

static void begin_look(struct cwb_staging *staging) {
    staging->look_ns = 0;
    staging->looking = true;
    staging->look = (struct task){.buffer = NULL};
    begin(staging, &staging->look, look, looked);
}

int64_t cwb_stagings_tick(struct cwb_bridge *bridge) {
    struct cwb_staging *staging, *next;
    int64_t due_ns = INT64_MAX;
    DL_FOREACH_SAFE(bridge->stagings, staging, next) {
        if (!staging->upload)
            continue;
        int64_t say_ns = say_so(staging);
        due_ns = say_ns < due_ns ? say_ns : due_ns;
        if (!staging->look_ns)
            continue;
        if (staging->look_ns <= bridge->loop.now_ns)
            begin_look(staging);
        else
            due_ns = staging->look_ns < due_ns ? staging->look_ns : due_ns;
    }
    return due_ns;
}

/* The first chunk of which not all is in the sum; CWB_NO_CHUNK: there is none. */
static uint64_t first_unhashed(const struct cwb_staging *staging) {
    uint64_t prefix_bytes = cwb_sum_prefix(staging->sum);
    return prefix_bytes < staging->buffers.size_bytes ? prefix_bytes / staging->buffers.chunk_bytes
                                                      : CWB_NO_CHUNK;
}

/* ---- filling ---- */

static void fill(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_staging *staging = task->staging;
    int code;
    do
        code = cw_job_copy(task->ring, task->to_bytes, staging->array, task->from_bytes,
                           task->length_bytes);
    while (code == -EINTR);
    cwb_work_set(work, code);
}

static void on_filled(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_staging *staging = task->staging;
    staging->fills--;
    if (!ended(task))
        return;
    cwb_staging_buffers_filled(&staging->buffers, task->buffer,
                               work->code ? 0 : task->length_bytes);
    task->buffer = NULL;
    if (work->code)
        fail(staging, work->code, work->detail);
    else
        go(staging);
}

static bool begin_fill(struct cwb_staging *staging, uint64_t chunk, bool demanded) {
    /* What the hash comes to later stays, unless it waits for this one. */
    uint64_t keep = staging->closing ? first_unhashed(staging) : CWB_NO_CHUNK;
    struct cwb_staging_buffer *buffer = cwb_staging_buffers_begin(
        &staging->buffers, chunk, demanded, chunk == keep ? CWB_NO_CHUNK : keep);
    if (!buffer)
        return false;
    uint64_t from = chunk * staging->buffers.chunk_bytes,
             length = cwb_staging_buffers_length(&staging->buffers, chunk);
    uint64_t tail = staging->buffers.size_bytes - from - length;
    length += tail < staging->tail_bytes ? tail : staging->tail_bytes;
    staging->fills++;
    struct task *task = staging->filling;
    while (task->buffer)
        task++;
    *task = (struct task){.buffer = buffer,
                          .ring = staging->ring,
                          .from_bytes = from,
                          .to_bytes = (uint64_t)(cwb_staging_buffers_at(&staging->buffers, buffer) -
                                                 staging->buffers.bytes),
                          .length_bytes = length};
    begin(staging, task, fill, on_filled);
    return true;
}

/* ---- the hash ---- */

static void hash(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_staging *staging = task->staging;
    (void)cwb_sum_add_at(staging->sum, task->buffer->chunk * staging->buffers.chunk_bytes,
                         task->length_bytes,
                         cwb_staging_buffers_at(&staging->buffers, task->buffer));
    work->code = 0;
}

static void on_hashed(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_staging *staging = task->staging;
    staging->hashing = false;
    if (ended(task)) {
        cwb_staging_buffers_unhold(&staging->buffers, task->buffer);
        go(staging);
    }
}

/* Who closes, and has not read all, waits for a helper to hash the rest. */
static void hash_on(struct cwb_staging *staging) {
    uint64_t chunk = staging->closing && !staging->hashing ? first_unhashed(staging) : CWB_NO_CHUNK;
    struct cwb_staging_buffer *buffer =
        chunk == CWB_NO_CHUNK ? NULL : cwb_staging_buffers_of(&staging->buffers, chunk);
    if (!buffer || !buffer->valid_bytes)
        return;
    staging->hashing = true;
    cwb_staging_buffers_hold(&staging->buffers, buffer);
    staging->hash = (struct task){
        .buffer = buffer, .length_bytes = cwb_staging_buffers_length(&staging->buffers, chunk)};
    begin(staging, &staging->hash, hash, on_hashed);
}

static void tell_hash(struct cwb_staging *staging) {
    uint64_t writes;
    int code = 0;
    if (!staging->closing || cwb_sum_left(staging->sum))
        return;
    if (!cwb_local_written(staging->array, &writes) || writes != staging->writes)
        code = cw_fail(-EAGAIN, "somebody writes into the array while it is read; a copy of it, "
                                "put under a name, can be read");
    tell_closing(staging, code, cwb_sum_digest(staging->sum));
}

/* ---- all of it ---- */

/* Sends what is here. */
static void serve_parked(struct cwb_staging *staging) {
    struct cwb_parked_read *parked, *next;
    DL_FOREACH_SAFE(staging->parked, parked, next) {
        struct cwb_parked_read what = *parked;
        const uint8_t *bytes = cwb_staging_buffers_acquire(&staging->buffers, &what.read);
        if (!bytes)
            continue;
        cwb_parked_read_remove(parked);
        if (!cwb_parked_read_send(&what, bytes)) /* its connection ends */
            (void)cwb_staging_buffers_release(&staging->buffers, what.read.offset_bytes,
                                              what.read.length_bytes, false);
    }
}

static void fill_more(struct cwb_staging *staging) {
    struct cwb_parked_read *parked;
    bool demanded = staging->closing;
    cwb_staging_buffers_demand(&staging->buffers, staging->closing || staging->parked);
    DL_FOREACH(staging->parked, parked) {
        uint64_t chunk = parked->read.offset_bytes / staging->buffers.chunk_bytes;
        const struct cwb_staging_buffer *buffer = cwb_staging_buffers_of(&staging->buffers, chunk);
        if (chunk >= staging->filled)
            demanded = true;
        else if (staging->fills < FILLS_MOST && !(buffer && buffer->filling))
            begin_fill(staging, chunk, true); /* again */
    }
    uint64_t rest = staging->closing ? first_unhashed(staging) : CWB_NO_CHUNK;
    if (rest < staging->filled && staging->fills < FILLS_MOST &&
        !cwb_staging_buffers_of(&staging->buffers, rest))
        begin_fill(staging, rest, true);
    while (staging->fills < FILLS_MOST && staging->filled < staging->buffers.chunk_count) {
        if (!begin_fill(staging, staging->filled, demanded))
            break;
        staging->filled++;
    }
}

static void go(struct cwb_staging *staging) {
    if (!staging->ring || staging->status)
        return;
    serve_parked(staging);
    hash_on(staging);
    fill_more(staging);
    tell_hash(staging); /* last: the upload may end with it */
}

struct cwb_staging *cwb_staging_new(struct cwb_bridge *bridge, struct cwb_upload *upload,
                                    cw_array *array, uint64_t size_bytes, uint32_t read_max) {
    CW_ASSERT(size_bytes && read_max <= CWB_READ_MAX);
    struct cwb_staging *staging = calloc(1, sizeof *staging);
    struct cwb_sum *sum = cwb_sum_new(NULL, size_bytes, size_bytes);
    if (!staging || !sum) {
        free(staging);
        cwb_sum_free(sum);
        cwb_no_memory("an array on a GPU that a peer reads");
        return NULL;
    }
    uint64_t share = size_bytes / CHUNK_SHARE;
    share = share < CHUNK_LEAST ? CHUNK_LEAST : share > CHUNK_MOST ? CHUNK_MOST : share;
    staging->bridge = bridge;
    staging->upload = upload;
    staging->array = array;
    read_max = read_max / CWB_SUM_PIECE * CWB_SUM_PIECE; /* READs keep to chunks' bounds */
    cwb_staging_buffers_init(&staging->buffers, size_bytes, (uint32_t)share / read_max * read_max);
    staging->sum = sum;
    staging->backoff_ns = BACKOFF_LEAST_NS;
    DL_APPEND(bridge->stagings, staging);
    begin_look(staging);
    return staging;
}

void cwb_stagings_forget(struct cwb_bridge *bridge, struct cwb_stream *stream) {
    struct cwb_staging *staging;
    DL_FOREACH(bridge->stagings, staging) {
        cwb_parked_reads_forget(&staging->parked, stream);
    }
}

void cwb_staging_read(struct cwb_staging *staging, struct cwb_served *served,
                      struct cwb_stream *stream, uint64_t id, const struct cwb_read *read) {
    const struct cwb_parked_read what = {.upload = staging->upload,
                                         .served = served,
                                         .stream = stream,
                                         .id = id,
                                         .read = *read,
                                         .since_ns = staging->bridge->loop.now_ns};
    if (staging->status || !cwb_parked_read_add(&staging->parked, &what)) {
        cwb_parked_read_refuse(
            &what, staging->status ? cw_fail(staging->status, "%s", staging->detail) : -EDQUOT);
        return;
    }
    if (read->offset_bytes % staging->buffers.chunk_bytes + read->length_bytes >
        staging->buffers.chunk_bytes)
        staging->tail_bytes =
            CWB_READ_MAX; /* from now on buffers have the begin of the next chunk */
    go(staging);
}

void cwb_staging_close(struct cwb_staging *staging) {
    staging->closing = true;
    cwb_upload_ref(staging->upload);
    if (staging->status)
        fail(staging, staging->status, staging->detail);
    else
        go(staging);
}

const uint8_t *cwb_staging_acquire(struct cwb_staging *staging, const struct cwb_read *read) {
    return cwb_staging_buffers_acquire(&staging->buffers, read);
}

bool cwb_staging_release(struct cwb_staging *staging, uint64_t offset_bytes, uint32_t length_bytes,
                         bool sent) {
    if (sent)
        (void)cwb_sum_add_at(staging->sum, offset_bytes, length_bytes,
                             cwb_staging_buffers_held(&staging->buffers, offset_bytes));
    return cwb_staging_buffers_release(&staging->buffers, offset_bytes, length_bytes, sent);
}

void cwb_staging_look(struct cwb_staging *staging) {
    if (staging->upload)
        go(staging);
}

void cwb_staging_drop(struct cwb_staging *staging) {
    cwb_parked_reads_refuse(&staging->parked, -ESTALE);
    staging->look_ns = 0;
    if (!staging->closing)
        return;
    staging->closing = false;
    cwb_upload_unref(staging->upload);
}

void cwb_staging_end(struct cwb_staging *staging) {
    staging->upload = NULL;
    release(staging);
}
