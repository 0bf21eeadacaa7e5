/*
 * Requests: see requests.h. The loop's thread alone. A record is copied out of the ring, and the
 * copy is checked and used. A breach of form drops the client; a wish that cannot be met is
 * answered.
 */
#include "broker/session/requests.h"

#include <stdio.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/memory/slabs.h"
#include "broker/roles/once.h"
#include "broker/memory/fences.h"
#include "broker/memory/groups.h"
#include "broker/memory/holders.h"
#include "broker/roles/copy_jobs.h"
#include "broker/names/routes.h"
#include "broker/core/errors.h"
#include "broker/core/log.h"
#include "broker/core/monitor.h"
#include "broker/names/names.h"
#include "broker/names/versions.h"
#include "broker/roles/remote.h"
#include "broker/session/admin_requests.h"
#include "broker/session/claim_requests.h"
#include "broker/session/refusals.h"
#include "broker/session/request_form.h"
#include "broker/memory/room.h"
#include "broker/session/session.h"
#include "broker/session/transit_requests.h"
#include "broker/memory/transit.h"
#include "broker/names/waits.h"

#define BUDGET        64 /* requests of one client in one turn */
#define COST_SCAN     32 /* what counts as so many of them: it looks through tables */
#define HOLDERS_LEAST 16 /* blocks: the answer for so many always fits */
#define DRAIN_MAX     (CW_CHANNEL_BYTES / 16)

static int serve_put(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                     struct result *result) {
    const struct cw_put *put = &r->body.put;
    (void)result;
    if (!cwd_put_fits(put, r->body_bytes))
        return -EBADMSG;
    const char *key = (const char *)r->body.bytes + sizeof *put;
    return cwd_name_put(b, s, put, key, key + put->key_bytes);
}

/* Who began it answers, if it could begin. */
static int later(struct result *result, int code) {
    result->none = code == 0;
    return code;
}

static bool key_fits(const struct request *r) {
    return r->body.key.key_bytes <= CW_KEY_MAX &&
           r->body_bytes == sizeof r->body.key + r->body.key.key_bytes;
}

static int serve_remove(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                        struct result *result) {
    (void)result;
    if (!key_fits(r))
        return -EBADMSG;
    return cwd_name_remove(b, s, (const char *)r->body.bytes + sizeof r->body.key,
                           r->body.key.key_bytes);
}

static int serve_wait(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                      struct result *result) {
    if (!key_fits(r))
        return -EBADMSG;
    return later(result,
                 cwd_wait_begin(b, s, &r->head, 0, (const char *)r->body.bytes + sizeof r->body.key,
                                r->body.key.key_bytes)); /* waits.c answers */
}

static int serve_wait_after(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                            struct result *result) {
    const struct cw_wait_after *wait = &r->body.wait_after;
    if (wait->key.key_bytes > CW_KEY_MAX || r->body_bytes != sizeof *wait + wait->key.key_bytes)
        return -EBADMSG;
    return later(result, cwd_wait_begin(b, s, &r->head, wait->after,
                                        (const char *)r->body.bytes + sizeof *wait,
                                        wait->key.key_bytes)); /* waits.c answers */
}

static int serve_group(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                       struct result *result) {
    return (void)s, (void)result, cwd_group(b, r->body.bytes, r->body_bytes);
}

static int serve_put_tree(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                          struct result *result) {
    result->body_bytes = sizeof result->body.version;
    return cwd_version_put(b, s, r->body.bytes, r->body_bytes, &result->body.version);
}

static int serve_find_version(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                              struct result *result) {
    (void)s;
    result->body_bytes = sizeof result->body.version;
    return cwd_version_find(b, r->body.bytes, r->body_bytes, &result->body.version);
}

static int serve_cancel(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                        struct result *result) {
    result->none = true;
    cwd_wait_cancel(b, s, r->body.cancel.id);
    cwd_job_cancel(b, s, r->body.cancel.id);
    cwd_mover_cancel(b, s, r->body.cancel.id);
    cwd_remote_cancel(b, s, r->body.cancel.id);
    return 0;
}

static int serve_drop(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                      struct result *result) {
    (void)s;
    result->none = true;
    cwd_reclaim_suspect(b, r->body.ref.slab, r->body.ref.block);
    return 0;
}

