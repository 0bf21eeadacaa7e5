/*
 * Sockets by epoll: see engine.h. Level-triggered; what is to be sent is tried at once in the next
 * turn, and watched for room only if not all of it went.
 */
#include "broker/bridge/io/epoll.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "broker/bridge/io/engine.h"
#include "broker/bridge/memory.h"
#include "shm/base/error.h"
#include "shm/base/wait.h"

#define EVENTS_MAX    64
#define RECEIVE_BYTES (256u << 10)
#define RECEIVES_MAX  4 /* of one socket in one turn */

struct epoll_io {
    struct cwb_io io;
    int fd;
    uint8_t *buffer; /* RECEIVE_BYTES */
};

#define IS_WATCH 1ull /* in the low bit of what epoll tells */

static void ep_free(struct cwb_io *io) {
    struct epoll_io *ep = (struct epoll_io *)io;
    close(ep->fd);
    free(ep->buffer);
    free(ep);
}

static int ep_watch(struct cwb_io *io, struct cwb_watch *watch) {
    struct epoll_event event = {.events = EPOLLIN,
                                .data.u64 = (uint64_t)(uintptr_t)watch | IS_WATCH};
    if (epoll_ctl(((struct epoll_io *)io)->fd, EPOLL_CTL_ADD, watch->fd, &event) < 0)
        return cw_fail(-EDQUOT, "watching a descriptor failed: %m");
    return 0;
}

/* Watches for what the socket waits for. first: it is new to epoll. Without memory it is told of as
 * broken in the next turn: nobody would hear of it otherwise. */
static void expect(struct cwb_io *io, struct cwb_socket *socket, bool first) {
    uint32_t events = 0;
    if (socket->receiving)
        events |= EPOLLIN;
    if (socket->pending)
        events |= EPOLLOUT;
    struct epoll_event event = {.events = events, .data.u64 = (uint64_t)(uintptr_t)socket};
    if (epoll_ctl(((struct epoll_io *)io)->fd, first ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, socket->fd,
                  &event) < 0) {
        socket->slot = errno;
        cwb_io_ready(io, socket);
    }
}

static void ep_connect(struct cwb_io *io, struct cwb_socket *socket, const struct sockaddr *address,
                       socklen_t length) {
    socket->pending = CWB_CONNECTS;
    if (connect(socket->fd, address, length) < 0 && errno != EINPROGRESS)
        socket->slot = errno; /* told in the next turn */
    expect(io, socket, true);
    socket->known = true;
    if (socket->slot)
        cwb_io_ready(io, socket);
}

static void ep_start(struct cwb_io *io, struct cwb_socket *socket) {
    socket->receiving = true;
    expect(io, socket, !socket->known);
    socket->known = true;
}

static void ep_pause(struct cwb_io *io, struct cwb_socket *socket) {
    expect(io, socket, false);
}

static void ep_send(struct cwb_io *io, struct cwb_socket *socket) {
    cwb_io_ready(io, socket);
}

static void ep_close(struct cwb_io *io, struct cwb_socket *socket) {
    (void)epoll_ctl(((struct epoll_io *)io)->fd, EPOLL_CTL_DEL, socket->fd, NULL);
    if (!socket->keep) {
        close(socket->fd);
        socket->fd = -1;
    }
    cwb_io_ready(io, socket); /* on_closed comes from the next turn */
}

static void send_some(struct cwb_io *io, struct cwb_socket *socket) {
    bool watched = socket->pending & CWB_SENDS;
    ssize_t count =
        send(socket->fd, socket->send_bytes, socket->send_left, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno != EAGAIN && errno != EINTR) {
        socket->send_left = 0;
        socket->calls->on_error(socket, -errno);
        return;
    }
    if (count > 0) {
        socket->send_bytes += count;
        socket->send_left -= (uint32_t)count;
    }
    bool left = socket->send_left != 0;
    if (left != watched) {
        socket->pending = left ? CWB_SENDS : 0;
        expect(io, socket, false);
    }
    if (!left)
        socket->calls->on_sent(socket);
}

