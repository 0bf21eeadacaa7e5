/*
 * Replicas: see replica.h.
 */
#include "broker/bridge/fetch/replica.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/co_located.h"
#include "broker/bridge/fetch/floor.h"
#include "broker/bridge/fetch/invalidation.h"
#include "broker/bridge/fetch/replica_form.h"
#include "broker/bridge/fetch/replica_gc.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/local/broker_channel.h"
#include "broker/bridge/local/fast_path.h"
#include "broker/bridge/local/replica_cache.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/relay/redirect.h"
#include "broker/bridge/wire/frame.h"
#include "ipc/base/hash.h"
#include "ipc/array/remote_name.h"
#include "ipc/base/meta.h"

#define TRIES 4 /* of an array that is written to, or whose owner starts anew */

struct cwb_naming {              /* the broker was asked for a name */
    struct cwb_replica *replica; /* NULL: it was let go of meanwhile */
};

static void replica_free(struct cwb_replica *replica) {
    CW_ASSERT(!replica->due && !replica->mapping);
    cwb_replica_cache_remove(replica);
    HASH_DEL(replica->bridge->replicas, replica);
    DL_DELETE2(replica->bridge->gc_order, replica, gc_prev, gc_next);
    if (replica->followed)
        LL_DELETE2(replica->followed->followers, replica, follow_next);
    cwb_gpu_receive_cancel(replica->gpu_receive);
    cwb_replica_wake(replica);
    if (replica->waits)
        cwb_peer_forget(replica->peer, &replica->waiter);
    if (replica->asked)
        cwb_request_forget(replica->asked);
    cwb_redirect_cancel(replica->redirect);
    cwb_relay_end(replica);
    cwb_download_cancel(&replica->download);
    cwb_floor_leave(replica);
    cwb_replica_release_array(replica);
    free(replica->came);
    free(replica);
}

/* May a job that came by way of the broker be told where it lies? Else it looks for the name. */
static bool fits_answer(const struct cwb_replica *replica) {
    return sizeof(struct cw_fast_path_answer) + replica->put.meta_bytes <= CW_PLACED_MAX;
}

