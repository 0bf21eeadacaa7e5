/*
 * Stages: see staging.h.
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

#define FILLS_MOST       3u /* at once: one is copied while the others' jobs are on their way */
#define CHUNK_SHARE      8u /* of an array, within these bounds: */
#define CHUNK_LEAST      (1u << 20) /* the mover registers memory from here on */
#define CHUNK_MOST       (8u << 20) /* long beside the way of a job through the broker */
#define BACKOFF_LEAST_NS 200000
#define BACKOFF_MOST_NS  10000000
#define SAY_NS           5000000000 /* a READ that waits so long for a write is told so */
#define PROBE_NS         1000000000 /* how often it is looked whether the broker stands, meanwhile */

struct task { /* of a helper */
    struct cwb_work work;
    struct cwb_stage *stage;
    struct cwb_staging_buffer *buffer;
    uint64_t from_bytes, to_bytes, length_bytes; /* in the array, in the ring */
    cw_array *ring;
    uint64_t writes;
};

struct cwb_stage {
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
    uint32_t fills, works;       /* helpers at it */
    int status;                  /* below 0: it failed, detail says how */
    char detail[CW_DETAIL_MAX];
    struct cwb_stage *prev, *next;               /* of the bridge */
    struct task look, hash, filling[FILLS_MOST]; /* as many as there may be; buffer NULL: free */
};

static void go(struct cwb_stage *stage);

static void begin(struct cwb_stage *stage, struct task *task, void (*run)(struct cwb_work *),
                  void (*done)(struct cwb_work *)) {
    task->work = (struct cwb_work){.run = run, .done = done};
    task->stage = stage;
    stage->works++;
    cwb_work_begin(stage->bridge->movings, &task->work);
}

static void release(struct cwb_stage *stage) {
    if (stage->upload || stage->works)
        return;
    DL_DELETE(stage->bridge->stages, stage);
    cw_array_close(stage->array);
    cw_array_close(stage->ring);
    cwb_sum_free(stage->sum);
    cwb_staging_buffers_deinit(&stage->buffers);
    free(stage);
}

/* The helper is done; false: so is the stage, which may be gone now. */
static bool ended(struct task *task) {
    struct cwb_stage *stage = task->stage;
    stage->works--;
    if (!stage->upload) {
        release(stage);
        return false;
    }
    return true;
}

/* Who asked for the hash hears it, with this thread's sentence. The stage may end with it. */
static void tell_closing(struct cwb_stage *stage, int status, uint64_t value) {
    struct cwb_upload *upload = stage->upload;
    stage->closing = false;
    cwb_upload_staged(upload, status, value);
    cwb_upload_unref(upload);
}

static void fail(struct cwb_stage *stage, int status, const char *detail) {
    if (stage->status == 0) {
        stage->status = status;
        strcpy(stage->detail, detail);
    }
    stage->look_ns = 0;
    cw_fail(stage->status, "%s", stage->detail);
    cwb_parked_reads_refuse(&stage->parked, stage->status);
    if (!stage->closing)
        return;
    cw_fail(stage->status, "%s", stage->detail);
    tell_closing(stage, stage->status, 0);
}

/* ---- the last write, and the ring ---- */

static void look(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_stage *stage = task->stage;
    int code = cwb_local_written(stage->array, &task->writes) ? cw_array_wait(stage->array, 0)
                                                              : -ETIMEDOUT;
    if (code == 0)
        code =
            cwb_local_make(stage->bridge, cwb_staging_buffers_bytes(&stage->buffers), &task->ring);
    cwb_work_set(work, code);
}

static void looked(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_stage *stage = task->stage;
    stage->looking = false;
    if (!stage->upload)
        cw_array_close(task->ring);
    if (ended(task)) {
        if (work->code == -ETIMEDOUT) {
            stage->look_ns = stage->bridge->loop.now_ns + stage->backoff_ns;
            stage->backoff_ns =
                stage->backoff_ns < BACKOFF_MOST_NS ? 2 * stage->backoff_ns : BACKOFF_MOST_NS;
            stage->bridge->hurry = true;
        } else if (work->code) {
            fail(stage, work->code, work->detail);
        } else {
            stage->ring = task->ring;
            stage->writes = task->writes;
            stage->buffers.bytes = cw_array_lowest(task->ring);
            go(stage);
        }
    }
}

