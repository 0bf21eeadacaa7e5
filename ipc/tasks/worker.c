/*
 * A worker's end of a pool; pool.c says where its parts lie.
 *
 * A worker's process may answer from several threads, one at a time: the caller's lock. Of which
 * answers nobody was told is `owes`, of this process alone. The time that it was busy is the time
 * in which it had a task, however many: one thread takes and sets `counted_ns` where it has had
 * none, who answers moves it on before it gives its task up, so that no moment counts twice.
 *
 * Answers for which the worker stays (memory goes with them that dies with it) are counted twice:
 * `lent` by the worker, `released` in its words by the parent, which adds one for each, whatever
 * becomes of it. Equal: the worker waits for nothing. The parent never adds for a worker that it
 * has buried, so who opens a number begins with what stands there.
 *
 * Deaths: see shm/tasks/dispatch.h.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/tasks/pool_parts.h"
#include "shm/base/error.h"
#include "shm/base/trace.h"

#define PEEKS_MAX 4     /* copies of tasks that are taken meanwhile */
#define SHORT_NS  10000 /* of shorter tasks a trace has some, where there are very many */
#define SETTLE_NS 10000 /* for a caller that has submitted and is about to listen */

struct shown { /* of a cell whose task was taken; its taker's, then its answerer's */
    int place; /* in the trace */
    uint32_t tid;
};

struct cw_worker {
    struct parts parts;
    uint32_t number;
    int64_t steal_since_ns; /* the taking thread's: see struct cw_dispatch_view */
    cw_a32 owes;            /* answers that nobody was told of */
    cw_a32 held;            /* tasks taken and not answered */
    cw_a64 counted_ns;      /* while there are any: up to here the time is in the figures */
    uint64_t figures[FIGURES];
    struct shown *shown; /* by cell */
    uint64_t lent;       /* what the parent's count of released answers comes to, when all are */
};

int cw_worker_open(void *memory, uint64_t memory_bytes, uint32_t workers, uint32_t cells,
                   uint32_t groups, uint32_t number, uint32_t group, uint32_t spinners,
                   cw_worker **out) {
    int code = cw_pool_check_memory(memory, memory_bytes, workers, cells, groups);
    if (code)
        return code;
    if (!out)
        return cw_needs("a place for the worker");
    if (number >= workers)
        return cw_fail(-EINVAL, "a pool of %u workers has no worker %u", workers, number);
    if (group >= groups)
        return cw_fail(-EINVAL, "a pool of %u groups has no group %u", groups, group);
    struct parts parts;
    cw_pool_lay_out(memory, workers, cells, groups, &parts);
    struct head head = *(volatile struct head *)parts.head;
    if (head.magic != POOL_MAGIC || head.workers != workers || head.cells != cells ||
        head.groups != groups)
        return cw_fail(-EPROTO,
                       "the memory is not formatted as a pool of %u workers in %u groups and %u "
                       "cells",
                       workers, groups, cells);
    parts.view.group = group;
    code = cw_dispatch_join(&parts.view, number);
    if (code)
        return code;
    cw_worker *worker = calloc(1, sizeof *worker);
    struct shown *shown = calloc(cells, sizeof *shown);
    if (!worker || !shown) {
        free(worker);
        free(shown);
        return cw_fail(-EDQUOT, "no memory for a worker");
    }
    worker->shown = shown;
    worker->parts = parts;
    worker->parts.view.spinners = spinners < CW_DISPATCH_SPINNERS ? spinners : CW_DISPATCH_SPINNERS;
    worker->parts.view.steal_since_ns = &worker->steal_since_ns;
    worker->number = number;
    for (int i = 0; i < FIGURES; i++) /* T30: who had the number before us has counted there */
        worker->figures[i] = CW_LOAD(T30, &parts.view.workers[number].figures[i], relaxed);
    worker->lent = CW_LOAD(T55, &parts.view.workers[number].released, relaxed); /* the same */
    uint32_t wanted;
    cw_dispatch_must_heed(&parts.view, number, &wanted);
    cw_dispatch_heed(&parts.view, number, wanted, false); /* it keeps nothing yet */
    *out = worker;
    return 0;
}

void cw_worker_close(cw_worker *worker) {
    if (worker)
        free(worker->shown);
    free(worker);
}

/* ---- what the trace shows ---- */

static int take(cw_worker *worker, uint64_t *place) {
    struct cw_trace_span span = {.kind = CW_TRACE_IDLE, .subject = worker->parts.head->id};
    cw_trace_enter(&span);
    span.since_ns = (int64_t)CW_LOAD(T51, &worker->counted_ns, relaxed); /* the last answer */
    int cell = cw_dispatch_take(&worker->parts.view, worker->number, place);
    /* It ends where the task begins; behind that others may have been woken. */
    cw_trace_leave_at(
        &span, false,
        cell < 0 ? 0 : (int64_t)cw_dispatch_taken_ns(&worker->parts.view, (uint32_t)cell));
    return cell;
}

