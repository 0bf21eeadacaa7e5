/*
 * Sessions: see session.h. The loop's thread owns them. The session segment is shared with the
 * client, who may write anything into it at any time: positions in the rings are our own, payloads
 * are copied before they are looked at (requests.c).
 */
#include "broker/session/session.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker/broker.h"
#include "broker/memory/slabs.h"
#include "broker/memory/fences.h"
#include "broker/memory/inherited.h"
#include "broker/roles/copy_jobs.h"
#include "broker/core/log.h"
#include "broker/core/loop.h"
#include "broker/core/monitor.h"
#include "broker/session/requests.h"
#include "broker/session/socket.h"
#include "broker/memory/transit.h"
#include "broker/names/claims.h"
#include "broker/names/ties.h"
#include "broker/names/waits.h"

#define WAKE_AGAIN_NS 1000000 /* until a wake-up that had no memory is tried again */

/* The largest body of a reply: HOLDERS with 64 pids, or a sentence. */
#define BODY_MAX 1024u /* REMOTE_NEXT, HOLDERS_OF and TRANSITS look for more themselves */

struct cwd_session *cwd_session_find(struct cwd_broker *b, uint32_t id) {
    struct cwd_session *session;
    HASH_FIND(hh, b->sessions, &id, sizeof id, session);
    return session;
}

/* Its client finds the connection ended before a word was said, and tries again for a while. */
static void turn_away(int sock) {
    cwd_log_error(0, "a client was turned away: there is no memory for one more");
    close(sock);
}

void cwd_session_accept(struct cwd_broker *b, int sock) {
    struct cwd_session *session = calloc(1, sizeof *session);
    if (!session) {
        turn_away(sock);
        return;
    }
    do
        b->next_session++;
    while (b->next_session == 0 || cwd_session_find(b, b->next_session));
    session->id = b->next_session;
    session->sock = sock;
    session->pidfd = session->doorbell = session->bell = session->segment.fd = -1;
    session->row = CWD_NO_ROW;
    session->hello_limit_ns = b->now_ns + CWD_HELLO_NS;
    HASH_ADD(hh, b->sessions, id, sizeof session->id, session);
    if (!CWD_ADDED(session)) {
        turn_away(sock);
        free(session);
        return;
    }
    if (cwd_loop_add(b, sock, CWD_EVENT_SOCKET, session->id, EPOLLIN | EPOLLRDHUP) < 0) {
        turn_away(sock);
        HASH_DEL(b->sessions, session);
        free(session);
        return;
    }
    b->connecting++;
    b->fds++;
}

static int make_bell(int *read_end, int *write_end) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
        return cw_fail(-EDQUOT, "the broker has no descriptor left for a bell: %m; %s",
                       cw_descriptor_remedy(errno));
    (void)fcntl(ends[1], F_SETPIPE_SZ, CW_PAGE); /* best effort: less kernel memory */
    *read_end = ends[0];
    *write_end = ends[1];
    return 0;
}

int cwd_session_open(struct cwd_broker *b, struct cwd_session *session, int pidfd, int *bell_read) {
    int read_end = -1, write_end = -1;
    struct cw_segment segment = {.fd = -1};
    int doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int code = doorbell < 0 ? cw_fail(-EDQUOT, "the broker has no descriptor left: %m; %s",
                                      cw_descriptor_remedy(errno))
                            : make_bell(&read_end, &write_end);
    if (code == 0)
        code = cw_segment_create("session", CW_SESSION_BYTES, CW_SEGMENT_SESSION, b->instance, 0,
                                 &segment);
    /* Edge-triggered, and never read: each write of the client is one event, and no trick with the
     * descriptor's flags or its counter can make us block. */
    if (code == 0)
        code = cwd_loop_add(b, doorbell, CWD_EVENT_DOORBELL, session->id, EPOLLIN | EPOLLET);
    if (code == 0)
        code = cwd_loop_add(b, pidfd, CWD_EVENT_PIDFD, session->id, EPOLLIN);
    if (code) {
        cw_segment_close(&segment);
        if (read_end >= 0)
            close(read_end);
        if (write_end >= 0)
            close(write_end);
        if (doorbell >= 0)
            close(doorbell);
        return code;
    }
    session->pidfd = pidfd;
    session->doorbell = doorbell;
    session->bell = write_end;
    session->segment = segment;
    session->shared = segment.base;
    session->shared->session = session->id;
    cw_ring_init(cw_session_requests(segment.base), CW_CHANNEL_BYTES);
    cw_ring_init(cw_session_replies(segment.base), CW_CHANNEL_BYTES);
    cw_ring_consumer_init(&session->requests, cw_session_requests(segment.base), CW_CHANNEL_BYTES);
    cw_ring_producer_init(&session->replies, cw_session_replies(segment.base), CW_CHANNEL_BYTES);
    session->tables = 1;
    cwd_transits_ready(b, session);
    session->state = CWD_OPEN;
    session->changed = true;
    b->connecting--;
    b->clients++;
    session->of_bridge = b->remote.pid && session->pid == b->remote.pid;
    b->remote.sessions += session->of_bridge;
    b->fds += 4; /* with the segment's own: who watches finds it in /proc */
    CWD_COUNT(b, clients_accepted);
    *bell_read = read_end;
    return 0;
}

