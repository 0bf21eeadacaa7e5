/*
 * Jobs: see job.h. Several requests for jobs wait at the broker, and one for changes of names while
 * a peer wants to be told; each that is answered is asked anew. One for ends of names alone, as
 * most are, is followed by one for new names, too, when the first peer waits for a name.
 */
#include "broker/bridge/local/job.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/replica.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/link/peer_table.h"
#include "broker/bridge/local/broker_channel.h"
#include "broker/bridge/local/fast_path.h"
#include "broker/bridge/local/once.h"
#include "broker/bridge/local/outgoing_put.h"
#include "broker/bridge/local/questions.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/serve.h"
#include "broker/bridge/wire/frame.h"
#include "ipc/base/meta.h"

#define AGAIN_NS         10000000 /* there was no memory to ask: when that is tried again */
#define CHANGES_PAUSE_NS 1000000  /* at the least between two looks at what changed */
#define NEXTS_LEAST      4u       /* of requests for jobs that wait; below, more are asked */

struct cwb_jobs {
    struct cwb_bridge *bridge;
    struct cwb_job *jobs; /* by id */
    uint64_t seen;        /* of the directory's changes */
    int64_t looked_ns;    /* at what changed */
    bool watch;           /* changes are to be asked for */
    uint32_t asked;       /* requests for changes that wait at the broker */
    bool asked_news;      /* the last of them is for new names, too */
    uint32_t nexts;       /* requests for jobs that wait at the broker */
};

/* ---- from the broker ---- */

static void begin(struct cwb_jobs *jobs, const struct cw_remote_job *head, const uint8_t *body,
                  uint32_t body_bytes);

static void ask_nexts(struct cwb_jobs *jobs, uint32_t least);

/* No job: the broker asks, once a second, whether we live. It looks for the answer when it asks
 * again, and need not be woken for it. And we are awake: files are looked at now, so that an idle
 * node wakes no further time for them. */
static void on_alive(struct cwb_jobs *jobs) {
    struct cwb_bridge *bridge = jobs->bridge;
    cwb_broker_channel_quiet(bridge->broker_channel, true);
    ask_nexts(jobs, CW_REMOTE_NEXTS_MAX);
    cwb_broker_channel_quiet(bridge->broker_channel, false);
    bridge->files_now = true;
}

static void on_next(void *owner, int status, const void *body, uint32_t body_bytes) {
    struct cwb_jobs *jobs = owner;
    struct cw_remote_job head;
    if (status || body_bytes < sizeof head) {
        cwb_log("ends: the broker gives no jobs: %s", status ? cw_detail() : "its answer is none");
        jobs->bridge->stopping = true;
        return;
    }
    memcpy(&head, body, sizeof head);
    jobs->nexts--;
    if (!head.job) {
        on_alive(jobs);
        return;
    }
    ask_nexts(jobs, NEXTS_LEAST);
    begin(jobs, &head, (const uint8_t *)body + sizeof head, body_bytes - (uint32_t)sizeof head);
}

/* Where fewer than so many wait, all that may are asked for. */
static void ask_nexts(struct cwb_jobs *jobs, uint32_t least) {
    if (jobs->nexts >= least)
        return;
    for (; jobs->nexts < CW_REMOTE_NEXTS_MAX; jobs->nexts++)
        if (cwb_broker_channel_ask(jobs->bridge->broker_channel, CW_OP_REMOTE_NEXT, NULL, 0,
                                   on_next, jobs) != 0) {
            jobs->bridge->tick_now = true; /* cwb_jobs_tick() tries again */
            return;
        }
}

static void on_changes(void *owner, int status, const void *body, uint32_t body_bytes) {
    struct cwb_jobs *jobs = owner;
    struct cw_changed changed = {.count = UINT32_MAX};
    const uint32_t head_bytes = (uint32_t)(sizeof changed - sizeof changed.ended);
    if (!status && body_bytes >= head_bytes && body_bytes <= sizeof changed)
        memcpy(&changed, body, body_bytes);
    if (changed.count > CW_CHANGES_MAX ||
        body_bytes != head_bytes + changed.count * sizeof *changed.ended) {
        cwb_log("ends: the broker tells no changes");
        jobs->bridge->stopping = true;
        return;
    }
    if (--jobs->asked == 0)
        jobs->asked_news = false;
    jobs->seen = changed.seen;
    jobs->looked_ns = jobs->bridge->loop.now_ns;
    cwb_serve_changes(jobs->bridge, &changed);
    if (cwb_serve_watches(jobs->bridge))
        cwb_jobs_watch(jobs->bridge);
}

/* Is what waits at the broker all that is wanted? */
static bool asked_enough(const struct cwb_jobs *jobs) {
    return jobs->asked && (jobs->asked_news || !jobs->bridge->wait_count);
}

