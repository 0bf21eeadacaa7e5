/*
 * Jobs: see job.h. Two threads of this file wait for the broker, each with one long request: one
 * for jobs, one for changes of names while a peer wants to be told. They hand what came to the
 * loop and ask again; all else is the loop's. The end of the broker is the end of this process.
 */
#include "broker/bridge/job.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHANGES_PAUSE_NS 1000000 /* at the least between two looks at what changed */

struct cwb_jobs {
    struct cwb_bridge *bridge;
    struct cwb_job *jobs; /* by id */
    pthread_t threads[2];
    pthread_mutex_t lock;
    pthread_cond_t wanted;
    bool watch; /* changes are wanted */
};

/* ---- from the broker ---- */

struct arrived {
    struct cwb_work work;
    struct cwb_jobs *jobs;
    struct cw_remote_job head;
    uint32_t body_bytes;
    uint8_t body[CW_MESSAGE_MAX];
};

_Noreturn static void broker_lost(void) {
    cwb_log("ends with its broker: %s", cw_detail());
    _exit(0); /* other threads wait: nothing of theirs is to be put in order */
}

static void begin(struct cwb_work *work);

static void *wait_for_jobs(void *context) {
    struct cwb_jobs *jobs = context;
    struct {
        struct cw_remote_job head;
        uint8_t body[CW_MESSAGE_MAX];
    } reply;
    for (;;) {
        uint32_t reply_bytes = sizeof reply;
        int code = cw_lane_call(jobs->bridge->client, CW_OP_REMOTE_NEXT, NULL, 0, &reply,
                                &reply_bytes, CW_CALL_LONG, -1);
        if (code == -EINTR)
            continue;
        if (code || reply_bytes < sizeof reply.head)
            broker_lost();
        struct arrived *arrived = malloc(sizeof *arrived);
        CW_ASSERT(arrived);
        arrived->work = (struct cwb_work){.done = begin};
        arrived->jobs = jobs;
        arrived->head = reply.head;
        arrived->body_bytes = reply_bytes - (uint32_t)sizeof reply.head;
        memcpy(arrived->body, reply.body, arrived->body_bytes);
        cwb_work_tell(jobs->bridge->works, &arrived->work);
    }
    return NULL;
}

struct changed {
    struct cwb_work work;
    struct cwb_bridge *bridge;
};

static void on_changes(struct cwb_work *work) {
    struct cwb_bridge *bridge = ((struct changed *)work)->bridge;
    free(work);
    cwb_serve_changes(bridge);
    if (cwb_serve_watches(bridge))
        cwb_jobs_watch(bridge);
}

static void *wait_for_changes(void *context) {
    struct cwb_jobs *jobs = context;
    struct cw_changes changes = {.seen = UINT64_MAX};
    for (;;) {
        struct cw_changes reply;
        uint32_t reply_bytes = sizeof reply;
        struct iovec part = {&changes, sizeof changes};
        pthread_mutex_lock(&jobs->lock);
        while (!jobs->watch)
            pthread_cond_wait(&jobs->wanted, &jobs->lock);
        jobs->watch = false;
        pthread_mutex_unlock(&jobs->lock);
        int code;
        do
            code = cw_lane_call(jobs->bridge->client, CW_OP_CHANGES, &part, 1, &reply, &reply_bytes,
                                CW_CALL_LONG, -1);
        while (code == -EINTR);
        if (code || reply_bytes != sizeof reply)
            broker_lost();
        changes = reply;
        struct changed *changed = calloc(1, sizeof *changed);
        CW_ASSERT(changed);
        *changed = (struct changed){.work = {.done = on_changes}, .bridge = jobs->bridge};
        cwb_work_tell(jobs->bridge->works, &changed->work);
        struct timespec pause = {.tv_nsec = CHANGES_PAUSE_NS};
        nanosleep(&pause, NULL);
    }
    return NULL;
}

void cwb_jobs_watch(struct cwb_bridge *bridge) {
    struct cwb_jobs *jobs = bridge->jobs;
    pthread_mutex_lock(&jobs->lock);
    jobs->watch = true;
    pthread_cond_signal(&jobs->wanted);
    pthread_mutex_unlock(&jobs->lock);
}

/* ---- the loop's ---- */

