/*
 * The process's trace: see trace.h.
 *
 * The pointer `current` belongs to nobody: who finds it empty makes a segment and sets it, once; of
 * two threads that do at a time one throws its own away. It changes again only in a forked child,
 * before that has a second thread. The mapping is never taken away, so that who read the pointer
 * may use it however late: in a child the parent's stays mapped, and nothing writes to it.
 *
 * A process that is killed leaves nothing behind: descriptor and mapping go with it.
 */
#include "shm/base/trace.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define AGAIN_NS 1000000000 /* after there was no memory or descriptor */

CW_THREAD_LOCAL struct cw_trace_span *cw_trace_top;
static CW_THREAD_LOCAL uint32_t own_tid;
static CW_THREAD_LOCAL struct window {
    int64_t begun_ns;
    uint32_t noted, left_out;
} windows[CW_TRACE_CLASSES];
static CW_THREAD_LOCAL struct { /* the thread's wait that rests; a thread that ends loses it */
    struct cw_trace *trace;     /* where it is shown; NULL: none does */
    int place;
    uint64_t mark;
    struct cw_trace_record record;
} resting;

static struct cw_trace *_Atomic current;
static cw_a64 again_ns;     /* not tried before then; 0: at once, INT64_MAX: never */
static cw_a32 watches_fork; /* 1: the child's handler is there */
static cw_a64 broker;       /* cw_trace_address() of who was connected to last; 0: nobody yet */
static uint64_t (*find_broker)(void); /* cw_trace_would_ask() */

static uint32_t self_tid(void) {
    if (own_tid == 0)
        own_tid = (uint32_t)gettid();
    return own_tid;
}

/* In the child, which has one thread. The descriptor is the parent's trace, unless somebody closed
 * it and the number is something else by now. */
static void forget_parents(void) {
    struct stat status;
    /* Y10, Y11: the child has one thread yet. */
    struct cw_trace *trace = CW_LOAD(Y10, &current, acquire);
    own_tid = 0;
    if (!trace)
        return;
    CW_STORE(Y10, &current, NULL, release);
    CW_STORE(Y11, &again_ns, 0, relaxed);
    if (fstat((int)trace->fd, &status) == 0 && status.st_dev == trace->device &&
        status.st_ino == trace->inode)
        close((int)trace->fd);
}

/* Fills in what stays as it is. false: the kernel says nothing about the file, or would not tell of
 * forks. */
static bool begin(const struct cw_segment *segment) {
    struct cw_trace *trace = segment->base;
    struct stat status;
    uint32_t watched = 0;
    if (fstat(segment->fd, &status))
        return false;
    /* Y13: one thread of those that are here at a time sets the handler; one too many does no harm.
     */
    if (CW_LOAD(Y13, &watches_fork, relaxed) == 0) {
        if (pthread_atfork(NULL, NULL, forget_parents))
            return false;
        (void)CW_CAS(Y13, &watches_fork, &watched, 1, acquire);
    }
    trace->version = CW_TRACE_VERSION;
    trace->pid = (uint32_t)getpid();
    trace->fd = (uint32_t)segment->fd;
    trace->device = status.st_dev;
    trace->inode = status.st_ino;
    /* Y12: who connects meanwhile stores it there as well, or finds no trace yet. */
    uint64_t address = CW_LOAD(Y12, &broker, relaxed);
    if (!address && find_broker)
        address = find_broker();
    CW_STORE(Y12, &trace->address, address, relaxed);
    return true;
}

int cw_trace_wish_check(void) {
    const char *wish = secure_getenv("CABLEWAY_TRACE");
    if (!wish || !*wish || strcmp(wish, "1") == 0 || strcmp(wish, "0") == 0)
        return 0;
    return cw_fail(-EINVAL, "CABLEWAY_TRACE = \"%.64s\" is neither 0 (no trace) nor 1", wish);
}

static struct cw_trace *make(void) {
    const char *wish = secure_getenv("CABLEWAY_TRACE");
    struct cw_trace *none = NULL;
    struct cw_segment segment;
    /* Y11: advice: a thread that tries once too often finds the same. */
    if (wish && *wish && strcmp(wish, "1") != 0) {
        CW_STORE(Y11, &again_ns, INT64_MAX, relaxed);
        return NULL;
    }
    CW_STORE(Y11, &again_ns, (uint64_t)cw_now_ns() + AGAIN_NS, relaxed);
    if (cw_segment_create("trace", sizeof(struct cw_trace), CW_SEGMENT_TRACE, 0, 0, &segment))
        return NULL;
    /* Y10: pairs with Y10 in trace(): what begin() wrote. */
    if (begin(&segment) && CW_CAS(Y10, &current, &none, segment.base, release))
        return segment.base;
    cw_segment_close(&segment);
    return none; /* another thread's, if it was quicker */
}