int64_t cwb_jobs_tick(struct cwb_bridge *bridge) {
    struct cwb_jobs *jobs = bridge->jobs;
    ask_nexts(jobs, 1); /* none waits: there was no memory for one */
    int64_t due_ns = jobs->nexts ? INT64_MAX : bridge->loop.now_ns + AGAIN_NS;
    if (!jobs->watch)
        return due_ns;
    if (bridge->loop.now_ns - jobs->looked_ns < CHANGES_PAUSE_NS)
        return jobs->looked_ns + CHANGES_PAUSE_NS;
    struct cw_changes changes = {.seen = jobs->seen, .news = bridge->wait_count != 0};
    struct iovec part = {&changes, sizeof changes};
    if (cwb_broker_channel_ask(bridge->broker_channel, CW_OP_CHANGES, &part, 1, on_changes, jobs) !=
        0)
        return bridge->loop.now_ns + AGAIN_NS;
    jobs->watch = false;
    jobs->asked++;
    jobs->asked_news = changes.news;
    return due_ns;
}

void cwb_jobs_watch(struct cwb_bridge *bridge) {
    struct cwb_jobs *jobs = bridge->jobs;
    if (jobs->watch || asked_enough(jobs))
        return;
    jobs->watch = bridge->tick_now = true;
}

/* ---- the loop's ---- */

/* Would the other node take it? What breaks the form ends the connection there, with the requests
 * of all others, and would be asked again over the next one. */
static int check_there(const struct cwb_job *job) {
    const struct cw_remote *remote = &job->remote;
    struct cw_meta_put_tree tree;
    struct cw_shape shape;
    int code = cwb_key_check(job->there.text, job->there.length, remote->verb == CW_REMOTE_NAMES);
    if (code == 0 && remote->verb == CW_REMOTE_PUT &&
        (remote->size_bytes > CWB_ARRAY_MAX ||
         (remote->flags & CW_PUT_TREE
              ? cw_meta_put_tree_decode(job->meta, remote->meta_bytes, remote->size_bytes, &tree)
              : cw_meta_decode(job->meta, remote->meta_bytes, remote->size_bytes, &shape)) != 0))
        code = -EPROTO;
    return code ? cw_fail(-EINVAL, "a malformed request to other nodes: invalid name or layout")
                : 0;
}

/* Does it mean this node? A peer of that name comes first: somebody has said so. */
static bool is_own(const struct cwb_bridge *bridge, const char *node, size_t length) {
    return strlen(bridge->node) == length && memcmp(bridge->node, node, length) == 0;
}

/* What a client sent, checked. */
static int take_apart(struct cwb_job *job, const uint8_t *body, uint32_t body_bytes) {
    const uint8_t *at = body + sizeof job->remote;
    if (body_bytes < sizeof job->remote)
        return cw_fail(-EPROTO, "a request of %u bytes", body_bytes);
    memcpy(&job->remote, body, sizeof job->remote);
    const struct cw_remote *remote = &job->remote;
    if (remote->key_bytes > CW_KEY_MAX || remote->meta_bytes > CW_META_MAX ||
        body_bytes != sizeof *remote + remote->key_bytes + remote->meta_bytes ||
        remote->verb == 0 || remote->verb >= CW_REMOTE_VERBS)
        return cw_fail(-EPROTO,
                       "a malformed request to other nodes: its form is not one of the protocol's");
    memcpy(job->key.text, at, remote->key_bytes);
    job->key.length = remote->key_bytes;
    memcpy(job->meta, at + remote->key_bytes, remote->meta_bytes);
    if (remote->verb == CW_REMOTE_PEERS || remote->verb == CW_REMOTE_SELF)
        return 0;
    /* namespace, NUL, "//node/name" */
    const char *key = job->key.text, *end = key + job->key.length;
    const char *node = memchr(key, 0, job->key.length);
    const char *slash =
        node && end - node > 3 ? memchr(node + 3, '/', (size_t)(end - node - 3)) : NULL;
    if (!slash || memcmp(node + 1, "//", 2) != 0)
        return cw_fail(-EINVAL, "a name of another node is //NODE/NAME");
    size_t space = (size_t)(node + 1 - key), name = (size_t)(end - slash - 1);
    memcpy(job->there.text, key, space);
    memcpy(job->there.text + space, slash + 1, name);
    job->there.length = (uint32_t)(space + name);
    int code = check_there(job);
    if (code)
        return code;
    job->peer = cwb_peer_find(job->bridge, node + 3, (size_t)(slash - node - 3));
    if (!job->peer && is_own(job->bridge, node + 3, (size_t)(slash - node - 3)))
        return cw_fail(-ELOOP, "%s is this node", job->bridge->node);
    if (!job->bridge->tls)
        return cw_fail(-EREMOTEIO, "%s", job->bridge->no_key);
    if (!job->peer)
        return cw_fail(-EREMOTEIO,
                       "there is no peer \"%.*s\" here: `cableway peers add NAME HOST:PORT --key "
                       "FINGERPRINT` makes it known, `cableway peers list` shows who is",
                       (int)(slash - node - 3), node + 3);
    return 0;
}

