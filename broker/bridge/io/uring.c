/*
 * Sockets by io_uring: see engine.h. Multishot receive into a ring of provided buffers, registered
 * files, and, where the kernel has it, completions that wait for us (DEFER_TASKRUN); everything of
 * a turn is submitted with its one wait.
 *
 * What a kernel lacks is found here at the start: without provided buffers or multishot receive
 * (before Linux 6.0) the older way is epoll. A completion names its socket and what it was in the
 * pointer's low bits; a socket that closes is told only when the kernel has given back all that it
 * had, so that no completion finds freed memory.
 */
#include "broker/bridge/io/uring.h"

#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/bridge/io/engine.h"
#include "broker/bridge/memory.h"
#include "shm/base/error.h"
#include "shm/base/wait.h"

#define ENTRIES      256u
#define BUFFERS      64u /* a power of two, as the next one */
#define BULK_BUFFERS 16u /* 1 MiB: the kernel takes them in turn, and all are to stay in L2 */
#define BUFFER_BYTES (64u << 10)
#define FILES        1024u
#define GROUP        0

#define NO_MEMORY "there is no memory for io_uring's buffers, epoll serves instead"

enum kind { KIND_NONE, KIND_RECEIVE, KIND_SEND, KIND_CONNECT, KIND_WATCH };
#define KIND_MASK 7ull

struct uring_io {
    struct cwb_io io;
    struct io_uring ring;
    struct io_uring_buf_ring *provided;
    uint8_t *buffers; /* buffer_count of BUFFER_BYTES */
    uint32_t buffer_count;
    uint32_t free_slots[FILES];
    uint32_t free_count;
};

static struct io_uring_sqe *next_sqe(struct uring_io *u, void *who, enum kind kind) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    while (!sqe) { /* full: hand over what there is */
        io_uring_submit(&u->ring);
        sqe = io_uring_get_sqe(&u->ring);
    }
    sqe->user_data = (uint64_t)(uintptr_t)who | kind;
    return sqe;
}

/* io_uring_prep_* clears the whole entry. */
static void sign(struct io_uring_sqe *sqe, void *who, enum kind kind) {
    sqe->user_data = (uint64_t)(uintptr_t)who | kind;
}

static void use_slot(struct io_uring_sqe *sqe, const struct cwb_socket *socket) {
    if (socket->slot < 0)
        return;
    sqe->fd = socket->slot;
    sqe->flags |= IOSQE_FIXED_FILE;
}

static void give_buffer(struct uring_io *u, uint32_t id) {
    io_uring_buf_ring_add(u->provided, u->buffers + (size_t)id * BUFFER_BYTES, BUFFER_BYTES,
                          (unsigned short)id, io_uring_buf_ring_mask(u->buffer_count), 0);
    io_uring_buf_ring_advance(u->provided, 1);
}

static void arm_receive(struct uring_io *u, struct cwb_socket *socket) {
    struct io_uring_sqe *sqe = next_sqe(u, socket, KIND_RECEIVE);
    io_uring_prep_recv_multishot(sqe, socket->fd, NULL, 0, 0);
    sqe->flags |= IOSQE_BUFFER_SELECT;
    sqe->buf_group = GROUP;
    use_slot(sqe, socket);
    sign(sqe, socket, KIND_RECEIVE);
    socket->pending |= CWB_RECEIVES;
}

static void arm_send(struct uring_io *u, struct cwb_socket *socket) {
    struct io_uring_sqe *sqe = next_sqe(u, socket, KIND_SEND);
    io_uring_prep_send(sqe, socket->fd, socket->send_bytes, socket->send_left, MSG_NOSIGNAL);
    use_slot(sqe, socket);
    sign(sqe, socket, KIND_SEND);
    socket->pending |= CWB_SENDS;
}

