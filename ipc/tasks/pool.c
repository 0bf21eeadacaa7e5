/*
 * Pools: where the parts of a dispatch (shm/tasks/dispatch.h; read that first) lie in one piece of
 * memory, and what the cells hold.
 *
 *   struct head | words | groups | workers | cells | queues | done rings | data of the cells | data
 *   of the workers | functions
 *
 * The data of a cell belong to who the cell belongs to; a worker's own data and figures are its
 * own; head and functions are the parent's. What the other side wrote is copied and checked:
 * numbers of cells and sizes never lead outside.
 *
 * Deaths: see shm/tasks/dispatch.h. A worker that dies while it writes an answer leaves a task that
 * is half overwritten: who wants to run it again has kept it.
 */
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/tasks/pool_parts.h"
#include "shm/base/error.h"
#include "shm/base/segment.h"
#include "shm/base/trace.h"

static uint64_t place(uint64_t *at, uint64_t size_bytes) {
    uint64_t begin = (*at + 63) & ~63ull;
    *at = begin + size_bytes;
    return begin;
}

uint64_t cw_pool_lay_out(uint8_t *base, uint32_t workers, uint32_t cells, uint32_t groups,
                         struct parts *out) {
    uint64_t at = 0, queue_len = 1;
    while (queue_len < cells)
        queue_len *= 2;
    uint64_t head = place(&at, sizeof(struct head));
    uint64_t words = place(&at, sizeof(struct cw_dispatch_words));
    uint64_t group = place(&at, (uint64_t)groups * sizeof(struct cw_dispatch_group));
    uint64_t workers_at = place(&at, (uint64_t)workers * sizeof(struct cw_dispatch_worker));
    uint64_t cell = place(&at, (uint64_t)cells * sizeof(struct cw_cell));
    uint64_t queue = place(&at, groups * queue_len * sizeof(cw_a32));
    uint64_t done = place(&at, workers * queue_len * sizeof(cw_a32));
    uint64_t cell_data = place(&at, (uint64_t)cells * DATA_STRIDE);
    uint64_t worker_data = place(&at, (uint64_t)workers * DATA_STRIDE);
    uint64_t functions = place(&at, (uint64_t)CW_POOL_FUNCTION_SLOTS * CW_POOL_FUNCTION_MAX);
    if (base)
        *out = (struct parts){.head = (void *)(base + head),
                              .view = {.words = (void *)(base + words),
                                       .groups = (void *)(base + group),
                                       .workers = (void *)(base + workers_at),
                                       .cells = (void *)(base + cell),
                                       .queue = (void *)(base + queue),
                                       .done = (void *)(base + done),
                                       .worker_count = workers,
                                       .cell_count = cells,
                                       .queue_len = (uint32_t)queue_len,
                                       .beside = base + cell_data,
                                       .beside_stride = DATA_STRIDE,
                                       .group_count = groups},
                              .cell_data = base + cell_data,
                              .worker_data = base + worker_data,
                              .functions = base + functions};
    return at;
}

uint64_t cw_pool_bytes(uint32_t workers, uint32_t cells, uint32_t groups) {
    if (workers < 1 || workers > CW_POOL_WORKERS_MAX || cells < workers ||
        cells > CW_POOL_CELLS_MAX || groups < 1 || groups > CW_POOL_GROUPS_MAX)
        return 0;
    return cw_pool_lay_out(NULL, workers, cells, groups, NULL);
}

int cw_pool_allocate(uint64_t memory_bytes, int *out_fd) {
    struct cw_segment segment;
    if (!out_fd)
        return cw_needs("a place for the descriptor");
    int code = cw_segment_create("pool", memory_bytes, 0, 0, CW_SEGMENT_UNMAPPED, &segment);
    if (code)
        return code;
    struct stat status;
    /* By this number `cableway top` calls it. Without it traces call it by another one: see
     * number(). */
    if (fstat(segment.fd, &status) == 0)
        (void)!pwrite(segment.fd, &status.st_ino, sizeof status.st_ino, offsetof(struct head, id));
    *out_fd = segment.fd;
    return 0;
}

/* The pool's number for traces: that of cw_pool_allocate(), unless the memory is somebody else's,
 * or was a pool's before. */
static uint64_t number(const void *memory) {
    struct head head;
    memcpy(&head, memory, sizeof head);
    return head.magic == 0 && head.id ? head.id : cw_trace_id();
}