static int serve_slab_close(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                            struct result *result) {
    struct cwd_slab *slab = cwd_slab_find(b, r->body.slab.slab);
    result->none = true;
    if (slab && slab->owner == s)
        cwd_slab_orphan(b, slab);
    s->changed = true;
    return 0;
}

static int serve_slab_adopt(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                            struct result *result) {
    result->body_bytes = sizeof result->body.slab;
    int code = cwd_slab_adopt(b, s, &r->body.slab, &result->body.slab);
    result->again = code == -EAGAIN;
    return code;
}

static int serve_room(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                      struct result *result) {
    result->body_bytes = sizeof result->body.room;
    return cwd_room_make(b, s, &r->body.room, &result->body.room);
}

static int serve_holders(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                         struct result *result) {
    struct cw_holders *head = &result->body.holders.head;
    (void)s;
    int code = cwd_holders_list(b, &r->body.ref, head, result->body.holders.pids);
    result->body_bytes = (uint32_t)(sizeof *head + head->listed * sizeof(uint32_t));
    return code;
}

static int serve_holders_of(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                            struct result *result) {
    static struct cw_block_holders found[CW_BLOCKS_ASKED];
    struct cw_block_name asked[CW_BLOCKS_ASKED];
    uint32_t count = r->body.blocks.count;
    if (count > CW_BLOCKS_ASKED || r->body.blocks.reserved ||
        r->body_bytes != sizeof r->body.blocks + count * sizeof *asked)
        return -EBADMSG;
    memcpy(asked, r->body.bytes + sizeof r->body.blocks, count * sizeof *asked);
    if (!cwd_session_fits(s, count * (uint32_t)sizeof *found) && count > HOLDERS_LEAST)
        count = HOLDERS_LEAST;
    cwd_holders_count(b, asked, count, found);
    result->large = found;
    result->body_bytes = count * (uint32_t)sizeof *found;
    return 0;
}

static int serve_copy(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                      struct result *result) {
    int code =
        later(result, cwd_job_begin(b, s, r->head.id, &r->body.copy)); /* copy_jobs.c answers */
    if (code == 0)
        cwd_mover_serve(b);
    return code;
}

static int serve_make(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                      struct result *result) {
    const struct cw_make *make = &r->body.make;
    if (!b->remote.pid || s->pid != b->remote.pid)
        return cw_fail(-EPERM, "memory for another process is made for the broker's bridge alone");
    if (make->size_bytes == 0 || make->reserved)
        return -EBADMSG;
    int code = later(result, cwd_job_make(b, s, r->head.id, make)); /* copy_jobs.c answers */
    if (code == 0)
        cwd_mover_serve(b);
    return code;
}

static int serve_mover_next(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                            struct result *result) {
    return later(result, cwd_mover_next(b, s, r->head.id)); /* mover.c answers */
}

static int serve_mover_done(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                            struct result *result) {
    const struct cw_job_end *end = &r->body.end;
    result->none = true;
    if (!cwd_mover_is(b, s) || r->body_bytes != sizeof *end + end->text_bytes)
        return -EBADMSG;
    s->changed = true; /* the bytes that it copied */
    return cwd_job_done(b, end, r->body.bytes + sizeof *end);
}

static int serve_remote(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                        struct result *result) {
    const struct cw_remote *remote = &r->body.remote;
    if (r->body_bytes != sizeof *remote + remote->key_bytes + remote->meta_bytes ||
        remote->key_bytes > CW_KEY_MAX || remote->meta_bytes > CW_META_MAX || remote->reserved)
        return -EBADMSG;
    return later(
        result, cwd_remote_begin(b, s, r->head.id, &r->body, r->body_bytes)); /* remote.c answers */
}

static int serve_remote_next(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                             struct result *result) {
    return later(result, cwd_remote_next(b, s, r->head.id)); /* remote.c answers */
}

static int serve_remote_done(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                             struct result *result) {
    const struct cw_remote_end *end = &r->body.remote_end;
    result->none = true;
    if (r->body_bytes - sizeof *end > CW_DETAIL_MAX)
        return -EBADMSG;
    return cwd_remote_done(b, s, end, r->body.bytes + sizeof *end,
                           r->body_bytes - (uint32_t)sizeof *end);
}

