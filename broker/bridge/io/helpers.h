/*
 * Work that may block, done by a few helper threads: a piece is run by one of them, then told to
 * the loop. In between nobody else touches it. Pieces run in any order.
 */
#ifndef CW_BROKER_BRIDGE_IO_HELPERS_H
#define CW_BROKER_BRIDGE_IO_HELPERS_H

#include <stdbool.h>

#include "shm/base/error.h"

struct cwb_io;
struct cwb_helpers;

struct cwb_work {                    /* the begin of a struct of the caller's, on the heap */
    void (*run)(struct cwb_work *);  /* a helper's thread */
    void (*done)(struct cwb_work *); /* the loop's; frees it */
    int code;                        /* run's to set: 0 or a negative errno, */
    char detail[CW_DETAIL_MAX];      /* and then the sentence (cwb_work_fail) */
    struct cwb_work *next;
};

/* Told through io's turns; name: of its threads. There are CWB_HELPERS from the begin on, and up to
 * `most` as more work waits than they can take. 0 or -EDQUOT. */
#define CWB_HELPERS     4u
#define CWB_HELPERS_MAX 64u
int cwb_helpers_new(struct cwb_io *io, const char *name, unsigned most, struct cwb_helpers **out);
/* Waits for what runs; what was not begun is not run, and nothing is told any more. */
void cwb_helpers_free(struct cwb_helpers *helpers);
/* Any thread. The work is the helpers' until done. */
void cwb_work_begin(struct cwb_helpers *helpers, struct cwb_work *work);
/* Any thread: no helper, done is called by the loop. */
void cwb_work_tell(struct cwb_helpers *helpers, struct cwb_work *work);
/* Keeps code, and the thread's sentence if it is negative. */
void cwb_work_set(struct cwb_work *work, int code);

#endif
