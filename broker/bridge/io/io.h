/*
 * Sockets without waiting, in one of two ways: io_uring, or epoll where the kernel or a container's
 * profile refuses io_uring. Found at the start (cwb_io_new), the same to all that is above.
 *
 * One thread makes a cwb_io, runs its turns and calls everything here. Callbacks come from within a
 * turn alone (but for on_sent), so that a caller need not expect them elsewhere. A
 * socket is begun by cwb_io_connect() or cwb_io_start() and ended by cwb_io_close(): on_closed is
 * then its last callback, before which the kernel may still read what is being sent; its memory
 * stays the owner's, and until on_closed it stays.
 */
#ifndef CW_BROKER_BRIDGE_IO_IO_H
#define CW_BROKER_BRIDGE_IO_IO_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct cwb_io;
struct cwb_socket;

struct cwb_socket_calls {
    void (*on_connected)(struct cwb_socket *, int error); /* 0 or a negative errno */
    /* What came; valid during the call. size 0: the other side sends no more. */
    void (*on_data)(struct cwb_socket *, const uint8_t *bytes, uint32_t size_bytes);
    void (*on_sent)(struct cwb_socket *); /* all of it */
    void (*on_error)(struct cwb_socket *, int error);
    void (*on_closed)(struct cwb_socket *);
};

struct cwb_socket { /* embedded in its owner's struct, zeroed before use */
    const struct cwb_socket_calls *calls;
    int fd;
    /* the engine's */
    const uint8_t *send_bytes;
    uint32_t send_left;
    uint16_t pending; /* bits of enum cwb_pending */
    bool known, receiving, closing;
    bool keep; /* set before cwb_io_close(): the descriptor stays as it is, and is the owner's */
    int slot;  /* io_uring: of the registered files, -1 none; epoll: how it failed, to be told */
    struct cwb_socket *next_ready;
    bool is_ready;
};

struct cwb_watch { /* a descriptor that may be read again and again; the callback empties it */
    int fd;
    void (*on_ready)(struct cwb_watch *);
};

/* use_epoll: do not try io_uring. bulk: for few sockets, over which much comes. *why: "" or one
 * line that says why it is epoll; valid for ever. 0 or a negative code. */
int cwb_io_new(bool use_epoll, bool bulk, struct cwb_io **out, const char **why);
/* All sockets are closed. */
void cwb_io_free(struct cwb_io *io);
/* "io_uring" or "epoll". */
const char *cwb_io_kind(const struct cwb_io *io);

/* Watches until the end of io. 0 or -EDQUOT. */
int cwb_io_watch(struct cwb_io *io, struct cwb_watch *watch);
/* Begins to connect socket->fd (non-blocking); address is copied. */
void cwb_io_connect(struct cwb_io *io, struct cwb_socket *socket, const struct sockaddr *address,
                    socklen_t length);
/* The socket is connected: receive from now on, or once more after cwb_io_pause(). */
void cwb_io_start(struct cwb_io *io, struct cwb_socket *socket);
/* Receives nothing more until cwb_io_start(), but for what the kernel has handed over already. */
void cwb_io_pause(struct cwb_io *io, struct cwb_socket *socket);
#define CWB_IO_AT_ONCE_BYTES (128u << 10)
/* Sends; one at a time, the next after on_sent. bytes stay until then. What is small
 * (CWB_IO_AT_ONCE_BYTES, and what TLS adds) is sent at once if there is room: on_sent then comes
 * from within this call. */
void cwb_io_send(struct cwb_io *io, struct cwb_socket *socket, const uint8_t *bytes,
                 uint32_t size_bytes);
/* Ends it: no callback comes but on_closed. The descriptor is closed, unless socket->keep is set:
 * it may then be started with another cwb_io. May be repeated. */
void cwb_io_close(struct cwb_io *io, struct cwb_socket *socket);
/* Waits for something to happen, timeout_ns at most (< 0: for ever), and calls back. *now_ns: the
 * time when it had waited, before any of that. */
void cwb_io_turn(struct cwb_io *io, int64_t timeout_ns, int64_t *now_ns);

#endif
