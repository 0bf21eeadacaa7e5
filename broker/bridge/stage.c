/*
 * Stages: see stage.h.
 */
#include "broker/bridge/stage.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "broker/bridge/slots.h"
#include "broker/bridge/stream.h"
#include "broker/bridge/sum.h"
#include "ipc/job.h"
#include "ipc/name_key.h"

#define FILLS_MOST   3u         /* at once: one is copied while the others' jobs are on their way */
#define CHUNK_SHARE  8u         /* of an array, within these bounds: */
#define CHUNK_LEAST  (1u << 20) /* the mover registers memory from here on */
#define CHUNK_MOST   (8u << 20) /* long beside the way of a job through the broker */
#define NAP_LEAST_NS 200000
#define NAP_MOST_NS  10000000

struct parked { /* a READ whose bytes are not here yet */
    struct cwb_stage *stage;
    struct cwb_served *served; /* NULL: over a stream, with id */
    struct cwb_stream *stream;
    uint64_t id;
    struct cwb_read read;
    struct parked *prev, *next;
};

struct cwb_stage {
    struct cwb_bridge *bridge;
    struct cwb_source *source; /* NULL: ended */
    cw_array *array, *ring; /* on the GPU; in host memory, NULL until the last write is complete */
    struct cwb_slots slots; /* in the ring */
    uint32_t tail_bytes;    /* of the next chunk, that a slot has, too */
    uint64_t filled;        /* chunks: so many were begun to be filled, in order */
    struct cwb_sum *sum;
    uint64_t writes; /* to the array, when its bytes began to be copied */
    struct parked *parked;
    bool closing, hashing, looking;
    int64_t look_ns, nap_ns; /* when to look again; 0: not */
    uint32_t fills, works;   /* helpers at it */
    int status;              /* below 0: it failed, detail says how */
    char detail[CW_DETAIL_MAX];
    struct cwb_stage *prev, *next; /* of the bridge */
};

static void go(struct cwb_stage *stage);

struct task { /* of a helper */
    struct cwb_work work;
    struct cwb_stage *stage;
    struct cwb_slot *slot;
    uint64_t from_bytes, to_bytes, length_bytes; /* in the array, in the ring */
    cw_array *ring;
    uint64_t writes;
};

static void begin(struct cwb_stage *stage, void (*run)(struct cwb_work *),
                  void (*done)(struct cwb_work *), const struct task *what) {
    struct task *task = calloc(1, sizeof *task);
    CW_ASSERT(task);
    *task = *what;
    task->work = (struct cwb_work){.run = run, .done = done};
    task->stage = stage;
    stage->works++;
    cwb_work_begin(stage->bridge->movings, &task->work);
}

static void release(struct cwb_stage *stage) {
    if (stage->source || stage->works)
        return;
    DL_DELETE(stage->bridge->stages, stage);
    cw_array_close(stage->array);
    cw_array_close(stage->ring);
    cwb_sum_free(stage->sum);
    cwb_slots_deinit(&stage->slots);
    free(stage);
}

/* The helper is done; false: so is the stage, which may be gone now. */
static bool ended(struct task *task) {
    struct cwb_stage *stage = task->stage;
    stage->works--;
    if (!stage->source) {
        release(stage);
        return false;
    }
    return true;
}

/* The source stays: what is parked it has not ended with. */
static void unpark(struct parked *parked) {
    DL_DELETE(parked->stage->parked, parked);
    cwb_source_unref(parked->stage->source);
    free(parked);
}

/* Who asked for the hash hears it, with this thread's sentence. The stage may end with it. */
static void tell_closing(struct cwb_stage *stage, int status, uint64_t value) {
    struct cwb_source *source = stage->source;
    stage->closing = false;
    cwb_source_staged(source, status, value);
    cwb_source_unref(source);
}

static void cancel_parked(struct cwb_served *served) {
    unpark(served->owner);
    free(served);
}

/* All that wait hear this thread's sentence. */
static void refuse(struct cwb_stage *stage, int status) {
    char sentence[CW_DETAIL_MAX];
    strcpy(sentence, cw_detail());
    while (stage->parked) {
        struct parked parked = *stage->parked;
        unpark(stage->parked);
        cw_fail(status, "%s", sentence);
        if (parked.served)
            cwb_served_reply(parked.served, status, NULL, 0);
        else
            cwb_stream_refuse(parked.stream, parked.id, status);
    }
}

static void fail(struct cwb_stage *stage, int status, const char *detail) {
    if (stage->status == 0) {
        stage->status = status;
        strcpy(stage->detail, detail);
    }
    stage->look_ns = 0;
    cw_fail(stage->status, "%s", stage->detail);
    refuse(stage, stage->status);
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
        code = cwb_local_make(stage->bridge, cwb_slots_bytes(&stage->slots), &task->ring);
    cwb_work_set(work, code);
}