/* Who waits hears that this is no standstill, and asks again: a write may take as long as it likes.
 * A broker that stands looks the same from here, since its answer is waited for then; so it is
 * asked for a sign of life, and the second time who waits hears that there is none. Returns when
 * the next one is to. */
static int64_t say_so(struct cwb_stage *stage) {
    const int64_t now_ns = stage->bridge->loop.now_ns;
    struct cwb_parked_read *parked;
    while ((parked = stage->parked) && now_ns - parked->since_ns >= SAY_NS) {
        struct cwb_parked_read what = *parked;
        int code = cwb_deferred_probe(stage->bridge);
        if (code == 0 && stage->ring)
            return now_ns + PROBE_NS; /* the mover copies, by way of the broker */
        cwb_parked_read_remove(parked);
        if (code == 0)
            code =
                cw_fail(-EINPROGRESS, "the last write to the array is not complete yet: ask again");
        cwb_parked_read_refuse(&what, code);
    }
    return stage->parked ? stage->parked->since_ns + SAY_NS : INT64_MAX;
}

static void begin_look(struct cwb_stage *stage) {
    stage->look_ns = 0;
    stage->looking = true;
    stage->look = (struct task){.buffer = NULL};
    begin(stage, &stage->look, look, looked);
}

int64_t cwb_stages_tick(struct cwb_bridge *bridge) {
    struct cwb_stage *stage, *next;
    int64_t due_ns = INT64_MAX;
    DL_FOREACH_SAFE(bridge->stages, stage, next) {
        if (!stage->upload)
            continue;
        int64_t say_ns = say_so(stage);
        due_ns = say_ns < due_ns ? say_ns : due_ns;
        if (!stage->look_ns)
            continue;
        if (stage->look_ns <= bridge->loop.now_ns)
            begin_look(stage);
        else
            due_ns = stage->look_ns < due_ns ? stage->look_ns : due_ns;
    }
    return due_ns;
}

/* The first chunk of which not all is in the sum; CWB_NO_CHUNK: there is none. */
static uint64_t first_unhashed(const struct cwb_stage *stage) {
    uint64_t prefix_bytes = cwb_sum_prefix(stage->sum);
    return prefix_bytes < stage->buffers.size_bytes ? prefix_bytes / stage->buffers.chunk_bytes
                                                    : CWB_NO_CHUNK;
}

/* ---- filling ---- */

static void fill(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_stage *stage = task->stage;
    int code;
    do
        code = cw_job_copy(task->ring, task->to_bytes, stage->array, task->from_bytes,
                           task->length_bytes);
    while (code == -EINTR);
    cwb_work_set(work, code);
}

static void on_filled(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_stage *stage = task->stage;
    stage->fills--;
    if (!ended(task))
        return;
    cwb_staging_buffers_filled(&stage->buffers, task->buffer, work->code ? 0 : task->length_bytes);
    task->buffer = NULL;
    if (work->code)
        fail(stage, work->code, work->detail);
    else
        go(stage);
}

static bool begin_fill(struct cwb_stage *stage, uint64_t chunk, bool demanded) {
    /* What the hash comes to later stays, unless it waits for this one. */
    uint64_t keep = stage->closing ? first_unhashed(stage) : CWB_NO_CHUNK;
    struct cwb_staging_buffer *buffer = cwb_staging_buffers_begin(
        &stage->buffers, chunk, demanded, chunk == keep ? CWB_NO_CHUNK : keep);
    if (!buffer)
        return false;
    uint64_t from = chunk * stage->buffers.chunk_bytes,
             length = cwb_staging_buffers_length(&stage->buffers, chunk);
    uint64_t tail = stage->buffers.size_bytes - from - length;
    length += tail < stage->tail_bytes ? tail : stage->tail_bytes;
    stage->fills++;
    struct task *task = stage->filling;
    while (task->buffer)
        task++;
    *task = (struct task){.buffer = buffer,
                          .ring = stage->ring,
                          .from_bytes = from,
                          .to_bytes = (uint64_t)(cwb_staging_buffers_at(&stage->buffers, buffer) -
                                                 stage->buffers.bytes),
                          .length_bytes = length};
    begin(stage, task, fill, on_filled);
    return true;
}