/* NULL: there is none. */
static struct cw_trace *own_trace(void) {
    struct cw_trace *trace = CW_LOAD(Y10, &current, acquire);
    char text[CW_DETAIL_MAX];
    if (trace)
        return trace;
    uint64_t after_ns = CW_LOAD(Y11, &again_ns, relaxed);
    if (after_ns == INT64_MAX || (after_ns && (uint64_t)cw_now_ns() < after_ns))
        return NULL;
    int error = errno;
    strcpy(text, cw_detail());
    trace = make();
    if (!trace)
        cw_fail_detail(-EDQUOT, "%s", text);
    errno = error;
    return trace;
}

void cw_trace_off(void) {
    CW_STORE(Y11, &again_ns, INT64_MAX, relaxed);
}

void cw_trace_would_ask(uint64_t (*find)(void)) {
    find_broker = find;
}

void cw_trace_broker(const char *socket_path) {
    uint64_t address = cw_trace_address(socket_path);
    CW_STORE(Y12, &broker, address, relaxed);
    struct cw_trace *trace = CW_LOAD(Y10, &current, acquire);
    if (trace)
        CW_STORE(Y12, &trace->address, address, relaxed);
}

uint64_t cw_trace_id(void) {
    /* The time alone would be the same in two processes, with luck; a pid is used again. */
    uint64_t mixed = (uint64_t)cw_now_ns() ^ (uint64_t)getpid() << 42;
    return mixed * 0x9e3779b97f4a7c15ull | 1;
}

/* ---- events ---- */

void cw_trace_event(struct cw_trace_record *record) {
    struct cw_trace *trace = own_trace();
    if (!trace)
        return;
    if (record->tid == 0)
        record->tid = self_tid();
    cw_trace_add(trace, record);
}

void cw_trace_moment(enum cw_trace_kind kind, uint64_t subject, uint64_t number) {
    struct cw_trace_record record = {
        .kind = (uint8_t)kind, .begun_ns = cw_now_ns(), .subject = subject, .number = number};
    cw_trace_event(&record);
}

bool cw_trace_may_note(enum cw_trace_class class, uint64_t *left_out) {
    struct window *window = &windows[class];
    uint32_t most = class == CW_TRACE_SLEEPS ? CW_TRACE_SLEEPS_MAX : CW_TRACE_WINDOW_MAX;
    if (window->noted >= most && cw_known_ns - window->begun_ns < CW_TRACE_WINDOW_NS &&
        ++window->left_out % CW_TRACE_UNNOTED) {
        return false;
    }
    if (window->noted >= most) {
        int64_t now_ns = cw_now_ns();
        if (now_ns - window->begun_ns < CW_TRACE_WINDOW_NS)
            return false;
        window->begun_ns = now_ns;
        window->noted = 0;
    }
    window->noted++;
    *left_out = window->left_out;
    window->left_out = 0;
    return true;
}

void cw_trace_woke(void) {
    uint64_t left_out;
    if (cw_trace_may_note(CW_TRACE_WAKES, &left_out))
        cw_trace_moment(CW_TRACE_WAKE, cw_trace_top ? cw_trace_top->subject : 0, left_out);
}

int cw_trace_show(struct cw_trace_record *record) {
    struct cw_trace *trace = own_trace();
    if (!trace)
        return -1;
    record->tid = self_tid();
    return cw_trace_begun(trace, record);
}

void cw_trace_hide(int place) {
    struct cw_trace *trace = place < 0 ? NULL : CW_LOAD(Y10, &current, acquire);
    if (trace)
        cw_trace_ended(trace, place);
}

void cw_trace_name_function(uint64_t function, const char *name, size_t name_bytes) {
    struct cw_trace *trace = own_trace();
    if (trace)
        cw_trace_function(trace, function, name, name_bytes);
}

/* ---- spans ---- */

static void describe(const struct cw_trace_span *span, struct cw_trace_record *out) {
    *out = (struct cw_trace_record){.kind = span->kind,
                                    .flags = span->flags,
                                    .op = span->op,
                                    .tid = self_tid(),
                                    .begun_ns = span->begun_ns,
                                    .subject = span->subject,
                                    .number = span->number,
                                    .bytes = span->bytes};
    size_t space = span->is_key ? strnlen(span->name, span->name_bytes) + 1 : 0;
    if (span->name && space <= span->name_bytes)
        cw_trace_name(out, span->name + space, span->name_bytes - space);
}

static bool same_wait(const struct cw_trace_record *a, const struct cw_trace_record *b) {
    return a->kind == b->kind && a->op == b->op && a->subject == b->subject &&
           a->name_bytes == b->name_bytes && memcmp(a->name, b->name, a->name_bytes) == 0;
}