static int serve_changes(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                         struct result *result) {
    if (r->body.changes.news > 1 || r->body.changes.reserved)
        return -EBADMSG;
    return later(result,
                 cwd_remote_changes(b, s, r->head.id, &r->body.changes)); /* remote.c answers */
}

static int serve_replica(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                         struct result *result) {
    const struct cw_replica *replica = &r->body.replica;
    const struct cw_put *put = &replica->put;
    if (r->body_bytes != sizeof *replica + put->key_bytes + put->meta_bytes ||
        put->meta_bytes > CW_META_MAX || (put->flags & ~(uint32_t)CW_PUT_REPLACE) ||
        replica->calm > 1 || replica->reserved)
        return -EBADMSG;
    result->calm = replica->calm;
    const char *key = (const char *)r->body.bytes + sizeof *replica;
    return cwd_remote_replica(b, s, replica, key, key + put->key_bytes);
}

static int serve_deed(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                      struct result *result) {
    result->body_bytes = sizeof result->body.deed;
    return cwd_deed(b, s, r->body.bytes, r->body_bytes, &result->body.deed);
}

static int serve_link(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                      struct result *result) {
    (void)s;
    result->body_bytes = sizeof result->body.link;
    return cwd_link_find(b, &r->body.link, &result->body.link);
}

static int serve_link_keep(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                           struct result *result) {
    (void)s;
    result->none = true;
    return cwd_link_keep(b, &r->body.link);
}

static int serve_stop(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                      struct result *result) {
    (void)r, (void)result;
    cwd_log("client %u (pid %d) asked the broker to end", s->id, (int)s->pid);
    b->stopping = true;
    b->stop_reason = "a client's wish";
    return 0;
}

static int serve_bye(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                     struct result *result) {
    (void)r;
    result->none = true;
    cwd_session_end(b, s);
    return 0;
}

static int serve_ping(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                      struct result *result) {
    (void)r, (void)result;
    return cwd_transits_ready(b, s), 0; /* it may have begun all that it knew of */
}

static int serve_fences_break(struct cwd_broker *b, struct cwd_session *s, struct request *r,
                              struct result *result) {
    result->none = true;
    cwd_fences_break(b, s, r->body.fences.page);
    return 0;
}

/* What an operation is to somebody who cannot be answered any more. */
enum { QUESTION, EFFECT };