struct cw_lease_table *cwd_session_table(struct cwd_session *session, uint32_t t) {
    if (t == 0)
        return cw_session_leases(session->segment.base);
    return (struct cw_lease_table *)((uint8_t *)session->more_tables[t - 1].base + CW_PAGE);
}

int cwd_session_add_table(struct cwd_broker *b, struct cwd_session *session,
                          const struct cw_segment **out) {
    uint64_t slots = (uint64_t)session->tables * CW_LEASE_TABLE_SLOTS;
    if (slots + CW_LEASE_TABLE_SLOTS > CWD_LIMIT(b, max_client_leases))
        return cwd_limit_refuse(b, CW_LIMIT_max_client_leases,
                                "more than %llu leases of this client were asked for",
                                (unsigned long long)slots);
    struct cw_segment *more =
        realloc(session->more_tables, session->tables * sizeof *session->more_tables);
    if (!more)
        return cw_fail(-EDQUOT, "no memory for a lease table");
    session->more_tables = more;
    struct cw_segment *table = &more[session->tables - 1];
    int code = cw_segment_create("leases", CW_PAGE + sizeof(struct cw_lease_table),
                                 CW_SEGMENT_LEASES, b->instance, 0, table);
    if (code)
        return code;
    ((struct cw_segment_header *)table->base)->session = session->id; /* before anybody has it */
    session->tables++;
    *out = table;
    return 0;
}

void cwd_session_table_sent(struct cwd_broker *b, struct cwd_session *session, bool sent) {
    struct cw_segment *table = &session->more_tables[session->tables - 2];
    if (sent) {
        /* For who watches. Nobody is refused for their sake. */
        if (cwd_fds_held(b) < CWD_LIMIT(b, max_fds))
            b->fds++;
        else
            cw_segment_close_fd(table);
        return;
    }
    cw_segment_close(table);
    session->tables--;
}

/* ---- the end ---- */

static void close_fd(struct cwd_broker *b, int *fd) {
    if (*fd >= 0) {
        cwd_loop_remove(b, *fd);
        close(*fd); /* socket, pidfd, eventfd, pipe: the kernel's own, none of them blocks */
        b->fds--;
    }
    *fd = -1;
}

/* The memory stays mapped until nothing refers to the session any more. */
static void close_segment_fd(struct cwd_broker *b, struct cw_segment *segment) {
    if (segment->fd >= 0)
        b->fds--;
    cw_segment_close_fd(segment);
}

/* Everything in its tables is suspected, once they count no more. */
static void leases_end(struct cwd_broker *b, struct cwd_session *session) {
    session->leases_ended = true;
    for (uint32_t t = 0; t < session->tables; t++) {
        struct cw_lease_table *table = cwd_session_table(session, t);
        for (uint32_t i = 0, count = cw_lease_count(table); i < count; i++) {
            uint64_t slot = cw_lease_read(table, i);
            if (slot)
                cwd_reclaim_suspect(b, cw_lease_slab(slot), cw_lease_block(slot));
        }
    }
}

void cwd_session_end(struct cwd_broker *b, struct cwd_session *session) {
    if (session->ended)
        return;
    session->ended = true;
    if (session->state == CWD_CONNECTING) {
        b->connecting--;
    } else {
        cwd_monitor_row_close(b, session);
        cwd_waits_cancel_all(b, session);
        cwd_claims_end(b, session);
        cwd_ties_end(b, session);
        cwd_jobs_forget(b, session);
        cwd_remote_forget(b, session);
        leases_end(b, session);
        cwd_slabs_orphan_of(b, session);
        cwd_transits_forget(b, session);
        cwd_fences_end(b, session);
        /* Who died between dropping a lease and telling us: everything that waits is looked at. */
        cwd_reclaim_suspect_waiting(b);
        b->reclaim.urgent = true;
        for (uint32_t t = 1; t < session->tables; t++)
            close_segment_fd(b, &session->more_tables[t - 1]);
        close_segment_fd(b, &session->segment);
        b->clients--;
        if (session->admin)
            b->admins[session->admin - 1]--;
        b->remote.sessions -= session->of_bridge;
        b->last_client_ns = b->now_ns;
    }
    HASH_DEL(b->sessions, session);
    cwd_mover_session_ended(b, session);
    close_fd(b, &session->sock);
    close_fd(b, &session->pidfd);
    close_fd(b, &session->doorbell);
    close_fd(b, &session->bell);
    session->next_ended = b->ended;
    b->ended = session;
}

