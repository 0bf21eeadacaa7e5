/*
 * What io.c and the two ways of io.h have in common: one struct of functions. io.c chooses; uring.c
 * and epoll.c are the ways. Each function is what io.h says of the one with its name.
 */
#ifndef CW_BROKER_BRIDGE_IO_ENGINE_H
#define CW_BROKER_BRIDGE_IO_ENGINE_H

#include "broker/bridge/io/io.h"

enum cwb_pending { CWB_RECEIVES = 1, CWB_SENDS = 2, CWB_CONNECTS = 4 };

struct cwb_engine {
    const char *name;
    void (*free)(struct cwb_io *);
    int (*watch)(struct cwb_io *, struct cwb_watch *);
    void (*connect)(struct cwb_io *, struct cwb_socket *, const struct sockaddr *, socklen_t);
    void (*start)(struct cwb_io *, struct cwb_socket *);
    void (*pause)(struct cwb_io *, struct cwb_socket *); /* receiving is false already */
    void (*send)(struct cwb_io *, struct cwb_socket *);
    void (*close)(struct cwb_io *, struct cwb_socket *);
    void (*turn)(struct cwb_io *, int64_t timeout_ns, int64_t *now_ns);
};

struct cwb_io { /* the begin of either way's own struct */
    const struct cwb_engine *engine;
    struct cwb_socket *ready; /* sockets with something to be told in the next turn */
};

/* io.c: puts a socket on the list. */
void cwb_io_ready(struct cwb_io *io, struct cwb_socket *socket);
/* Takes one off it, NULL: none. */
struct cwb_socket *cwb_io_ready_next(struct cwb_io *io);

#endif