static void arm_watch(struct uring_io *u, struct cwb_watch *watch) {
    struct io_uring_sqe *sqe = next_sqe(u, watch, KIND_WATCH);
    io_uring_prep_poll_multishot(sqe, watch->fd, POLLIN);
    sign(sqe, watch, KIND_WATCH);
}

static void u_free(struct cwb_io *io) {
    struct uring_io *u = (struct uring_io *)io;
    io_uring_queue_exit(&u->ring);
    free(u->provided);
    free(u->buffers);
    free(u);
}

static int u_watch(struct cwb_io *io, struct cwb_watch *watch) {
    arm_watch((struct uring_io *)io, watch);
    return 0;
}

static void take_slot(struct uring_io *u, struct cwb_socket *socket) {
    socket->slot = -1;
    if (!u->free_count)
        return;
    int slot = (int)u->free_slots[u->free_count - 1];
    if (io_uring_register_files_update(&u->ring, (unsigned)slot, &socket->fd, 1) == 1) {
        socket->slot = slot;
        u->free_count--;
    }
}

static void give_slot(struct uring_io *u, struct cwb_socket *socket) {
    int none = -1;
    if (!socket->known || socket->slot < 0)
        return;
    if (io_uring_register_files_update(&u->ring, (unsigned)socket->slot, &none, 1) == 1)
        u->free_slots[u->free_count++] = (uint32_t)socket->slot;
    socket->slot = -1;
}

static void u_connect(struct cwb_io *io, struct cwb_socket *socket, const struct sockaddr *address,
                      socklen_t length) {
    struct uring_io *u = (struct uring_io *)io;
    take_slot(u, socket);
    socket->known = true;
    struct io_uring_sqe *sqe = next_sqe(u, socket, KIND_CONNECT);
    io_uring_prep_connect(sqe, socket->fd, address, length);
    use_slot(sqe, socket);
    sign(sqe, socket, KIND_CONNECT);
    socket->pending |= CWB_CONNECTS;
    io_uring_submit(&u->ring); /* the kernel copies the address when it takes the entry */
}

static void u_start(struct cwb_io *io, struct cwb_socket *socket) {
    struct uring_io *u = (struct uring_io *)io;
    if (!socket->known)
        take_slot(u, socket);
    socket->known = socket->receiving = true;
    if (!(socket->pending & CWB_RECEIVES)) /* else what was paused is on its way back */
        arm_receive(u, socket);
}

static void u_send(struct cwb_io *io, struct cwb_socket *socket) {
    arm_send((struct uring_io *)io, socket);
}

static void cancel(struct uring_io *u, struct cwb_socket *socket, enum kind kind) {
    struct io_uring_sqe *sqe = next_sqe(u, NULL, KIND_NONE);
    io_uring_prep_cancel64(sqe, (uint64_t)(uintptr_t)socket | kind, 0);
    sign(sqe, NULL, KIND_NONE);
}

static void u_pause(struct cwb_io *io, struct cwb_socket *socket) {
    if (socket->pending & CWB_RECEIVES)
        cancel((struct uring_io *)io, socket, KIND_RECEIVE);
}

static void u_close(struct cwb_io *io, struct cwb_socket *socket) {
    struct uring_io *u = (struct uring_io *)io;
    if (!socket->keep)
        shutdown(socket->fd, SHUT_RDWR);
    if (socket->pending & CWB_RECEIVES)
        cancel(u, socket, KIND_RECEIVE);
    if (socket->pending & CWB_SENDS)
        cancel(u, socket, KIND_SEND);
    if (socket->pending & CWB_CONNECTS)
        cancel(u, socket, KIND_CONNECT);
    if (!socket->pending)
        cwb_io_ready(io, socket);
}