int cw_pool_check_memory(const void *memory, uint64_t memory_bytes, uint32_t workers,
                         uint32_t cells, uint32_t groups) {
    uint64_t needed = cw_pool_bytes(workers, cells, groups);
    if (needed == 0)
        return cw_fail(-EINVAL,
                       "a pool has 1 to %u workers, 1 to %u groups of them and, for their tasks, "
                       "as many cells as workers or more, at most %u; %u workers, %u groups and %u "
                       "cells were asked for",
                       CW_POOL_WORKERS_MAX, CW_POOL_GROUPS_MAX, CW_POOL_CELLS_MAX, workers, groups,
                       cells);
    if (!memory || (uintptr_t)memory % 64)
        return cw_fail(-EINVAL, "a pool's memory begins at a multiple of 64");
    if (memory_bytes < needed)
        return cw_fail(-EINVAL,
                       "a pool of %u workers in %u groups and %u cells takes %llu bytes, %llu "
                       "were given",
                       workers, groups, cells, (unsigned long long)needed,
                       (unsigned long long)memory_bytes);
    return 0;
}

/* ---- the parent's end: what the caller says is looked at, and never led outside ---- */

static int check_worker(const cw_pool *pool, uint32_t worker) {
    if (!pool)
        return cw_needs("a pool");
    if (worker >= pool->parts.view.worker_count)
        return cw_fail(-EINVAL, "a pool of %u workers has no worker %u",
                       pool->parts.view.worker_count, worker);
    return 0;
}

static int check_group(const cw_pool *pool, uint32_t group) {
    if (!pool)
        return cw_needs("a pool");
    if (group >= pool->parts.view.group_count)
        return cw_fail(-EINVAL, "a pool of %u groups has no group %u", pool->parts.view.group_count,
                       group);
    return 0;
}

static int check_cell(const cw_pool *pool, uint32_t cell) {
    if (!pool)
        return cw_needs("a pool");
    if (cell >= pool->parts.view.cell_count)
        return cw_fail(-EINVAL, "a pool of %u cells has no cell %u", pool->parts.view.cell_count,
                       cell);
    return 0;
}

/* Is the cell the caller's: reserved, collected, withdrawn or buried, and not freed or submitted
 * since? */
static int check_own_cell(const cw_pool *pool, uint32_t cell) {
    int code = check_cell(pool, cell);
    if (code == 0 && pool->parent.place[cell] != CW_DISPATCH_NOWHERE)
        code = cw_fail(-EINVAL, "cell %u is not the caller's: it %s", cell,
                       pool->parent.place[cell] == CW_DISPATCH_FREE ? "is free"
                                                                    : "has a submitted task");
    return code;
}

int cw_pool_new(void *memory, uint64_t memory_bytes, uint32_t workers, uint32_t cells,
                uint32_t groups, cw_pool **out) {
    int code = cw_pool_check_memory(memory, memory_bytes, workers, cells, groups);
    if (code)
        return code;
    if (!out)
        return cw_fail(-EINVAL, "a place for the pool is needed, NULL was given");
    cw_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return cw_fail(-EDQUOT, "no memory for a pool");
    struct cw_dispatch_parent *parent = &pool->parent;
    parent->tail = calloc(groups, sizeof *parent->tail);
    parent->head = calloc(groups, sizeof *parent->head);
    parent->free = calloc(cells, sizeof *parent->free);
    parent->place = calloc(cells, sizeof *parent->place);
    parent->seen = calloc(workers, sizeof *parent->seen);
    pool->group_of = calloc(workers, sizeof *pool->group_of);
    pool->is_noted = calloc(cells, sizeof *pool->is_noted);
    if (!pool->group_of || !pool->is_noted || !parent->tail || !parent->head || !parent->free ||
        !parent->place || !parent->seen) {
        cw_pool_delete(pool);
        return cw_fail(-EDQUOT, "no memory for a pool of %u cells", cells);
    }
    cw_pool_lay_out(memory, workers, cells, groups, &pool->parts);
    pool->id = number(memory);
    memset(memory, 0, (size_t)(pool->parts.cell_data - (uint8_t *)memory));
    parent->view = pool->parts.view;
    parent->view.spinners = CW_DISPATCH_SPINNERS; /* whoever spins is counted */
    parent->free_count = cells;
    for (uint32_t i = 0; i < cells; i++) {
        parent->free[i] = cells - 1 - i;
        parent->place[i] = CW_DISPATCH_FREE;
    }
    *pool->parts.head = (struct head){
        .magic = POOL_MAGIC, .workers = workers, .cells = cells, .groups = groups, .id = pool->id};
    *out = pool;
    return 0;
}

