/*
 * Sockets by epoll. See epoll.c.
 */
#ifndef CW_BROKER_BRIDGE_IO_EPOLL_H
#define CW_BROKER_BRIDGE_IO_EPOLL_H

struct cwb_io;

/* 0 or a negative code. */
int cwb_epoll_new(struct cwb_io **out);

#endif
