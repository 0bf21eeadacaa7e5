/*
 * Requests over the socket: those that carry descriptors. Synchronous and rare.
 *
 * One thread at a time (sock_lock) sends a datagram and waits for the reply with its id. A request
 * that a signal ended leaves its reply to come: the next caller throws it away, descriptors and all
 * (and gives a slab back that nobody knows of). If the broker dies the socket ends, and every call
 * returns -ECONNRESET.
 */
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ipc/client.h"
#include "ipc/request/channel.h"
#include "ipc/request/socket.h"
#include "shm/base/trace.h"
#include "shm/base/fd.h"

void cw_fds_close(struct cw_fds *fds) {
    for (uint32_t i = 0; i < fds->count; i++)
        close(fds->fd[i]);
    fds->count = 0;
}

static CW_THREAD_LOCAL int64_t limit_ns; /* 0: none */

int64_t cw_socket_limit(int64_t timeout_ns) {
    int64_t before = limit_ns, until_ns = cw_end_ns(cw_now_ns(), timeout_ns);
    if (timeout_ns >= 0 && (!limit_ns || until_ns < limit_ns))
        limit_ns = until_ns;
    return before;
}

void cw_socket_unlimit(int64_t before) {
    limit_ns = before;
}

int64_t cw_socket_limited_ns(void) {
    return limit_ns ? limit_ns : INT64_MAX;
}

static CW_THREAD_LOCAL bool asks_nobody;

void cw_asks_nobody(void) {
    asks_nobody = true;
}

int cw_may_ask(void) {
    return asks_nobody ? cw_fail(CW_WOULD_WAIT, "this needs the broker's answer, for which this "
                                                "thread does not wait")
                       : 0;
}

static bool past_limit(void) {
    return limit_ns && cw_now_ns() >= limit_ns;
}

int cw_socket_too_late(void) {
    return cw_fail(-ETIMEDOUT, "the broker did not answer in time: it is stopped, or hangs; "
                               "`cableway status` tells which, `cableway stop --force` ends it");
}

bool cw_interruptible_over(struct cw_interruptible *wait, bool came) {
    wait->signalled |= came;
    return wait->signalled && cw_now_ns() - wait->begun_ns >= CW_INTERRUPTIBLE_AFTER_NS;
}

int64_t cw_interruptible_left_ns(const struct cw_interruptible *wait) {
    if (!wait->signalled)
        return -1;
    int64_t left_ns = wait->begun_ns + CW_INTERRUPTIBLE_AFTER_NS - cw_now_ns();
    return left_ns > 0 ? left_ns : 0;
}

bool cw_interruptible_nap(struct cw_interruptible *wait) {
    wait->nap_ns = !wait->nap_ns                   ? CW_NAP_NS
                   : wait->nap_ns < CW_NAP_NS_MOST ? 2 * wait->nap_ns
                                                   : CW_NAP_NS_MOST;
    struct timespec nap = {.tv_nsec = wait->nap_ns};
    cw_trace_sleeps();
    return nanosleep(&nap, NULL) < 0;
}

int cw_interruptible_lock(pthread_mutex_t *lock, struct cw_interruptible *wait, int64_t until_ns) {
    while (pthread_mutex_trylock(lock) != 0) {
        bool over = cw_interruptible_over(wait, cw_interruptible_nap(wait));
        if (until_ns && cw_now_ns() >= until_ns)
            return -ETIMEDOUT;
        if (!until_ns && over)
            return cw_fail(-EINTR, "a signal came while waiting for the broker");
        if (!until_ns && past_limit())
            return cw_socket_too_late();
    }
    return 0;
}

static int poll_ns(struct pollfd *pollers, nfds_t count, int64_t timeout_ns) {
    struct timespec limit = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
    return ppoll(pollers, count, timeout_ns < 0 ? NULL : &limit, NULL);
}

int cw_socket_poll(struct pollfd *pollers, uint32_t count, int64_t timeout_ns) {
    bool quiet = cw_trace_sleeps_quietly(timeout_ns);
    int found = poll_ns(pollers, count, quiet ? CW_TRACE_QUIET_NS : timeout_ns);
    if (found == 0 && quiet) {
        cw_trace_slept_quietly();
        found = poll_ns(pollers, count, timeout_ns < 0 ? -1 : timeout_ns - CW_TRACE_QUIET_NS);
    }
    return found;
}

/* How long poll may wait, in ms; -1 for ever. */
static int poll_ms(const cw_client *client, const struct cw_interruptible *wait) {
    int64_t left_ns = wait ? cw_interruptible_left_ns(wait) : -1;
    const int64_t limits[] = {client->sock_until_ns, wait ? limit_ns : 0};
    for (unsigned i = 0; i < 2; i++) {
        int64_t until_ns = limits[i] - cw_now_ns();
        if (limits[i] > 0 && (left_ns < 0 || until_ns < left_ns))
            left_ns = until_ns > 0 ? until_ns : 0;
    }
    return left_ns < 0 ? -1 : cw_poll_ms(left_ns);
}

