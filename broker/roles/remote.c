/*
 * Remote: see remote.h. The loop's thread owns all. What a client wants is handed on unread: the
 * bridge looks at it as it looks at what comes from other nodes.
 */
#include "broker/roles/remote.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/broker.h"
#include "broker/core/log.h"
#include "broker/core/loop.h"
#include "broker/core/monitor.h"
#include "broker/names/names.h"
#include "broker/session/session.h"
#include "broker/roles/verdict.h"

#define PROGRAM       CWD_REMOTE_PROGRAM
#define BRIDGE_TRIES  8u          /* deaths of bridges in one job */
#define RESTARTS_MOST 10u         /* in a row while nobody asks: some three minutes */
#define PAUSE_NS      500000000ll /* doubled with each start in a row that came to nothing */
#define PAUSE_MAX_NS  30000000000
#define LOOK_NS       1000000000

struct cwd_remote_job {
    uint64_t number;
    struct cwd_session *client; /* NULL: nobody waits for it */
    uint64_t request;
    bool given;
    unsigned tries;
    uint64_t deed; /* the number of a put or remove (once.h); else 0 */
    uint64_t taken_ns;
    uint32_t body_bytes; /* of the request; once answered: of the reply */
    uint8_t *body;
    int status;
    struct cwd_remote_job *prev, *next; /* in broker.remote.jobs, or in the client's answers */
};

void cwd_remote_init(struct cwd_broker *b) {
    b->remote.pidfd = -1;
}

bool cwd_remote_is(const struct cwd_broker *b, const struct cwd_session *session) {
    return session && session == b->remote.session;
}

/* ---- answers ---- */

static void job_free(struct cwd_broker *b, struct cwd_remote_job *job) {
    if (job->client) {
        job->client->remotes--;
        job->client->changed = true;
    }
    (void)b;
    free(job->body);
    free(job);
}

/* Out of the list, and to who asked. */
static void answer(struct cwd_broker *b, struct cwd_remote_job *job, int status, const void *body,
                   uint32_t body_bytes) {
    DL_DELETE(b->remote.jobs, job);
    if (!job->client) {
        job_free(b, job);
        return;
    }
    _Static_assert(CW_PLACED_MAX <= CW_DETAIL_MAX, "a GET's reply");
    CW_ASSERT(body_bytes <= CW_DETAIL_MAX); /* for which there is room from the beginning */
    memcpy(job->body, body, body_bytes);
    job->body_bytes = body_bytes;
    job->status = status;
    DL_APPEND(job->client->remote_answers, job);
    (void)cwd_remote_flush(b, job->client);
}

bool cwd_remote_flush(struct cwd_broker *b, struct cwd_session *client) {
    bool worked = false;
    while (client->remote_answers && client->state == CWD_OPEN && cwd_session_has_room(client)) {
        struct cwd_remote_job *job = client->remote_answers;
        DL_DELETE(client->remote_answers, job);
        cwd_session_reply(b, client, CW_OP_REMOTE, job->request, job->status, job->body,
                          job->body_bytes);
        job_free(b, job);
        worked = true;
    }
    return worked;
}

/* It fails with this sentence. A put or remove that a bridge had may have been done. */
static void fail(struct cwd_broker *b, struct cwd_remote_job *job, const char *sentence) {
    static const char unknown[] = "whether it was done at the other node is not known: ";
    char whole[CW_DETAIL_MAX];
    int length =
        snprintf(whole, sizeof whole, "%s%.400s", job->deed && job->tries ? unknown : "", sentence);
    answer(b, job, -EREMOTEIO, whole, (uint32_t)length);
}

/* All that wait fail with this thread's last sentence. */
static void fail_waiting(struct cwd_broker *b) {
    struct cwd_remote_job *job, *next;
    char sentence[CW_DETAIL_MAX];
    strcpy(sentence, cw_detail());
    DL_FOREACH_SAFE(b->remote.jobs, job, next) {
        if (!job->given)
            fail(b, job, sentence);
    }
}

/* ---- the bridge ---- */

/* Answers the oldest NEXT. false: none waits, or there is no room: it asks again when it has read.
 */