/* It is whole: where it lies, or (HELD, and that does not fit) that its name stands. */
static void answer(struct cwb_replica *replica, struct cwb_job *job) {
    struct {
        struct cw_fast_path_answer head;
        uint8_t meta[CW_PLACED_MAX - sizeof(struct cw_fast_path_answer)];
    } placed;
    replica->answered_ns = replica->bridge->loop.now_ns;
    if (!job->id) {
        cwb_fast_path_answer(job, 0, &replica->put, replica->came);
        return;
    }
    if (!fits_answer(replica)) {
        cwb_job_done(job, 0, NULL, 0);
        return;
    }
    cwb_fast_path_location(replica->bridge, &replica->put, &placed.head);
    memcpy(placed.meta, replica->came, replica->put.meta_bytes);
    cwb_job_done(job, 0, &placed, (uint32_t)sizeof placed.head + replica->put.meta_bytes);
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

void cwb_replica_begin(struct cwb_replica *replica) {
    CW_ASSERT(!replica->due && !replica->mapping);
    LL_CONCAT(replica->jobs, replica->late); /* new enough for all who ask */
    replica->late = NULL;
    replica->sent = 0;
    replica->opened = (struct cwb_opened){.source = 0};
    replica->due = true;
    DL_APPEND2(replica->bridge->due, replica, due_prev, due_next);
    replica->bridge->tick_now = true;
}

void cwb_replica_anew(struct cwb_replica *replica) {
    cwb_redirect_cancel(replica->redirect);
    replica->redirect = NULL;
    cwb_relay_end(replica);
    cwb_replica_cache_remove(replica);
    cwb_replica_release_array(replica);
    replica->held = replica->whole = replica->named = false;
    replica->naming = NULL;
    free(replica->came);
    replica->came = NULL;
    cwb_replica_begin(replica);
}

/* The end of this one; who asked late has another. */
static void end(struct cwb_replica *replica) {
    if (!replica->late) {
        replica_free(replica);
        return;
    }
    replica->tries = replica->unused = replica->referrals = 0;
    replica->waited = true;
    cwb_replica_anew(replica);
}

void cwb_replica_fail(struct cwb_replica *replica, int status) {
    char sentence[CW_DETAIL_MAX];
    strcpy(sentence, cw_detail());
    if (status == -ENOENT && cwb_floor_stands(replica))
        cwb_floor_none(replica->bridge, replica->peer, &replica->there);
    cw_fail(status, "%s", sentence);
    tell_jobs(replica, status);
    end(replica);
}

static void unname(struct cwb_replica *replica) {
    struct cw_key key = {.key_bytes = replica->key.length};
    struct iovec parts[] = {{&key, sizeof key}, {replica->key.text, replica->key.length}};
    cwb_broker_channel_ask(replica->bridge->broker_channel, CW_OP_REMOVE, parts, 2, NULL, NULL);
}

void cwb_replica_let_go(struct cwb_replica *replica) {
    struct cwb_job *job;
    CW_ASSERT(replica->whole);
    while ((job = replica->jobs)) { /* they were to look for its name */
        replica->jobs = job->next;
        LL_PREPEND(replica->late, job);
    }
    cw_slab_outdate(replica->bridge->client, replica->put.slab, replica->put.block,
                    replica->put.gen); /* before its name is gone */
    if (replica->naming)
        replica->naming->replica = NULL;
    if (replica->named)
        unname(replica); /* the broker reads it behind what names it */
    end(replica);
}

void cwb_replica_again(struct cwb_replica *replica) {
    if (++replica->tries >= TRIES)
        cwb_replica_fail(replica, -EHOSTUNREACH); /* who has time left asks again */
    else
        cwb_replica_anew(replica);
}

void cwb_replica_hurry(struct cwb_replica *replica) {
    if (!replica->whole || !replica->no_wake || replica->held)
        return;
    struct cw_block_ref ref = {
        .slab = replica->put.slab, .block = replica->put.block, .gen = replica->put.gen};
    struct iovec part = {&ref, sizeof ref};
    replica->no_wake = false;
    cwb_broker_channel_ask(replica->bridge->broker_channel, CW_OP_HOLDERS, &part, 1, NULL, NULL);
}

/* The broker has named it: all who wait hear so. */
static void hold(struct cwb_replica *replica) {
    LL_CONCAT(replica->jobs, replica->late);
    replica->late = NULL;
    replica->held = true;
    cwb_replica_cache_remove(replica);
    tell_jobs(replica, 0);
    if (!replica->on_gpu) /* the name holds it, and gives way where memory is wanted */
        cwb_replica_release_array(replica);
    cwb_replica_wake(replica);
}

static void on_put(void *owner, int code, const void *body, uint32_t body_bytes) {
    struct cwb_naming *naming = owner;
    struct cwb_replica *replica = naming->replica;
    (void)body, (void)body_bytes;
    free(naming);
    if (!replica)
        return; /* it was let go of meanwhile */
    replica->naming = NULL;
    if (code)
        cwb_replica_fail(replica, code);
    else
        hold(replica);
}

/* Is it what has its name? Nothing has, as when its user had no client for long, or what the name
 * meant before, to whose end the broker has not come. put is set. */
static bool is_named(const struct cwb_replica *replica) {
    struct cw_found found;
    return cwb_local_find(replica->bridge, &replica->key, &found) == 0 &&
           found.entry.slab == replica->put.slab && found.entry.block == replica->put.block &&
           found.entry.gen == replica->put.gen;
}

/* It is here, whole and checked. Of those who came by way of the broker some need its name. Were
 * there any? */
static bool tell_at_once(struct cwb_replica *replica) {
    struct cwb_job **at = &replica->jobs, *job;
    bool any = false;
    while ((job = *at)) {
        any = any || job->id;
        if (job->id && !fits_answer(replica)) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        answer(replica, job);
    }
    return any;
}

/* Asks the broker for its name. batched: nobody waits for it. */
static void ask_name(struct cwb_replica *replica, const struct cw_put *put, bool batched) {
    /* Does anything here depend on the broker's answer? */
    replica->no_wake = !replica->jobs && !replica->followers;
    replica->named = true;
    replica->naming = malloc(sizeof *replica->naming);
    if (!replica->naming) {
        cwb_replica_fail(replica, cwb_no_memory("an array of another node"));
        return;
    }
    replica->naming->replica = replica;
    struct cw_replica message = {.calm = replica->no_wake, .put = *put};
    struct iovec parts[] = {{&message, sizeof message},
                            {replica->key.text, replica->key.length},
                            {replica->came, put->meta_bytes}};
    if (cwb_broker_channel_ask(replica->bridge->broker_channel, CW_OP_REPLICA, parts, 3, on_put,
                               replica->naming) != 0) {
        free(replica->naming);
        replica->naming = NULL;
        cwb_replica_fail(replica, -EDQUOT);
        return;
    }
    if (batched)
        cwb_broker_channel_batch_notify(replica->bridge->broker_channel);
}

void cwb_replica_put(struct cwb_replica *replica) {
    struct cw_put put;
    uint8_t meta[CW_META_BYTES_MAX];
    cw_array_freeze(replica->array);
    int code = cwb_replica_form(replica, &put, meta);
    if (code) {
        cwb_replica_fail(replica, code);
        return;
    }
    uint8_t *came = realloc(replica->came, put.meta_bytes + 1u);
    if (!came) {
        cwb_replica_fail(replica, cwb_no_memory("an array of another node"));
        return;
    }
    replica->whole = true;
    replica->put = put;
    replica->came = memcpy(came, meta, put.meta_bytes);
    cwb_relay_whole(replica);
    if (cwb_floor_stands(replica))
        cwb_floor_raise(replica);
    else
        replica->stale = true;
    if (!replica->stale) {
        LL_CONCAT(replica->jobs, replica->late); /* new enough for all who ask */
        replica->late = NULL;
        cwb_replica_cache_add(replica);
    }
    bool batched = !tell_at_once(replica);
    if (replica->stale) /* nobody is to find it */
        cwb_replica_let_go(replica);
    else
        ask_name(replica, &put, batched);
}

static void on_opened(struct cwb_request *request, const struct cwb_frame *frame) {
    struct cwb_replica *replica = request->owner;
    replica->asked = NULL;
    if (!frame) { /* cut: once more, and it waits for a link */
        cwb_replica_again(replica);
        return;
    }
    if (frame->head.status < 0) {
        cwb_replica_fail(replica, cwb_link_refused(replica->peer, frame));
        return;
    }
    uint64_t inside_bytes = frame->opened.inside ? frame->opened.size_bytes : 0;
    replica->opened = frame->opened;
    if (frame->opened.inside && cw_hash(frame->data, inside_bytes, 0) != frame->opened.hash) {
        cw_fail(-EREMOTEIO, "the bytes of the array are not those that %s hashed",
                replica->peer->config.name);
        cwb_replica_fail(replica, -EREMOTEIO);
        return;
    }
    if (cwb_replica_check_place(replica, frame->meta, frame->meta_bytes) != 0) {
        if (!frame->opened.inside)
            cwb_download_refuse(replica->peer, replica->run, frame->opened.source);
        cwb_replica_fail(replica, -EISDIR);
        return;
    }
    replica->came = malloc(frame->meta_bytes + inside_bytes + 1);
    if (!replica->came) {
        if (!frame->opened.inside)
            cwb_download_refuse(replica->peer, replica->run, frame->opened.source);
        cwb_replica_fail(replica, cwb_no_memory("an array of another node"));
        return;
    }
    memcpy(replica->came, frame->meta, frame->meta_bytes);
    if (inside_bytes)
        memcpy(replica->came + frame->meta_bytes, frame->data, inside_bytes);
    cwb_relay_know(replica, &frame->referral);
    if (*frame->referral.node)
        cwb_redirect_begin(replica, &frame->referral);
    else if (!replica->on_gpu)
        cwb_replica_fetch(replica, replica->peer, frame->opened.source, 0);
    else if (frame->opened.inside)
        cwb_replica_receive(replica, &(struct cwb_gpu_receive_spec){
                                         .inside = replica->came + frame->opened.meta_bytes});
    else
        cwb_replica_receive(replica,
                            &(struct cwb_gpu_receive_spec){.peer = replica->peer,
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
    struct cwb_key key;
    char text[CW_KEY_MAX + sizeof replica->part];
    const uint32_t text_bytes = cwb_replica_question(replica, &key, text);
    replica->run = replica->peer->run;
    replica->stale = false;
    replica->sent = ++replica->bridge->stamp;
    bool ahead = !replica->on_gpu && !replica->is_part && replica->tries == 0;
    replica->asked = cwb_link_open(link, &key, text, text_bytes, ahead, on_opened, replica);
    if (!replica->asked)
        cwb_replica_fail(replica, -EDQUOT);
}

static void begin(struct cwb_replica *replica) {
    if (cwb_replica_follow(replica))
        return;
    replica->waits = true;
    replica->waiter = (struct cwb_waiter){.on_link = on_link};
    cwb_peer_await(replica->bridge, replica->peer, &replica->waiter,
                   replica->tries || replica->waited ? CWB_SILENCE_NS : 0);
}

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

/* NULL: there is no memory. */
static struct cwb_replica *replica_new(struct cwb_bridge *bridge, struct cwb_peer *peer,
                                       const struct cwb_replica_keys *keys) {
    struct cwb_replica *replica = calloc(1, sizeof *replica);
    if (replica) {
        replica->bridge = bridge;
        replica->peer = peer;
        cwb_replica_describe(replica, keys);
        HASH_ADD_KEYPTR(hh, bridge->replicas, replica->key.text, replica->key.length, replica);
    }
    bool added = replica && CWD_ADDED(replica);
    if (!added || !cwb_floor_join(replica)) {
        if (added)
            HASH_DEL(bridge->replicas, replica);
        free(replica);
        cwb_no_memory("an array of another node");
        return NULL;
    }
    DL_APPEND2(bridge->gc_order, replica, gc_prev, gc_next);
    return replica;
}

void cwb_replica_get(struct cwb_bridge *bridge, struct cwb_peer *peer, struct cwb_job *job) {
    struct cwb_replica_keys keys;
    int code = cwb_replica_keys(job, &keys);
    if (code) {
        cwb_job_done(job, code, NULL, 0);
        return;
    }
    struct cwb_replica *replica = cwb_replica_find(bridge, &keys.key);
    if (replica && replica->held && !is_named(replica)) {
        cwb_replica_let_go(replica);
        replica = NULL;
    }
    if (replica && !replica->stale &&
        (replica->held || (replica->whole && (!job->id || fits_answer(replica))))) {
        answer(replica, job);
        if (!replica->held) /* it is asked for again and again: the next finds it by its name */
            cwb_broker_channel_flush(bridge->broker_channel);
        return;
    }
    if (replica)
        cwb_replica_hurry(replica);
    bool fresh = !replica;
    if (fresh) {
        replica = replica_new(bridge, peer, &keys);
        if (!replica) {
            cwb_job_done(job, -EDQUOT, NULL, 0);
            return;
        }
        replica->checked_ns = bridge->loop.now_ns;
    }
    /* What was asked for before may be older than what this one knows of. */
    bool late = replica->sent && (replica->stale || !cwb_floor_stands(replica));
    struct cwb_job **list = late ? &replica->late : &replica->jobs;
    job->next = *list;
    *list = job;
    job->owner = replica;
    job->on_cancel = cancel;
    if (fresh)
        begin(replica);
}

int64_t cwb_replicas_tick(struct cwb_bridge *bridge) {
    int64_t due_ns = cwb_replica_gc_tick(bridge), next_ns = cwb_invalidation_tick(bridge);
    struct cwb_replica *replica;
    while ((replica = bridge->due)) {
        DL_DELETE2(bridge->due, replica, due_prev, due_next);
        replica->due = false;
        begin(replica);
    }
    return next_ns < due_ns ? next_ns : due_ns;
}