/* Waits until the socket is ready. A signal ends it, if at all (wait), only after
 * CW_INTERRUPTIBLE_AFTER_NS.
 */
static int wait_ready(cw_client *client, short events, struct cw_interruptible *wait) {
    for (;;) {
        struct pollfd poller = {.fd = client->sock, .events = events};
        cw_trace_sleeps();
        int count = poll(&poller, 1, poll_ms(client, wait));
        if (count > 0)
            return 0; /* also at its end: the call that follows says so */
        if (count < 0 && errno != EINTR)
            return cw_fail(errno == ENOMEM ? -EDQUOT : -errno,
                           "poll on the broker's socket failed: %m");
        if (wait && cw_interruptible_over(wait, count < 0))
            return cw_fail(-EINTR, "a signal came while waiting for the broker");
        if (wait && past_limit())
            return cw_socket_too_late();
        if (client->sock_until_ns > 0 && cw_now_ns() >= client->sock_until_ns)
            return cw_fail(-ECONNRESET,
                           "a broker listens, but does not answer: it is stopped or "
                           "hangs; `cableway status` tells which, `cableway stop --force` ends it");
    }
}

static int send_request(cw_client *client, struct cw_message *head, const void *body,
                        uint32_t body_bytes, const struct cw_fds *send,
                        struct cw_interruptible *wait) {
    struct iovec parts[2] = {{head, sizeof *head}, {(void *)(uintptr_t)body, body_bytes}};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * CW_FDS_MAX)];
    } control;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = body_bytes ? 2 : 1};
    if (send && send->count) {
        CW_ASSERT(send->count <= CW_FDS_MAX);
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * send->count);
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int) * send->count);
        memcpy(CMSG_DATA(rights), send->fd, sizeof(int) * send->count);
    }
    for (;;) {
        if (sendmsg(client->sock, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
            return 0;
        if (errno == EAGAIN) {
            int code = wait_ready(client, POLLOUT, wait);
            if (code)
                return code;
        } else if (errno == ETOOMANYREFS)
            return cw_fail(-EDQUOT, "too many descriptors are under way between processes of "
                                    "this user: try again, or raise RLIMIT_NOFILE");
        else if (errno == ENOBUFS || errno == ENOMEM) /* the session is as it was */
            return cw_fail(-EDQUOT, "the kernel has no memory left for a message to the broker");
        else if (errno != EINTR)
            return cw_client_lost(client);
    }
}

static void take_fds(struct msghdr *message, struct cw_fds *fds) {
    fds->count = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        uint32_t count = (uint32_t)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (uint32_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof fd);
            fd = cw_fd_above_stdio(fd);
            if (fd >= 0 && fds->count < CW_FDS_MAX)
                fds->fd[fds->count++] = fd;
            else if (fd < 0)
                continue; /* the answer then has fewer than it should, which its reader sees */
            else
                close(fd);
        }
    }
}

/* One datagram into buffer (CW_MESSAGE_MAX bytes); *size_bytes of it, whole and consistent. */
static int receive(cw_client *client, uint8_t *buffer, uint32_t *size_bytes, struct cw_fds *fds,
                   struct cw_interruptible *wait) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * CW_FDS_MAX)];
    } control;
    for (;;) {
        struct iovec part = {buffer, CW_MESSAGE_MAX};
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof control.bytes};
        ssize_t count = recvmsg(client->sock, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (count < 0 && errno == EAGAIN) {
            int code = wait_ready(client, POLLIN, wait);
            if (code)
                return code;
            continue;
        }
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return cw_client_lost(client);
        take_fds(&message, fds);
        struct cw_message *head = (struct cw_message *)(void *)buffer;
        if (message.msg_flags & MSG_CTRUNC) {
            /* Our own table of descriptors is full: the message is lost, the session is not. */
            cw_fds_close(fds);
            if ((size_t)count < sizeof *head)
                return cw_client_lost(client);
            head->status = -EDQUOT;
            head->size_bytes = sizeof *head;
            *size_bytes = sizeof *head;
            return 0;
        }
        if ((size_t)count < sizeof *head || head->size_bytes != (uint32_t)count ||
            (message.msg_flags & MSG_TRUNC)) {
            cw_fds_close(fds);
            cw_client_lost(client);
            return cw_fail(-EPROTO, "the broker sent a malformed message of %zd bytes", count);
        }
        *size_bytes = (uint32_t)count;
        return 0;
    }
}

/* The reply of a request that was given up: nobody else will give back what it brought. */
static void discard(cw_client *client, const uint8_t *buffer, uint32_t size_bytes,
                    struct cw_fds *fds) {
    const struct cw_message *head = (const struct cw_message *)(const void *)buffer;
    cw_fds_close(fds);
    if (head->op == CW_OP_REPLY && head->id == 0)
        cw_client_reason(client, (const char *)(head + 1), size_bytes - (uint32_t)sizeof *head);
    if (head->op == (CW_OP_SLAB_ADD | CW_OP_REPLY) && head->status == 0 &&
        size_bytes >= sizeof *head + sizeof(struct cw_slab_info)) {
        const struct cw_slab_info *info = (const void *)(head + 1);
        struct cw_slab_request close_it = {.slab = info->slab};
        cw_channel_post(client, CW_OP_SLAB_CLOSE, &close_it, sizeof close_it);
    }
}