static bool give(struct cwd_broker *b, const struct cw_remote_job *head, const void *body,
                 uint32_t body_bytes) {
    struct cwd_remote *remote = &b->remote;
    uint8_t whole[sizeof(struct cw_remote_job) + CW_MESSAGE_MAX];
    if (!remote->session || !remote->next_count ||
        !cw_ring_has_room(&remote->session->replies,
                          (uint32_t)(sizeof(struct cw_message) + sizeof *head) + body_bytes))
        return false;
    memcpy(whole, head, sizeof *head);
    if (body_bytes)
        memcpy(whole + sizeof *head, body, body_bytes);
    uint64_t request = remote->nexts[0];
    memmove(remote->nexts, remote->nexts + 1, --remote->next_count * sizeof *remote->nexts);
    cwd_session_reply(b, remote->session, CW_OP_REMOTE_NEXT, request, 0, whole,
                      (uint32_t)sizeof *head + body_bytes);
    return true;
}

/* No put or remove with a lower number is with a bridge, or will be. */
static uint64_t settled(const struct cwd_broker *b) {
    const struct cwd_remote_job *job;
    DL_FOREACH(b->remote.jobs, job) {
        if (job->deed)
            return job->deed;
    }
    return b->remote.next_deed + 1;
}

/* Gives the bridge what it is to know: jobs that nobody wants any more, and those that wait. */
static void hand_out(struct cwd_broker *b) {
    struct cwd_remote_job *job, *next;
    DL_FOREACH_SAFE(b->remote.jobs, job, next) {
        if (job->given && job->client)
            continue;
        struct cw_remote_job head = {.job = job->number,
                                     .session = job->client ? job->client->id : 0,
                                     .cancelled = job->given,
                                     .deed = job->deed,
                                     .settled = job->deed ? settled(b) : 0,
                                     .taken_ns = job->taken_ns,
                                     .handed = job->tries > 0};
        if (!give(b, &head, job->body, job->given ? 0 : job->body_bytes))
            return;
        if (job->given)
            answer(b, job, -ECANCELED, "", 0); /* the bridge knows: it is gone */
        else
            job->given = true;
    }
}

/* Does it live? Returns when to look again. */
static int64_t look_after(struct cwd_broker *b) {
    static const struct cw_remote_job nothing = {.job = 0};
    struct cwd_remote *remote = &b->remote;
    uint64_t head = remote->session ? remote->session->requests.head : 0;
    if (!remote->pid) {
        remote->look_ns = 0;
        return INT64_MAX;
    }
    if (remote->look_ns && b->now_ns < remote->look_ns)
        return remote->look_ns;
    bool first = remote->look_ns == 0;
    if (first || head != remote->look_head)
        remote->silent = 0;
    else
        remote->silent++;
    remote->look_head = head;
    remote->look_ns = b->now_ns + LOOK_NS;
    if (remote->silent < (remote->session ? CWD_REMOTE_LOOKS : CWD_REMOTE_START_LOOKS)) {
        if (!first)
            (void)give(b, &nothing, NULL, 0);
    } else {
        cwd_log_error(0, PROGRAM " (pid %d) has said nothing for %u s: it stands, and is killed",
                      (int)remote->pid, remote->silent);
        kill(remote->pid, SIGKILL);
        remote->silent = 0;
    }
    return remote->look_ns;
}

static int64_t pause_after(const struct cwd_remote *remote) {
    int64_t pause_ns = PAUSE_NS << (remote->starts < 8 ? remote->starts : 8);
    return pause_ns < PAUSE_MAX_NS ? pause_ns : PAUSE_MAX_NS;
}

int64_t cwd_remote_serve(struct cwd_broker *b) {
    struct cwd_remote *remote = &b->remote;
    bool wanted = remote->options.count > 0;
    if (b->stopping)
        return INT64_MAX;
    int64_t look_ns = look_after(b);
    cwd_changes_tell(b); /* where there was no room */
    if (!wanted && !remote->jobs)
        return look_ns;
    if (!remote->pid && !remote->session) {
        if (!remote->jobs && remote->starts >= RESTARTS_MOST)
            return look_ns; /* until somebody asks */
        if (!remote->jobs && b->now_ns < remote->start_after_ns)
            return remote->start_after_ns;
        bool asked = remote->jobs != NULL;
        int code = cwd_remote_start(b);
        remote->start_after_ns = b->now_ns + pause_after(remote);
        if (code) {
            cwd_log_error(0, "%s", cw_detail());
            cwd_verdict_fail(b);
            fail_waiting(b);
            remote->starts = asked ? 0 : remote->starts + 1; /* who asks next tries anew */
            return wanted ? remote->start_after_ns : INT64_MAX;
        }
    }
    hand_out(b);
    return look_after(b);
}