static void receive_some(struct epoll_io *ep, struct cwb_socket *socket) {
    for (int i = 0; i < RECEIVES_MAX && socket->receiving && !socket->closing; i++) {
        ssize_t count = recv(socket->fd, ep->buffer, RECEIVE_BYTES, MSG_DONTWAIT);
        if (count < 0) {
            if (errno != EAGAIN && errno != EINTR)
                socket->calls->on_error(socket, -errno);
            return;
        }
        if (count == 0) {
            socket->receiving = false;
            expect(&ep->io, socket, false);
        }
        socket->calls->on_data(socket, ep->buffer, (uint32_t)count);
        if (count < (ssize_t)RECEIVE_BYTES)
            return;
    }
}

static void connected(struct epoll_io *ep, struct cwb_socket *socket) {
    int error = socket->slot;
    socklen_t length = sizeof error;
    socket->slot = 0;
    if (!error && getsockopt(socket->fd, SOL_SOCKET, SO_ERROR, &error, &length) < 0)
        error = errno;
    socket->pending = 0;
    expect(&ep->io, socket, false);
    socket->calls->on_connected(socket, -error);
}

static void on_event(struct epoll_io *ep, struct cwb_socket *socket, uint32_t events) {
    if (socket->closing)
        return;
    if (socket->pending & CWB_CONNECTS) {
        connected(ep, socket);
        return;
    }
    if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) && socket->send_left)
        send_some(&ep->io, socket);
    if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) && !socket->closing) {
        if (socket->receiving)
            receive_some(ep, socket);
        else
            socket->calls->on_error(socket, -ECONNRESET);
    }
}

static void broken(struct cwb_socket *socket) {
    int error = socket->slot;
    socket->slot = 0;
    socket->calls->on_error(socket, -error);
}

/* What was asked for since the last turn, each socket once. */
static void serve_ready(struct epoll_io *ep) {
    struct cwb_socket *list = ep->io.ready, *socket;
    ep->io.ready = NULL;
    while ((socket = list)) {
        list = socket->next_ready;
        socket->is_ready = false;
        if (socket->closing)
            socket->calls->on_closed(socket);
        else if (socket->pending & CWB_CONNECTS)
            connected(ep, socket);
        else if (socket->slot)
            broken(socket);
        else if (socket->send_left && !(socket->pending & CWB_SENDS))
            send_some(&ep->io, socket);
    }
}

static void ep_turn(struct cwb_io *io, int64_t timeout_ns, int64_t *now_ns) {
    struct epoll_io *ep = (struct epoll_io *)io;
    struct epoll_event events[EVENTS_MAX];
    serve_ready(ep);
    int64_t ms = timeout_ns < 0 ? -1 : (timeout_ns + 999999) / 1000000;
    if (io->ready)
        ms = 0;
    int count = epoll_wait(ep->fd, events, EVENTS_MAX, ms > 3600000 ? 3600000 : (int)ms);
    *now_ns = cw_now_ns();
    for (int i = 0; i < count; i++) {
        if (events[i].data.u64 & IS_WATCH) {
            struct cwb_watch *watch = (void *)(uintptr_t)(events[i].data.u64 & ~IS_WATCH);
            watch->on_ready(watch);
        } else {
            on_event(ep, (void *)(uintptr_t)events[i].data.u64, events[i].events);
        }
    }
}

static const struct cwb_engine engine = {"epoll",  ep_free, ep_watch, ep_connect, ep_start,
                                         ep_pause, ep_send, ep_close, ep_turn};

int cwb_epoll_new(struct cwb_io **out) {
    struct epoll_io *ep = calloc(1, sizeof *ep);
    uint8_t *buffer = malloc(RECEIVE_BYTES);
    if (!ep || !buffer) {
        free(ep);
        free(buffer);
        return cwb_no_memory("its sockets");
    }
    ep->io.engine = &engine;
    ep->buffer = buffer;
    ep->fd = epoll_create1(EPOLL_CLOEXEC);
    if (ep->fd < 0) {
        free(ep->buffer);
        free(ep);
        return cw_fail(-EDQUOT, "epoll_create1 failed: %m");
    }
    *out = &ep->io;
    return 0;
}