static struct cw_trace_record describe(const cw_worker *worker, const cw_task *task) {
    return (struct cw_trace_record){
        .kind = CW_TRACE_TASK,
        .begun_ns = (int64_t)cw_dispatch_taken_ns(&worker->parts.view, task->cell),
        .subject = worker->parts.head->id,
        .number = task->place,
        .function = task->function};
}

static void show(cw_worker *worker, const cw_task *task) {
    struct cw_trace_record record = describe(worker, task);
    worker->shown[task->cell].place = cw_trace_show(&record);
    worker->shown[task->cell].tid = record.tid;
}

static void hide(struct shown shown, struct cw_trace_record *record, uint64_t now_ns) {
    record->tid = shown.tid; /* who took it, whoever answers */
    record->duration_ns = (int64_t)now_ns - record->begun_ns;
    cw_trace_hide(shown.place);
    uint64_t left_out;
    if (record->duration_ns >= SHORT_NS || cw_trace_may_note(CW_TRACE_TASKS, &left_out))
        cw_trace_event(record);
}

/* ---- tasks ---- */

void cw_worker_settle(cw_worker *worker) {
    if (!worker)
        return;
    const struct cw_dispatch_view *view = &worker->parts.view;
    /* T48: relaxed: our own thread's; another one that answers settles itself. T49: acquire; pairs
     * with T48: we tell of all answers up to there, whosever they are. */
    if (!CW_LOAD(T48, &worker->owes, relaxed) || !CW_XCHG(T49, &worker->owes, 0, acquire))
        return;
    if (!cw_bell_elsewhere(&view->words->answers))
        sched_yield(); /* the caller cannot go on while we spin */
    cw_dispatch_settle(view, worker->number, SETTLE_NS);
}

int cw_worker_take(cw_worker *worker, cw_task *out) {
    if (!worker || !out)
        return cw_needs("a worker and a place for the task");
    struct cw_dispatch_view *view = &worker->parts.view;
    cw_worker_settle(worker);
    cw_sleeper_here(&view->workers[worker->number].sleeper);
    view->must_sleep = !cw_bell_elsewhere(&view->words->answers);
    uint64_t place;
    int cell = take(worker, &place);
    if (cell == -ESHUTDOWN)
        return cw_fail_plain(cell, "the worker is to leave");
    if (cell == -EDQUOT)
        return cw_fail_plain(
            cell, "the pool asks its workers to give memory back: do that before a task");
    if (cell < 0)
        return cell;
    CW_BRING(data_of(&worker->parts, (uint32_t)cell)); /* the answer goes there as well */
    cw_pool_read_task(&worker->parts, (uint32_t)cell, place, out);
    out->worker = worker->number;
    /* T50: acquire, after T51 of who answered last; the figures are advice. */
    if (CW_ADD(T50, &worker->held, 1, acq_rel) == 0)
        CW_STORE(T51, &worker->counted_ns, cw_dispatch_taken_ns(view, (uint32_t)cell), relaxed);
    if (out->slot >= CW_POOL_FUNCTION_SLOTS || out->function_bytes > CW_POOL_FUNCTION_MAX)
        return cw_fail(-EPROTO, "a task names %u bytes of the function in place %u of %u",
                       out->function_bytes, out->slot, CW_POOL_FUNCTION_SLOTS);
    show(worker, out);
    return 0;
}

int cw_worker_peek(cw_worker *worker, uint32_t nth, void *buffer, cw_task *out) {
    if (!worker || !buffer || !out)
        return cw_needs("a worker and places for the task and its data");
    const struct parts *parts = &worker->parts;
    for (int i = 0; i < PEEKS_MAX; i++) {
        uint64_t place;
        int cell = cw_dispatch_peek(&parts->view, nth, &place);
        if (cell == -EAGAIN)
            break;
        if (cell < 0)
            return cell;
        cw_task task;
        cw_pool_read_task(parts, (uint32_t)cell, place, &task);
        cw_dispatch_read(buffer, task.data, task.size_bytes);
        if (!cw_dispatch_is_still(&parts->view, (uint32_t)cell, place))
            continue;
        *out = task;
        out->data = buffer;
        return 0;
    }
    /* Or they are taken faster than we look. */
    return cw_fail_plain(-EAGAIN, "no task of that place is ready");
}

uint32_t cw_worker_fellows(cw_worker *worker) {
    return worker ? cw_dispatch_fellows(&worker->parts.view) : 0;
}