/* The thread's outermost span has begun: it is the next part of what rests, or tells that none
 * comes. In a forked child the parent's rests. */
static void resume(struct cw_trace_span *span) {
    struct cw_trace_record record, *rested = &resting.record;
    struct cw_trace *trace = resting.trace;
    resting.trace = NULL;
    if (trace != span->trace)
        return;
    describe(span, &record);
    if (same_wait(&record, rested)) {
        record.begun_ns = span->begun_ns = rested->begun_ns;
        span->slept = true;
        span->place = cw_trace_resumed(trace, resting.place, resting.mark, &record);
        return;
    }
    cw_trace_resumed(trace, resting.place, resting.mark, NULL);
    rested->flags |= CW_TRACE_INTERRUPTED;
    cw_trace_add(trace, rested);
}

void cw_trace_begin(int64_t begun_ns) {
    struct cw_trace *trace = own_trace();
    struct cw_trace_span *last = NULL;
    for (struct cw_trace_span *span = cw_trace_top; span && !span->begun_ns; span = span->outer) {
        span->begun_ns = begun_ns;
        span->trace = trace;
        last = span;
    }
    if (resting.trace && last && !last->outer)
        resume(last);
}

void cw_trace_sleeps(void) {
    struct cw_trace_span *top = cw_trace_top;
    if (!top || (top->begun_ns && top->place >= 0))
        return;
    if (!own_trace())
        return;
    if (!top->begun_ns) /* who has just spun has read the clock */
        cw_trace_begin(top->since_ns                  ? top->since_ns
                       : cw_known_ns != top->known_ns ? cw_known_ns
                                                      : cw_now_ns());
    for (struct cw_trace_span *span = top; span && span->place < 0; span = span->outer) {
        struct cw_trace_record record;
        span->slept = true;
        if (!span->trace || span->kind == CW_TRACE_NONE)
            continue;
        describe(span, &record);
        span->place = cw_trace_begun(span->trace, &record);
    }
}

bool cw_trace_sleeps_quietly(int64_t timeout_ns) {
    struct cw_trace_span *top = cw_trace_top;
    uint64_t left_out;
    if (!top || (top->begun_ns && top->place >= 0))
        return false;
    /* A part of a wait goes on with the one before. */
    if (resting.trace || cw_trace_may_note(CW_TRACE_SLEEPS, &left_out)) {
        cw_trace_sleeps();
        return false;
    }
    top->quiet = true;
    return timeout_ns < 0 || timeout_ns > CW_TRACE_QUIET_NS;
}

void cw_trace_slept_quietly(void) {
    struct cw_trace_span *top = cw_trace_top;
    if (top && !top->begun_ns && top->since_ns == 0)
        top->since_ns = cw_now_ns() - CW_TRACE_QUIET_NS;
    cw_trace_sleeps();
}

/* What happens very often is noted now and then. Within another span it is as rare as that. */
static bool is_to_be_noted(struct cw_trace_span *span) {
    return span->outer || span->slept || span->kind != CW_TRACE_REQUEST ||
           cw_trace_may_note(CW_TRACE_REQUESTS, &span->number);
}

static void rest(const struct cw_trace_span *span) {
    struct cw_trace_record *record = &resting.record;
    int64_t lasted_ns = cw_now_ns() - span->begun_ns;
    describe(span, record);
    record->duration_ns = lasted_ns > 0 ? lasted_ns : 1;
    resting.place = span->place;
    resting.mark = cw_trace_rests(span->trace, span->place, record);
    resting.trace = span->trace;
}

void cw_trace_span_ended(struct cw_trace_span *span, bool failed, int64_t end_ns) {
    struct cw_trace_record record;
    if (!span->begun_ns) { /* it slept quietly, and both times are known: not of many */
        if (end_ns - span->since_ns < CW_TRACE_SHORT_NS)
            return;
        span->begun_ns = span->since_ns;
        span->trace = own_trace();
        span->slept = true;
    }
    /* Another one than before: this is a child, and the call began in its parent. */
    if (span->kind == CW_TRACE_NONE || !span->trace ||
        span->trace != CW_LOAD(Y10, &current, acquire))
        return;
    if (failed && span->rests && !span->outer) {
        rest(span);
        return;
    }
    cw_trace_ended(span->trace, span->place);
    if (!is_to_be_noted(span))
        return;
    describe(span, &record);
    record.duration_ns = (end_ns ? end_ns : cw_now_ns()) - span->begun_ns;
    if (record.duration_ns < 0)
        record.duration_ns = 0;
    record.flags |= failed ? CW_TRACE_FAILED : 0;
    cw_trace_add(span->trace, &record);
}