int cw_pool_use(cw_pool *pool, uint32_t workers) {
    if (!pool)
        return cw_needs("a pool");
    if (workers < 1 || workers > pool->parts.view.worker_count)
        return cw_fail(-EINVAL, "a pool of %u workers uses 1 to so many, not %u",
                       pool->parts.view.worker_count, workers);
    cw_dispatch_use(&pool->parent, workers);
    return 0;
}

void cw_pool_delete(cw_pool *pool) {
    if (!pool)
        return;
    free(pool->parent.tail);
    free(pool->parent.head);
    free(pool->parent.free);
    free(pool->parent.place);
    free(pool->parent.seen);
    free(pool->group_of);
    free(pool->is_noted);
    free(pool);
}

void *cw_pool_function(cw_pool *pool, uint32_t slot) {
    if (!pool || slot >= CW_POOL_FUNCTION_SLOTS) {
        (void)cw_fail(-EINVAL, "a pool and one of its %u slots are needed, %s %u was given",
                      CW_POOL_FUNCTION_SLOTS, pool ? "slot" : "NULL and", slot);
        return NULL;
    }
    return pool->parts.functions + (uint64_t)slot * CW_POOL_FUNCTION_MAX;
}

static uint32_t group_of(const struct cw_dispatch_view *view, uint64_t place) {
    return view->group_count == 1 ? 0 : (uint32_t)(place % view->group_count);
}

void cw_pool_read_task(const struct parts *parts, uint32_t cell, uint64_t place, cw_task *out) {
    struct cell_meta meta;
    cw_dispatch_read(&meta, meta_of(parts, cell), META_BYTES);
    *out = (cw_task){.cell = cell,
                     .data = data_of(parts, cell),
                     .place = place,
                     .group = group_of(&parts->view, place),
                     .size_bytes =
                         meta.size_bytes <= CW_POOL_DATA_MAX ? meta.size_bytes : CW_POOL_DATA_MAX,
                     .kind = meta.kind,
                     .function = meta.function,
                     .slot = meta.slot,
                     .function_bytes = meta.function_bytes};
}

/* The same for both ends. */
static int check_size(uint32_t size_bytes) {
    return size_bytes <= CW_POOL_DATA_MAX
               ? 0
               : cw_fail(-EINVAL, "a task or an answer has at most %u bytes, %u were given",
                         CW_POOL_DATA_MAX, size_bytes);
}

int cw_pool_check_task(const cw_task *task) {
    if (!task)
        return cw_needs("a task");
    if (task->slot >= CW_POOL_FUNCTION_SLOTS || task->function_bytes > CW_POOL_FUNCTION_MAX)
        return cw_fail(-EINVAL,
                       "a function has at most %u bytes in one of %u slots, %u in slot %u were "
                       "given",
                       CW_POOL_FUNCTION_MAX, CW_POOL_FUNCTION_SLOTS, task->function_bytes,
                       task->slot);
    return check_size(task->size_bytes);
}

int cw_task_write(const cw_task *task, const void *data, uint32_t size_bytes) {
    if (!task || !task->data || (!data && size_bytes))
        return cw_needs("a task that was reserved or taken, and its data");
    int code = check_size(size_bytes);
    if (code == 0 && size_bytes)
        cw_dispatch_write(task->data, data, size_bytes);
    return code;
}

int cw_pool_reserve(cw_pool *pool, cw_task *out) {
    if (!pool || !out)
        return cw_needs("a pool and a place for the task");
    int cell = cw_dispatch_reserve(&pool->parent);
    if (cell == -EAGAIN)
        return cw_fail_plain(cell, "no cell is free: all have tasks under way");
    if (cell < 0)
        return cell;
    *out = (cw_task){.cell = (uint32_t)cell, .data = data_of(&pool->parts, (uint32_t)cell)};
    return 0;
}

int cw_pool_free(cw_pool *pool, uint32_t cell) {
    int code = check_own_cell(pool, cell);
    if (code == 0)
        cw_dispatch_free(&pool->parent, cell);
    return code;
}

