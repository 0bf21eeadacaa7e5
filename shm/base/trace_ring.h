/*
 * Trace rings: the last events of one process, in memory that other processes read.
 *
 * A trace is a segment of its own. It has two rings of CW_TRACE_EVENTS places: one for events that
 * took CW_TRACE_LONG_NS or longer and one for all others, so that many short events do not push out
 * the few long ones. Beside them: what is under way now (a wait that has not ended is no event
 * yet), and the names of functions, which events name by number.
 *
 * Invariants:
 *   - A place is written by one thread at a time: who claims it (Y3) marks it busy, and another one
 *     that comes round the ring meanwhile gives its own event up, which is counted.
 *   - A reader copies a place between two looks at its mark (Y6, Y8). It takes the copy if both are
 *     the same and tell the position that it wanted. So it has whole events, or none.
 *   - A call under way that rests (its thread is between two parts of one wait) may lose its place
 *     to a thread that finds no empty one: the thread may have ended, and would keep it for ever.
 *   - Nobody waits for anybody.
 *
 * Owner: the process that made it; its threads alone write. If that is killed in the middle of an
 * event, one place stays busy and readers pass it over; the memory goes with the last process that
 * has its descriptor or maps it. What a reader finds was written by another process: it may be
 * anything, and is bounded here.
 */
#ifndef CW_SHM_BASE_TRACE_RING_H
#define CW_SHM_BASE_TRACE_RING_H

#include <stddef.h>

#include "shm/base/atomic.h"
#include "shm/base/segment.h"

#define CW_TRACE_VERSION 2u
#ifndef CW_TRACE_EVENTS          /* the model has its own */
#define CW_TRACE_EVENTS    1024u /* places of each ring */
#define CW_TRACE_UNDER_WAY 64u   /* calls at a time that show before they have ended */
#define CW_TRACE_FUNCTIONS 32u   /* names of functions that are kept; a later one takes a place */
#endif
#define CW_TRACE_LONG_NS  1000000
#define CW_TRACE_NAME_MAX 56u /* bytes of a name; of a longer one the end is kept */

enum cw_trace_kind {
    CW_TRACE_NONE,
    CW_TRACE_REQUEST, /* the broker was asked: op; number: how many were before it without an event
                       */
    CW_TRACE_GET,     /* a get that had to ask somebody; name */
    CW_TRACE_WAIT,    /* a sleep until another process acts, of a call that has no kind here */
    CW_TRACE_WAKE,    /* a moment: others that sleep were woken; number: as of a request */
    CW_TRACE_TASK,    /* a worker ran a task: subject, number; function, if known */
    CW_TRACE_SUBMIT,  /* a moment: a task was handed to the workers: subject, number */
    CW_TRACE_RESULT,  /* a moment: the answer of a task was taken: subject, number */
    CW_TRACE_IDLE,    /* a worker slept until there was a task: subject */
    CW_TRACE_ANSWERS, /* a caller of a Pool slept until there was an answer: subject */
    CW_TRACE_HELPER,  /* the helper thread of a Pool slept: subject */
    CW_TRACE_QUEUE_PUT,  /* a put into a queue that slept until there was room: subject */
    CW_TRACE_QUEUE_GET,  /* a get from a queue that slept until there was an item: subject */
    CW_TRACE_QUEUE_JOIN, /* a join of a queue that slept: subject */
    CW_TRACE_COPY,       /* bytes; from and to: GPUs by number, -1 host memory */
    CW_TRACE_GROUP,      /* a collective call of a group that slept */
    CW_TRACE_FENCE,      /* a wait for GPU work of another process */
    CW_TRACE_KINDS,
};

enum cw_trace_flag {
    CW_TRACE_FAILED = 1,    /* the call returned an error */
    CW_TRACE_SUBMITTED = 2, /* a copy: was only given to a stream; when it is done is not known */
    CW_TRACE_BY_MOVER = 4,  /* a copy: cableway-mover does it */
    CW_TRACE_STAGED = 8,    /* a copy between GPUs: through host memory */
    CW_TRACE_INTERRUPTED = 16, /* a wait: a part of it timed out, and the next one never came */
};