/* Checks the reply to our request and hands out what it brought. */
static int accept_reply(cw_client *client, const uint8_t *buffer, uint32_t size_bytes, uint16_t op,
                        struct cw_fds *fds, void *reply, uint32_t reply_bytes,
                        struct cw_fds *received) {
    const struct cw_message *head = (const struct cw_message *)(const void *)buffer;
    uint32_t body_bytes = size_bytes - (uint32_t)sizeof *head;
    if (head->status < 0) {
        cw_fds_close(fds);
        if (body_bytes == 0)
            return cw_fail(head->status, "a descriptor that the broker sent could not be taken: %s",
                           cw_descriptor_remedy(EMFILE));
        return cw_fail(head->status, "%.*s", (int)body_bytes, (const char *)(head + 1));
    }
    uint32_t wanted = received ? received->count : 0;
    if (head->op != (op | CW_OP_REPLY) || body_bytes < reply_bytes || fds->count != wanted) {
        uint32_t count = fds->count;
        cw_fds_close(fds);
        cw_client_lost(client);
        return cw_fail(-EPROTO,
                       "the broker answered request %u with message %u of %u bytes and %u "
                       "descriptors",
                       op, head->op, body_bytes, count);
    }
    if (reply_bytes)
        memcpy(reply, head + 1, reply_bytes);
    if (received)
        *received = *fds;
    return 0;
}

/* One request and its reply. The caller holds sock_lock. */
static int call(cw_client *client, uint16_t op, const void *body, uint32_t body_bytes,
                const struct cw_fds *send, void *reply, uint32_t reply_bytes,
                struct cw_fds *received, struct cw_interruptible *wait) {
    _Alignas(8) uint8_t buffer[CW_MESSAGE_MAX];
    struct cw_message head = {
        .size_bytes = (uint32_t)sizeof head + body_bytes, .op = op, .id = ++client->sock_id};
    int code = send_request(client, &head, body, body_bytes, send, wait);
    struct cw_fds fds = {.count = 0};
    uint32_t size_bytes = 0;
    while (code == 0) {
        code = receive(client, buffer, &size_bytes, &fds, wait);
        if (code)
            break;
        if (((struct cw_message *)(void *)buffer)->id == head.id) {
            code = accept_reply(client, buffer, size_bytes, op, &fds, reply, reply_bytes, received);
            if (code && received)
                received->count = 0;
            return code;
        }
        discard(client, buffer, size_bytes, &fds);
        if (((struct cw_message *)(void *)buffer)->op == CW_OP_REPLY)
            code = cw_client_lost(client);
    }
    if (received)
        received->count = 0;
    return code;
}

int cw_socket_call_locked(cw_client *client, uint16_t op, const void *body, uint32_t body_bytes,
                          const struct cw_fds *send, void *reply, uint32_t reply_bytes,
                          struct cw_fds *received) {
    return call(client, op, body, body_bytes, send, reply, reply_bytes, received, NULL);
}

static int ask(cw_client *client, uint16_t op, const void *body, uint32_t body_bytes,
               const struct cw_fds *send, void *reply, uint32_t reply_bytes,
               struct cw_fds *received) {
    struct cw_interruptible wait = {.begun_ns = cw_now_ns()};
    int code = cw_may_ask();
    cw_trace_begin(wait.begun_ns);
    if (code == 0)
        code = cw_interruptible_lock(&client->sock_lock, &wait, 0);
    if (code) {
        if (received)
            received->count = 0;
        return code;
    }
    code = call(client, op, body, body_bytes, send, reply, reply_bytes, received, &wait);
    pthread_mutex_unlock(&client->sock_lock);
    return code;
}

int cw_socket_call(cw_client *client, uint16_t op, const void *body, uint32_t body_bytes,
                   const struct cw_fds *send, void *reply, uint32_t reply_bytes,
                   struct cw_fds *received) {
    struct cw_trace_span span;
    cw_trace_enter_request(&span, op);
    int code = ask(client, op, body, body_bytes, send, reply, reply_bytes, received);
    cw_trace_leave(&span, code < 0);
    return code;
}

int cw_socket_call_apart(cw_client *client, pthread_mutex_t *lock, uint16_t op, const void *body,
                         uint32_t body_bytes, const struct cw_fds *send, void *reply,
                         uint32_t reply_bytes, struct cw_fds *received) {
    pthread_mutex_unlock(lock);
    int code = cw_socket_call(client, op, body, body_bytes, send, reply, reply_bytes, received);
    pthread_mutex_lock(lock);
    return code;
}