const void *cw_worker_function(cw_worker *worker, const cw_task *task) {
    if (!worker || cw_pool_check_task(task))
        return NULL;
    return worker->parts.functions + (uint64_t)task->slot * CW_POOL_FUNCTION_MAX;
}

static void count(cw_worker *worker, enum figure figure, uint64_t more) {
    worker->figures[figure] += more;
    CW_STORE(T30, &worker->parts.view.workers[worker->number].figures[figure],
             worker->figures[figure], relaxed);
}

/* Is the task one that this worker has taken, and not answered? */
static int check_answer(const cw_worker *worker, const cw_task *task) {
    if (!worker)
        return cw_needs("a worker");
    int code = cw_pool_check_task(task);
    if (code == 0 && !cw_dispatch_is_taken(&worker->parts.view, worker->number, task->cell))
        code = cw_fail(-EINVAL, "worker %u has no task in cell %u to be answered", worker->number,
                       task->cell);
    return code;
}

int cw_worker_answer(cw_worker *worker, const cw_task *task, uint64_t extra_in,
                     uint64_t extra_out) {
    int code = check_answer(worker, task);
    if (code)
        return code;
    const struct cw_dispatch_view *view = &worker->parts.view;
    struct cell_meta meta;
    cw_a64 *kind_and_size = meta_of(&worker->parts, task->cell);
    cw_dispatch_read(&meta, kind_and_size, offsetof(struct cell_meta, function));
    uint64_t in_bytes = meta.size_bytes;
    meta.kind = task->kind;
    meta.size_bytes = task->size_bytes;
    cw_dispatch_write(kind_and_size, &meta, offsetof(struct cell_meta, function));
    count(worker, FIGURE_TASKS, 1);
    uint64_t now_ns = (uint64_t)cw_now_ns();
    /* T51: before T50, which lets who takes begin anew. */
    uint64_t counted_ns = CW_XCHG(T51, &worker->counted_ns, now_ns, relaxed);
    count(worker, FIGURE_BUSY_NS, now_ns > counted_ns ? now_ns - counted_ns : 0);
    CW_ADD(T50, &worker->held, UINT32_MAX, acq_rel); /* one less */
    count(worker, FIGURE_BYTES_IN, in_bytes + extra_in);
    count(worker, FIGURE_BYTES_OUT, task->size_bytes + extra_out);
    struct cw_trace_record record = describe(worker, task);
    struct shown shown = worker->shown[task->cell];
    if (!cw_dispatch_publish(view, worker->number, task->cell))
        /* T48: release, after the answer (T12); pairs with T49. */
        CW_STORE(T48, &worker->owes, 1, release);
    hide(shown, &record, now_ns); /* after the answer, which is what somebody waits for */
    return 0;
}

void cw_worker_fail(cw_worker *worker) {
    if (worker)
        count(worker, FIGURE_FAILED, 1);
}

void cw_worker_called(cw_worker *worker, uint64_t calls) {
    if (worker)
        count(worker, FIGURE_CALLS, calls);
}

void cw_worker_name_function(cw_worker *worker, uint64_t function, const char *name) {
    if (worker && name)
        cw_trace_name_function(function, name, strlen(name));
}

void cw_worker_lend(cw_worker *worker) {
    if (worker)
        worker->lent++;
}

int cw_worker_released(const cw_worker *worker) {
    if (!worker)
        return cw_needs("a worker");
    /* T55: acquire; pairs with T54. What the parent wrote into what it has opened is seen. */
    const struct cw_dispatch_worker *own = &worker->parts.view.workers[worker->number];
    return CW_LOAD(T55, &own->released, acquire) == worker->lent;
}

void *cw_worker_words(cw_worker *worker) {
    if (!worker)
        return NULL;
    return worker->parts.worker_data + (uint64_t)worker->number * DATA_STRIDE;
}

void cw_worker_tell(cw_worker *worker, uint32_t state) {
    if (worker)
        cw_dispatch_state(&worker->parts.view, worker->number, state);
}

uint32_t cw_worker_ask(cw_worker *worker) {
    return worker ? cw_dispatch_ask(&worker->parts.view) : 0;
}

int cw_worker_must_heed(cw_worker *worker, uint32_t *number) {
    if (!worker || !number)
        return cw_needs("a worker and a place for the number");
    return cw_dispatch_must_heed(&worker->parts.view, worker->number, number);
}

void cw_worker_heed(cw_worker *worker, uint32_t number, int some) {
    if (worker)
        cw_dispatch_heed(&worker->parts.view, worker->number, number, some != 0);
}

uint32_t cw_worker_unheeded(cw_worker *worker, uint32_t number, int *some) {
    bool any;
    if (!worker || !some)
        return 0;
    uint32_t missing = cw_dispatch_unheeded(&worker->parts.view, number, &any);
    *some = any;
    return missing;
}
