/*
 * Landings: see gpu_receive.h. All of it is the loop's; helpers touch their own piece of work.
 */
#include "broker/bridge/fetch/gpu_receive.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/memory.h"
#include "ipc/array/mover_copy.h"

#define RING_BYTES  (64u << 20)
#define PIECE_SHARE 8u         /* of an array, within these bounds: */
#define PIECE_LEAST (1u << 20) /* the mover registers memory from here on */
#define PIECE_MOST  (4u << 20)
#define AHEAD_MOST                                                                                 \
    (16ull << 30)           /* nothing of larger ones is fetched before their memory is there: a   \
                              take's books grow with what a peer says that it has */
#define ROOM_TRIES 6u       /* memory is free some time after it was given up */
#define ROOM_NS    10000000 /* and this long is waited for it, at first; doubled each time */
#define MOVES_MOST 4u       /* at once: one is copied while the others' jobs are on their way */

struct task { /* of a helper */
    struct cwb_work work;
    struct cwb_gpu_receive *gpu_receive;
    cw_array *target, *ring;
    unsigned place; /* in moving */
    uint64_t from_bytes, to_bytes, length_bytes;
};

struct cwb_gpu_receive {
    struct cwb_download download;
    struct cwb_bridge *bridge;
    cwb_on_array *on_done; /* NULL: nobody is told any more */
    void *owner;
    struct cwb_gpu_receive_wish wish;
    uint8_t *inside;
    cw_array *target, *ring;
    uint64_t ring_bytes; /* of which the download uses so many; 0: it has not begun */
    uint64_t piece_bytes;
    uint64_t come, begun;        /* bytes from the begin on: hashed; given to the mover */
    uint64_t moving[MOVES_MOST]; /* where those begin that the mover has; come: none */
    uint32_t works;              /* helpers at it */
    uint32_t room_tries;
    int64_t retry_ns;                    /* there was no room: when to try again; 0: not */
    struct cwb_gpu_receive *prev, *next; /* of the bridge */
    bool taken;                          /* all is here, and its hash is right */
    struct task making, ringing, moves[MOVES_MOST]; /* one of each at a time */
};

#define NOWHERE UINT64_MAX

/* task: what is said of it is set. */
static void begin(struct cwb_gpu_receive *gpu_receive, struct task *task,
                  void (*run)(struct cwb_work *), void (*done)(struct cwb_work *)) {
    task->work.run = run;
    task->work.done = done;
    task->gpu_receive = gpu_receive;
    gpu_receive->works++;
    cwb_work_begin(gpu_receive->bridge->movings, &task->work);
}

static void begin_ring(struct cwb_gpu_receive *gpu_receive);

/* Frees it, unless a helper is at it. */
static void release(struct cwb_gpu_receive *gpu_receive) {
    if (gpu_receive->on_done || gpu_receive->works)
        return;
    DL_DELETE(gpu_receive->bridge->gpu_receives, gpu_receive);
    cw_array_close(gpu_receive->target);
    cw_array_close(gpu_receive->ring);
    cw_array_close(gpu_receive->wish.local);
    free(gpu_receive->inside);
    free(gpu_receive);
}

/* What the peer opened for it, and was not read. */
static void refuse(const struct cwb_gpu_receive *gpu_receive) {
    if (gpu_receive->wish.peer && !gpu_receive->download.bridge)
        cwb_download_refuse(gpu_receive->wish.peer, gpu_receive->wish.run,
                            gpu_receive->wish.source);
}

