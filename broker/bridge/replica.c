/*
 * Replicas: remote arrays in local memory, each under its remote name in the directory, where local
 * clients find it without asking anybody.
 *
 *   OPENING --opened--> MAKING --memory--> TAKING --whole, checked--> HELD --changed, unused, or
 *      |  (small arrays come with the answer: no TAKING)               |     the peer is away-->
 * gone
 *      +--it fails: all jobs are told, gone                            v
 *
 * However many clients want one array, it is fetched once: they all wait for the same replica. At
 * other places of this node, on GPUs, it has siblings (sibling.c). What is HELD is what the name
 * means at its owner as far as it can be known: the owner tells of each change, and while there is
 * no link to it, nothing is HELD. Clients that have opened a replica keep it in any case, also
 * under other names that they give it: its block is frozen, and means the same bytes for as long as
 * anybody has it. If this process dies, the broker takes all replicas' names away.
 *
 * What a client of this node put or removed, every client of it gets from then on: before the
 * broker is told that the write is done, it is told that the replica's name goes, and it reads in
 * that order. What is being fetched then is fetched once more. So it is for who asks after its
 * owner has told of a change (late); who asked before that gets what was opened before.
 */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "broker/bridge/board.h"
#include "broker/bridge/door.h"
#include "broker/bridge/hash.h"
#include "broker/bridge/home.h"
#include "broker/bridge/replica.h"
#include "ipc/meta.h"
#include "ipc/remote.h"

#define TRIES    4  /* of an array that is written to, or whose owner starts anew */
#define REWRITES 16 /* fetched again so often for writes of this node's own clients */

static void replica_free(struct cwb_replica *replica) {
    cwb_board_take_down(replica);
    HASH_DEL(replica->bridge->replicas, replica);
    replica->bridge->replicas_on_gpus -= replica->on_gpu;
    if (replica->followed)
        LL_DELETE2(replica->followed->followers, replica, follow_next);
    cwb_landing_cancel(replica->landing);
    cwb_replica_wake(replica);
    if (replica->waits)
        cwb_peer_forget(replica->peer, &replica->waiter);
    if (replica->asked)
        cwb_request_forget(replica->asked);
    cwb_take_cancel(&replica->take);
    cw_array_close(replica->array);
    free(replica->came);
    free(replica);
}

/* It is there: under its name, or (at the door) where its bytes lie. */
static void answer(struct cwb_replica *replica, struct cwb_job *job) {
    if (job->id)
        cwb_job_done(job, 0, NULL, 0);
    else
        cwb_door_answer(job, 0, &replica->put, replica->came);
}

static void tell_jobs(struct cwb_replica *replica, int status) {
    struct cwb_job *job;
    char sentence[CW_DETAIL_MAX];
    strcpy(sentence, cw_detail());
    while ((job = replica->jobs)) {
        replica->jobs = job->next;
        if (status) {
            cw_fail(status, "%s", sentence);
            cwb_job_done(job, status, NULL, 0);
        } else {
            answer(replica, job);
        }
    }
}

/* What was being fetched is given up, and fetched again. */
static void begin_anew(struct cwb_replica *replica) {
    replica->held = replica->whole = false;
    cwb_board_take_down(replica);
    cw_array_close(replica->array);
    replica->array = NULL;
    free(replica->came);
    replica->came = NULL;
    cwb_replica_begin(replica);
}

static bool wanted(const struct cwb_replica *replica) {
    return replica->jobs || replica->late;
}

/* Is it to be fetched once more, since it may be older than what a client here wrote? */
static bool outdated(struct cwb_replica *replica) {
    return replica->written && wanted(replica) && replica->rewrites++ < REWRITES;
}

/* The end of this one; who asked late has another. */
static void end(struct cwb_replica *replica) {
    if (!replica->late) {
        replica_free(replica);
        return;
    }
    replica->tries = replica->rewrites = replica->unused = 0;
    begin_anew(replica);
}

void cwb_replica_fail(struct cwb_replica *replica, int status) {
    if (status == -ENOENT && outdated(replica)) {
        begin_anew(replica);
        return;
    }
    tell_jobs(replica, status);
    end(replica);
}

