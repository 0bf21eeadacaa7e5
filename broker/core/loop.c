/*
 * The loop: see loop.h. It owns epoll, the signals and the time of a turn.
 *
 * No lost wake-up: the loop announces its sleep in the root segment (W1) and looks at all channels
 * again (R4); a client commits (R1) and then loads the announcement. The root is read-only to
 * clients, so only the loop takes the announcement back.
 */
#include "broker/core/loop.h"

#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker/broker.h"
#include "broker/memory/fences.h"
#include "broker/memory/groups.h"
#include "broker/memory/slabs.h"
#include "broker/memory/inherited.h"
#include "broker/core/log.h"
#include "broker/core/monitor.h"
#include "broker/names/claims.h"
#include "broker/names/weak_names.h"
#include "broker/names/names.h"
#include "broker/session/requests.h"
#include "broker/session/session.h"
#include "broker/session/socket.h"
#include "broker/memory/transit.h"

#define EVENTS_MAX       64
#define CONNECTING_MAX   64u /* connections without HELLO at once */
#define ACCEPT_PAUSE_NS  100000000
#define ACCEPTS_PER_TURN 16

int cwd_loop_add(struct cwd_broker *b, int fd, enum cwd_event event, uint32_t id, uint32_t events) {
    struct epoll_event wanted = {.events = events, .data.u64 = cwd_loop_data(event, id)};
    if (epoll_ctl(b->epoll_fd, EPOLL_CTL_ADD, fd, &wanted) < 0)
        return cw_fail(-EDQUOT, "watching a descriptor failed: %m%s",
                       errno == ENOSPC ? "; raise sysctl fs.epoll.max_user_watches" : "");
    return 0;
}

void cwd_loop_change(struct cwd_broker *b, int fd, enum cwd_event event, uint32_t id,
                     uint32_t events) {
    struct epoll_event wanted = {.events = events, .data.u64 = cwd_loop_data(event, id)};
    CW_ASSERT(epoll_ctl(b->epoll_fd, EPOLL_CTL_MOD, fd, &wanted) == 0); /* it is watched */
}

void cwd_loop_remove(struct cwd_broker *b, int fd) {
    (void)epoll_ctl(b->epoll_fd, EPOLL_CTL_DEL, fd, NULL); /* ENOENT: it was not watched */
}

int cwd_loop_init(struct cwd_broker *b) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGCHLD, SIG_DFL); /* ignored by our starter, we would never hear how the mover ended */
    b->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    b->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    b->closed_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (b->epoll_fd < 0 || b->signal_fd < 0 || b->closed_fd < 0)
        return cw_fail(-errno, "epoll, signalfd or eventfd failed: %m");
    b->now_ns = b->last_client_ns = cw_now_ns();
    int code = cwd_loop_add(b, b->closed_fd, CWD_EVENT_CLOSED, 0, EPOLLIN | EPOLLET);
    return code ? code : cwd_loop_add(b, b->signal_fd, CWD_EVENT_SIGNAL, 0, EPOLLIN);
}

void cwd_loop_deinit(struct cwd_broker *b) {
    if (b->epoll_fd >= 0)
        close(b->epoll_fd);
    if (b->signal_fd >= 0)
        close(b->signal_fd);
    if (b->closed_fd >= 0)
        close(b->closed_fd);
    b->epoll_fd = b->signal_fd = b->closed_fd = -1;
}

/* ---- accepting ---- */

/* Listens or does not: without descriptors, new connections wait in the backlog for a moment. */
static void accept_switch(struct cwd_broker *b) {
    bool want = b->now_ns >= b->accept_after_ns;
    if (want == b->accepting)
        return;
    struct epoll_event event = {.events = want ? EPOLLIN : 0,
                                .data.u64 = cwd_loop_data(CWD_EVENT_LISTEN, 0)};
    epoll_ctl(b->epoll_fd, EPOLL_CTL_MOD, b->listen_fd, &event);
    b->accepting = want;
}