static void job_free(struct cwb_job *job) {
    if (CWD_ADDED(job))
        HASH_DEL(job->bridge->jobs->jobs, job);
    free(job);
}

static void cancel(struct cwb_jobs *jobs, uint64_t id) {
    struct cwb_job *job;
    HASH_FIND(hh, jobs->jobs, &id, sizeof id, job);
    if (!job || !job->on_cancel)
        return; /* it is done already, or cannot be given up any more: it ends by itself */
    job->on_cancel(job);
    job_free(job);
}

/* A job's outcome to the broker. status < 0: cw_detail() is the sentence. */
static void tell_end(struct cwb_bridge *bridge, uint64_t job, int status, const void *body,
                     uint32_t body_bytes) {
    struct cw_remote_end end = {.job = job, .status = status};
    if (status < 0) {
        body = cw_detail();
        body_bytes = (uint32_t)strlen(body);
    }
    CW_ASSERT(body_bytes <= CW_DETAIL_MAX);
    struct iovec parts[] = {{&end, sizeof end}, {(void *)(uintptr_t)body, body_bytes}};
    (void)cwb_broker_channel_ask(bridge->broker_channel, CW_OP_REMOTE_DONE, parts, 2, NULL, NULL);
}

static void begin(struct cwb_jobs *jobs, const struct cw_remote_job *head, const uint8_t *body,
                  uint32_t body_bytes) {
    if (head->cancelled) {
        cancel(jobs, head->job);
        return;
    }
    if (cwb_job_begin(jobs->bridge, NULL, head, body, body_bytes) != 0)
        tell_end(jobs->bridge, head->job, -EDQUOT, NULL, 0);
}

int cwb_job_begin(struct cwb_bridge *bridge, struct cwb_local_client *local_client,
                  const struct cw_remote_job *head, const uint8_t *body, uint32_t body_bytes) {
    struct cwb_job *job = calloc(1, sizeof *job + body_bytes);
    if (!job)
        return cwb_no_memory("a request to another node");
    if (head)
        job->head = *head;
    job->id = job->head.job;
    job->bridge = bridge;
    job->local_client = local_client;
    if (local_client)
        cwb_fast_path_took(local_client, job);
    else
        HASH_ADD(hh, bridge->jobs->jobs, id, sizeof job->id, job);
    if (!local_client && !CWD_ADDED(job)) {
        free(job);
        return cwb_no_memory("a request to another node");
    }
    int code = take_apart(job, body, body_bytes);
    if (code)
        cwb_job_done(job, code == -EREMOTEIO ? cwb_deed_fail(job, code) : code, NULL, 0);
    else if (job->remote.verb == CW_REMOTE_GET)
        cwb_replica_get(job->bridge, job->peer, job);
    else if (job->remote.verb == CW_REMOTE_PUT)
        cwb_job_put(job);
    else if (job->remote.verb == CW_REMOTE_PEERS)
        cwb_job_peers(job);
    else if (job->remote.verb == CW_REMOTE_NODE)
        cwb_job_done(job, 0, NULL, 0);
    else if (job->remote.verb == CW_REMOTE_SELF)
        cwb_job_done(job, 0, job->bridge->node, (uint32_t)strlen(job->bridge->node));
    else
        cwb_job_ask(job);
    return 0;
}

void cwb_job_done(struct cwb_job *job, int status, const void *body, uint32_t body_bytes) {
    if (!job->id) {
        CW_ASSERT(status < 0);
        cwb_fast_path_answer(job, status, NULL, NULL);
        return;
    }
    tell_end(job->bridge, job->id, status, body, body_bytes);
    job_free(job);
}

uint64_t cwb_job_release(struct cwb_job *job) {
    uint64_t id = job->id;
    job_free(job);
    return id;
}

int cwb_jobs_init(struct cwb_bridge *bridge) {
    bridge->jobs = calloc(1, sizeof *bridge->jobs);
    if (!bridge->jobs)
        return cwb_no_memory("requests to other nodes");
    bridge->jobs->bridge = bridge;
    bridge->jobs->seen = UINT64_MAX;
    ask_nexts(bridge->jobs, CW_REMOTE_NEXTS_MAX);
    return 0;
}