static void set_session(struct cwd_broker *b, struct cwd_session *session) {
    b->remote.session = session;
    /* BD1: clients look there after they have copied what the bridge's unnamed replicas say; who is
     * told what came after the end of one bridge sees it gone. */
    CW_STORE(BD1, &b->root->bridge, session ? session->id : 0, release);
}

static int only_bridge(struct cwd_broker *b, const struct cwd_session *session) {
    struct cwd_remote *remote = &b->remote;
    if (remote->pid && remote->pid == session->pid &&
        (!remote->session || remote->session == session))
        return 0;
    return cw_fail(-EPERM, "this is for the bridge that this broker started (pid %d)",
                   (int)remote->pid);
}

int cwd_remote_next(struct cwd_broker *b, struct cwd_session *session, uint64_t request) {
    int code = only_bridge(b, session);
    if (code)
        return code;
    if (b->remote.next_count == CW_REMOTE_NEXTS_MAX)
        return cw_fail(-EDQUOT, "a bridge asks for at most %u jobs at a time", CW_REMOTE_NEXTS_MAX);
    set_session(b, session);
    b->remote.starts = 0;
    b->remote.nexts[b->remote.next_count++] = request;
    hand_out(b);
    return 0;
}

int cwd_remote_changes(struct cwd_broker *b, struct cwd_session *session, uint64_t request,
                       const struct cw_changes *changes) {
    int code = only_bridge(b, session);
    if (code)
        return code;
    set_session(b, session);
    cwd_changes_ask(b, request, changes);
    return 0;
}

/* ---- jobs ---- */

int cwd_remote_begin(struct cwd_broker *b, struct cwd_session *client, uint64_t request,
                     const void *body, uint32_t body_bytes) {
    if (client->remotes >= CWD_LIMIT(b, max_client_waits))
        return cwd_limit_refuse(b, CW_LIMIT_max_client_waits,
                                "one more request to other nodes than the %u of this client was "
                                "asked for",
                                client->remotes);
    struct cwd_remote_job *job = calloc(1, sizeof *job);
    if (job) /* the answer will lie where the request does: nothing is left to fail then */
        job->body = malloc(body_bytes > CW_DETAIL_MAX ? body_bytes : CW_DETAIL_MAX);
    if (!job || !job->body) {
        free(job);
        return cwd_no_memory("a request to another node");
    }
    memcpy(job->body, body, body_bytes);
    job->body_bytes = body_bytes;
    const struct cw_remote *remote = body;
    job->number = ++b->remote.next_job;
    job->taken_ns = cwd_boottime_ns();
    if (remote->verb == CW_REMOTE_PUT || remote->verb == CW_REMOTE_REMOVE)
        job->deed = ++b->remote.next_deed;
    job->client = client;
    job->request = request;
    client->remotes++;
    client->changed = true;
    DL_APPEND(b->remote.jobs, job);
    (void)cwd_remote_serve(b);
    return 0;
}

/* Nobody waits for it any more. */
static void abandon(struct cwd_broker *b, struct cwd_remote_job *job) {
    if (job->client)
        job->client->remotes--;
    job->client = NULL;
    if (job->given)
        hand_out(b);
    else
        answer(b, job, -ECANCELED, "", 0);
}

void cwd_remote_cancel(struct cwd_broker *b, struct cwd_session *session, uint64_t request) {
    static const char cancelled[] = "cancelled";
    struct cwd_remote *remote = &b->remote;
    struct cwd_remote_job *job, *next;
    if (session == remote->session && cwd_changes_cancel(b, request))
        return;
    for (uint32_t i = 0; session == remote->session && i < remote->next_count; i++) {
        if (remote->nexts[i] != request)
            continue;
        memmove(remote->nexts + i, remote->nexts + i + 1,
                (--remote->next_count - i) * sizeof *remote->nexts);
        cwd_session_reply(b, session, CW_OP_REMOTE_NEXT, request, -ECANCELED, cancelled,
                          sizeof cancelled - 1);
        return;
    }
    DL_FOREACH_SAFE(remote->jobs, job, next) {
        if (job->client != session || job->request != request)
            continue;
        cwd_session_reply(b, session, CW_OP_REMOTE, request, -ECANCELED, cancelled,
                          sizeof cancelled - 1);
        abandon(b, job);
        return;
    }
}

static struct cwd_remote_job *given(struct cwd_broker *b, uint64_t number) {
    struct cwd_remote_job *job;
    DL_FOREACH(b->remote.jobs, job) {
        if (job->number == number && job->given)
            return job;
    }
    return NULL;
}