struct cw_trace_record { /* private: one event, or one call under way */
    uint8_t kind;        /* enum cw_trace_kind */
    uint8_t flags;       /* enum cw_trace_flag */
    uint16_t op;         /* of a request: enum cw_op */
    uint32_t tid;
    int64_t begun_ns, duration_ns; /* CLOCK_MONOTONIC; of a call under way the duration is 0, of one
                                    * that rests: until it began to */
    uint64_t subject;              /* a number of a pool or queue that all processes agree on */
    union {
        uint64_t number; /* of a task, within its pool */
        struct {
            int32_t from, to; /* of a copy */
        };
    };
    union {
        uint64_t bytes;
        uint64_t function; /* of a task */
    };
    uint32_t name_bytes; /* 0: none */
    char name[CW_TRACE_NAME_MAX];
};

#define CW_TRACE_WORDS      8u  /* of a place in a ring */
#define CW_TRACE_LONG_WORDS 16u /* of a place with a name */

struct cw_trace_event { /* shared */
    cw_a64 mark;        /* number << 2 | enum of trace_ring.c */
    cw_a64 words[CW_TRACE_WORDS - 1];
};

struct cw_trace_named { /* shared: what is under way, or a function */
    cw_a64 mark;
    cw_a64 words[CW_TRACE_LONG_WORDS - 1];
};

struct cw_trace { /* shared */
    struct cw_segment_header header;
    uint32_t version; /* CW_TRACE_VERSION; written once, like what follows */
    uint32_t pid;
    uint32_t fd; /* the descriptor by which others find it, in the process that made it, */
    uint32_t reserved;
    uint64_t device, inode;      /* and of which file it is */
    cw_a64 address;              /* cw_trace_address() of the broker that the process asks,
                                  * or would; 0: its environment names none */
    cw_a64 lost;                 /* events and calls under way that found their place taken */
    _Alignas(64) cw_a64 next[2]; /* events that each ring got so far: short, long */
    _Alignas(CW_PAGE) struct cw_trace_named under_way[CW_TRACE_UNDER_WAY];
    struct cw_trace_named functions[CW_TRACE_FUNCTIONS];
    struct cw_trace_event events[2][CW_TRACE_EVENTS];
};

/* The number of a broker's address: the path of its socket. */
uint64_t cw_trace_address(const char *path);
/* Sets a record's name; of a longer one the end is kept, from a whole character on. */
void cw_trace_name(struct cw_trace_record *record, const char *name, size_t bytes);

/* ---- the process's own: any thread, without locks; nothing blocks, nothing fails ---- */

/* Adds an event to the ring that its duration chooses. */
void cw_trace_add(struct cw_trace *trace, const struct cw_trace_record *record);
/* Shows a call that has begun, until cw_trace_ended(); -1: there was no place. */
int cw_trace_begun(struct cw_trace *trace, const struct cw_trace_record *record);
void cw_trace_ended(struct cw_trace *trace, int place);
/* The call shown there rests, for as long as record->duration_ns tells. Returns the place's mark,
 * for cw_trace_resumed(). */
uint64_t cw_trace_rests(struct cw_trace *trace, int place, const struct cw_trace_record *record);
/* It goes on, or, without a record, is not shown any more. Returns the place; -1: it was lost. */
int cw_trace_resumed(struct cw_trace *trace, int place, uint64_t mark,
                     const struct cw_trace_record *record);
/* Notes how the function of this number is called. */
void cw_trace_function(struct cw_trace *trace, uint64_t function, const char *name,
                       size_t name_bytes);

/* ---- a reader, of any process: copies ---- */

/* How many events a ring got so far, as the ring says. */
uint64_t cw_trace_count(struct cw_trace *trace, unsigned ring);
/* The event at a position of a ring; false: overwritten, not whole yet, or the rest of the one
 * before. */
bool cw_trace_read(struct cw_trace *trace, unsigned ring, uint64_t position,
                   struct cw_trace_record *out);
/* A call under way in a place below CW_TRACE_UNDER_WAY; false: none. */
bool cw_trace_read_under_way(struct cw_trace *trace, unsigned place, struct cw_trace_record *out);
/* A function in a place below CW_TRACE_FUNCTIONS: its number and name; false: none. */
bool cw_trace_read_function(struct cw_trace *trace, unsigned place, struct cw_trace_record *out);

#endif
