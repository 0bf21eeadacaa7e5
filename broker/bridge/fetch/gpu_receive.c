/*
 * GPU receives: see gpu_receive.h. All of it is the loop's; helpers touch their own piece of work.
 */
#include "ipc/array/array.h"
#include "ipc/client.h"
#include "broker/bridge/fetch/gpu_receive.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/download.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/memory.h"
#include "ipc/array/mover_copy.h"

#define RING_BYTES  (64u << 20)
#define PIECE_SHARE 8u         /* of an array, within these bounds: */
#define PIECE_LEAST (1u << 20) /* the mover registers memory from here on */
#define PIECE_MOST  (4u << 20)
#define PREFETCH_MOST                                                                              \
    (16ull << 30)           /* nothing of larger ones is fetched before their memory is there: a   \
                              download's books grow with what a peer says that it has */
#define ROOM_TRIES 6u       /* memory is free some time after it was given up */
#define ROOM_NS    10000000 /* and this long is waited for it, at first; doubled each time */
#define MOVES_MOST 4u /* at once: one is copied while the others' copy jobs are on their way */

struct task { /* of a helper */
    struct cwb_work work;
    struct cwb_gpu_receive *receive;
    cw_array *target, *ring;
    unsigned index; /* in moving */
    uint64_t from_bytes, to_bytes, length_bytes;
};

struct cwb_gpu_receive {
    struct cwb_download download;
    struct cwb_bridge *bridge;
    cwb_on_array *on_done; /* NULL: nobody is told any more */
    void *owner;
    struct cwb_gpu_receive_spec spec;
    uint8_t *inside;
    cw_array *target, *ring;
    uint64_t ring_bytes; /* of which the download uses so many; 0: it has not begun */
    uint64_t piece_bytes;
    uint64_t come, begun;        /* bytes from the begin on: hashed; given to the mover */
    uint64_t moving[MOVES_MOST]; /* where those begin that the mover has; come: none */
    uint32_t tasks;              /* helpers at it */
    uint32_t room_tries;
    int64_t retry_ns;                    /* there was no room: when to try again; 0: not */
    struct cwb_gpu_receive *prev, *next; /* of the bridge */
    bool complete;                       /* all is here, and its hash is right */
    struct task making, ringing, moves[MOVES_MOST]; /* one of each at a time */
};

#define NOWHERE UINT64_MAX

/* task: what is said of it is set. */
static void begin(struct cwb_gpu_receive *receive, struct task *task,
                  void (*run)(struct cwb_work *), void (*done)(struct cwb_work *)) {
    task->work.run = run;
    task->work.done = done;
    task->receive = receive;
    receive->tasks++;
    cwb_work_begin(receive->bridge->mover_helpers, &task->work);
}

static void begin_ring(struct cwb_gpu_receive *receive);

/* Frees it, unless a helper is at it. */
static void release(struct cwb_gpu_receive *receive) {
    if (receive->on_done || receive->tasks)
        return;
    DL_DELETE(receive->bridge->gpu_receives, receive);
    cw_array_close(receive->target);
    cw_array_close(receive->ring);
    cw_array_close(receive->spec.local);
    free(receive->inside);
    free(receive);
}

/* What the peer opened for it, and was not read. */
static void refuse(const struct cwb_gpu_receive *receive) {
    if (receive->spec.peer && !receive->download.bridge)
        cwb_download_refuse(receive->spec.peer, receive->spec.run, receive->spec.source);
}

static void finish(struct cwb_gpu_receive *receive, int code) {
    cwb_on_array *on_done = receive->on_done;
    void *owner = receive->owner;
    cw_array *target = code ? NULL : receive->target;
    char sentence[CW_DETAIL_MAX];
    strcpy(sentence, cw_detail());
    if (target)
        receive->target = NULL;
    if (code)
        refuse(receive);
    cwb_download_cancel(&receive->download);
    receive->on_done = NULL;
    release(receive);
    if (code)
        cw_fail(code, "%s", sentence);
    on_done(owner, code, target);
}

/* ---- the memory: a helper's ---- */

static int copy(cw_array *target, uint64_t to_bytes, cw_array *source, uint64_t from_bytes,
                uint64_t length_bytes) {
    int code;
    do
        code = cw_job_copy(target, to_bytes, source, from_bytes, length_bytes);
    while (code == -EINTR);
    return code;
}