void cwd_sessions_free_ended(struct cwd_broker *b) {
    while (b->ended) {
        struct cwd_session *session = b->ended;
        b->ended = session->next_ended;
        for (uint32_t t = 1; t < session->tables; t++)
            cw_segment_close(&session->more_tables[t - 1]);
        free(session->more_tables);
        cw_segment_close(&session->segment);
        free(session);
    }
}

void cwd_sessions_deinit(struct cwd_broker *b) {
    struct cwd_session *session, *next;
    HASH_ITER(hh, b->sessions, session, next) {
        cwd_session_end(b, session);
    }
    cwd_sessions_free_ended(b);
}

/* ---- events ---- */

/* Dead on both counts: what is whole in its ring still counts, then its leases end. */
static void end_if_dead(struct cwd_broker *b, struct cwd_session *session) {
    if (session->ended || !session->pid_dead || !session->socket_ended)
        return;
    if (session->state == CWD_OPEN || session->state == CWD_DETACHED)
        cwd_requests_drain(b, session);
    if (session->ended)
        return;
    CWD_COUNT(b, clients_died);
    cwd_session_end(b, session);
}

void cwd_session_on_pidfd(struct cwd_broker *b, struct cwd_session *session) {
    session->pid_dead = true;
    cwd_fences_bury(b, session); /* its children may still have the socket, but nobody submits */
    cwd_claims_end(b, session);
    cwd_ties_end(b, session);
    cwd_loop_remove(b, session->pidfd); /* it would tell for ever */
    end_if_dead(b, session);
}

void cwd_session_on_socket_end(struct cwd_broker *b, struct cwd_session *session) {
    if (session->state == CWD_CONNECTING) {
        cwd_session_end(b, session);
        return;
    }
    session->socket_ended = true;
    close_fd(b, &session->sock);
    /* S3: who never mapped its segment gave up while it connected: nothing of it is in use. (A lie
     * takes from the liar's own memory alone.) */
    if (!CW_LOAD(S3, &session->shared->mapped, relaxed)) {
        CWD_COUNT(b, clients_died);
        cwd_session_end(b, session);
        return;
    }
    if (session->state == CWD_OPEN) {
        cwd_requests_drain(b, session); /* a BYE may be the last word in it */
        if (session->ended)
            return;
        if (session->state == CWD_OPEN) /* else a breach was in it, and it is dropped */
            session->state = CWD_DETACHED;
        cwd_waits_cancel_all(b, session);
        cwd_claims_end(b, session);
    }
    end_if_dead(b, session);
}

unsigned cwd_sessions_of(struct cwd_broker *b, pid_t pid) {
    unsigned count = 0;
    for (struct cwd_session *session = b->sessions; session; session = session->hh.next)
        count += session->pid == pid && session->state == CWD_OPEN;
    return count;
}

uint64_t cwd_sessions_bytes(struct cwd_broker *b, pid_t pid) {
    uint64_t bytes = 0;
    for (struct cwd_session *session = b->sessions; session; session = session->hh.next)
        bytes += session->pid == pid ? session->bytes : 0;
    return bytes;
}