void cwb_replica_unname(struct cwb_replica *replica) {
    struct cw_key key = {.key_bytes = replica->key.length};
    struct iovec parts[] = {{&key, sizeof key}, {replica->key.text, replica->key.length}};
    cwb_home_ask(replica->bridge->home, CW_OP_REMOVE, parts, 2, NULL, NULL);
}

void cwb_replica_let_go(struct cwb_replica *replica) {
    CW_ASSERT(replica->held && !replica->jobs);
    cwb_replica_unname(replica);
    end(replica);
}

void cwb_replica_again(struct cwb_replica *replica) {
    if (++replica->tries >= TRIES)
        cwb_replica_fail(replica, -EREMOTEIO);
    else
        begin_anew(replica);
}

/* All who wait for it hear so. */
static void hold(struct cwb_replica *replica) {
    replica->held = true;
    cwb_board_take_down(replica); /* it has its name, or is doubtful */
    if (replica->doubtful)
        cwb_doubts_hold(replica->bridge);
    tell_jobs(replica, 0);
    cwb_replica_wake(replica);
}

static void on_put(void *owner, int code, const void *body, uint32_t body_bytes) {
    struct cwb_replica *replica = owner;
    (void)body, (void)body_bytes;
    if (code) {
        cwb_replica_fail(replica, code);
        return;
    }
    if (replica->written) { /* its name is gone again, or goes when this is read */
        if (wanted(replica))
            begin_anew(replica);
        else
            replica_free(replica);
        return;
    }
    hold(replica);
}

enum named { NOT_NAMED, NAMED, HIDDEN };

/* What has its name? Nothing, as when its user had no client for long; it; or (HIDDEN) what the
 * name meant before, to whose end the broker has not come: who was told of this one already could
 * find that one there afterwards. put is set. */
static enum named named(const struct cwb_replica *replica) {
    struct cw_found found;
    int code = cw_name_key_find(replica->bridge->client, &replica->key, &found);
    if (code)
        return code == -ENOENT ? NOT_NAMED : HIDDEN;
    bool same = found.entry.slab == replica->put.slab && found.entry.block == replica->put.block &&
                found.entry.gen == replica->put.gen;
    return same ? NAMED : HIDDEN;
}

/* Those at the door need no name: it is here, whole and checked. */
static void tell_visitors(struct cwb_replica *replica) {
    struct cwb_job **at = &replica->jobs, *job;
    while ((job = *at)) {
        if (job->id) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        answer(replica, job);
    }
}

/* One message names it and answers one who waits; the others, if there are any, hear of it when the
 * broker has said that the name stands. */
void cwb_replica_put(struct cwb_replica *replica) {
    replica->written = replica->written || !cwb_doubts_newest(replica);
    if (outdated(replica)) {
        begin_anew(replica);
        return;
    }
    if (replica->written && !wanted(replica)) { /* nobody waits for it */
        replica_free(replica);
        return;
    }
    replica->doubtful = replica->doubtful || replica->written;
    replica->written = false; /* it was fetched again too often for that: at least it goes soon */
    struct cw_replica message = {.job = 0};
    struct cw_shape shape;
    uint8_t meta[CW_META_BYTES_MAX];
    int code = cw_meta_decode(replica->came, replica->opened.meta_bytes, replica->opened.size_bytes,
                              &shape);
    cw_layout layout = {.ndim = shape.ndim,
                        .itemsize = shape.itemsize,
                        .shape = shape.shape,
                        .strides = shape.strides,
                        .dtype = shape.dtype};
    cw_array_freeze(replica->array);
    if (code == 0)
        code = cw_name_key_put_form(replica->array, &replica->key, CW_REPLACE, &layout,
                                    shape.origin_bytes, &message.put, meta);
    if (code) {
        cwb_replica_fail(replica, code);
        return;
    }
    replica->whole = true;
    replica->put = message.put;
    replica->came = realloc(replica->came, message.put.meta_bytes + 1u);
    CW_ASSERT(replica->came);
    memcpy(replica->came, meta, message.put.meta_bytes);
    replica->ahead = cwb_doubts_outdate(replica);
    bool hidden = replica->ahead || named(replica) == HIDDEN;
    if (!hidden && !replica->doubtful)
        cwb_board_post(replica);
    if (!hidden)
        tell_visitors(replica);
    if (replica->doubtful && !replica->jobs) { /* nobody needs its name, nobody is to find it */
        hold(replica);
        return;
    }
    struct cwb_job **at = &replica->jobs;
    while (*at && !(*at)->id)
        at = &(*at)->next;
    bool calm = !replica->jobs;
    if (*at) {
        struct cwb_job *job = *at;
        *at = job->next;
        message.job = cwb_job_release(job);
    }
    message.calm = replica->calm = !replica->jobs; /* else more wait for it */
    struct iovec parts[] = {{&message, sizeof message},
                            {replica->key.text, replica->key.length},
                            {meta, message.put.meta_bytes}};
    cwb_home_ask(replica->bridge->home, CW_OP_REPLICA, parts, 3, on_put, replica);
    if (calm)
        cwb_home_calm(replica->bridge->home); /* nobody waits for the name */
}

