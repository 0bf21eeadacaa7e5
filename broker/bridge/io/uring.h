/*
 * Sockets by io_uring. See uring.c.
 */
#ifndef CW_BROKER_BRIDGE_IO_URING_H
#define CW_BROKER_BRIDGE_IO_URING_H

#include <stdbool.h>

struct cwb_io;

/* bulk: see io.h. 0, or a negative code with *why: one line. */
int cwb_uring_new(bool bulk, struct cwb_io **out, const char **why);

#endif
