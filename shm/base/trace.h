/*
 * The trace of this process: what it did that crossed processes, for `cableway trace`.
 *
 * A call that may cross processes has a span on its stack. A span costs two stores until something
 * crosses: a request to the broker, a sleep until another process acts. That is when it begins, and
 * the spans around it with it; those in which the thread sleeps are shown while they are under way.
 * One that never began leaves nothing: a warm get is not traced. A request that was answered
 * without a sleep is noted now and then (cw_trace_may_note()).
 *
 * The process's trace is made at the first event, and found by others by its descriptor, which
 * stays open. Without memory or a descriptor there is none, and calls go on as without; it is tried
 * again after a second. CABLEWAY_TRACE=0 in the environment then leaves it out for good, and so
 * does what cw_trace_wish_check() refuses. Nothing else here changes errno or the thread's error
 * text.
 *
 * Fork: a child begins a trace of its own. A span that the fork found under way ends unnoted.
 */
#ifndef CW_SHM_BASE_TRACE_H
#define CW_SHM_BASE_TRACE_H

#include "shm/base/error.h"
#include "shm/base/trace_ring.h"
#include "shm/base/wait.h"

struct cw_trace_span {
    struct cw_trace_span *outer;
    struct cw_trace *trace; /* where it began */
    int64_t begun_ns;       /* 0: it has not */
    int place;              /* while it is shown under way; -1: it is not */
    bool slept, is_key;     /* the name stands behind another word and its end: a namespace's */
    bool rests;             /* it ends as a part of a wait: CW_TRACE_PART_NS */
    bool quiet;             /* the thread has slept in it unshown: CW_TRACE_QUIET_NS */
    uint8_t kind, flags;
    uint16_t op;
    uint32_t name_bytes;
    int64_t known_ns; /* cw_known_ns when it was entered */
    int64_t since_ns; /* when it begins that sleeps now; 0: when it sleeps */
    const char *name; /* borrowed until the span is left; NULL: none */
    uint64_t subject, number, bytes;
};

#define CW_TRACE_QUIET_NS 20000000 /* see cw_trace_sleeps_quietly() */

#ifndef CW_MODEL

/* The innermost span of the thread. */
extern CW_THREAD_LOCAL struct cw_trace_span *cw_trace_top;

void cw_trace_span_ended(struct cw_trace_span *span, bool failed, int64_t end_ns);

/* The caller has set kind, and what it knows. */
static inline void cw_trace_enter(struct cw_trace_span *span) {
    span->outer = cw_trace_top;
    span->begun_ns = 0;
    span->place = -1;
    span->slept = false;
    span->rests = false;
    span->quiet = false;
    span->known_ns = cw_known_ns;
    span->since_ns = 0;
    cw_trace_top = span;
}
/* Must follow each cw_trace_enter(), in the same thread. failed: the call returns an error. */
static inline void cw_trace_leave(struct cw_trace_span *span, bool failed) {
    cw_trace_top = span->outer;
    if (span->begun_ns)
        cw_trace_span_ended(span, failed, 0);
}
/* The same of a call that had ended then. */
static inline void cw_trace_leave_at(struct cw_trace_span *span, bool failed, int64_t end_ns) {
    cw_trace_top = span->outer;
    if (span->begun_ns || (span->quiet && span->since_ns))
        cw_trace_span_ended(span, failed, end_ns);
}

/* A wait of a caller who serves signals now and then is several calls, its parts: each of them but
 * the last one has this limit, which nobody takes who means it. One that ended with that, or by a
 * signal, only rests: the thread's next call goes on with it, however late, if it waits for the
 * same; else it has ended with the part (CW_TRACE_INTERRUPTED). */
#define CW_TRACE_PART_NS 500000000
static inline void cw_trace_leave_wait(struct cw_trace_span *span, int64_t timeout_ns, int code) {
    if (timeout_ns == CW_TRACE_PART_NS && (code == -ETIMEDOUT || code == -EINTR))
        for (struct cw_trace_span *other = span; other; other = other->outer)
            other->rests = true;
    cw_trace_leave(span, code < 0);
}

/* The span of a request to the broker. Where the caller has one of a request around it, which says
 * more, that one stands. */
