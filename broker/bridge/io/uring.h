/*
 * Sockets by io_uring. See uring.c.
 */
#ifndef CW_BROKER_BRIDGE_IO_URING_H
#define CW_BROKER_BRIDGE_IO_URING_H

struct cwb_io;

/* 0, or a negative code with *why: one line. */
int cwb_uring_new(struct cwb_io **out, const char **why);

#endif