/* ---- the hash ---- */

static void hash(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_stage *stage = task->stage;
    (void)cwb_sum_add_at(stage->sum, task->buffer->chunk * stage->buffers.chunk_bytes,
                         task->length_bytes, cwb_staging_buffers_at(&stage->buffers, task->buffer));
    work->code = 0;
}

static void on_hashed(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_stage *stage = task->stage;
    stage->hashing = false;
    if (ended(task)) {
        cwb_staging_buffers_unhold(&stage->buffers, task->buffer);
        go(stage);
    }
}

/* Who closes, and has not read all, waits for a helper to hash the rest. */
static void hash_on(struct cwb_stage *stage) {
    uint64_t chunk = stage->closing && !stage->hashing ? first_unhashed(stage) : CWB_NO_CHUNK;
    struct cwb_staging_buffer *buffer =
        chunk == CWB_NO_CHUNK ? NULL : cwb_staging_buffers_of(&stage->buffers, chunk);
    if (!buffer || !buffer->valid_bytes)
        return;
    stage->hashing = true;
    cwb_staging_buffers_hold(&stage->buffers, buffer);
    stage->hash = (struct task){.buffer = buffer,
                                .length_bytes = cwb_staging_buffers_length(&stage->buffers, chunk)};
    begin(stage, &stage->hash, hash, on_hashed);
}

static void tell_hash(struct cwb_stage *stage) {
    uint64_t writes;
    int code = 0;
    if (!stage->closing || cwb_sum_left(stage->sum))
        return;
    if (!cwb_local_written(stage->array, &writes) || writes != stage->writes)
        code = cw_fail(-EAGAIN, "somebody writes into the array while it is read; a copy of it, "
                                "put under a name, can be read");
    tell_closing(stage, code, cwb_sum_digest(stage->sum));
}

/* ---- all of it ---- */

/* Sends what is here. */
static void serve_parked(struct cwb_stage *stage) {
    struct cwb_parked_read *parked, *next;
    DL_FOREACH_SAFE(stage->parked, parked, next) {
        struct cwb_parked_read what = *parked;
        const uint8_t *bytes = cwb_staging_buffers_acquire(&stage->buffers, &what.read);
        if (!bytes)
            continue;
        cwb_parked_read_remove(parked);
        if (!cwb_parked_read_send(&what, bytes)) /* its connection ends */
            (void)cwb_staging_buffers_release(&stage->buffers, what.read.offset_bytes,
                                              what.read.length_bytes, false);
    }
}

static void fill_more(struct cwb_stage *stage) {
    struct cwb_parked_read *parked;
    bool demanded = stage->closing;
    cwb_staging_buffers_demand(&stage->buffers, stage->closing || stage->parked);
    DL_FOREACH(stage->parked, parked) {
        uint64_t chunk = parked->read.offset_bytes / stage->buffers.chunk_bytes;
        const struct cwb_staging_buffer *buffer = cwb_staging_buffers_of(&stage->buffers, chunk);
        if (chunk >= stage->filled)
            demanded = true;
        else if (stage->fills < FILLS_MOST && !(buffer && buffer->filling))
            begin_fill(stage, chunk, true); /* again */
    }
    uint64_t rest = stage->closing ? first_unhashed(stage) : CWB_NO_CHUNK;
    if (rest < stage->filled && stage->fills < FILLS_MOST &&
        !cwb_staging_buffers_of(&stage->buffers, rest))
        begin_fill(stage, rest, true);
    while (stage->fills < FILLS_MOST && stage->filled < stage->buffers.chunk_count) {
        if (!begin_fill(stage, stage->filled, demanded))
            break;
        stage->filled++;
    }
}