/* Of one that has not said who it is, the kernel tells; 0: it does not. */
static pid_t sender_of(const struct cwd_session *session) {
    struct ucred peer = {.pid = 0};
    socklen_t length = sizeof peer;
    if (session->pid || getsockopt(session->sock, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
        return session->pid;
    return peer.pid;
}

static void note_breach(struct cwd_broker *b, struct cwd_session *session, const char *reason) {
    pid_t pid = sender_of(session);
    cwd_log_error(pid, "dropped client %u (pid %d): %s", session->id, (int)pid, reason);
    CWD_COUNT(b, clients_dropped);
}

void cwd_session_refuse(struct cwd_broker *b, struct cwd_session *session, const char *reason) {
    CW_ASSERT(session->state == CWD_CONNECTING);
    if (session->ended)
        return;
    note_breach(b, session, reason);
    cwd_socket_last_word(session, -EPROTO, reason);
    cwd_session_end(b, session);
}

void cwd_session_drop(struct cwd_broker *b, struct cwd_session *session, const char *reason) {
    CW_ASSERT(session->state != CWD_CONNECTING);
    if (session->ended || session->state == CWD_DROPPED)
        return;
    note_breach(b, session, reason);
    session->state = CWD_DROPPED;
    snprintf(session->drop_reason, sizeof session->drop_reason, "%s", reason);
    session->next_dropped = b->dropped;
    b->dropped = session;
}

void cwd_sessions_settle(struct cwd_broker *b) {
    while (b->dropped) {
        struct cwd_session *session = b->dropped;
        b->dropped = session->next_dropped;
        if (session->ended) /* it died in the same turn */
            continue;
        cwd_waits_cancel_all(b, session);
        cwd_claims_end(b, session);
        if (session->sock < 0)
            continue;
        cwd_socket_last_word(session, -EPROTO, session->drop_reason);
        /* Only our half is shut: what it still sends is thrown away, so that it does not hang in a
         * send before it sees the end; and its own close must be seen. */
        shutdown(session->sock, SHUT_WR);
        session->wake = true;
        cwd_session_wake(b, session);
    }
}

void cwd_sessions_make_room(struct cwd_broker *b) {
    struct cwd_session *session = b->sessions; /* in the order in which they came */
    while (session && session->state != CWD_CONNECTING)
        session = session->hh.next;
    if (!session)
        return;
    session->hello_after_ns = b->now_ns; /* also of one that is to be heard later */
    cwd_socket_on_event(b, session);
    if (!session->ended && session->state == CWD_CONNECTING)
        cwd_session_refuse(b, session, "it said no HELLO, and others wait to connect");
}

int64_t cwd_sessions_expire(struct cwd_broker *b) {
    struct cwd_session *session, *following;
    int64_t next_ns = INT64_MAX;
    if (!b->connecting)
        return next_ns;
    HASH_ITER(hh, b->sessions, session, following) {
        if (session->state != CWD_CONNECTING)
            continue;
        if (session->hello_after_ns > b->now_ns) {
            if (session->hello_after_ns < next_ns)
                next_ns = session->hello_after_ns;
            continue;
        }
        if (session->hello_after_ns && !session->hello_heard) {
            session->hello_heard = true;
            cwd_hello_again(b, session);
        }
        if (b->now_ns >= session->hello_limit_ns)
            cwd_session_refuse(b, session, "no HELLO came in 5 s");
        else if (session->hello_limit_ns < next_ns)
            next_ns = session->hello_limit_ns;
    }
    return next_ns;
}

/* ---- replies ---- */

bool cwd_session_has_room(struct cwd_session *session) {
    return cw_ring_has_room(&session->replies, sizeof(struct cw_message) + BODY_MAX);
}

bool cwd_session_fits(struct cwd_session *session, uint32_t body_bytes) {
    return cw_ring_has_room(&session->replies, sizeof(struct cw_message) + body_bytes);
}

void cwd_session_reply(struct cwd_broker *b, struct cwd_session *session, uint16_t op, uint64_t id,
                       int status, const void *body, uint32_t body_bytes) {
    uint8_t *place;
    CW_ASSERT(body_bytes <= BODY_MAX || op == CW_OP_REMOTE_NEXT || op == CW_OP_HOLDERS_OF ||
              op == CW_OP_TRANSITS);
    if (session->ended || session->state != CWD_OPEN || session->socket_ended)
        return; /* nobody reads it */
    struct cw_message head = {.size_bytes = (uint32_t)sizeof head + body_bytes,
                              .op = (uint16_t)(op | CW_OP_REPLY),
                              .id = id,
                              .status = status};
    int code = cw_ring_reserve(&session->replies, head.size_bytes, (void **)&place);
    if (code) { /* room was looked for: the client's position went back, which is a lie */
        cwd_session_drop(b, session, "the reply ring's position is not what was consumed");
        return;
    }
    memcpy(place, &head, sizeof head);
    if (body_bytes)
        memcpy(place + sizeof head, body, body_bytes);
    cwd_monitor_answer(b, session);
    cw_ring_commit(&session->replies, head.op, head.size_bytes);
    session->wake = true;
}

void cwd_session_wake(struct cwd_broker *b, struct cwd_session *session) {
    if (!session->wake || session->bell < 0)
        return;
    uint64_t one = 1;
    bool room_came = session->room_came;
    session->wake = session->room_came = false;
    if (!cw_sleeper_claim(&session->replies.ring->consumer) && !room_came)
        return;
    /* Full: the client has wake-ups to read already. Its end closed: it is gone. But a pipe that is
     * empty takes a page, and where there is none the client would sleep on. */
    if (write(session->bell, &one, sizeof one) < 0 && errno != EAGAIN && errno != EPIPE) {
        session->wake = session->room_came = true;
        b->wake_again_ns = b->now_ns + WAKE_AGAIN_NS;
    }
}
