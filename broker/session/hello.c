/*
 * HELLO: who may come in. The user by SO_PEERCRED, the version, and a pidfd that the client hands
 * over itself: it is of that class, and of the very process that connected.
 *
 * The loop's thread alone. A refusal is told, and the connection closed. The session that comes out
 * belongs to session.c.
 */
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker/broker.h"
#include "broker/memory/slabs.h"
#include "broker/core/fd_class.h"
#include "broker/core/log.h"
#include "broker/core/loop.h"
#include "broker/core/monitor.h"
#include "broker/session/session.h"
#include "broker/session/socket.h"

#define FDS_OF_CLIENT 5 /* socket, pidfd, doorbell, bell, session segment */

static int check_user(struct cwd_session *session) {
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (getsockopt(session->sock, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
        return cw_fail(-EPERM, "the kernel does not tell who connected: %m");
    if (peer.uid != geteuid())
        return cw_fail(-EPERM,
                       "this broker belongs to uid %u, uid %u connected: each user has a "
                       "broker of their own",
                       (unsigned)geteuid(), (unsigned)peer.uid);
    if (peer.pid <= 0)
        return cw_fail(-EPERM, "the client's process is not visible here: it must run in the "
                               "broker's process namespace, or in one below");
    session->pid = peer.pid;
    return 0;
}

static int check_hello(const struct cwd_mail *mail, struct cw_hello *hello) {
    if (mail->head.op != CW_OP_HELLO || mail->body_bytes != sizeof *hello)
        return cw_fail(-EPROTO, "the first message must be a HELLO of %zu bytes, op %u of %u came",
                       sizeof *hello, mail->head.op, mail->body_bytes);
    memcpy(hello, mail->body, sizeof *hello);
    if (hello->magic != CW_HELLO_MAGIC)
        return cw_fail(-EPROTO, "the HELLO is not one of cableway's");
    if (hello->version_min > CW_PROTOCOL_VERSION || hello->version_max < CW_PROTOCOL_VERSION)
        return cw_fail(-EPROTO,
                       "this broker (pid %d) speaks protocol version %u, the client %u to %u: use "
                       "the same release of cableway for both",
                       (int)getpid(), CW_PROTOCOL_VERSION, hello->version_min, hello->version_max);
    return 0;
}

static int check_pidfd(const struct cwd_session *session, const struct cwd_mail *mail) {
    enum cwd_fd_class class = mail->fd_count == 1 ? cwd_fd_class(mail->fds[0]) : CWD_FD_OTHER;
    if (class != CWD_FD_PIDFD)
        return cwd_fd_refuse(class, "a HELLO brings one descriptor, the client's own pidfd; "
                                    "something else came");
    pid_t pid = cwd_fd_pid(mail->fds[0]);
    if (pid < 0)
        return pid;
    if (pid == 0)
        return cw_fail(-ESRCH, "it ended before it was connected");
    if (pid != session->pid)
        return cw_fail(-EPROTO, "the pidfd is of process %d, process %d connected", (int)pid,
                       (int)session->pid);
    return 0;
}

/* Who comes to raise a limit must not fail at it, nor who looks for what to remove or to end. So
 * whoever calls himself by one of these names, as anybody of the user can, connects beyond the
 * limits, so many at a time of each: those who look do not take the places of `limit set`. */
static const char *const admin_names[] = {"cableway-limit", "cableway-admin"};
#define ADMIN_SPARE 2u
_Static_assert(sizeof admin_names / sizeof *admin_names ==
                   sizeof((struct cwd_broker *)0)->admins / sizeof(uint32_t),
               "a count for each");

/* Which name it is, from 1, if a place is left for it; else 0. */
static uint8_t admin(const struct cwd_broker *b, const struct cw_hello *hello) {
    for (unsigned i = 0; i < sizeof admin_names / sizeof *admin_names; i++)
        if (!strncmp(hello->comm, admin_names[i], sizeof hello->comm))
            return b->admins[i] < ADMIN_SPARE ? (uint8_t)(i + 1) : 0;
    return 0;
}

/*
 * A process that is refused for a limit again and again is heard later, so that others keep the
 * broker's time: an honest one tries again after a while, and one in a loop is slowed down to what
 * costs nobody much. Its connection waits unread; one that ends meanwhile is closed without a look
 * at what it said.
 */
#define REFUSED_PER_SECOND 10.0
#define REFUSED_AT_ONCE    50.0
#define REFUSED_PAUSE_NS   100000000

bool cwd_hello_waits(struct cwd_broker *b, struct cwd_session *session) {
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (session->hello_after_ns)
        return session->hello_after_ns > b->now_ns;
    if (getsockopt(session->sock, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0 ||
        !cwd_pace_is_spent(&b->refused, peer.pid, REFUSED_PER_SECOND, REFUSED_AT_ONCE, b->now_ns))
        return false;
    session->hello_after_ns = b->now_ns + REFUSED_PAUSE_NS;
    cwd_loop_change(b, session->sock, CWD_EVENT_SOCKET, session->id, 0);
    return true;
}

void cwd_hello_again(struct cwd_broker *b, struct cwd_session *session) {
    cwd_loop_change(b, session->sock, CWD_EVENT_SOCKET, session->id, EPOLLIN | EPOLLRDHUP);
}

static int check_room(struct cwd_broker *b, const struct cwd_session *session,
                      const struct cw_hello *hello) {
    if (session->pid == b->mover.pid || session->pid == b->remote.pid || admin(b, hello))
        return 0; /* at the limit they are needed no less */
    if (b->clients >= CWD_LIMIT(b, max_clients))
        return cwd_limit_refuse(b, CW_LIMIT_max_clients,
                                "a client more than the %u that are connected asked to connect",
                                b->clients);
    unsigned of_process = cwd_sessions_of(b, session->pid);
    if (of_process >= CWD_LIMIT(b, max_pid_clients))
        return cwd_limit_refuse(b, CW_LIMIT_max_pid_clients,
                                "process %d has %u clients connected and asked to connect one more",
                                (int)session->pid, of_process);
    if (cwd_fds_held(b) + FDS_OF_CLIENT > CWD_LIMIT(b, max_fds))
        return cwd_limit_refuse(b, CW_LIMIT_max_fds,
                                "a client needs %d descriptors more than the %llu that are held",
                                FDS_OF_CLIENT, (unsigned long long)cwd_fds_held(b));
    return 0;
}

void cwd_hello(struct cwd_broker *b, struct cwd_session *session, struct cwd_mail *mail) {
    struct cw_hello hello;
    int bell_read = -1;
    int code = check_user(session);
    if (code == 0)
        code = check_hello(mail, &hello);
    if (code == 0)
        code = cwd_mail_check(mail);
    if (code == 0)
        code = check_pidfd(session, mail);
    if (code == 0)
        code = check_room(b, session, &hello);
    if (code == 0)
        code = cwd_session_open(b, session, mail->fds[0], &bell_read);
    if (code) {
        CWD_COUNT(b, clients_refused);
        if (code == -EDQUOT && session->pid > 0)
            cwd_pace_take(&b->refused, session->pid, REFUSED_PER_SECOND, REFUSED_AT_ONCE,
                          b->now_ns);
        cwd_log_error(session->pid, "refused a client (pid %d): %s", (int)session->pid,
                      cw_detail());
        mail->head.op = CW_OP_HELLO;
        cwd_socket_reply(b, session, &mail->head, code, NULL, 0, NULL, 0);
        cwd_session_end(b, session);
        return;
    }
    mail->fds[0] = -1; /* the session's now */
    session->admin = admin(b, &hello);
    if (session->admin)
        b->admins[session->admin - 1]++;
    cwd_monitor_row_open(b, session, hello.comm);
    struct cw_hello_reply reply = {.version = CW_PROTOCOL_VERSION,
                                   .session = session->id,
                                   .instance = b->instance,
                                   .root_bytes = b->root_segment.size_bytes,
                                   .session_bytes = session->segment.size_bytes};
    const struct cw_segment *index, *records;
    cw_directory_first(b->directory, &reply.index_id, &index, &records);
    reply.index_bytes = index->size_bytes;
    reply.records_bytes = records->size_bytes;
    int fds[CWD_FDS_SENT_MAX] = {b->root_segment.fd, session->segment.fd, session->doorbell,
                                 bell_read,          index->fd,           records->fd};
    cwd_socket_reply(b, session, &mail->head, 0, &reply, sizeof reply, fds, CWD_FDS_SENT_MAX);
    close(bell_read);
}