int cwd_remote_done(struct cwd_broker *b, struct cwd_session *session,
                    const struct cw_remote_end *end, const void *body, uint32_t body_bytes) {
    if (session != b->remote.session || end->status > 0 || end->status < -4095 || end->reserved)
        return -EBADMSG;
    struct cwd_remote_job *job = given(b, end->job);
    if (job)
        answer(b, job, end->status, body, body_bytes);
    return 0;
}

int cwd_remote_replica(struct cwd_broker *b, struct cwd_session *session,
                       const struct cw_replica *replica, const char *key, const void *meta) {
    if (session != b->remote.session)
        return -EBADMSG;
    return cwd_name_put(b, session, &replica->put, key, meta);
}

/* ---- the end ---- */

/* The bridge is gone for good: what it had waits for the next one. */
static void settle(struct cwd_broker *b) {
    struct cwd_remote *remote = &b->remote;
    struct cwd_remote_job *job, *next;
    if (remote->pid || remote->session)
        return;
    DL_FOREACH_SAFE(remote->jobs, job, next) {
        char sentence[160];
        if (!job->given)
            continue;
        job->given = false;
        if (job->client && ++job->tries < BRIDGE_TRIES)
            continue;
        snprintf(sentence, sizeof sentence,
                 PROGRAM " died %u times with this request: the broker's log says how", job->tries);
        fail(b, job, sentence);
    }
    (void)cwd_remote_serve(b);
}

/* It ended before it was ready. */
static void failed_again(struct cwd_broker *b) {
    struct cwd_remote *remote = &b->remote;
    int64_t pause_ns = pause_after(remote);
    remote->start_after_ns = b->now_ns + pause_ns;
    if (remote->starts < RESTARTS_MOST)
        cwd_log(PROGRAM " is started again after %.1f s", (double)pause_ns / 1e9);
    else
        cwd_log_error(0,
                      PROGRAM
                      " ended %u times in a row before it was ready: it is not started again "
                      "until a name of another node is asked for",
                      remote->starts);
}

void cwd_remote_on_exit(struct cwd_broker *b) {
    struct cwd_remote *remote = &b->remote;
    int status;
    if (!remote->pid || waitpid(remote->pid, &status, WNOHANG) != remote->pid)
        return;
    if (WIFSIGNALED(status))
        cwd_log_error(0, PROGRAM " (pid %d) was killed by signal %d", (int)remote->pid,
                      WTERMSIG(status));
    else
        cwd_log_error(0, PROGRAM " (pid %d) ended with exit code %d", (int)remote->pid,
                      WEXITSTATUS(status));
    cwd_loop_remove(b, remote->pidfd);
    close(remote->pidfd);
    b->fds--;
    remote->pidfd = -1;
    remote->pid = 0;
    if (remote->options.count && remote->starts)
        failed_again(b);
    settle(b);
}

void cwd_remote_forget(struct cwd_broker *b, struct cwd_session *session) {
    struct cwd_remote_job *job, *next;
    while (session->remote_answers) {
        job = session->remote_answers;
        DL_DELETE(session->remote_answers, job);
        job_free(b, job);
    }
    bool any_given = false;
    DL_FOREACH_SAFE(b->remote.jobs, job, next) {
        if (job->client != session)
            continue;
        session->remotes--;
        job->client = NULL;
        if (job->given)
            any_given = true;
        else
            answer(b, job, -ECANCELED, "", 0);
    }
    if (session != b->remote.session) {
        if (any_given) /* not before: it frees what the bridge is told of, whosever it was */
            hand_out(b);
        return;
    }
    set_session(b, NULL);
    b->remote.next_count = 0;
    cwd_changes_forget(b);
    cwd_names_end_replicas(b);
    if (!b->stopping)
        settle(b);
}

void cwd_remote_deinit(struct cwd_broker *b) {
    struct cwd_remote *remote = &b->remote;
    struct cwd_remote_job *job, *next;
    DL_FOREACH_SAFE(remote->jobs, job, next) {
        if (job->client)
            job->client->remotes--;
        job->client = NULL;
        answer(b, job, -ECANCELED, "", 0);
    }
    if (remote->pidfd >= 0) {
        kill(remote->pid, SIGTERM);
        close(remote->pidfd);
    }
    remote->pidfd = -1;
    while (remote->options.count)
        free(remote->options.words[--remote->options.count]);
}