static void finish(struct cwb_gpu_receive *gpu_receive, int code) {
    cwb_on_array *on_done = gpu_receive->on_done;
    void *owner = gpu_receive->owner;
    cw_array *target = code ? NULL : gpu_receive->target;
    char sentence[CW_DETAIL_MAX];
    strcpy(sentence, cw_detail());
    if (target)
        gpu_receive->target = NULL;
    if (code)
        refuse(gpu_receive);
    cwb_download_cancel(&gpu_receive->download);
    gpu_receive->on_done = NULL;
    release(gpu_receive);
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

static int make_on_gpu(cw_client *client, const struct cwb_gpu_receive_wish *wish, cw_array **out) {
    struct cw_make make = wish->gpu;
    struct cw_made made;
    struct iovec part = {&make, sizeof make};
    uint32_t bytes;
    int64_t length = (int64_t)wish->size_bytes;
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &length, .dtype = "|u1"};
    struct cw_shape shape;
    make.size_bytes = wish->size_bytes ? wish->size_bytes : 1;
    int code = cw_layout_resolve(&layout, &shape);
    if (code)
        return code;
    do {
        bytes = sizeof made;
        code = cw_lane_call(client, CW_OP_MAKE, &part, 1, &made, &bytes, CW_CALL_HELD, -1);
    } while (code == -EINTR);
    if (code == 0 && bytes != sizeof made)
        code = cw_fail(-EPROTO, "the broker answered MAKE with %u bytes", bytes);
    if (code)
        return code;
    pthread_mutex_lock(&client->lock);
    code = cw_array_attach(client, made.slab, made.block, made.gen, made.offset_bytes,
                           wish->size_bytes, &shape, CW_DISTANT, out);
    pthread_mutex_unlock(&client->lock);
    struct cw_block_ref ref = {
        .token = made.token, .slab = made.slab, .block = made.block, .gen = made.gen};
    (void)cw_lane_post(client, CW_OP_TRANSIT_END, &ref, sizeof ref);
    return code;
}

static void make(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_gpu_receive *gpu_receive = task->gpu_receive;
    const struct cwb_gpu_receive_wish *wish = &gpu_receive->wish;
    const uint64_t size = wish->size_bytes;
    int code = wish->to_host ? cwb_local_make(gpu_receive->bridge, size, &task->target)
                             : make_on_gpu(gpu_receive->bridge->client, wish, &task->target);
    if (code == 0 && wish->local)
        code = copy(task->target, 0, wish->local, 0, size);
    if (code == 0 && wish->inside && size) {
        code = cwb_local_make(gpu_receive->bridge, size, &task->ring);
        if (code == 0)
            code = cw_array_write(task->ring, 0, gpu_receive->inside, size);
        if (code == 0)
            code = copy(task->target, 0, task->ring, 0, size);
    }
    cwb_work_set(work, code);
}

static uint64_t ring_size(const struct cwb_gpu_receive *gpu_receive) {
    return gpu_receive->wish.size_bytes < RING_BYTES ? gpu_receive->wish.size_bytes : RING_BYTES;
}

static void make_ring(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_gpu_receive *gpu_receive = task->gpu_receive;
    cwb_work_set(work, cwb_local_make(gpu_receive->bridge, ring_size(gpu_receive), &task->ring));
}

/* ---- from the ring to the GPU ---- */

static void move(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    cwb_work_set(
        work, copy(task->target, task->to_bytes, task->ring, task->from_bytes, task->length_bytes));
}

static void pump(struct cwb_gpu_receive *gpu_receive);

static void moved(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_gpu_receive *gpu_receive = task->gpu_receive;
    gpu_receive->works--;
    gpu_receive->moving[task->place] = NOWHERE;
    if (!gpu_receive->on_done) {
        release(gpu_receive);
    } else if (work->code) {
        cw_fail(work->code, "%s", work->detail);
        finish(gpu_receive, work->code);
    } else {
        pump(gpu_receive);
    }
}