static int make_on_gpu(cw_client *client, const struct cwb_gpu_receive_spec *spec, cw_array **out) {
    struct cw_make make = spec->gpu;
    struct cw_made made;
    struct iovec part = {&make, sizeof make};
    uint32_t bytes;
    int64_t length = (int64_t)spec->size_bytes;
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &length, .dtype = "|u1"};
    struct cw_shape shape;
    make.size_bytes = spec->size_bytes ? spec->size_bytes : 1;
    int code = cw_layout_resolve(&layout, &shape);
    if (code)
        return code;
    do {
        bytes = sizeof made;
        code = cw_channel_call(client, CW_OP_MAKE, &part, 1, &made, &bytes, CW_CALL_HELD, -1);
    } while (code == -EINTR);
    if (code == 0 && bytes != sizeof made)
        code = cw_fail(-EPROTO, "the broker answered MAKE with %u bytes", bytes);
    if (code)
        return code;
    pthread_mutex_lock(&client->lock);
    code = cw_array_attach(client, made.slab, made.block, made.gen, made.offset_bytes,
                           spec->size_bytes, &shape, CW_UNMAPPED, out);
    pthread_mutex_unlock(&client->lock);
    struct cw_block_ref ref = {
        .token = made.token, .slab = made.slab, .block = made.block, .gen = made.gen};
    (void)cw_channel_post(client, CW_OP_TRANSIT_END, &ref, sizeof ref);
    return code;
}

static void make(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_gpu_receive *receive = task->receive;
    const struct cwb_gpu_receive_spec *spec = &receive->spec;
    const uint64_t size = spec->size_bytes;
    int code = spec->to_host ? cwb_local_make(receive->bridge, size, &task->target)
                             : make_on_gpu(receive->bridge->client, spec, &task->target);
    if (code == 0 && spec->local)
        code = copy(task->target, 0, spec->local, 0, size);
    if (code == 0 && spec->inside && size) {
        code = cwb_local_make(receive->bridge, size, &task->ring);
        if (code == 0)
            code = cw_array_write(task->ring, 0, receive->inside, size);
        if (code == 0)
            code = copy(task->target, 0, task->ring, 0, size);
    }
    cwb_work_set(work, code);
}

static uint64_t ring_size(const struct cwb_gpu_receive *receive) {
    return receive->spec.size_bytes < RING_BYTES ? receive->spec.size_bytes : RING_BYTES;
}

static void make_ring(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_gpu_receive *receive = task->receive;
    cwb_work_set(work, cwb_local_make(receive->bridge, ring_size(receive), &task->ring));
}

/* ---- from the ring to the GPU ---- */

static void move(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    cwb_work_set(
        work, copy(task->target, task->to_bytes, task->ring, task->from_bytes, task->length_bytes));
}

static void pump(struct cwb_gpu_receive *receive);

static void moved(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_gpu_receive *receive = task->receive;
    receive->tasks--;
    receive->moving[task->index] = NOWHERE;
    if (!receive->on_done) {
        release(receive);
    } else if (work->code) {
        cw_fail(work->code, "%s", work->detail);
        finish(receive, work->code);
    } else {
        pump(receive);
    }
}

/* Is there a piece, whole or the last one, that a helper can be given? */
static bool begin_move(struct cwb_gpu_receive *receive) {
    uint64_t at = receive->begun, length = receive->spec.size_bytes - at;
    unsigned index = 0;
    while (index < MOVES_MOST && receive->moving[index] != NOWHERE)
        index++;
    if (length == 0 || index == MOVES_MOST || !receive->target || !receive->ring_bytes)
        return false;
    uint64_t from = at % receive->ring_bytes, run = receive->ring_bytes - from;
    length = length < run ? length : run;
    length = length < receive->piece_bytes ? length : receive->piece_bytes;
    if (receive->come - at < length)
        return false;
    receive->moving[index] = at;
    receive->begun += length;
    receive->moves[index] = (struct task){.target = receive->target,
                                          .ring = receive->ring,
                                          .index = index,
                                          .from_bytes = from,
                                          .to_bytes = at,
                                          .length_bytes = length};
    begin(receive, &receive->moves[index], move, moved);
    return true;
}

/* Gives the mover what came, the download back what was copied, and tells the end. */
static void pump(struct cwb_gpu_receive *receive) {
    while (begin_move(receive))
        continue;
    uint64_t copied = receive->begun;
    for (unsigned i = 0; i < MOVES_MOST; i++)
        copied = receive->moving[i] < copied ? receive->moving[i] : copied;
    if (copied == receive->spec.size_bytes && receive->complete)
        finish(receive, 0);
    else if (receive->download.bridge)
        cwb_download_consumed(&receive->download, copied); /* last: the download may end with it */
}

static struct cwb_gpu_receive *receive_of(struct cwb_download *download) {
    return (struct cwb_gpu_receive *)((char *)download -
                                      offsetof(struct cwb_gpu_receive, download));
}

static void on_progress(struct cwb_download *download, uint64_t bytes) {
    struct cwb_gpu_receive *receive = receive_of(download);
    receive->ring_bytes = cwb_download_ring_bytes(download);
    receive->come = bytes;
    while (begin_move(receive))
        continue;
}

static void on_downloaded(struct cwb_download *download, int status) {
    struct cwb_gpu_receive *receive = receive_of(download);
    if (status) {
        finish(receive, status);
        return;
    }
    receive->complete = true;
    pump(receive);
}