static void on_listen(struct cwd_broker *b) {
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        if (b->connecting >= CONNECTING_MAX)
            cwd_sessions_make_room(b);
        int sock = accept4(b->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (sock >= 0) {
            cwd_session_accept(b, sock);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            cwd_log_error(0, "accepting a connection failed: %m; trying again in 0.1 s");
            b->accept_after_ns = b->now_ns + ACCEPT_PAUSE_NS;
        }
        return; /* EAGAIN: none left; others concern a connection that is gone */
    }
}

static void on_signal(struct cwd_broker *b) {
    struct signalfd_siginfo info;
    while (read(b->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        b->stopping = true;
        b->stop_reason = info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT";
    }
}

static void on_event(struct cwd_broker *b, const struct epoll_event *event) {
    enum cwd_event kind = (enum cwd_event)(event->data.u64 >> 32);
    uint32_t id = (uint32_t)event->data.u64;
    struct cwd_session *session = NULL;
    if (kind == CWD_EVENT_SOCKET || kind == CWD_EVENT_PIDFD)
        session = cwd_session_find(b, id);
    switch (kind) {
    case CWD_EVENT_LISTEN:
        on_listen(b);
        break;
    case CWD_EVENT_SIGNAL:
        on_signal(b);
        break;
    case CWD_EVENT_SOCKET:
        if (session)
            cwd_socket_on_event(b, session);
        break;
    case CWD_EVENT_PIDFD:
        if (session)
            cwd_session_on_pidfd(b, session);
        break;
    case CWD_EVENT_DOORBELL:
    case CWD_EVENT_CLOSED:
        break; /* channels and figures are looked at in each turn */
    case CWD_EVENT_FORK_PIPE:
        cwd_inherited_on_fork_pipe(b, id);
        break;
    case CWD_EVENT_MOVER:
        cwd_mover_on_exit(b);
        break;
    case CWD_EVENT_BRIDGE:
        cwd_remote_on_exit(b);
        break;
    case CWD_EVENT_TOLD:
        cwd_verdict_on_told(b);
        break;
    }
}

/* ---- channels ---- */

/* Serves every channel once. Returns whether there was anything. */
static bool serve_channels(struct cwd_broker *b) {
    struct cwd_session *session, *next;
    bool worked = false;
    b->resume_ns = INT64_MAX;
    HASH_ITER(hh, b->sessions, session, next) {
        if (session->state != CWD_OPEN)
            continue;
        if (cwd_requests_serve(b, session))
            worked = true;
    }
    cwd_claims_settle(b);
    b->wake_again_ns = INT64_MAX;
    /* After all were served: a PUT of one may have answered the wait of another. */
    for (session = b->sessions; session; session = session->hh.next)
        if (session->wake)
            cwd_session_wake(b, session);
    return worked;
}

static bool any_channel_ready(struct cwd_broker *b) {
    struct cwd_session *session;
    for (session = b->sessions; session; session = session->hh.next)
        if (session->state == CWD_OPEN && cwd_requests_ready(session))
            return true;
    return false;
}

static bool any_client_spins(struct cwd_broker *b) {
    struct cwd_session *session;
    for (session = b->sessions; session; session = session->hh.next)
        if (session->state == CWD_OPEN && !session->paused_until_ns &&
            cw_sleeper_spin_pays(&session->replies.ring->consumer))
            return true;
    return false;
}

/* Looks at the channels for about the price of one wake-up. Returns whether something came. */
static bool spin(struct cwd_broker *b) {
    if (!any_client_spins(b))
        return false;
    int64_t limit_ns = cw_now_ns() + CW_SPIN_NS;
    do {
        for (int i = 0; i < 32; i++) {
            if (any_channel_ready(b))
                return true;
            CW_PAUSE();
        }
    } while (cw_now_ns() < limit_ns);
    return false;
}

/* ---- time ---- */

/* Does what time asks for; returns when it asks next, or INT64_MAX. */
static int64_t serve_time(struct cwd_broker *b) {
    cwd_transits_expire(b);
    int64_t due_ns = cwd_sessions_expire(b), next_ns = cwd_fences_serve(b);
    due_ns = next_ns < due_ns ? next_ns : due_ns;
    next_ns = cwd_remote_serve(b);
    due_ns = next_ns < due_ns ? next_ns : due_ns;
    next_ns = cwd_verdict_serve(b);
    due_ns = next_ns < due_ns ? next_ns : due_ns;
    next_ns = cwd_names_expire(b);
    due_ns = next_ns < due_ns ? next_ns : due_ns;
    if (b->remote.session)
        cwd_session_wake(b, b->remote.session); /* what it was told here: the loop may sleep next */
    if (b->accept_after_ns > b->now_ns && b->accept_after_ns < due_ns)
        due_ns = b->accept_after_ns;
    if (cwd_reclaim_due(b) <= b->now_ns) {
        cwd_reclaim_run(b);
        cwd_slabs_sweep(b);
    } else if (!b->reclaim.count) {
        cwd_slabs_sweep(b);
    }
    cwd_weak_names_tell(b);
    if (cwd_groups_release(b)) /* what ended just now; it may make suspects */
        due_ns = b->now_ns;
    next_ns = cwd_reclaim_due(b);
    due_ns = next_ns < due_ns ? next_ns : due_ns;
    next_ns = cwd_transits_due(b);
    due_ns = next_ns < due_ns ? next_ns : due_ns;
    if (b->idle_exit_ns >= 0 && cwd_mover_others(b) == 0 && b->connecting == 0 &&
        cwd_names_count(b) == 0 && !b->inherited && cwd_transit_count(b) == 0) {
        next_ns = b->last_client_ns + b->idle_exit_ns;
        if (b->now_ns >= next_ns) {
            b->stopping = true;
            b->stop_reason = "idle";
        }
        due_ns = next_ns < due_ns ? next_ns : due_ns;
    }
    return due_ns;
}

/* Milliseconds to wait, rounded up, so that we do not wake a moment too early. */
static int wait_ms(int64_t due_ns, int64_t now_ns) {
    if (due_ns == INT64_MAX)
        return -1;
    if (due_ns <= now_ns)
        return 0;
    int64_t ms = (due_ns - now_ns + 999999) / 1000000;
    return ms < 3600000 ? (int)ms : 3600000;
}

/* Waits for events: not at all after a turn with work, else a little awake, then asleep. */
static int wait_events(struct cwd_broker *b, struct epoll_event *events, bool worked,
                       int64_t due_ns) {
    int timeout_ms = worked ? 0 : wait_ms(due_ns, cw_now_ns());
    if (timeout_ms == 0)
        return epoll_wait(b->epoll_fd, events, EVENTS_MAX, 0);
    cw_sleeper_announce(&b->root->broker);
    if (any_channel_ready(b))
        timeout_ms = 0;
    else
        cwd_monitor_heartbeat(b, cw_now_ns()); /* stands from here on: asleep says that it may */
    int count = epoll_wait(b->epoll_fd, events, EVENTS_MAX, timeout_ms);
    cw_sleeper_cancel(&b->root->broker);
    if (timeout_ms != 0)
        CWD_COUNT(b, wakeups);
    return count;
}

void cwd_loop_run(struct cwd_broker *b) {
    struct epoll_event events[EVENTS_MAX];
    bool worked = true, spin_next = false;
    int64_t due_ns = 0;
    while (!b->stopping) {
        accept_switch(b);
        if (!worked && spin_next) {
            spin_next = false; /* once after work, not for ever */
            worked = spin(b);
        }
        int count = wait_events(b, events, worked, due_ns);
        b->now_ns = cw_now_ns();
        cwd_monitor_heartbeat(b, b->now_ns);
        cw_sleeper_here(&b->root->broker);
        for (int i = 0; i < count; i++)
            on_event(b, &events[i]);
        b->turn++;
        worked = serve_channels(b);
        spin_next = spin_next || worked;
        due_ns = serve_time(b);
        cwd_sessions_settle(b);
        if (b->claims_over) /* of who was dropped just now */
            due_ns = b->now_ns;
        if (b->wake_again_ns < due_ns)
            due_ns = b->wake_again_ns;
        if (b->resume_ns < due_ns)
            due_ns = b->resume_ns;
        cwd_sessions_free_ended(b);
        cwd_monitor_update(b);
    }
    serve_channels(b); /* what was asked before is still answered */
    cwd_monitor_heartbeat(b, 0);
}