static void looked(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_stage *stage = task->stage;
    stage->looking = false;
    if (!stage->source)
        cw_array_close(task->ring);
    if (ended(task)) {
        if (work->code == -ETIMEDOUT) {
            stage->look_ns = stage->bridge->loop.now_ns + stage->nap_ns;
            stage->nap_ns = stage->nap_ns < NAP_MOST_NS ? 2 * stage->nap_ns : NAP_MOST_NS;
            stage->bridge->hurry = true;
        } else if (work->code) {
            fail(stage, work->code, work->detail);
        } else {
            stage->ring = task->ring;
            stage->writes = task->writes;
            stage->slots.bytes = cw_array_lowest(task->ring);
            go(stage);
        }
    }
    free(task);
}

static void begin_look(struct cwb_stage *stage) {
    stage->look_ns = 0;
    stage->looking = true;
    begin(stage, look, looked, &(struct task){.slot = NULL});
}

int64_t cwb_stages_tick(struct cwb_bridge *bridge) {
    struct cwb_stage *stage, *next;
    int64_t due_ns = INT64_MAX;
    DL_FOREACH_SAFE(bridge->stages, stage, next) {
        if (!stage->source || !stage->look_ns)
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
    return prefix_bytes < stage->slots.size_bytes ? prefix_bytes / stage->slots.chunk_bytes
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
    if (ended(task)) {
        cwb_slots_filled(&stage->slots, task->slot, work->code ? 0 : task->length_bytes);
        if (work->code)
            fail(stage, work->code, work->detail);
        else
            go(stage);
    }
    free(task);
}

static bool begin_fill(struct cwb_stage *stage, uint64_t chunk, bool demanded) {
    /* What the hash comes to later stays, unless it waits for this one. */
    uint64_t keep = stage->closing ? first_unhashed(stage) : CWB_NO_CHUNK;
    struct cwb_slot *slot =
        cwb_slots_begin(&stage->slots, chunk, demanded, chunk == keep ? CWB_NO_CHUNK : keep);
    if (!slot)
        return false;
    uint64_t from = chunk * stage->slots.chunk_bytes,
             length = cwb_slots_length(&stage->slots, chunk);
    uint64_t tail = stage->slots.size_bytes - from - length;
    length += tail < stage->tail_bytes ? tail : stage->tail_bytes;
    stage->fills++;
    begin(stage, fill, on_filled,
          &(struct task){.slot = slot,
                         .ring = stage->ring,
                         .from_bytes = from,
                         .to_bytes =
                             (uint64_t)(cwb_slots_at(&stage->slots, slot) - stage->slots.bytes),
                         .length_bytes = length});
    return true;
}

/* ---- the hash ---- */

static void hash(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_stage *stage = task->stage;
    (void)cwb_sum_add_at(stage->sum, task->slot->chunk * stage->slots.chunk_bytes,
                         task->length_bytes, cwb_slots_at(&stage->slots, task->slot));
    work->code = 0;
}

static void on_hashed(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_stage *stage = task->stage;
    stage->hashing = false;
    if (ended(task)) {
        cwb_slots_unhold(&stage->slots, task->slot);
        go(stage);
    }
    free(task);
}

/* Who closes, and has not read all, waits for a helper to hash the rest. */
static void hash_on(struct cwb_stage *stage) {
    uint64_t chunk = stage->closing && !stage->hashing ? first_unhashed(stage) : CWB_NO_CHUNK;
    struct cwb_slot *slot = chunk == CWB_NO_CHUNK ? NULL : cwb_slots_of(&stage->slots, chunk);
    if (!slot || !slot->valid_bytes)
        return;
    stage->hashing = true;
    cwb_slots_hold(&stage->slots, slot);
    begin(stage, hash, on_hashed,
          &(struct task){.slot = slot, .length_bytes = cwb_slots_length(&stage->slots, chunk)});
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
    struct parked *parked, *next;
    DL_FOREACH_SAFE(stage->parked, parked, next) {
        struct parked what = *parked;
        const uint8_t *bytes = cwb_slots_take(&stage->slots, &what.read);
        if (!bytes)
            continue;
        unpark(parked);
        if (what.served) {
            uint64_t id = what.served->id;
            struct cwb_link *link = cwb_served_leave(what.served);
            cwb_wire_send_piece(&link->wire, id, stage->source, &what.read, bytes);
        } else {
            cwb_stream_send_piece(what.stream, what.id, stage->source, &what.read, bytes);
        }
    }
}

static void fill_more(struct cwb_stage *stage) {
    struct parked *parked;
    bool demanded = stage->closing;
    cwb_slots_demand(&stage->slots, stage->closing || stage->parked);
    DL_FOREACH(stage->parked, parked) {
        uint64_t chunk = parked->read.offset_bytes / stage->slots.chunk_bytes;
        const struct cwb_slot *slot = cwb_slots_of(&stage->slots, chunk);
        if (chunk >= stage->filled)
            demanded = true;
        else if (stage->fills < FILLS_MOST && !(slot && slot->filling))
            begin_fill(stage, chunk, true); /* again */
    }
    uint64_t rest = stage->closing ? first_unhashed(stage) : CWB_NO_CHUNK;
    if (rest < stage->filled && stage->fills < FILLS_MOST && !cwb_slots_of(&stage->slots, rest))
        begin_fill(stage, rest, true);
    while (stage->fills < FILLS_MOST && stage->filled < stage->slots.chunks) {
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
    tell_hash(stage); /* last: the source may end with it */
}

struct cwb_stage *cwb_stage_new(struct cwb_bridge *bridge, struct cwb_source *source,
                                cw_array *array, uint64_t size_bytes, uint32_t read_max) {
    struct cwb_stage *stage = calloc(1, sizeof *stage);
    CW_ASSERT(stage && size_bytes && read_max <= CWB_READ_MAX);
    uint64_t share = size_bytes / CHUNK_SHARE;
    share = share < CHUNK_LEAST ? CHUNK_LEAST : share > CHUNK_MOST ? CHUNK_MOST : share;
    stage->bridge = bridge;
    stage->source = source;
    stage->array = array;
    read_max = read_max / CWB_SUM_PIECE * CWB_SUM_PIECE; /* READs keep to chunks' bounds */
    cwb_slots_init(&stage->slots, size_bytes, (uint32_t)share / read_max * read_max);
    stage->sum = cwb_sum_new(NULL, size_bytes, size_bytes);
    stage->nap_ns = NAP_LEAST_NS;
    DL_APPEND(bridge->stages, stage);
    begin_look(stage);
    return stage;
}

void cwb_stages_forget(struct cwb_bridge *bridge, struct cwb_stream *stream) {
    struct cwb_stage *stage;
    struct parked *parked, *next;
    DL_FOREACH(bridge->stages, stage) {
        DL_FOREACH_SAFE(stage->parked, parked, next) {
            if (parked->stream == stream)
                unpark(parked);
        }
    }
}

void cwb_stage_read(struct cwb_stage *stage, struct cwb_served *served, struct cwb_stream *stream,
                    uint64_t id, const struct cwb_read *read) {
    if (stage->status) {
        cw_fail(stage->status, "%s", stage->detail);
        if (served)
            cwb_served_reply(served, stage->status, NULL, 0);
        else
            cwb_stream_refuse(stream, id, stage->status);
        return;
    }
    struct parked *parked = calloc(1, sizeof *parked);
    CW_ASSERT(parked);
    *parked = (struct parked){
        .stage = stage, .served = served, .stream = stream, .id = id, .read = *read};
    if (served) {
        served->owner = parked;
        served->on_cancel = cancel_parked;
    }
    DL_APPEND(stage->parked, parked);
    cwb_source_ref(stage->source);
    if (read->offset_bytes % stage->slots.chunk_bytes + read->length_bytes >
        stage->slots.chunk_bytes)
        stage->tail_bytes = CWB_READ_MAX; /* from now on slots have the begin of the next chunk */
    go(stage);
}

void cwb_stage_close(struct cwb_stage *stage) {
    stage->closing = true;
    cwb_source_ref(stage->source);
    if (stage->status)
        fail(stage, stage->status, stage->detail);
    else
        go(stage);
}

const uint8_t *cwb_stage_take(struct cwb_stage *stage, const struct cwb_read *read) {
    return cwb_slots_take(&stage->slots, read);
}

bool cwb_stage_let_go(struct cwb_stage *stage, uint64_t offset_bytes, uint32_t length_bytes,
                      bool sent) {
    if (sent)
        (void)cwb_sum_add_at(stage->sum, offset_bytes, length_bytes,
                             cwb_slots_held(&stage->slots, offset_bytes));
    return cwb_slots_let_go(&stage->slots, offset_bytes, length_bytes, sent);
}

void cwb_stage_look(struct cwb_stage *stage) {
    if (stage->source)
        go(stage);
}

void cwb_stage_drop(struct cwb_stage *stage) {
    cw_fail(-ESTALE, "the array is not read any more: it was closed");
    refuse(stage, -ESTALE);
    stage->look_ns = 0;
    if (stage->closing)
        tell_closing(stage, -ESTALE, 0);
}

void cwb_stage_end(struct cwb_stage *stage) {
    stage->source = NULL;
    release(stage);
}
