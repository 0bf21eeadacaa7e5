/*
 * Strand: a thread with a loop of its own that runs streams (stream.h), so that TLS has more than
 * one core. Strands are made when the first stream needs them and stay to the end of the process.
 *
 * The bridge's loop and a strand share nothing but what has a lock (uploads, transfer plans); else
 * each tells the other: the loop by notes, which a strand runs in the order in which they came, a
 * strand by cwb_work_tell(). Neither waits for the other, but for the strand's begin.
 */
#ifndef CW_BROKER_BRIDGE_IO_IO_THREAD_H
#define CW_BROKER_BRIDGE_IO_IO_THREAD_H

#include "broker/bridge/wire/wire.h"

struct cwb_stream;

struct cwb_note {                   /* the begin of a struct of the caller's */
    void (*run)(struct cwb_note *); /* the strand's thread; frees it */
    struct cwb_note *next;
};

struct cwb_strand {
    struct cwb_loop loop;
    struct cwb_stream *streams; /* that run here; the strand's */
    struct cwb_mailbox *box;
};

/* Starts a thread. 0 or -EDQUOT. */
int cwb_strand_new(bool use_epoll, struct cwb_strand **out);
/* Any thread. */
void cwb_strand_tell(struct cwb_strand *strand, struct cwb_note *note);

#endif