/* ---- the peer's bytes ---- */

static void ring_made(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_gpu_receive *receive = task->receive;
    const struct cwb_gpu_receive_spec *spec = &receive->spec;
    receive->tasks--;
    receive->ring = task->ring;
    if (!receive->on_done) {
        release(receive);
    } else if (work->code) {
        cw_fail(work->code, "%s", work->detail);
        finish(receive, work->code);
    } else {
        receive->download =
            (struct cwb_download){.on_done = on_downloaded,
                                  .on_progress = on_progress,
                                  .bridge = receive->bridge,
                                  .peer = spec->peer,
                                  .source = spec->source,
                                  .size_bytes = spec->size_bytes,
                                  .wait_ns = spec->wait_ns,
                                  .progress_bytes = receive->piece_bytes,
                                  .array = receive->ring,
                                  .ring_bytes = spec->size_bytes <= RING_BYTES ? 0 : RING_BYTES};
        cwb_download_begin(&receive->download, spec->run);
    }
}

/* ---- all of it ---- */

/* Is another try worth it? Once its owner has made room, it is until the last. */
static bool has_room(struct cwb_gpu_receive *receive) {
    bool made = receive->spec.make_room && receive->spec.make_room(receive->owner);
    return (made || receive->room_tries) && receive->room_tries < ROOM_TRIES;
}

static void made(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_gpu_receive *receive = task->receive;
    const struct cwb_gpu_receive_spec *spec = &receive->spec;
    receive->tasks--;
    receive->target = task->target;
    if (task->ring)
        receive->ring = task->ring;
    if (!receive->on_done) {
        release(receive);
    } else if (work->code == -EDQUOT && !receive->target && has_room(receive)) {
        receive->retry_ns = receive->bridge->loop.now_ns + (ROOM_NS << receive->room_tries++);
        receive->bridge->tick_now = true;
    } else if (work->code) {
        cw_fail(work->code, "%s", work->detail);
        finish(receive, work->code);
    } else if (!spec->peer || spec->size_bytes == 0) {
        finish(receive, 0);
    } else if (spec->size_bytes > PREFETCH_MOST) {
        begin_ring(receive);
    } else {
        pump(receive);
    }
}

static void begin_making(struct cwb_gpu_receive *receive) {
    receive->making = (struct task){.index = 0};
    begin(receive, &receive->making, make, made);
}

static void begin_ring(struct cwb_gpu_receive *receive) {
    receive->ringing = (struct task){.index = 0};
    begin(receive, &receive->ringing, make_ring, ring_made);
}

struct cwb_gpu_receive *cwb_gpu_receive_begin(struct cwb_bridge *bridge,
                                              const struct cwb_gpu_receive_spec *spec,
                                              cwb_on_array *on_done, void *owner) {
    struct cwb_gpu_receive *receive = calloc(1, sizeof *receive);
    bool inside = spec->inside && spec->size_bytes;
    if (receive && inside)
        receive->inside = malloc(spec->size_bytes);
    if (!receive || (inside && !receive->inside)) {
        free(receive);
        cw_array_close(spec->local);
        if (spec->peer)
            cwb_download_refuse(spec->peer, spec->run, spec->source);
        cwb_no_memory("an array on its way to a GPU");
        return NULL;
    }
    uint64_t share = spec->size_bytes / PIECE_SHARE;
    receive->bridge = bridge;
    receive->on_done = on_done;
    receive->owner = owner;
    receive->spec = *spec;
    receive->piece_bytes = share < PIECE_LEAST  ? PIECE_LEAST
                           : share > PIECE_MOST ? PIECE_MOST
                                                : share;
    for (unsigned i = 0; i < MOVES_MOST; i++)
        receive->moving[i] = NOWHERE;
    if (inside)
        memcpy(receive->inside, spec->inside, spec->size_bytes);
    DL_APPEND(bridge->gpu_receives, receive);
    begin_making(receive);
    if (spec->peer && spec->size_bytes && spec->size_bytes <= PREFETCH_MOST)
        begin_ring(receive);
    return receive;
}

int64_t cwb_gpu_receives_tick(struct cwb_bridge *bridge) {
    struct cwb_gpu_receive *receive;
    int64_t due_ns = INT64_MAX;
    DL_FOREACH(bridge->gpu_receives, receive) {
        if (!receive->retry_ns || !receive->on_done)
            continue;
        if (receive->retry_ns > bridge->loop.now_ns) {
            due_ns = receive->retry_ns < due_ns ? receive->retry_ns : due_ns;
            continue;
        }
        receive->retry_ns = 0;
        begin_making(receive);
    }
    return due_ns;
}

void cwb_gpu_receive_cancel(struct cwb_gpu_receive *receive) {
    if (!receive)
        return;
    refuse(receive);
    cwb_download_cancel(&receive->download);
    receive->on_done = NULL;
    release(receive);
}