static void on_taken(struct cwb_take *take, int status) {
    struct cwb_replica *replica =
        (struct cwb_replica *)((char *)take - offsetof(struct cwb_replica, take));
    if (status == 0)
        cwb_replica_put(replica);
    else if (status == -ESTALE || status == -EAGAIN)
        cwb_replica_again(replica);
    else
        cwb_replica_fail(replica, status);
}

static void on_array(void *owner, int code, cw_array *array) {
    struct cwb_replica *replica = owner;
    if (code) {
        char sentence[CW_DETAIL_MAX];
        strcpy(sentence, cw_detail());
        if (!replica->opened.inside)
            cwb_take_refuse(replica->peer, replica->run, replica->opened.source);
        cw_fail(code, "%s", sentence);
        cwb_replica_fail(replica, code);
        return;
    }
    replica->array = array;
    if (replica->opened.inside) {
        code = replica->opened.size_bytes
                   ? cw_array_write(array, 0, replica->came + replica->opened.meta_bytes,
                                    replica->opened.size_bytes)
                   : 0;
        if (code)
            cwb_replica_fail(replica, code);
        else
            cwb_replica_put(replica);
        return;
    }
    replica->take = (struct cwb_take){.on_done = on_taken,
                                      .bridge = replica->bridge,
                                      .peer = replica->peer,
                                      .source = replica->opened.source,
                                      .size_bytes = replica->opened.size_bytes,
                                      .array = array};
    cwb_take_begin(&replica->take, replica->run);
}

static void on_opened(struct cwb_request *request, const struct cwb_frame *frame) {
    struct cwb_replica *replica = request->owner;
    replica->asked = NULL;
    if (!frame) { /* cut: once more, with patience */
        cwb_replica_again(replica);
        return;
    }
    if (frame->head.status < 0) {
        cw_fail(frame->head.status, "%.*s", (int)frame->sentence_bytes, frame->sentence);
        cwb_replica_fail(replica, frame->head.status);
        return;
    }
    uint64_t inside_bytes = frame->opened.inside ? frame->opened.size_bytes : 0;
    replica->opened = frame->opened;
    if (frame->opened.inside && cwb_hash(frame->data, inside_bytes, 0) != frame->opened.hash) {
        cw_fail(-EREMOTEIO, "the bytes of the array are not those that %s hashed",
                replica->peer->config.name);
        cwb_replica_fail(replica, -EREMOTEIO);
        return;
    }
    replica->came = malloc(frame->meta_bytes + inside_bytes + 1);
    CW_ASSERT(replica->came);
    memcpy(replica->came, frame->meta, frame->meta_bytes);
    if (inside_bytes)
        memcpy(replica->came + frame->meta_bytes, frame->data, inside_bytes);
    if (!replica->on_gpu)
        cwb_local_new(replica->bridge, frame->opened.size_bytes, on_array, replica);
    else if (frame->opened.inside)
        cwb_replica_land(replica, &(struct cwb_landing_wish){.inside = replica->came +
                                                                       frame->opened.meta_bytes});
    else
        cwb_replica_land(replica, &(struct cwb_landing_wish){.peer = replica->peer,
                                                             .run = replica->run,
                                                             .source = frame->opened.source});
}

static void on_link(struct cwb_waiter *waiter, struct cwb_link *link) {
    struct cwb_replica *replica = (struct cwb_replica *)waiter;
    replica->waits = false;
    if (!link) {
        cwb_replica_fail(replica, -EREMOTEIO);
        return;
    }
    struct cwb_key key = {.key_bytes = replica->there.length, .flags = CWB_WATCH};
    replica->run = replica->peer->run;
    replica->doubtful = replica->written = false;
    replica->asked = cwb_link_open(link, &key, replica->there.text,
                                   !replica->on_gpu && replica->tries == 0, on_opened, replica);
}