static const struct operation {
    serve *serve;
    uint32_t body_least, body_most;
    int cost, kind;
} operations[] = {
#define EXACT(type) sizeof(struct type), sizeof(struct type)
    [CW_OP_FENCES_BREAK] = {serve_fences_break, EXACT(cw_fence_page), COST_SCAN, EFFECT},
    [CW_OP_PUT] = {serve_put, sizeof(struct cw_put), CW_MESSAGE_MAX, 1, EFFECT},
    [CW_OP_REMOVE] = {serve_remove, sizeof(struct cw_key), CW_MESSAGE_MAX, 1, EFFECT},
    [CW_OP_WAIT] = {serve_wait, sizeof(struct cw_key), CW_MESSAGE_MAX, 1, QUESTION},
    [CW_OP_CANCEL] = {serve_cancel, EXACT(cw_cancel), COST_SCAN, QUESTION},
    [CW_OP_TRANSIT_BEGIN] = {cwd_serve_transit_begin, EXACT(cw_block_ref), 1, EFFECT},
    [CW_OP_TRANSIT_END] = {cwd_serve_transit_end, EXACT(cw_block_ref), 1, EFFECT},
    [CW_OP_TRANSIT_SHARE] = {cwd_serve_transit_share, EXACT(cw_transit_share), 1, EFFECT},
    [CW_OP_TRANSIT_OPENED] = {cwd_serve_transit_opened, EXACT(cw_block_ref), 1, EFFECT},
    [CW_OP_DROP] = {serve_drop, EXACT(cw_block_ref), 1, EFFECT},
    [CW_OP_SLAB_CLOSE] = {serve_slab_close, EXACT(cw_slab_request), COST_SCAN, EFFECT},
    [CW_OP_SLAB_ADOPT] = {serve_slab_adopt, EXACT(cw_slab_request), COST_SCAN, QUESTION},
    [CW_OP_ROOM] = {serve_room, EXACT(cw_room), COST_SCAN, QUESTION},
    [CW_OP_HOLDERS] = {serve_holders, EXACT(cw_block_ref), COST_SCAN, QUESTION},
    [CW_OP_HOLDERS_OF] = {serve_holders_of, sizeof(struct cw_blocks), CW_MESSAGE_MAX, COST_SCAN,
                          QUESTION},
    [CW_OP_STOP] = {serve_stop, 0, 0, 1, EFFECT},
    [CW_OP_BYE] = {serve_bye, 0, 0, 1, EFFECT},
    [CW_OP_PING] = {serve_ping, 0, 0, 1, QUESTION},
    [CW_OP_TRANSIT_ANCHOR] = {cwd_serve_transit_anchor, EXACT(cw_block_ref), 1, EFFECT},
    [CW_OP_COPY] = {serve_copy, EXACT(cw_copy), 1, QUESTION},
    [CW_OP_MAKE] = {serve_make, EXACT(cw_make), 1, QUESTION},
    [CW_OP_MOVER_NEXT] = {serve_mover_next, 0, 0, 1, QUESTION},
    [CW_OP_MOVER_DONE] = {serve_mover_done, sizeof(struct cw_job_end), CW_MESSAGE_MAX, 1, EFFECT},
    [CW_OP_REMOTE] = {serve_remote, sizeof(struct cw_remote), CW_MESSAGE_MAX, 1, QUESTION},
    [CW_OP_REMOTE_NEXT] = {serve_remote_next, 0, 0, 1, QUESTION},
    [CW_OP_REMOTE_DONE] = {serve_remote_done, sizeof(struct cw_remote_end), CW_MESSAGE_MAX, 1,
                           EFFECT},
    [CW_OP_CHANGES] = {serve_changes, EXACT(cw_changes), 1, QUESTION},
    [CW_OP_REPLICA] = {serve_replica, sizeof(struct cw_replica), CW_MESSAGE_MAX, 1, EFFECT},
    [CW_OP_DEED] = {serve_deed, sizeof(struct cw_deed), CW_MESSAGE_MAX, 1, EFFECT},
    [CW_OP_GROUP] = {serve_group, sizeof(struct cw_block_group), CW_MESSAGE_MAX, COST_SCAN, EFFECT},
    [CW_OP_PUT_TREE] = {serve_put_tree, sizeof(struct cw_put_tree), CW_MESSAGE_MAX, 1, EFFECT},
    [CW_OP_FIND_VERSION] = {serve_find_version, sizeof(struct cw_find_version), CW_MESSAGE_MAX, 1,
                            QUESTION},
    [CW_OP_WAIT_AFTER] = {serve_wait_after, sizeof(struct cw_wait_after), CW_MESSAGE_MAX, 1,
                          QUESTION},
    [CW_OP_CLAIM] = {cwd_serve_claim, sizeof(struct cw_claim), CW_MESSAGE_MAX, 1, QUESTION},
    [CW_OP_NEXT_VERSION] = {cwd_serve_next_version, sizeof(struct cw_next_version), CW_MESSAGE_MAX,
                            COST_SCAN, QUESTION},
    [CW_OP_RELEASE] = {cwd_serve_release, sizeof(struct cw_claim), CW_MESSAGE_MAX, 1, EFFECT},
    [CW_OP_LIMIT_SET] = {cwd_serve_limit_set, sizeof(struct cw_limit_set), CW_MESSAGE_MAX,
                         COST_SCAN, EFFECT},
    [CW_OP_TRANSITS] = {cwd_serve_transits, 0, 0, COST_SCAN, QUESTION},
    [CW_OP_LINK] = {serve_link, EXACT(cw_link), 1, QUESTION},
    [CW_OP_LINK_KEEP] = {serve_link_keep, EXACT(cw_link), 1, EFFECT},
#undef EXACT
};

/* Copies a record and checks its form. */
static const struct operation *parse(uint32_t type, const void *payload, uint32_t length,
                                     struct request *out) {
    if (length < sizeof out->head || length > CW_MESSAGE_MAX)
        return NULL;
    memcpy(&out->head, payload, sizeof out->head);
    out->body_bytes = length - (uint32_t)sizeof out->head;
    if (out->head.size_bytes != length || out->head.op != type || out->head.flags != 0 ||
        type >= sizeof operations / sizeof *operations || !operations[type].serve ||
        out->body_bytes < operations[type].body_least ||
        out->body_bytes > operations[type].body_most)
        return NULL;
    memcpy(out->body.bytes, (const uint8_t *)payload + sizeof out->head, out->body_bytes);
    return &operations[type];
}