/* Is there a piece, whole or the last one, that a helper can be given? */
static bool begin_move(struct cwb_gpu_receive *gpu_receive) {
    uint64_t at = gpu_receive->begun, length = gpu_receive->wish.size_bytes - at;
    unsigned place = 0;
    while (place < MOVES_MOST && gpu_receive->moving[place] != NOWHERE)
        place++;
    if (length == 0 || place == MOVES_MOST || !gpu_receive->target || !gpu_receive->ring_bytes)
        return false;
    uint64_t from = at % gpu_receive->ring_bytes, run = gpu_receive->ring_bytes - from;
    length = length < run ? length : run;
    length = length < gpu_receive->piece_bytes ? length : gpu_receive->piece_bytes;
    if (gpu_receive->come - at < length)
        return false;
    gpu_receive->moving[place] = at;
    gpu_receive->begun += length;
    gpu_receive->moves[place] = (struct task){.target = gpu_receive->target,
                                              .ring = gpu_receive->ring,
                                              .place = place,
                                              .from_bytes = from,
                                              .to_bytes = at,
                                              .length_bytes = length};
    begin(gpu_receive, &gpu_receive->moves[place], move, moved);
    return true;
}

/* Gives the mover what came, the download what has landed, and tells the end. */
static void pump(struct cwb_gpu_receive *gpu_receive) {
    while (begin_move(gpu_receive))
        continue;
    uint64_t landed = gpu_receive->begun;
    for (unsigned i = 0; i < MOVES_MOST; i++)
        landed = gpu_receive->moving[i] < landed ? gpu_receive->moving[i] : landed;
    if (landed == gpu_receive->wish.size_bytes && gpu_receive->taken)
        finish(gpu_receive, 0);
    else if (gpu_receive->download.bridge)
        cwb_download_landed(&gpu_receive->download,
                            landed); /* last: the download may end with it */
}

static struct cwb_gpu_receive *gpu_receive_of(struct cwb_download *download) {
    return (struct cwb_gpu_receive *)((char *)download -
                                      offsetof(struct cwb_gpu_receive, download));
}

static void on_progress(struct cwb_download *download, uint64_t bytes) {
    struct cwb_gpu_receive *gpu_receive = gpu_receive_of(download);
    gpu_receive->ring_bytes = cwb_download_ring_bytes(download);
    gpu_receive->come = bytes;
    while (begin_move(gpu_receive))
        continue;
}

static void on_taken(struct cwb_download *download, int status) {
    struct cwb_gpu_receive *gpu_receive = gpu_receive_of(download);
    if (status) {
        finish(gpu_receive, status);
        return;
    }
    gpu_receive->taken = true;
    pump(gpu_receive);
}

/* ---- the peer's bytes ---- */

static void ring_made(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_gpu_receive *gpu_receive = task->gpu_receive;
    const struct cwb_gpu_receive_wish *wish = &gpu_receive->wish;
    gpu_receive->works--;
    gpu_receive->ring = task->ring;
    if (!gpu_receive->on_done) {
        release(gpu_receive);
    } else if (work->code) {
        cw_fail(work->code, "%s", work->detail);
        finish(gpu_receive, work->code);
    } else {
        gpu_receive->download =
            (struct cwb_download){.on_done = on_taken,
                                  .on_progress = on_progress,
                                  .bridge = gpu_receive->bridge,
                                  .peer = wish->peer,
                                  .source = wish->source,
                                  .size_bytes = wish->size_bytes,
                                  .patience_ns = wish->patience_ns,
                                  .progress_bytes = gpu_receive->piece_bytes,
                                  .array = gpu_receive->ring,
                                  .ring_bytes = wish->size_bytes <= RING_BYTES ? 0 : RING_BYTES};
        cwb_download_begin(&gpu_receive->download, wish->run);
    }
}

/* ---- all of it ---- */

/* Is another try worth it? Once its owner has made room, it is until the last. */
static bool has_room(struct cwb_gpu_receive *gpu_receive) {
    bool made = gpu_receive->wish.make_room && gpu_receive->wish.make_room(gpu_receive->owner);
    return (made || gpu_receive->room_tries) && gpu_receive->room_tries < ROOM_TRIES;
}