static void go(struct cwb_stage *stage) {
    if (!stage->ring || stage->status)
        return;
    serve_parked(stage);
    hash_on(stage);
    fill_more(stage);
    tell_hash(stage); /* last: the upload may end with it */
}

struct cwb_stage *cwb_stage_new(struct cwb_bridge *bridge, struct cwb_upload *upload,
                                cw_array *array, uint64_t size_bytes, uint32_t read_max) {
    CW_ASSERT(size_bytes && read_max <= CWB_READ_MAX);
    struct cwb_stage *stage = calloc(1, sizeof *stage);
    struct cwb_sum *sum = cwb_sum_new(NULL, size_bytes, size_bytes);
    if (!stage || !sum) {
        free(stage);
        cwb_sum_free(sum);
        cwb_no_memory("an array on a GPU that a peer reads");
        return NULL;
    }
    uint64_t share = size_bytes / CHUNK_SHARE;
    share = share < CHUNK_LEAST ? CHUNK_LEAST : share > CHUNK_MOST ? CHUNK_MOST : share;
    stage->bridge = bridge;
    stage->upload = upload;
    stage->array = array;
    read_max = read_max / CWB_SUM_PIECE * CWB_SUM_PIECE; /* READs keep to chunks' bounds */
    cwb_staging_buffers_init(&stage->buffers, size_bytes, (uint32_t)share / read_max * read_max);
    stage->sum = sum;
    stage->backoff_ns = BACKOFF_LEAST_NS;
    DL_APPEND(bridge->stages, stage);
    begin_look(stage);
    return stage;
}

void cwb_stages_forget(struct cwb_bridge *bridge, struct cwb_stream *stream) {
    struct cwb_stage *stage;
    DL_FOREACH(bridge->stages, stage) {
        cwb_parked_reads_forget(&stage->parked, stream);
    }
}

void cwb_stage_read(struct cwb_stage *stage, struct cwb_served *served, struct cwb_stream *stream,
                    uint64_t id, const struct cwb_read *read) {
    const struct cwb_parked_read what = {.upload = stage->upload,
                                         .served = served,
                                         .stream = stream,
                                         .id = id,
                                         .read = *read,
                                         .since_ns = stage->bridge->loop.now_ns};
    if (stage->status || !cwb_parked_read_add(&stage->parked, &what)) {
        cwb_parked_read_refuse(&what, stage->status ? cw_fail(stage->status, "%s", stage->detail)
                                                    : -EDQUOT);
        return;
    }
    if (read->offset_bytes % stage->buffers.chunk_bytes + read->length_bytes >
        stage->buffers.chunk_bytes)
        stage->tail_bytes = CWB_READ_MAX; /* from now on buffers have the begin of the next chunk */
    go(stage);
}

void cwb_stage_close(struct cwb_stage *stage) {
    stage->closing = true;
    cwb_upload_ref(stage->upload);
    if (stage->status)
        fail(stage, stage->status, stage->detail);
    else
        go(stage);
}

const uint8_t *cwb_stage_acquire(struct cwb_stage *stage, const struct cwb_read *read) {
    return cwb_staging_buffers_acquire(&stage->buffers, read);
}

bool cwb_stage_release(struct cwb_stage *stage, uint64_t offset_bytes, uint32_t length_bytes,
                       bool sent) {
    if (sent)
        (void)cwb_sum_add_at(stage->sum, offset_bytes, length_bytes,
                             cwb_staging_buffers_held(&stage->buffers, offset_bytes));
    return cwb_staging_buffers_release(&stage->buffers, offset_bytes, length_bytes, sent);
}

void cwb_stage_look(struct cwb_stage *stage) {
    if (stage->upload)
        go(stage);
}

void cwb_stage_drop(struct cwb_stage *stage) {
    cw_fail(-ESTALE, "the array is not read any more: it was closed");
    cwb_parked_reads_refuse(&stage->parked, -ESTALE);
    stage->look_ns = 0;
    if (stage->closing)
        tell_closing(stage, -ESTALE, 0);
}

void cwb_stage_end(struct cwb_stage *stage) {
    stage->upload = NULL;
    release(stage);
}
