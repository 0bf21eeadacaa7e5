/*
 * Stages: see stage.h.
 */
#include "broker/bridge/stage.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "broker/bridge/stream.h"
#include "broker/bridge/sum.h"
#include "ipc/job.h"
#include "ipc/name_key.h"

#define SLOTS        8u
#define FILLS_MOST   3u         /* at once: one is copied while the others' jobs are on their way */
#define CHUNK_SHARE  8u         /* of an array, within these bounds: */
#define CHUNK_LEAST  (1u << 20) /* the mover registers memory from here on */
#define CHUNK_MOST   (8u << 20) /* long beside the way of a job through the broker */
#define NAP_LEAST_NS 200000
#define NAP_MOST_NS  10000000
#define NOWHERE      UINT64_MAX

struct slot {
    uint64_t chunk;       /* NOWHERE: none */
    uint64_t valid_bytes; /* from its begin on; 0 while it is being filled */
    uint64_t sent_bytes;
    uint32_t holds; /* pieces, and the hash */
    bool filling;
    uint64_t turn; /* when it was filled: the oldest is taken first */
};

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
    uint8_t *bytes;         /* of the ring */
    uint64_t size_bytes, count; /* of the array, in chunks */
    uint32_t chunk_bytes, slot_bytes, tail_bytes, slot_count;
    pthread_mutex_t lock;     /* of what is marked so */
    struct slot slots[SLOTS]; /* the lock's */
    bool demanded;            /* the lock's: a slot is wanted although not all of it was sent */
    uint64_t filled;          /* chunks: so many were begun to be filled, in order */
    uint64_t turns;
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
    struct slot *slot;
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
    pthread_mutex_destroy(&stage->lock);
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
        code = cwb_local_make(stage->bridge, (uint64_t)stage->slot_count * stage->slot_bytes,
                              &task->ring);
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
            stage->bytes = cw_array_lowest(task->ring);
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

/* ---- slots ---- */

static struct slot *slot_of(struct cwb_stage *stage, uint64_t chunk) {
    for (uint32_t i = 0; i < stage->slot_count; i++)
        if (stage->slots[i].chunk == chunk)
            return &stage->slots[i];
    return NULL;
}

static uint8_t *slot_bytes(const struct cwb_stage *stage, const struct slot *slot) {
    return stage->bytes + (size_t)(slot - stage->slots) * stage->slot_bytes;
}

static uint64_t chunk_length(const struct cwb_stage *stage, uint64_t chunk) {
    uint64_t left = stage->size_bytes - chunk * stage->chunk_bytes;
    return left < stage->chunk_bytes ? left : stage->chunk_bytes;
}

/* Has the slot all bytes of a READ that begins in its chunk? */
static bool covers(const struct cwb_stage *stage, const struct slot *slot,
                   const struct cwb_read *read) {
    return slot &&
           read->offset_bytes % stage->chunk_bytes + read->length_bytes <= slot->valid_bytes;
}

static void hold(struct cwb_stage *stage, struct slot *slot, int32_t more) {
    pthread_mutex_lock(&stage->lock);
    slot->holds += (uint32_t)more;
    pthread_mutex_unlock(&stage->lock);
}

/* The first chunk of which not all is in the sum; NOWHERE: there is none. */
static uint64_t first_unhashed(const struct cwb_stage *stage) {
    uint64_t prefix_bytes = cwb_sum_prefix(stage->sum);
    return prefix_bytes < stage->size_bytes ? prefix_bytes / stage->chunk_bytes : NOWHERE;
}

/* A slot for a chunk: the one that was filled first of those that were sent, or, where it is
 * demanded, of others, too; not of those that are still to be hashed for who closes. */
static struct slot *pick(struct cwb_stage *stage, uint64_t chunk, bool demanded) {
    struct slot *best = slot_of(stage, chunk);
    bool best_sent = false;
    uint64_t keep = stage->closing ? first_unhashed(stage) : NOWHERE;
    if (best)
        return best->holds || best->filling ? NULL : best;
    for (uint32_t i = 0; i < stage->slot_count; i++) {
        struct slot *slot = &stage->slots[i];
        if (slot->chunk == NOWHERE)
            return slot;
        bool sent = slot->sent_bytes >= chunk_length(stage, slot->chunk);
        if (slot->holds || slot->filling || (!sent && (!demanded || slot->chunk >= keep)))
            continue;
        if (!best || sent > best_sent || (sent == best_sent && slot->turn < best->turn)) {
            best = slot;
            best_sent = sent;
        }
    }
    return best;
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
        pthread_mutex_lock(&stage->lock);
        task->slot->filling = false; /* failed, it has no bytes, and nothing is filled any more */
        task->slot->valid_bytes = work->code ? 0 : task->length_bytes;
        pthread_mutex_unlock(&stage->lock);
        if (work->code)
            fail(stage, work->code, work->detail);
        else
            go(stage);
    }
    free(task);
}

static bool begin_fill(struct cwb_stage *stage, uint64_t chunk, bool demanded) {
    pthread_mutex_lock(&stage->lock);
    struct slot *slot = pick(stage, chunk, demanded);
    if (slot)
        *slot = (struct slot){.chunk = chunk, .filling = true, .turn = ++stage->turns};
    pthread_mutex_unlock(&stage->lock);
    if (!slot)
        return false;
    uint64_t from = chunk * stage->chunk_bytes, length = chunk_length(stage, chunk);
    uint64_t tail = stage->size_bytes - from - length;
    length += tail < stage->tail_bytes ? tail : stage->tail_bytes;
    stage->fills++;
    begin(stage, fill, on_filled,
          &(struct task){.slot = slot,
                         .ring = stage->ring,
                         .from_bytes = from,
                         .to_bytes = (uint64_t)(slot - stage->slots) * stage->slot_bytes,
                         .length_bytes = length});
    return true;
}

