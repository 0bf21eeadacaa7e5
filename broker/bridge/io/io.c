/*
 * Sockets: see io.h. Chooses between the two ways and hands every call on; keeps the list of what
 * is to be told in the next turn.
 */
#include "broker/bridge/io/io.h"

#include "broker/bridge/io/engine.h"
#include "broker/bridge/io/epoll.h"
#include "broker/bridge/io/uring.h"
#include "shm/base/error.h"

#define TLS_ADDS_BYTES 1024u

int cwb_io_new(bool use_epoll, bool bulk, struct cwb_io **out, const char **why) {
    *why = "";
    if (!use_epoll && cwb_uring_new(bulk, out, why) == 0)
        return 0;
    return cwb_epoll_new(out);
}

void cwb_io_free(struct cwb_io *io) {
    if (io)
        io->engine->free(io);
}

const char *cwb_io_kind(const struct cwb_io *io) {
    return io->engine->name;
}

void cwb_io_ready(struct cwb_io *io, struct cwb_socket *socket) {
    if (socket->is_ready)
        return;
    socket->is_ready = true;
    socket->next_ready = io->ready;
    io->ready = socket;
}

struct cwb_socket *cwb_io_ready_next(struct cwb_io *io) {
    struct cwb_socket *socket = io->ready;
    if (socket) {
        io->ready = socket->next_ready;
        socket->is_ready = false;
    }
    return socket;
}

int cwb_io_watch(struct cwb_io *io, struct cwb_watch *watch) {
    return io->engine->watch(io, watch);
}

void cwb_io_connect(struct cwb_io *io, struct cwb_socket *socket, const struct sockaddr *address,
                    socklen_t length) {
    io->engine->connect(io, socket, address, length);
}

void cwb_io_start(struct cwb_io *io, struct cwb_socket *socket) {
    io->engine->start(io, socket);
}

void cwb_io_pause(struct cwb_io *io, struct cwb_socket *socket) {
    if (!socket->receiving || socket->closing)
        return;
    socket->receiving = false;
    io->engine->pause(io, socket);
}

void cwb_io_send(struct cwb_io *io, struct cwb_socket *socket, const uint8_t *bytes,
                 uint32_t size_bytes) {
    CW_ASSERT(!socket->send_left && !socket->closing && size_bytes);
    socket->send_bytes = bytes;
    socket->send_left = size_bytes;
    /* Cheaper than to hear later that it went. */
    if (size_bytes <= CWB_IO_AT_ONCE_BYTES + TLS_ADDS_BYTES) {
        ssize_t sent = send(socket->fd, bytes, size_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) {
            socket->send_bytes += sent;
            socket->send_left -= (uint32_t)sent;
        }
        if (!socket->send_left) {
            socket->calls->on_sent(socket);
            return;
        }
    }
    io->engine->send(io, socket); /* and tells errors */
}

void cwb_io_close(struct cwb_io *io, struct cwb_socket *socket) {
    if (socket->closing)
        return;
    socket->closing = true;
    io->engine->close(io, socket);
}

void cwb_io_turn(struct cwb_io *io, int64_t timeout_ns, int64_t *now_ns) {
    io->engine->turn(io, io->ready ? 0 : timeout_ns, now_ns);
}
