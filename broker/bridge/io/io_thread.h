/*
 * I/O thread: a thread with a loop of its own that runs streams (stream.h), so that TLS has more
 * than one core. I/O threads are made when the first stream needs them and stay to the end of the
 * process.
 *
 * The bridge's loop and an I/O thread share nothing but what has a lock (uploads, transfer plans);
 * else each tells the other: the loop by notes, which an I/O thread runs in the order in which they
 * came, an I/O thread by cwb_work_tell(). Neither waits for the other, but for the I/O thread's
 * begin.
 */
#ifndef CW_BROKER_BRIDGE_IO_IO_THREAD_H
#define CW_BROKER_BRIDGE_IO_IO_THREAD_H

#include "broker/bridge/wire/wire.h"

struct cwb_stream;

struct cwb_note {                   /* the begin of a struct of the caller's */
    void (*run)(struct cwb_note *); /* on the I/O thread; frees it */
    struct cwb_note *next;
};

struct cwb_io_thread {
    struct cwb_loop loop;
    struct cwb_stream *streams; /* that run here; the I/O thread's */
    struct cwb_mailbox *box;
};

/* Starts a thread. 0 or -EDQUOT. */
int cwb_io_thread_new(bool use_epoll, struct cwb_io_thread **out);
/* Any thread. */
void cwb_io_thread_tell(struct cwb_io_thread *io_thread, struct cwb_note *note);

#endif