static inline void cw_trace_enter_request(struct cw_trace_span *span, uint16_t op) {
    bool told = cw_trace_top && cw_trace_top->kind == CW_TRACE_REQUEST && cw_trace_top->op == 0;
    *span = (struct cw_trace_span){.kind = told ? CW_TRACE_NONE : CW_TRACE_REQUEST, .op = op};
    if (told)
        cw_trace_top->op = op;
    cw_trace_enter(span);
}

/* Something crosses, since then: the thread's spans that had not begun begin. */
void cw_trace_begin(int64_t begun_ns);
/* The thread is about to sleep: the same from now on, and its spans show while they are under way.
 */
void cw_trace_sleeps(void);
/* The same, of a sleep that may be short: timeout_ns long, < 0: for ever. A thread that sleeps very
 * often (CW_TRACE_SLEEPS) is not traced each time, which would be a twentieth of what it does.
 * Then this returns true if the sleep would be longer than CW_TRACE_QUIET_NS: the caller sleeps so
 * long, and if nobody wakes him calls cw_trace_slept_quietly() before he sleeps on. */
bool cw_trace_sleeps_quietly(int64_t timeout_ns);
/* The thread has slept for CW_TRACE_QUIET_NS, and sleeps on: cw_trace_sleeps() since then. */
void cw_trace_slept_quietly(void);
/* A number that no other call here, or in another process of this machine, returns. */
uint64_t cw_trace_id(void);
/* An event that is over: tid 0 is the calling thread. */
void cw_trace_event(struct cw_trace_record *record);
/* What a thread does hundreds of thousands of times a second is noted now and then, so that noting
 * it takes no time that counts, and the rings reach back farther: of each class so many in a window
 * of that length. The window is that of the clock as the thread last read it, so it is read again
 * after CW_TRACE_UNNOTED that were left out. */
enum cw_trace_class {
    CW_TRACE_REQUESTS,
    CW_TRACE_WAKES,
    CW_TRACE_TASKS,
    CW_TRACE_SLEEPS, /* shorter than CW_TRACE_QUIET_NS */
    CW_TRACE_CLASSES
};
#define CW_TRACE_WINDOW_NS  2000000
#define CW_TRACE_WINDOW_MAX 20u
#define CW_TRACE_SLEEPS_MAX 8u /* instead, of sleeps, whose events cost most */
#define CW_TRACE_UNNOTED    32u
#define CW_TRACE_SHORT_NS   25000
/* Shall this one be noted? left_out: how many were not since the last one that was. Any thread;
 * costs some ns. */
bool cw_trace_may_note(enum cw_trace_class class, uint64_t *left_out);
/* An event of this moment. */
void cw_trace_moment(enum cw_trace_kind kind, uint64_t subject, uint64_t number);
/* Others were woken, by the call whose span is the innermost. Noted now and then. */
void cw_trace_woke(void);
/* Shows a call until cw_trace_hide(), which any thread of the process may call. -1: not shown. */
int cw_trace_show(struct cw_trace_record *record);
void cw_trace_hide(int place);
/* 0; -EINVAL: CABLEWAY_TRACE is neither 0 nor 1. */
int cw_trace_wish_check(void);
/* How a process that asked no broker yet finds which one it would ask: cw_trace_address(), or 0.
 * Called when its trace is made, by any thread. To be set before there are threads. */
void cw_trace_would_ask(uint64_t (*find)(void));
/* The process asks the broker with this socket. */
void cw_trace_broker(const char *socket_path);
/* This process has no trace from now on: the broker, which only answers others. */
void cw_trace_off(void);
/* Notes how a function is called of which tasks have this number. */
void cw_trace_name_function(uint64_t function, const char *name, size_t name_bytes);

#else /* the model has no other processes that look */

static inline void cw_trace_enter(struct cw_trace_span *span) {
    (void)span;
}
static inline void cw_trace_leave(struct cw_trace_span *span, bool failed) {
    (void)span, (void)failed;
}
static inline void cw_trace_sleeps(void) {}
static inline bool cw_trace_sleeps_quietly(int64_t timeout_ns) {
    (void)timeout_ns;
    return false;
}
static inline void cw_trace_slept_quietly(void) {}
static inline void cw_trace_woke(void) {}
#define cw_trace_top ((struct cw_trace_span *)NULL)

#endif
#endif