static void breach(struct cwd_broker *b, struct cwd_session *session, const char *what,
                   uint32_t type, uint32_t length) {
    char reason[160];
    snprintf(reason, sizeof reason, "%s (type %u, %u bytes)", what, type, length);
    cwd_session_drop(b, session, reason);
}

/* One request; draining: nobody hears the answer, so what is a mere question is passed over.
 * Returns its cost; 0: there was none, or the session is over. */
static int serve_one(struct cwd_broker *b, struct cwd_session *session, bool draining) {
    struct request request;
    struct result result = {.none = false};
    uint32_t type = 0, length = 0;
    const void *payload;
    int found = cw_ring_peek(&session->requests, &type, &payload, &length);
    if (found == 0)
        return 0;
    if (found < 0) {
        breach(b, session, "its request ring holds what is no record", type, length);
        return 0;
    }
    const struct operation *operation = parse(type, payload, length, &request);
    if (!operation) {
        breach(b, session, "a request's form is none of the protocol's", type, length);
        return 0;
    }
    if (draining && operation->kind == QUESTION) {
        cw_ring_consume(&session->requests);
        return 1;
    }
    session->heard_before_ns = session->heard_ns;
    session->heard_ns = b->now_ns;
    result.status = operation->serve(b, session, &request, &result);
    if (result.status == -EBADMSG) {
        breach(b, session, "a request's numbers do not fit it", type, length);
        return 0;
    }
    if (cwd_is_error(result.status)) {
        cwd_errors_note(session->pid, cw_detail());
        cwd_refusal(b, session);
    }
    if (session->ended)
        return 0;
    if (result.again)
        return BUDGET;
    /* The index advances after the effect: who took over from us would see the request again. */
    cw_ring_consume(&session->requests);
    if (cw_sleeper_claim(&session->requests.ring->producer))
        session->wake = session->room_came = true;
    if (!result.none) {
        const char *sentence = result.status < 0 ? cw_detail() : NULL;
        bool wake = session->wake || !result.calm;
        cwd_session_reply(b, session, request.head.op, request.head.id, result.status,
                          sentence       ? (const void *)sentence
                          : result.large ? result.large
                                         : &result.body,
                          sentence ? (uint32_t)strlen(sentence) : result.body_bytes);
        session->wake = wake;
    }
    return session->ended || session->state == CWD_DROPPED ? 0 : operation->cost;
}

/* How far its ring was read: empty now, or a whole ring's length since the mark. */
static void note_reading(struct cwd_broker *b, struct cwd_session *session) {
    if (!cw_ring_has_record(&session->requests)) {
        session->read_through = b->turn;
    } else if (session->requests.head - session->mark_head < CW_CHANNEL_BYTES) {
        return;
    } else
        session->read_through = session->mark_turn;
    session->mark_turn = b->turn;
    session->mark_head = session->requests.head;
}

bool cwd_requests_serve(struct cwd_broker *b, struct cwd_session *session) {
    bool worked = session->ready ? cwd_waits_flush(b, session) : false;
    if (session->answers && cwd_jobs_flush(b, session))
        worked = true;
    if (session->remote_answers && cwd_remote_flush(b, session))
        worked = true;
    for (int budget = cwd_refusals_pause(b, session) ? 0 : BUDGET; budget > 0;) {
        if (!cw_ring_has_record(&session->requests))
            break;
        if (!cwd_session_has_room(session))
            break;
        int cost = serve_one(b, session, false);
        if (cost == 0)
            break;
        worked = true;
        budget -= cost;
        if (b->stopping)
            break;
    }
    note_reading(b, session);
    return worked;
}

bool cwd_requests_ready(struct cwd_session *session) {
    bool asks = !session->paused_until_ns && cw_ring_has_record(&session->requests);
    if (!session->ready && !session->answers && !session->remote_answers && !asks)
        return false;
    if (cwd_session_has_room(session))
        return true;
    cw_sleeper_announce(&session->replies.ring->producer);
    return cwd_session_has_room(session);
}

void cwd_requests_drain(struct cwd_broker *b, struct cwd_session *session) {
    for (unsigned i = 0; i < DRAIN_MAX; i++)
        if (serve_one(b, session, true) == 0)
            return;
}
