/*
 * Landings: see gpu_receive.h. All of it is the loop's; helpers touch their own piece of work.
 */
#include "ipc/array/array.h"
#include "ipc/client.h"
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
    struct cwb_landing *landing;
    cw_array *target, *ring;
    unsigned place; /* in moving */
    uint64_t from_bytes, to_bytes, length_bytes;
};

struct cwb_landing {
    struct cwb_take take;
    struct cwb_bridge *bridge;
    cwb_on_array *on_done; /* NULL: nobody is told any more */
    void *owner;
    struct cwb_landing_wish wish;
    uint8_t *inside;
    cw_array *target, *ring;
    uint64_t ring_bytes; /* of which the take uses so many; 0: it has not begun */
    uint64_t piece_bytes;
    uint64_t come, begun;        /* bytes from the begin on: hashed; given to the mover */
    uint64_t moving[MOVES_MOST]; /* where those begin that the mover has; come: none */
    uint32_t works;              /* helpers at it */
    uint32_t room_tries;
    int64_t retry_ns;                /* there was no room: when to try again; 0: not */
    struct cwb_landing *prev, *next; /* of the bridge */
    bool taken;                      /* all is here, and its hash is right */
    struct task making, ringing, moves[MOVES_MOST]; /* one of each at a time */
};

#define NOWHERE UINT64_MAX

/* task: what is said of it is set. */
static void begin(struct cwb_landing *landing, struct task *task, void (*run)(struct cwb_work *),
                  void (*done)(struct cwb_work *)) {
    task->work.run = run;
    task->work.done = done;
    task->landing = landing;
    landing->works++;
    cwb_work_begin(landing->bridge->movings, &task->work);
}

static void begin_ring(struct cwb_landing *landing);

/* Frees it, unless a helper is at it. */
static void release(struct cwb_landing *landing) {
    if (landing->on_done || landing->works)
        return;
    DL_DELETE(landing->bridge->landings, landing);
    cw_array_close(landing->target);
    cw_array_close(landing->ring);
    cw_array_close(landing->wish.local);
    free(landing->inside);
    free(landing);
}

/* What the peer opened for it, and was not read. */
static void refuse(const struct cwb_landing *landing) {
    if (landing->wish.peer && !landing->take.bridge)
        cwb_take_refuse(landing->wish.peer, landing->wish.run, landing->wish.source);
}