/* ---- the hash ---- */

static void hash(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_stage *stage = task->stage;
    (void)cwb_sum_add_at(stage->sum, task->slot->chunk * stage->chunk_bytes, task->length_bytes,
                         slot_bytes(stage, task->slot));
    work->code = 0;
}

static void on_hashed(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_stage *stage = task->stage;
    stage->hashing = false;
    if (ended(task)) {
        hold(stage, task->slot, -1);
        go(stage);
    }
    free(task);
}

/* Who closes, and has not read all, waits for a helper to hash the rest. */
static void hash_on(struct cwb_stage *stage) {
    uint64_t chunk = stage->closing && !stage->hashing ? first_unhashed(stage) : NOWHERE;
    struct slot *slot = chunk == NOWHERE ? NULL : slot_of(stage, chunk);
    if (!slot || !slot->valid_bytes)
        return;
    stage->hashing = true;
    hold(stage, slot, 1);
    begin(stage, hash, on_hashed,
          &(struct task){.slot = slot, .length_bytes = chunk_length(stage, chunk)});
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
        struct slot *slot = slot_of(stage, parked->read.offset_bytes / stage->chunk_bytes);
        if (!covers(stage, slot, &parked->read))
            continue;
        struct parked what = *parked;
        unpark(parked);
        hold(stage, slot, 1);
        const uint8_t *bytes = cwb_stage_at(stage, what.read.offset_bytes);
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
    pthread_mutex_lock(&stage->lock); /* first: who lets go after we looked tells us */
    stage->demanded = stage->closing || stage->parked;
    pthread_mutex_unlock(&stage->lock);
    DL_FOREACH(stage->parked, parked) {
        uint64_t chunk = parked->read.offset_bytes / stage->chunk_bytes;
        struct slot *slot = slot_of(stage, chunk);
        if (chunk >= stage->filled)
            demanded = true;
        else if (stage->fills < FILLS_MOST && !(slot && slot->filling) &&
                 !covers(stage, slot, &parked->read))
            begin_fill(stage, chunk, true); /* again */
    }
    uint64_t rest = stage->closing ? first_unhashed(stage) : NOWHERE;
    if (rest < stage->filled && stage->fills < FILLS_MOST && !slot_of(stage, rest))
        begin_fill(stage, rest, true);
    while (stage->fills < FILLS_MOST && stage->filled < stage->count) {
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
    stage->size_bytes = size_bytes;
    read_max = read_max / CWB_SUM_PIECE * CWB_SUM_PIECE;
    stage->chunk_bytes = (uint32_t)share / read_max * read_max; /* READs keep to its bounds */
    stage->count = (size_bytes + stage->chunk_bytes - 1) / stage->chunk_bytes;
    stage->slot_count = stage->count < SLOTS ? (uint32_t)stage->count : SLOTS;
    stage->slot_bytes =
        stage->count == 1 ? (uint32_t)size_bytes : stage->chunk_bytes + CWB_READ_MAX;
    for (uint32_t i = 0; i < SLOTS; i++)
        stage->slots[i].chunk = NOWHERE;
    pthread_mutex_init(&stage->lock, NULL);
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
    if (read->offset_bytes % stage->chunk_bytes + read->length_bytes > stage->chunk_bytes)
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

const uint8_t *cwb_stage_at(const struct cwb_stage *stage, uint64_t offset_bytes) {
    struct slot *slot =
        slot_of((struct cwb_stage *)(uintptr_t)stage, offset_bytes / stage->chunk_bytes);
    CW_ASSERT(slot);
    return slot_bytes(stage, slot) + offset_bytes % stage->chunk_bytes;
}

const uint8_t *cwb_stage_take(struct cwb_stage *stage, const struct cwb_read *read) {
    const uint8_t *bytes = NULL;
    pthread_mutex_lock(&stage->lock);
    struct slot *slot = slot_of(stage, read->offset_bytes / stage->chunk_bytes);
    if (covers(stage, slot, read)) {
        slot->holds++;
        bytes = slot_bytes(stage, slot) + read->offset_bytes % stage->chunk_bytes;
    }
    pthread_mutex_unlock(&stage->lock);
    return bytes;
}

bool cwb_stage_let_go(struct cwb_stage *stage, uint64_t offset_bytes, uint32_t length_bytes,
                      bool sent) {
    pthread_mutex_lock(&stage->lock);
    struct slot *slot = slot_of(stage, offset_bytes / stage->chunk_bytes);
    CW_ASSERT(slot && slot->holds);
    pthread_mutex_unlock(&stage->lock);
    if (sent)
        (void)cwb_sum_add_at(stage->sum, offset_bytes, length_bytes,
                             slot_bytes(stage, slot) + offset_bytes % stage->chunk_bytes);
    pthread_mutex_lock(&stage->lock);
    slot->holds--;
    slot->sent_bytes += sent ? length_bytes : 0;
    bool look =
        !slot->holds && (stage->demanded || slot->sent_bytes >= chunk_length(stage, slot->chunk));
    pthread_mutex_unlock(&stage->lock);
    return look;
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