static void received(struct uring_io *u, struct cwb_socket *socket,
                     const struct io_uring_cqe *cqe) {
    bool more = cqe->flags & IORING_CQE_F_MORE;
    if (!more)
        socket->pending &= (uint16_t)~CWB_RECEIVES;
    uint32_t id = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
    bool has_buffer = cqe->flags & IORING_CQE_F_BUFFER;
    if (!socket->closing) {
        if (cqe->res > 0 && has_buffer)
            socket->calls->on_data(socket, u->buffers + (size_t)id * BUFFER_BYTES,
                                   (uint32_t)cqe->res);
        else if (cqe->res == 0)
            socket->receiving = false, socket->calls->on_data(socket, NULL, 0);
        else if (cqe->res != -ENOBUFS && cqe->res != -EINTR && cqe->res != -ECANCELED)
            socket->receiving = false, socket->calls->on_error(socket, cqe->res);
    }
    if (has_buffer)
        give_buffer(u, id);
    if (!more && socket->receiving && !socket->closing)
        arm_receive(u, socket);
}

static void sent(struct uring_io *u, struct cwb_socket *socket, int result) {
    socket->pending &= (uint16_t)~CWB_SENDS;
    if (socket->closing)
        return;
    if (result < 0 && result != -EINTR && result != -EAGAIN) {
        socket->send_left = 0;
        socket->calls->on_error(socket, result);
        return;
    }
    if (result > 0) {
        socket->send_bytes += result;
        socket->send_left -= (uint32_t)result;
    }
    if (socket->send_left)
        arm_send(u, socket);
    else
        socket->calls->on_sent(socket);
}

static void on_completion(struct uring_io *u, const struct io_uring_cqe *cqe) {
    enum kind kind = (enum kind)(cqe->user_data & KIND_MASK);
    void *who = (void *)(uintptr_t)(cqe->user_data & ~KIND_MASK);
    struct cwb_socket *socket = who;
    struct cwb_watch *watch = who;
    switch (kind) {
    case KIND_NONE:
        return;
    case KIND_WATCH:
        if (!(cqe->flags & IORING_CQE_F_MORE))
            arm_watch(u, watch);
        watch->on_ready(watch);
        return;
    case KIND_RECEIVE:
        received(u, socket, cqe);
        break;
    case KIND_SEND:
        sent(u, socket, cqe->res);
        break;
    case KIND_CONNECT:
        socket->pending &= (uint16_t)~CWB_CONNECTS;
        if (!socket->closing)
            socket->calls->on_connected(socket, cqe->res);
        break;
    }
    if (socket->closing && !socket->pending)
        cwb_io_ready(&u->io, socket);
}

static void u_turn(struct cwb_io *io, int64_t timeout_ns, int64_t *now_ns) {
    struct uring_io *u = (struct uring_io *)io;
    struct cwb_socket *socket;
    struct io_uring_cqe *cqe;
    while ((socket = cwb_io_ready_next(io))) {
        give_slot(u, socket);
        if (!socket->keep) {
            close(socket->fd);
            socket->fd = -1;
        }
        socket->calls->on_closed(socket);
    }
    struct __kernel_timespec limit = {.tv_sec = timeout_ns / 1000000000,
                                      .tv_nsec = timeout_ns % 1000000000};
    if (timeout_ns == 0)
        io_uring_submit_and_get_events(&u->ring);
    else
        io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, timeout_ns < 0 ? NULL : &limit, NULL);
    *now_ns = cw_now_ns();
    for (unsigned i = 0; i < 4 * ENTRIES && io_uring_peek_cqe(&u->ring, &cqe) == 0; i++) {
        struct io_uring_cqe copy = *cqe;
        io_uring_cqe_seen(&u->ring, cqe);
        on_completion(u, &copy);
    }
}

static const struct cwb_engine engine = {"io_uring", u_free, u_watch, u_connect, u_start,
                                         u_pause,    u_send, u_close, u_turn};