/* What a client sent, checked. */
static int take_apart(struct cwb_job *job, const struct arrived *arrived) {
    const uint8_t *at = arrived->body + sizeof job->remote;
    if (arrived->body_bytes < sizeof job->remote)
        return cw_fail(-EPROTO, "a request of %u bytes", arrived->body_bytes);
    memcpy(&job->remote, arrived->body, sizeof job->remote);
    const struct cw_remote *remote = &job->remote;
    if (remote->key_bytes > CW_KEY_MAX || remote->meta_bytes > CW_META_MAX ||
        arrived->body_bytes != sizeof *remote + remote->key_bytes + remote->meta_bytes ||
        remote->verb == 0 || remote->verb >= CW_REMOTE_VERBS)
        return cw_fail(-EPROTO, "a request to other nodes whose form is none of the protocol's");
    memcpy(job->key.text, at, remote->key_bytes);
    job->key.length = remote->key_bytes;
    memcpy(job->meta, at + remote->key_bytes, remote->meta_bytes);
    if (remote->verb == CW_REMOTE_PEERS)
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
    job->peer = cwb_peer_find(job->bridge, node + 3, (size_t)(slash - node - 3));
    if (!job->bridge->tls)
        return cw_fail(-EREMOTEIO, "%s", job->bridge->no_key);
    if (!job->peer)
        return cw_fail(-EREMOTEIO,
                       "there is no peer \"%.*s\" here: `causeway peers add NAME HOST:PORT --key "
                       "FINGERPRINT` makes it known, `causeway peers list` shows who is",
                       (int)(slash - node - 3), node + 3);
    return 0;
}

static void cancel(struct cwb_jobs *jobs, uint64_t id) {
    struct cwb_job *job;
    HASH_FIND(hh, jobs->jobs, &id, sizeof id, job);
    if (!job || !job->on_cancel)
        return; /* it is done already, or cannot be given up any more: it ends by itself */
    job->on_cancel(job);
    HASH_DEL(jobs->jobs, job);
    free(job);
}

static void begin(struct cwb_work *work) {
    struct arrived *arrived = (struct arrived *)work;
    struct cwb_jobs *jobs = arrived->jobs;
    if (arrived->head.cancelled) {
        cancel(jobs, arrived->head.job);
        free(arrived);
        return;
    }
    struct cwb_job *job = calloc(1, sizeof *job);
    CW_ASSERT(job);
    job->id = arrived->head.job;
    job->bridge = jobs->bridge;
    HASH_ADD(hh, jobs->jobs, id, sizeof job->id, job);
    int code = take_apart(job, arrived);
    free(arrived);
    if (code)
        cwb_job_done(job, code, NULL, 0);
    else if (job->remote.verb == CW_REMOTE_GET)
        cwb_replica_get(job->bridge, job->peer, job);
    else if (job->remote.verb == CW_REMOTE_PUT)
        cwb_job_put(job);
    else if (job->remote.verb == CW_REMOTE_PEERS)
        cwb_job_peers(job);
    else
        cwb_job_ask(job);
}

void cwb_job_done(struct cwb_job *job, int status, const void *body, uint32_t body_bytes) {
    struct {
        struct cw_remote_end end;
        uint8_t body[CW_DETAIL_MAX];
    } done = {.end = {.job = job->id, .status = status}};
    if (status < 0) {
        body = cw_detail();
        body_bytes = (uint32_t)strlen(body);
    }
    CW_ASSERT(body_bytes <= sizeof done.body);
    if (body_bytes)
        memcpy(done.body, body, body_bytes);
    /* The broker lost: the thread that waits for jobs ends us. */
    (void)cw_lane_post(job->bridge->client, CW_OP_REMOTE_DONE, &done,
                       (uint32_t)sizeof done.end + body_bytes);
    HASH_DEL(job->bridge->jobs->jobs, job);
    free(job);
}

void cwb_job_texts(struct cwb_job *job, const char *texts, uint64_t size_bytes, uint64_t count) {
    struct cw_remote_names names = {.count = count};
    cw_array *array = NULL;
    int code = 0;
    if (size_bytes) {
        int64_t length = (int64_t)size_bytes;
        cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &length, .dtype = "|u1"};
        cw_handle handle;
        code = cw_array_new(job->bridge->client, "cpu", &layout, 0, &array);
        if (code == 0)
            code = cw_array_write(array, 0, texts, size_bytes);
        if (code == 0)
            code = cw_array_export(array, 1, &handle);
        if (code == 0)
            names = (struct cw_remote_names){.count = count,
                                             .instance = handle.instance,
                                             .token = handle.token,
                                             .slab = handle.slab,
                                             .block = handle.block,
                                             .gen = handle.gen,
                                             .offset_bytes = handle.offset_bytes,
                                             .size_bytes = handle.size_bytes};
    }
    cwb_job_done(job, code, &names, sizeof names);
    cw_array_close(array);
}

int cwb_jobs_init(struct cwb_bridge *bridge) {
    struct cwb_jobs *jobs = calloc(1, sizeof *jobs);
    sigset_t all, before;
    CW_ASSERT(jobs);
    jobs->bridge = bridge;
    pthread_mutex_init(&jobs->lock, NULL);
    pthread_cond_init(&jobs->wanted, NULL);
    bridge->jobs = jobs;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the loop's */
    int code = pthread_create(&jobs->threads[0], NULL, wait_for_jobs, jobs);
    if (code == 0)
        code = pthread_create(&jobs->threads[1], NULL, wait_for_changes, jobs);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code ? cw_fail(-EDQUOT, "no thread could be made to wait for the broker") : 0;
}