int cw_pool_submit(cw_pool *pool, const cw_task *task) {
    int code = cw_pool_check_task(task);
    if (code == 0)
        code = check_group(pool, task->group);
    if (code == 0)
        code = check_own_cell(pool, task->cell);
    if (code)
        return code;
    struct cell_meta meta = {.kind = task->kind,
                             .size_bytes = task->size_bytes,
                             .function = task->function,
                             .slot = task->slot,
                             .function_bytes = task->function_bytes};
    cw_dispatch_write(meta_of(&pool->parts, task->cell), &meta, META_BYTES);
    code = cw_dispatch_submit(&pool->parent, task->group, task->cell);
    uint64_t left_out;
    if (code == 0 && (pool->is_noted[task->cell] = cw_trace_may_note(CW_TRACE_TASKS, &left_out)))
        cw_trace_moment(CW_TRACE_SUBMIT, pool->id, pool->parent.place[task->cell]);
    return code == -EAGAIN ? cw_fail_plain(code, "the group's queue has no place just now") : code;
}

int cw_pool_wake(cw_pool *pool, uint32_t group, uint32_t most) {
    int code = check_group(pool, group);
    if (code == 0)
        cw_dispatch_wake(&pool->parent, group, most);
    return code;
}

int cw_pool_release(cw_pool *pool, uint32_t worker) {
    int code = check_worker(pool, worker);
    if (code)
        return code;
    /* T54: release, after what was written into what was opened; pairs with T55. */
    CW_ADD(T54, &pool->parts.view.workers[worker].released, 1, release);
    return 0;
}

int cw_pool_assign(cw_pool *pool, uint32_t worker, uint32_t group) {
    int code = check_worker(pool, worker);
    if (code == 0)
        code = check_group(pool, group);
    if (code == 0 && pool->group_of[worker])
        code = cw_fail(-EINVAL, "worker %u is in group %u until it is reaped", worker,
                       pool->group_of[worker] - 1);
    if (code)
        return code;
    pool->group_of[worker] = group + 1;
    cw_dispatch_assign(&pool->parent, worker, group);
    return 0;
}

int cw_pool_withdraw(cw_pool *pool, uint32_t cell) {
    int code = check_cell(pool, cell);
    if (code == 0 && pool->parent.place[cell] >= CW_DISPATCH_NOWHERE)
        code = cw_fail(-EINVAL, "cell %u has no submitted task, or its answer has arrived already",
                       cell);
    if (code)
        return code;
    code = cw_dispatch_withdraw(&pool->parent, cell);
    return code == -EBUSY ? cw_fail_plain(code, "a worker has taken the task") : code;
}

int cw_pool_taker(cw_pool *pool, uint32_t cell, int64_t *elapsed_ns) {
    int code = check_cell(pool, cell);
    if (code == 0 && !elapsed_ns)
        code = cw_needs("a place for the time");
    return code ? code : cw_dispatch_taker(&pool->parent, cell, elapsed_ns);
}

int cw_pool_collect(cw_pool *pool, cw_task *out) {
    if (!pool || !out)
        return cw_needs("a pool and a place for the task");
    uint32_t worker = 0;
    uint64_t place;
    int cell = cw_dispatch_collect(&pool->parent, &worker, &place);
    if (cell >= 0) {
        cw_pool_read_task(&pool->parts, (uint32_t)cell, place, out);
        if (pool->is_noted[cell])
            cw_trace_moment(CW_TRACE_RESULT, pool->id, place);
    }
    out->worker = worker;
    if (cell == -EAGAIN)
        return cw_fail_plain(cell, "no answer is there");
    return cell < 0 ? cell : 0;
}

void cw_pool_listen(cw_pool *pool, int change) {
    if (pool && (change == 1 || change == -1))
        cw_dispatch_listen(&pool->parent, change);
}

uint32_t cw_pool_news(cw_pool *pool, int helper) {
    return !pool ? 0 : cw_dispatch_news(&pool->parts.view, helper != 0);
}

void cw_pool_tell(cw_pool *pool, int helper) {
    if (pool)
        cw_dispatch_tell(&pool->parts.view, helper != 0);
}

void cw_pool_ask_emptied(cw_pool *pool) {
    if (pool)
        cw_dispatch_ask_emptied(&pool->parent);
}

