/*
 * Socket: see socket.h. The loop's thread alone. A message is received whole into our own memory;
 * descriptors that came and were not taken are discarded through the closing helper, whatever they
 * are.
 */
#include "broker/session/socket.h"

#include <linux/sockios.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "broker/broker.h"
#include "broker/memory/slabs.h"
#include "broker/core/log.h"
#include "broker/core/monitor.h"
#include "broker/session/session.h"

#define MESSAGES_PER_TURN 16

static void take_fds(struct cwd_broker *b, struct msghdr *message, struct cwd_mail *mail) {
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        uint32_t count = (uint32_t)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (uint32_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
            if (mail->fd_count < CWD_FDS_MAX)
                mail->fds[mail->fd_count++] = fd;
            else
                cwd_fd_discard(b, fd);
        }
    }
}

enum outcome { MAIL, NOTHING, END, BREACH };

/* One message. BREACH: reason says why. */
static enum outcome receive(struct cwd_broker *b, struct cwd_session *session,
                            struct cwd_mail *mail, const char **reason) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * CWD_FDS_MAX)];
    } control;
    struct iovec parts[2] = {{&mail->head, sizeof mail->head},
                             {mail->body, CW_MESSAGE_MAX - sizeof mail->head}};
    struct msghdr message = {.msg_iov = parts,
                             .msg_iovlen = 2,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    mail->fd_count = 0; /* also where nothing is received, but an error (ECONNRESET) */
    ssize_t count = recvmsg(session->sock, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (count < 0) /* no memory is the kernel's trouble of this moment, and not the client's end */
        return errno == EAGAIN || errno == EINTR || errno == ENOMEM || errno == ENOBUFS ? NOTHING
                                                                                        : END;
    take_fds(b, &message, mail);
    mail->body_bytes = (size_t)count > sizeof mail->head ? (uint32_t)count - sizeof mail->head : 0;
    /* Cut off with room left for more: our own table of descriptors is full. */
    mail->fds_lost = message.msg_flags & MSG_CTRUNC && mail->fd_count < CWD_FDS_MAX;
    if (message.msg_flags & MSG_CTRUNC && !mail->fds_lost)
        *reason = "more descriptors came in one message than any request has";
    else if (message.msg_flags & MSG_TRUNC)
        *reason = "a message longer than the protocol allows came";
    else if (count == 0)
        return END;
    else if ((size_t)count < sizeof mail->head || mail->head.size_bytes != (uint32_t)count ||
             mail->head.flags != 0)
        *reason = "a message came whose header does not fit it";
    else
        return MAIL;
    return BREACH;
}

int cwd_mail_check(const struct cwd_mail *mail) {
    if (!mail->fds_lost)
        return 0;
    return cw_fail(-EDQUOT,
                   "the broker has no descriptor left for what came with a request: close "
                   "some arrays and try again; %s",
                   cw_descriptor_remedy(EMFILE));
}

static void discard_fds(struct cwd_broker *b, struct cwd_mail *mail) {
    for (uint32_t i = 0; i < mail->fd_count; i++)
        if (mail->fds[i] >= 0)
            cwd_fd_discard(b, mail->fds[i]);
    mail->fd_count = 0;
}

static void breach(struct cwd_broker *b, struct cwd_session *session, const char *reason) {
    if (session->state == CWD_CONNECTING)
        cwd_session_refuse(b, session, reason);
    else
        cwd_session_drop(b, session, reason);
}

void cwd_socket_on_event(struct cwd_broker *b, struct cwd_session *session) {
    struct cwd_mail mail;
    const char *reason = "";
    if (session->state == CWD_CONNECTING && session->hello_after_ns > b->now_ns) {
        cwd_session_on_socket_end(b, session); /* nothing else is told of while it waits */
        return;
    }
    if (session->state == CWD_CONNECTING && cwd_hello_waits(b, session))
        return;
    for (int i = 0; i < MESSAGES_PER_TURN; i++) {
        enum outcome outcome = receive(b, session, &mail, &reason);
        if (outcome == NOTHING)
            break;
        if (outcome == END) {
            discard_fds(b, &mail);
            cwd_session_on_socket_end(b, session);
            return;
        }
        if (session->state == CWD_DROPPED) {
            discard_fds(b, &mail);
            continue;
        }
        if (outcome == BREACH)
            breach(b, session, reason);
        else if (session->state == CWD_CONNECTING)
            cwd_hello(b, session, &mail);
        else
            cwd_descriptor_request(b, session, &mail);
        discard_fds(b, &mail);
        if (session->ended || session->state == CWD_DROPPED)
            return;
    }
}

/* How the kernel took a message: 0, or a negative errno. */
static int send_message(int sock, struct cw_message *head, const void *body, uint32_t body_bytes,
                        const int *fds, uint32_t fd_count) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * CWD_FDS_SENT_MAX)];
    } control;
    struct iovec parts[2] = {{head, sizeof *head}, {(void *)(uintptr_t)body, body_bytes}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = body_bytes ? 2 : 1};
    CW_ASSERT(fd_count <= CWD_FDS_SENT_MAX);
    if (fd_count) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(rights), fds, sizeof(int) * fd_count);
    }
    head->size_bytes = (uint32_t)sizeof *head + body_bytes;
    return sendmsg(sock, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* Has the client read what it was sent? Counts messages since it last had read all. */
static bool reads_its_mail(struct cwd_broker *b, struct cwd_session *session) {
    int unread_bytes = 0;
    if (ioctl(session->sock, SIOCOUTQ, &unread_bytes) == 0 && unread_bytes == 0)
        session->unread = 0;
    return ++session->unread <= CWD_LIMIT(b, max_client_unread);
}

bool cwd_socket_reply(struct cwd_broker *b, struct cwd_session *session,
                      const struct cw_message *request, int status, const void *body,
                      uint32_t body_bytes, const int *fds, uint32_t fd_count) {
    char sentence[CW_DETAIL_MAX];
    struct cw_message head = {
        .op = (uint16_t)(request->op | CW_OP_REPLY), .id = request->id, .status = status};
    if (status < 0) {
        strcpy(sentence, cw_detail());
        body = sentence;
        body_bytes = (uint32_t)strlen(sentence);
        fd_count = 0;
    }
    if (!reads_its_mail(b, session)) {
        CWD_COUNT(b, limits_hit);
        breach(b, session, "it does not read what it is sent (max_client_unread)");
        return false;
    }
    cwd_monitor_answer(b, session);
    int code = send_message(session->sock, &head, body, body_bytes, fds, fd_count);
    if (code == -ETOOMANYREFS || code == -ENOBUFS || code == -ENOMEM) {
        /* Some process of this user lets descriptors pile up in sockets, or memory is short. */
        const char *text = code == -ETOOMANYREFS
                               ? "too many descriptors are under way between processes of this "
                                 "user: try again, or raise RLIMIT_NOFILE"
                               : "the kernel has no memory left for the broker's answer: try again";
        head.status = status = -EDQUOT;
        code = send_message(session->sock, &head, text, (uint32_t)strlen(text), NULL, 0);
    }
    if (code == -EAGAIN)
        breach(b, session, "it does not read what it is sent");
    else if (code == -ENOBUFS || code == -ENOMEM)
        breach(b, session, "the kernel has no memory left to answer it");
    /* Others: the socket is at its end, which epoll tells. */
    return code == 0 && status >= 0;
}

void cwd_socket_last_word(struct cwd_session *session, int status, const char *reason) {
    struct cw_message head = {.op = CW_OP_REPLY, .status = status};
    (void)send_message(session->sock, &head, reason, (uint32_t)strlen(reason), NULL, 0);
}
