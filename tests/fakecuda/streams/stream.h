/*
 * Streams: a queue of work and a thread that does it, in order.
 *
 * All fields are under fake_mutex but current and next, which late.h reads after a death. A stream
 * counts its work: submitted, and completed once it has run (or was thrown away because the context
 * is broken). The thread is made with the first work and lives until the stream is destroyed and
 * its queue is empty; it frees the stream when nobody else refers to it.
 *
 * The default stream waits for what blocking streams have, and they for it. As many waiting streams
 * as the configuration says freeze all others of the context, which is what a GPU's few queues do.
 */
#ifndef CW_TESTS_FAKECUDA_STREAMS_STREAM_H
#define CW_TESTS_FAKECUDA_STREAMS_STREAM_H

#include <stddef.h>

#include "tests/fakecuda/driver/context.h"

struct fake_event;

enum fake_work_kind {
    FAKE_COPY,
    FAKE_FILL,
    FAKE_WRITE,
    FAKE_WAIT,
    FAKE_KERNEL,
    FAKE_HOST,
    FAKE_RECORD,
    FAKE_EVENT, /* waits for a recorded event */
    FAKE_AFTER, /* waits for work of another stream */
};

struct fake_copy {
    uintptr_t to, from;
    size_t width_bytes, height;
    size_t to_pitch_bytes, from_pitch_bytes;
    bool to_host, from_host; /* it may be memory that the driver does not know */
    void *staged;            /* the source, if it is a copy; goes with the work */
};

struct fake_fill {
    uintptr_t to;
    uint32_t value;
    int unit_bytes; /* 1, 2 or 4 */
    size_t count;
};

struct fake_word {
    uintptr_t address;
    uint64_t value;
    int size_bytes; /* 4 or 8 */
    unsigned flags;
};

struct fake_launch {
    CUfunction kernel;
    uint64_t arguments[4];
    uint64_t *vector; /* an argument that is an array; goes with the work */
};

struct fake_work {
    struct fake_work *_Atomic next;
    enum fake_work_kind kind;
    union {
        struct fake_copy copy;
        struct fake_fill fill;
        struct fake_word word;
        struct fake_launch launch;
        struct {
            CUhostFn function;
            void *data;
        } host;
        struct {
            CUevent event; /* a reference */
            uint64_t number;
        } event;
        struct {
            struct fake_stream *stream; /* a reference */
            uint64_t number;
        } after;
    };
};

struct fake_stream {
    struct fake_stream *next;
    fake_context *context;
    unsigned flags;
    uint64_t id;
    int references; /* its handle, its thread, works that wait for it */
    bool ended;     /* destroyed: no more work comes */
    bool dropped;   /* its context is gone: what it still has is thrown away */
    bool running;   /* it has a thread */
    bool per_thread;
    pthread_t owner; /* of a per-thread stream */
    CUstreamCaptureStatus capture;
    struct fake_work *last;
    struct fake_work *_Atomic current; /* the first of the queue, running or about to */
    uint64_t submitted, completed;
};

/* The stream of a handle, with fake_mutex held; NULL: none, and not held. */
struct fake_stream *fake_stream_hold(CUstream handle, fake_context *context);
/* Puts work into the queue of a stream; under fake_mutex. */
CUresult fake_stream_push(struct fake_stream *stream, struct fake_work work);
/* Both in one, by handle. */
CUresult fake_stream_submit(CUstream handle, fake_context *context, struct fake_work work);
/* Waits until a stream has completed number works, under fake_mutex, which it lets go meanwhile. */
CUresult fake_stream_wait(struct fake_stream *stream, uint64_t number);
void fake_stream_unref(struct fake_stream *stream);
/* Under fake_mutex: no stream of the context does anything more. */
void fake_stream_end_all(fake_context *context);
/* Waits for all work that the context has now. */
void fake_context_drain(fake_context *context);
/* Waits for a change, at most 20 ms, so that what other processes do is seen too. */
void fake_wait_changed(void);

/* Does one piece of work (work.c); without fake_mutex. */
CUresult fake_work_run(struct fake_stream *stream, struct fake_work *work);
/* Does a word that is now so end a wait for it? cuda.h's four conditions; "at least" is cyclic. */
__attribute__((no_sanitize("address", "thread", "undefined"))) static inline bool
fake_word_reached(const struct fake_word *word, uint64_t now) {
    uint64_t mask = word->size_bytes == 8 ? UINT64_MAX : UINT32_MAX, value = word->value & mask;
    switch (word->flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return word->size_bytes == 8 ? (int64_t)(now - value) >= 0
                                     : (int32_t)((uint32_t)now - (uint32_t)value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return now == value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (now & value) != 0;
    default:
        return (~(now | value) & mask) != 0;
    }
}
/* Lets go what it refers to; under fake_mutex. */
void fake_work_end(struct fake_work *work);

#endif