/* Can the kernel receive again and again by one entry? Tried on a pair of sockets. */
static bool multishot_works(struct uring_io *u) {
    int pair[2];
    struct io_uring_cqe *cqe;
    struct __kernel_timespec limit = {.tv_sec = 1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return false;
    struct cwb_socket probe = {.fd = pair[0], .slot = -1};
    arm_receive(u, &probe);
    bool works = false, ended = false;
    if (write(pair[1], "x", 1) == 1 &&
        io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &limit, NULL) >= 0 &&
        io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        works = cqe->res == 1 && (cqe->flags & IORING_CQE_F_MORE);
        ended = !(cqe->flags & IORING_CQE_F_MORE);
        if (cqe->flags & IORING_CQE_F_BUFFER)
            give_buffer(u, cqe->flags >> IORING_CQE_BUFFER_SHIFT);
        io_uring_cqe_seen(&u->ring, cqe);
    }
    shutdown(pair[0], SHUT_RDWR);
    while (!ended && io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &limit, NULL) >= 0 &&
           io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        ended = !(cqe->flags & IORING_CQE_F_MORE);
        if (cqe->flags & IORING_CQE_F_BUFFER)
            give_buffer(u, cqe->flags >> IORING_CQE_BUFFER_SHIFT);
        io_uring_cqe_seen(&u->ring, cqe);
    }
    close(pair[0]);
    close(pair[1]);
    return works;
}

static int provide(struct uring_io *u) {
    size_t ring_bytes = u->buffer_count * sizeof(struct io_uring_buf);
    u->buffers = aligned_alloc(4096, (size_t)u->buffer_count * BUFFER_BYTES);
    u->provided = aligned_alloc(4096, ring_bytes > 4096 ? ring_bytes : 4096);
    if (!u->buffers || !u->provided)
        return -ENOMEM;
    memset(u->provided, 0, ring_bytes);
    struct io_uring_buf_reg reg = {.ring_addr = (uint64_t)(uintptr_t)u->provided,
                                   .ring_entries = u->buffer_count,
                                   .bgid = GROUP};
    int code = io_uring_register_buf_ring(&u->ring, &reg, 0);
    if (code)
        return code;
    io_uring_buf_ring_init(u->provided);
    for (uint32_t id = 0; id < u->buffer_count; id++)
        give_buffer(u, id);
    if (io_uring_register_files_sparse(&u->ring, FILES) == 0)
        for (uint32_t slot = FILES; slot-- > 0;)
            u->free_slots[u->free_count++] = slot;
    return multishot_works(u) ? 0 : -EOPNOTSUPP;
}

int cwb_uring_new(bool bulk, struct cwb_io **out, const char **why) {
    static const unsigned flags[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                     IORING_SETUP_COOP_TASKRUN, 0};
    /* *why outlives this call, which has no io to keep it in: each stream's thread makes one, too
     */
    static _Thread_local char sentence[256];
    struct uring_io *u = calloc(1, sizeof *u);
    if (!u) {
        *why = NO_MEMORY;
        return cwb_no_memory("its sockets");
    }
    u->io.engine = &engine;
    u->buffer_count = bulk ? BULK_BUFFERS : BUFFERS;
    int code = -EINVAL;
    for (unsigned i = 0; i < sizeof flags / sizeof *flags && code == -EINVAL; i++)
        code = io_uring_queue_init(ENTRIES, &u->ring, flags[i] | IORING_SETUP_CLAMP);
    if (code) {
        free(u);
        snprintf(sentence, sizeof sentence, "io_uring is refused (%s), epoll serves instead; %s",
                 strerror(-code),
                 code == -EPERM || code == -EACCES || code == -ENOSYS
                     ? "allow it: sysctl kernel.io_uring_disabled=0, and in a container a seccomp "
                       "profile with io_uring_setup, io_uring_enter and io_uring_register"
                     : "raise ulimit -l or ulimit -n");
        *why = sentence;
        return code;
    }
    code = provide(u);
    if (code == 0) {
        *out = &u->io;
        return 0;
    }
    u_free(&u->io);
    *why =
        code == -ENOMEM
            ? NO_MEMORY
            : "this kernel's io_uring has no multishot receive, epoll serves instead; Linux 6.0 or "
              "newer has it";
    return code;
}