void cw_pool_emptied(cw_pool *pool) {
    if (pool)
        cw_dispatch_emptied(&pool->parent);
}

/* It pays to spin for workers that run on other cores. */
static bool spin_pays(cw_pool *pool) {
    struct cw_dispatch_view *view = &pool->parent.view;
    cw_bell_here(&view->words->answers);
    uint32_t count = cw_dispatch_in_use(view);
    for (uint32_t w = 0; w < count; w++)
        if (cw_sleeper_spin_pays(&view->workers[w].sleeper))
            return true;
    return false;
}

int cw_pool_wait(cw_pool *pool, int helper, uint32_t was, int64_t spin_ns, int64_t timeout_ns) {
    if (!pool)
        return cw_needs("a pool");
    if (helper || (spin_ns > 0 && !spin_pays(pool)))
        spin_ns = 0;
    struct cw_trace_span span = {.kind = helper ? CW_TRACE_HELPER : CW_TRACE_ANSWERS,
                                 .subject = pool->id};
    cw_trace_enter(&span);
    int code = cw_dispatch_wait(&pool->parent, helper != 0, was, spin_ns, timeout_ns);
    cw_trace_leave_wait(&span, timeout_ns, timeout_ns == CW_TRACE_PART_NS ? code : 0);
    return code;
}

void cw_pool_close(cw_pool *pool, int closing) {
    if (pool)
        cw_dispatch_close(&pool->parent, closing != 0);
}

int cw_pool_dismiss(cw_pool *pool, uint32_t worker) {
    int code = check_worker(pool, worker);
    if (code == 0)
        cw_dispatch_order(&pool->parent, worker, CW_ORDER_LEAVE);
    return code;
}

uint64_t cw_pool_ready(cw_pool *pool, uint32_t group) {
    return check_group(pool, group) ? 0 : cw_dispatch_ready(&pool->parent.view, group);
}

int cw_pool_bury(cw_pool *pool, uint32_t worker, cw_task *out) {
    int cell = check_worker(pool, worker);
    if (cell == 0 && !out)
        cell = cw_needs("a place for the task");
    if (cell)
        return cell;
    struct cw_dispatch_end end;
    cell = cw_dispatch_bury(&pool->parent, worker, &end);
    if (cell >= 0) {
        cw_pool_read_task(&pool->parts, (uint32_t)cell, end.place, out);
        out->worker = worker;
        out->begun = end.begun;
        return end.answered;
    }
    pool->group_of[worker] = 0;
    /* T28: it is dead, and its successor not yet there. */
    CW_STORE(T28, &pool->parts.view.workers[worker].state, 0, relaxed);
    return cw_fail_plain(cell, "the worker had nothing more");
}

int cw_pool_look_at(cw_pool *pool, uint32_t worker, cw_worker_info *out) {
    int code = check_worker(pool, worker);
    if (code == 0 && !out)
        code = cw_needs("a place for the figures");
    if (code)
        return code;
    struct cw_dispatch_worker *from = &pool->parts.view.workers[worker];
    *out = (cw_worker_info){
        /* T29: pairs with T28: what it left in its words. T30: figures only. */
        .state = CW_LOAD(T29, &from->state, acquire),
        .tasks = CW_LOAD(T30, &from->figures[FIGURE_TASKS], relaxed),
        .busy_ns = CW_LOAD(T30, &from->figures[FIGURE_BUSY_NS], relaxed),
        .bytes_in = CW_LOAD(T30, &from->figures[FIGURE_BYTES_IN], relaxed),
        .bytes_out = CW_LOAD(T30, &from->figures[FIGURE_BYTES_OUT], relaxed),
        .failed = CW_LOAD(T30, &from->figures[FIGURE_FAILED], relaxed),
        .calls = CW_LOAD(T30, &from->figures[FIGURE_CALLS], relaxed),
    };
    return 0;
}

void cw_pool_count_lost(cw_pool *pool, int repeated) {
    /* T30: figures only. */
    if (pool)
        CW_ADD(T30, &pool->parts.head->lost, 1, relaxed);
    if (pool && repeated)
        CW_ADD(T30, &pool->parts.head->repeated, 1, relaxed);
}

const void *cw_pool_words(cw_pool *pool, uint32_t worker) {
    if (check_worker(pool, worker))
        return NULL;
    return pool->parts.worker_data + (uint64_t)worker * DATA_STRIDE;
}