static void made(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_gpu_receive *gpu_receive = task->gpu_receive;
    const struct cwb_gpu_receive_wish *wish = &gpu_receive->wish;
    gpu_receive->works--;
    gpu_receive->target = task->target;
    if (task->ring)
        gpu_receive->ring = task->ring;
    if (!gpu_receive->on_done) {
        release(gpu_receive);
    } else if (work->code == -EDQUOT && !gpu_receive->target && has_room(gpu_receive)) {
        gpu_receive->retry_ns =
            gpu_receive->bridge->loop.now_ns + (ROOM_NS << gpu_receive->room_tries++);
        gpu_receive->bridge->hurry = true;
    } else if (work->code) {
        cw_fail(work->code, "%s", work->detail);
        finish(gpu_receive, work->code);
    } else if (!wish->peer || wish->size_bytes == 0) {
        finish(gpu_receive, 0);
    } else if (wish->size_bytes > AHEAD_MOST) {
        begin_ring(gpu_receive);
    } else {
        pump(gpu_receive);
    }
}

static void begin_making(struct cwb_gpu_receive *gpu_receive) {
    gpu_receive->making = (struct task){.place = 0};
    begin(gpu_receive, &gpu_receive->making, make, made);
}

static void begin_ring(struct cwb_gpu_receive *gpu_receive) {
    gpu_receive->ringing = (struct task){.place = 0};
    begin(gpu_receive, &gpu_receive->ringing, make_ring, ring_made);
}

struct cwb_gpu_receive *cwb_gpu_receive_begin(struct cwb_bridge *bridge,
                                              const struct cwb_gpu_receive_wish *wish,
                                              cwb_on_array *on_done, void *owner) {
    struct cwb_gpu_receive *gpu_receive = calloc(1, sizeof *gpu_receive);
    bool inside = wish->inside && wish->size_bytes;
    if (gpu_receive && inside)
        gpu_receive->inside = malloc(wish->size_bytes);
    if (!gpu_receive || (inside && !gpu_receive->inside)) {
        free(gpu_receive);
        cw_array_close(wish->local);
        if (wish->peer)
            cwb_download_refuse(wish->peer, wish->run, wish->source);
        cwb_no_memory("an array on its way to a GPU");
        return NULL;
    }
    uint64_t share = wish->size_bytes / PIECE_SHARE;
    gpu_receive->bridge = bridge;
    gpu_receive->on_done = on_done;
    gpu_receive->owner = owner;
    gpu_receive->wish = *wish;
    gpu_receive->piece_bytes = share < PIECE_LEAST  ? PIECE_LEAST
                               : share > PIECE_MOST ? PIECE_MOST
                                                    : share;
    for (unsigned i = 0; i < MOVES_MOST; i++)
        gpu_receive->moving[i] = NOWHERE;
    if (inside)
        memcpy(gpu_receive->inside, wish->inside, wish->size_bytes);
    DL_APPEND(bridge->gpu_receives, gpu_receive);
    begin_making(gpu_receive);
    if (wish->peer && wish->size_bytes && wish->size_bytes <= AHEAD_MOST)
        begin_ring(gpu_receive);
    return gpu_receive;
}

int64_t cwb_gpu_receives_tick(struct cwb_bridge *bridge) {
    struct cwb_gpu_receive *gpu_receive;
    int64_t due_ns = INT64_MAX;
    DL_FOREACH(bridge->gpu_receives, gpu_receive) {
        if (!gpu_receive->retry_ns || !gpu_receive->on_done)
            continue;
        if (gpu_receive->retry_ns > bridge->loop.now_ns) {
            due_ns = gpu_receive->retry_ns < due_ns ? gpu_receive->retry_ns : due_ns;
            continue;
        }
        gpu_receive->retry_ns = 0;
        begin_making(gpu_receive);
    }
    return due_ns;
}

void cwb_gpu_receive_cancel(struct cwb_gpu_receive *gpu_receive) {
    if (!gpu_receive)
        return;
    refuse(gpu_receive);
    cwb_download_cancel(&gpu_receive->download);
    gpu_receive->on_done = NULL;
    release(gpu_receive);
}