static void finish(struct cwb_landing *landing, int code) {
    cwb_on_array *on_done = landing->on_done;
    void *owner = landing->owner;
    cw_array *target = code ? NULL : landing->target;
    char sentence[CW_DETAIL_MAX];
    strcpy(sentence, cw_detail());
    if (target)
        landing->target = NULL;
    if (code)
        refuse(landing);
    cwb_take_cancel(&landing->take);
    landing->on_done = NULL;
    release(landing);
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

static int make_on_gpu(cw_client *client, const struct cwb_landing_wish *wish, cw_array **out) {
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
    struct cwb_landing *landing = task->landing;
    const struct cwb_landing_wish *wish = &landing->wish;
    const uint64_t size = wish->size_bytes;
    int code = wish->to_host ? cwb_local_make(landing->bridge, size, &task->target)
                             : make_on_gpu(landing->bridge->client, wish, &task->target);
    if (code == 0 && wish->local)
        code = copy(task->target, 0, wish->local, 0, size);
    if (code == 0 && wish->inside && size) {
        code = cwb_local_make(landing->bridge, size, &task->ring);
        if (code == 0)
            code = cw_array_write(task->ring, 0, landing->inside, size);
        if (code == 0)
            code = copy(task->target, 0, task->ring, 0, size);
    }
    cwb_work_set(work, code);
}

static uint64_t ring_size(const struct cwb_landing *landing) {
    return landing->wish.size_bytes < RING_BYTES ? landing->wish.size_bytes : RING_BYTES;
}

static void make_ring(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_landing *landing = task->landing;
    cwb_work_set(work, cwb_local_make(landing->bridge, ring_size(landing), &task->ring));
}

/* ---- from the ring to the GPU ---- */

static void move(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    cwb_work_set(
        work, copy(task->target, task->to_bytes, task->ring, task->from_bytes, task->length_bytes));
}

static void pump(struct cwb_landing *landing);

static void moved(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_landing *landing = task->landing;
    landing->works--;
    landing->moving[task->place] = NOWHERE;
    if (!landing->on_done) {
        release(landing);
    } else if (work->code) {
        cw_fail(work->code, "%s", work->detail);
        finish(landing, work->code);
    } else {
        pump(landing);
    }
}

/* Is there a piece, whole or the last one, that a helper can be given? */
static bool begin_move(struct cwb_landing *landing) {
    uint64_t at = landing->begun, length = landing->wish.size_bytes - at;
    unsigned place = 0;
    while (place < MOVES_MOST && landing->moving[place] != NOWHERE)
        place++;
    if (length == 0 || place == MOVES_MOST || !landing->target || !landing->ring_bytes)
        return false;
    uint64_t from = at % landing->ring_bytes, run = landing->ring_bytes - from;
    length = length < run ? length : run;
    length = length < landing->piece_bytes ? length : landing->piece_bytes;
    if (landing->come - at < length)
        return false;
    landing->moving[place] = at;
    landing->begun += length;
    landing->moves[place] = (struct task){.target = landing->target,
                                          .ring = landing->ring,
                                          .place = place,
                                          .from_bytes = from,
                                          .to_bytes = at,
                                          .length_bytes = length};
    begin(landing, &landing->moves[place], move, moved);
    return true;
}

/* Gives the mover what came, the take what has landed, and tells the end. */
static void pump(struct cwb_landing *landing) {
    while (begin_move(landing))
        continue;
    uint64_t landed = landing->begun;
    for (unsigned i = 0; i < MOVES_MOST; i++)
        landed = landing->moving[i] < landed ? landing->moving[i] : landed;
    if (landed == landing->wish.size_bytes && landing->taken)
        finish(landing, 0);
    else if (landing->take.bridge)
        cwb_take_landed(&landing->take, landed); /* last: the take may end with it */
}

static struct cwb_landing *landing_of(struct cwb_take *take) {
    return (struct cwb_landing *)((char *)take - offsetof(struct cwb_landing, take));
}

static void on_progress(struct cwb_take *take, uint64_t bytes) {
    struct cwb_landing *landing = landing_of(take);
    landing->ring_bytes = cwb_take_ring_bytes(take);
    landing->come = bytes;
    while (begin_move(landing))
        continue;
}

static void on_taken(struct cwb_take *take, int status) {
    struct cwb_landing *landing = landing_of(take);
    if (status) {
        finish(landing, status);
        return;
    }
    landing->taken = true;
    pump(landing);
}

/* ---- the peer's bytes ---- */

static void ring_made(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_landing *landing = task->landing;
    const struct cwb_landing_wish *wish = &landing->wish;
    landing->works--;
    landing->ring = task->ring;
    if (!landing->on_done) {
        release(landing);
    } else if (work->code) {
        cw_fail(work->code, "%s", work->detail);
        finish(landing, work->code);
    } else {
        landing->take =
            (struct cwb_take){.on_done = on_taken,
                              .on_progress = on_progress,
                              .bridge = landing->bridge,
                              .peer = wish->peer,
                              .source = wish->source,
                              .size_bytes = wish->size_bytes,
                              .patience_ns = wish->patience_ns,
                              .progress_bytes = landing->piece_bytes,
                              .array = landing->ring,
                              .ring_bytes = wish->size_bytes <= RING_BYTES ? 0 : RING_BYTES};
        cwb_take_begin(&landing->take, wish->run);
    }
}

/* ---- all of it ---- */

/* Is another try worth it? Once its owner has made room, it is until the last. */
static bool has_room(struct cwb_landing *landing) {
    bool made = landing->wish.make_room && landing->wish.make_room(landing->owner);
    return (made || landing->room_tries) && landing->room_tries < ROOM_TRIES;
}

static void made(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_landing *landing = task->landing;
    const struct cwb_landing_wish *wish = &landing->wish;
    landing->works--;
    landing->target = task->target;
    if (task->ring)
        landing->ring = task->ring;
    if (!landing->on_done) {
        release(landing);
    } else if (work->code == -EDQUOT && !landing->target && has_room(landing)) {
        landing->retry_ns = landing->bridge->loop.now_ns + (ROOM_NS << landing->room_tries++);
        landing->bridge->hurry = true;
    } else if (work->code) {
        cw_fail(work->code, "%s", work->detail);
        finish(landing, work->code);
    } else if (!wish->peer || wish->size_bytes == 0) {
        finish(landing, 0);
    } else if (wish->size_bytes > AHEAD_MOST) {
        begin_ring(landing);
    } else {
        pump(landing);
    }
}

static void begin_making(struct cwb_landing *landing) {
    landing->making = (struct task){.place = 0};
    begin(landing, &landing->making, make, made);
}

static void begin_ring(struct cwb_landing *landing) {
    landing->ringing = (struct task){.place = 0};
    begin(landing, &landing->ringing, make_ring, ring_made);
}

struct cwb_landing *cwb_landing_begin(struct cwb_bridge *bridge,
                                      const struct cwb_landing_wish *wish, cwb_on_array *on_done,
                                      void *owner) {
    struct cwb_landing *landing = calloc(1, sizeof *landing);
    bool inside = wish->inside && wish->size_bytes;
    if (landing && inside)
        landing->inside = malloc(wish->size_bytes);
    if (!landing || (inside && !landing->inside)) {
        free(landing);
        cw_array_close(wish->local);
        if (wish->peer)
            cwb_take_refuse(wish->peer, wish->run, wish->source);
        cwb_no_memory("an array on its way to a GPU");
        return NULL;
    }
    uint64_t share = wish->size_bytes / PIECE_SHARE;
    landing->bridge = bridge;
    landing->on_done = on_done;
    landing->owner = owner;
    landing->wish = *wish;
    landing->piece_bytes = share < PIECE_LEAST  ? PIECE_LEAST
                           : share > PIECE_MOST ? PIECE_MOST
                                                : share;
    for (unsigned i = 0; i < MOVES_MOST; i++)
        landing->moving[i] = NOWHERE;
    if (inside)
        memcpy(landing->inside, wish->inside, wish->size_bytes);
    DL_APPEND(bridge->landings, landing);
    begin_making(landing);
    if (wish->peer && wish->size_bytes && wish->size_bytes <= AHEAD_MOST)
        begin_ring(landing);
    return landing;
}

int64_t cwb_landings_tick(struct cwb_bridge *bridge) {
    struct cwb_landing *landing;
    int64_t due_ns = INT64_MAX;
    DL_FOREACH(bridge->landings, landing) {
        if (!landing->retry_ns || !landing->on_done)
            continue;
        if (landing->retry_ns > bridge->loop.now_ns) {
            due_ns = landing->retry_ns < due_ns ? landing->retry_ns : due_ns;
            continue;
        }
        landing->retry_ns = 0;
        begin_making(landing);
    }
    return due_ns;
}

void cwb_landing_cancel(struct cwb_landing *landing) {
    if (!landing)
        return;
    refuse(landing);
    cwb_take_cancel(&landing->take);
    landing->on_done = NULL;
    release(landing);
}