void cwb_replica_begin(struct cwb_replica *replica) {
    LL_CONCAT(replica->jobs, replica->late); /* new enough for all who ask */
    replica->late = NULL;
    if (cwb_replica_follow(replica))
        return;
    replica->waits = true;
    replica->waiter = (struct cwb_waiter){.on_link = on_link};
    cwb_peer_await(replica->bridge, replica->peer, &replica->waiter,
                   replica->tries ? CWB_RESUME_NS : 0);
}

static const uint8_t host[CW_UUID_BYTES];

struct cwb_replica *cwb_replica_find(struct cwb_bridge *bridge, const struct cw_name_key *key) {
    struct cwb_replica *replica;
    HASH_FIND(hh, bridge->replicas, key->text, key->length, replica);
    return replica;
}

static void cancel(struct cwb_job *job) {
    struct cwb_replica *replica = job->owner;
    struct cwb_job **at = &replica->jobs;
    while (*at && *at != job)
        at = &(*at)->next;
    if (!*at)
        for (at = &replica->late; *at != job;)
            at = &(*at)->next;
    *at = job->next; /* it is fetched all the same: it was wanted, and may be again */
}

/* It is being named, and the broker was told that nobody waits for that: its answer would
 * wake nobody. That to a question does, and comes after it. */
static void hurry_name(struct cwb_replica *replica) {
    struct cw_block_ref ref = {
        .slab = replica->put.slab, .block = replica->put.block, .gen = replica->put.gen};
    struct iovec part = {&ref, sizeof ref};
    replica->calm = false;
    cwb_home_ask(replica->bridge->home, CW_OP_HOLDERS, &part, 1, NULL, NULL);
}

void cwb_replica_get(struct cwb_bridge *bridge, struct cwb_peer *peer, struct cwb_job *job) {
    const uint8_t *gpu = job->remote.token;
    struct cw_name_key key = job->key;
    if (memcmp(gpu, host, sizeof host) != 0 && !cw_remote_place(&job->key, gpu, &key)) {
        cw_fail(-EINVAL, "the name is too long for a replica on a GPU");
        cwb_job_done(job, -EINVAL, NULL, 0);
        return;
    }
    struct cwb_replica *replica = cwb_replica_find(bridge, &key);
    if (replica && replica->held && named(replica) != NAMED)
        replica->doubtful = true;
    if (replica && !replica->doubtful && !replica->written &&
        (replica->held ||
         (replica->whole && !job->id && !replica->ahead && named(replica) != HIDDEN))) {
        answer(replica, job);
        if (!replica->held) /* it is asked for again and again: the next finds it by its name */
            cwb_home_urge(bridge->home);
        return;
    }
    if (replica && replica->held) {
        cwb_replica_let_go(replica);
        replica = cwb_replica_find(bridge, &key); /* others asked late */
    }
    if (replica && replica->whole && replica->calm)
        hurry_name(replica);
    bool fresh = !replica;
    if (fresh) {
        replica = calloc(1, sizeof *replica);
        CW_ASSERT(replica);
        replica->bridge = bridge;
        replica->peer = peer;
        replica->key = key;
        replica->there = job->there;
        replica->looked_ns = bridge->loop.now_ns;
        replica->on_gpu = key.length != job->key.length;
        memcpy(replica->gpu, gpu, sizeof replica->gpu);
        bridge->replicas_on_gpus += replica->on_gpu;
        HASH_ADD_KEYPTR(hh, bridge->replicas, replica->key.text, replica->key.length, replica);
    }
    /* What was opened before the owner told of a change may be older than what this one knows of.
     */
    struct cwb_job **list = replica->doubtful && !replica->waits ? &replica->late : &replica->jobs;
    job->next = *list;
    *list = job;
    job->owner = replica;
    job->on_cancel = cancel;
    if (fresh)
        cwb_replica_begin(replica);
}

int64_t cwb_replicas_tick(struct cwb_bridge *bridge) {
    int64_t due_ns = cwb_looks_tick(bridge), next_ns = cwb_doubts_tick(bridge);
    return next_ns < due_ns ? next_ns : due_ns;
}
