/*
 * Monitor page: see monitor.h. The loop's thread writes; readers look at any time, also after the
 * broker's death, and take each word for itself.
 */
#include "broker/core/monitor.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include "broker/core/closer.h"
#include "broker/core/errors.h"
#include "broker/core/log.h"
#include "broker/memory/slabs.h"
#include "broker/session/session.h"
#include "broker/memory/transit.h"
#include "ipc/wire.h"
#include "shm/base/task.h"

static uint64_t realtime_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t cwd_boottime_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void cwd_monitor_limits(struct cwd_broker *b) {
    for (unsigned i = 0; i < CW_LIMIT_COUNT; i++)
        CW_STORE(M1, &b->root->limits[i], b->limits.value[i], relaxed);
    cwd_log_limits(CWD_LIMIT(b, max_log_lines), CWD_LIMIT(b, max_pid_log_lines));
}

void cwd_monitor_init(struct cwd_broker *b) {
    b->root->protocol = CW_PROTOCOL_VERSION;
    b->root->pid = (uint32_t)getpid();
    b->root->started_ns = realtime_ns();
    b->root->since_ns = cwd_boottime_ns();
    b->root->task = cw_task_self();
    b->root->world = cw_task_world();
    cwd_errors_at(b->root);
    cwd_monitor_limits(b);
}

static void gauge(struct cwd_broker *b, enum cw_gauge which, uint64_t value) {
    CW_STORE(M1, &b->root->gauges[which], value, relaxed);
}

/* What a client says that it copied, on top of what it had said. Figures: a client that lies spoils
 * the sum, no more. */
static void count_routes(struct cwd_broker *b, struct cwd_session *session) {
    for (unsigned i = 0; session->shared && i < CW_ROUTES; i++) {
        /* X1: figures, of which the latest will do. */
        uint64_t now = CW_LOAD(X1, &session->shared->routes[i], relaxed);
        if (now > session->routes_seen[i])
            CW_ADD(M1, &b->root->counters[CW_COUNTER_bytes_same_gpu + i],
                   now - session->routes_seen[i], relaxed);
        session->routes_seen[i] = now;
    }
}

static void update_gauges(struct cwd_broker *b) {
    gauge(b, CW_GAUGE_clients, b->clients);
    gauge(b, CW_GAUGE_names, CW_LOAD(D8, &b->root->directory.names, relaxed));
    gauge(b, CW_GAUGE_slabs, HASH_COUNT(b->slabs));
    gauge(b, CW_GAUGE_orphan_slabs, b->orphans);
    gauge(b, CW_GAUGE_fds, cwd_fds_held(b));
    gauge(b, CW_GAUGE_bytes, b->bytes);
    gauge(b, CW_GAUGE_gpu_bytes, b->gpu_bytes);
    gauge(b, CW_GAUGE_gpu_orphan_bytes, b->gpu_orphan_bytes);
    gauge(b, CW_GAUGE_transits, cwd_transit_count(b));
    gauge(b, CW_GAUGE_waiting, b->waiting);
    gauge(b, CW_GAUGE_jobs, b->job_count);
}

static void update_row(struct cwd_broker *b, struct cwd_session *session) {
    if (session->row == CWD_NO_ROW)
        return;
    struct cw_monitor_client *row = &b->root->clients[session->row];
    CW_STORE(M1, &row->slabs, session->slabs, relaxed);
    CW_STORE(M1, &row->bytes, session->bytes, relaxed);
    CW_STORE(M1, &row->gpu_bytes, session->gpu_bytes, relaxed);
    CW_STORE(M1, &row->transits, session->transits, relaxed);
    CW_STORE(M1, &row->waits, session->waits, relaxed);
    CW_STORE(M1, &row->requests, session->requests_done, relaxed);
    CW_STORE(M1, &row->heard_ns, (uint64_t)session->heard_ns, relaxed);
}

void cwd_monitor_answer(struct cwd_broker *b, struct cwd_session *session) {
    session->requests_done++;
    session->changed = true;
    CWD_COUNT(b, requests);
    update_gauges(b);
    count_routes(b, session); /* what it had copied when it asked is there with the answer, too */
    update_row(b, session);
}

void cwd_monitor_update(struct cwd_broker *b) {
    struct cwd_session *session;
    update_gauges(b);
    CW_STORE(M1, &b->root->counters[CW_COUNTER_fds_closed],
             cwd_closer_done(b->closer) + cwd_closer_done(b->untrusted_closer), relaxed);
    for (session = b->sessions; session; session = session->hh.next) {
        if (!session->changed || session->row == CWD_NO_ROW)
            continue;
        session->changed = false;
        count_routes(b, session);
        update_row(b, session);
    }
}

void cwd_monitor_heartbeat(struct cwd_broker *b, int64_t now_ns) {
    CW_STORE(M1, &b->root->heartbeat_ns, (uint64_t)now_ns, relaxed);
}

void cwd_monitor_row_open(struct cwd_broker *b, struct cwd_session *session, const char comm[32]) {
    uint64_t words[4];
    for (uint32_t i = 0; i < CW_MONITOR_CLIENTS; i++) {
        struct cw_monitor_client *row = &b->root->clients[i];
        if (CW_LOAD(M1, &row->session, relaxed))
            continue;
        memcpy(words, comm, sizeof words);
        for (unsigned w = 0; w < 4; w++)
            CW_STORE(M1, &row->comm[w], words[w], relaxed);
        CW_STORE(M1, &row->pid, (uint32_t)session->pid, relaxed);
        CW_STORE(M1, &row->connected_ns, realtime_ns(), relaxed);
        CW_STORE(M1, &row->slabs, 0, relaxed);
        CW_STORE(M1, &row->bytes, 0, relaxed);
        CW_STORE(M1, &row->gpu_bytes, 0, relaxed);
        CW_STORE(M1, &row->transits, 0, relaxed);
        CW_STORE(M1, &row->waits, 0, relaxed);
        CW_STORE(M1, &row->requests, 0, relaxed);
        session->heard_ns = b->now_ns;
        CW_STORE(M1, &row->heard_ns, (uint64_t)b->now_ns, relaxed);
        /* M2: the row's session comes last, so that who finds it finds the rest. */
        CW_STORE(M2, &row->session, session->id, release);
        session->row = i;
        return;
    }
}

void cwd_monitor_row_close(struct cwd_broker *b, struct cwd_session *session) {
    count_routes(b, session);
    if (session->row != CWD_NO_ROW)
        CW_STORE(M2, &b->root->clients[session->row].session, 0, release);
    session->row = CWD_NO_ROW;
}
