/*
 * Deeds: see once.h. The loop's thread alone.
 */
#include "broker/bridge/local/once.h"

#include <string.h>
#include <time.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/wire/frame.h"
#include "ipc/base/meta.h"
#include "ipc/tree/tree.h"

uint64_t cwb_deed_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t cwb_deed_since_ns(uint64_t up_ns) {
    uint64_t now_ns = cwb_deed_now_ns(), least_ns = up_ns - up_ns / 1000;
    return least_ns < now_ns ? now_ns - least_ns : 0;
}

/* ---- of our clients, at a peer ---- */

static bool may_be_done(const struct cwb_job *job) {
    return job->asked_of || (job->head.deed && job->head.handed);
}

static int not_known(const struct cwb_job *job, const char *why) {
    char reason[CW_DETAIL_MAX];
    strcpy(reason, why);
    return cw_fail(-EREMOTEIO, "whether the %s at %s is not known: %.300s; look there",
                   job->remote.verb != CW_REMOTE_PUT ? "name was removed"
                   : job->remote.flags & CW_PUT_TREE ? "tree stands under its name"
                                                     : "array stands under its name",
                   job->peer ? job->peer->config.name : "the other node", reason);
}

int64_t cwb_deed_wait_ns(const struct cwb_job *job) {
    return may_be_done(job) ? CWB_SILENCE_NS : 0;
}

int cwb_deed_ask(struct cwb_job *job, const struct cwb_link *link, struct cwb_token *token,
                 uint32_t *flags) {
    bool again = may_be_done(job);
    bool same =
        job->asked_of ? job->asked_of == link->instance : link->since_ns < job->head.taken_ns;
    if (again && !same)
        return not_known(job, "its broker was started anew before it answered");
    job->asked_of = link->instance;
    *token = (struct cwb_token){.instance = cw_client_instance(job->bridge->client),
                                .number = job->head.deed,
                                .settled = job->head.settled};
    *flags |= again ? CWB_AGAIN : 0;
    return 0;
}

int cwb_deed_fail(const struct cwb_job *job, int code) {
    return may_be_done(job) ? not_known(job, cw_detail()) : code;
}

/* ---- of peers, here ---- */

static struct cw_deed deed_of(const struct cwb_peer *peer, enum cw_deed_verb verb,
                              const struct cwb_token *token, uint32_t flags) {
    struct cw_deed deed = {.instance = token->instance,
                           .number = token->number,
                           .settled = token->settled,
                           .verb = verb,
                           .again = (flags & CWB_AGAIN) != 0};
    strcpy(deed.peer, peer->config.name);
    return deed;
}

int cwb_deed_asked(const struct cwb_peer *peer, struct cwb_bridge *bridge,
                   const struct cwb_token *token, cwb_on_answer *on_answer, void *owner) {
    struct cw_deed deed = deed_of(peer, CW_DEED_ASK, token, CWB_AGAIN);
    struct iovec part = {&deed, sizeof deed};
    return cwb_broker_channel_ask(bridge->broker_channel, CW_OP_DEED, &part, 1, on_answer, owner);
}

int cwb_deed_remove(const struct cwb_peer *peer, struct cwb_bridge *bridge,
                    const struct cwb_token *token, uint32_t flags, const struct cw_name_key *name,
                    cwb_on_answer *on_answer, void *owner) {
    struct cw_deed deed = deed_of(peer, CW_DEED_REMOVE, token, flags);
    struct cw_key key = {.key_bytes = name->length};
    struct iovec parts[] = {
        {&deed, sizeof deed}, {&key, sizeof key}, {(void *)(uintptr_t)name->text, name->length}};
    return cwb_broker_channel_ask(bridge->broker_channel, CW_OP_DEED, parts, 3, on_answer, owner);
}

uint64_t cwb_deed_version(const void *body, uint32_t body_bytes) {
    struct cw_deed_done done = {.version = 0};
    if (body_bytes == sizeof done)
        memcpy(&done, body, sizeof done);
    return done.version;
}

static uint32_t flags_of(const struct cwb_offer *offer) {
    return (offer->flags & CW_PUT_REPLACE ? CW_REPLACE : 0u) |
           (offer->flags & CW_PUT_KEEP ? CW_KEEP : 0u);
}

static int put_tree(const struct cwb_peer *peer, struct cwb_bridge *bridge,
                    const struct cwb_offer *offer, const struct cw_name_key *name, cw_array *array,
                    const void *meta, cwb_on_answer *on_answer, void *owner) {
    struct cw_deed deed = deed_of(peer, CW_DEED_PUT_TREE, &offer->token, offer->flags);
    struct cw_meta_put_tree about;
    struct cw_put_tree put;
    struct cw_meta_tree form;
    int code = cw_meta_put_tree_decode(meta, offer->meta_bytes, offer->size_bytes, &about);
    if (code)
        return code;
    cw_tree_put_form(array, (const void *)cw_array_lowest(array), name, flags_of(offer),
                     about.if_version, &put, &form);
    struct iovec parts[] = {{&deed, sizeof deed},
                            {&put, sizeof put},
                            {(void *)(uintptr_t)name->text, name->length},
                            {&form, sizeof form}};
    return cwb_broker_channel_ask(bridge->broker_channel, CW_OP_DEED, parts, 4, on_answer, owner);
}

int cwb_deed_put(const struct cwb_peer *peer, struct cwb_bridge *bridge,
                 const struct cwb_offer *offer, const struct cw_name_key *name, cw_array *array,
                 const void *meta, cwb_on_answer *on_answer, void *owner) {
    struct cw_deed deed = deed_of(peer, CW_DEED_PUT, &offer->token, offer->flags);
    uint8_t form[CW_META_BYTES_MAX];
    struct cw_put put;
    struct cw_shape shape;
    cw_layout layout;
    if (offer->flags & CW_PUT_TREE)
        return put_tree(peer, bridge, offer, name, array, meta, on_answer, owner);
    int code = cw_meta_layout(meta, offer->meta_bytes, offer->size_bytes, &shape, &layout);
    if (code)
        return code;
    code =
        cw_name_key_put_form(array, name, flags_of(offer), &layout, shape.origin_bytes, &put, form);
    if (code)
        return code;
    struct iovec parts[] = {{&deed, sizeof deed},
                            {&put, sizeof put},
                            {(void *)(uintptr_t)name->text, name->length},
                            {form, put.meta_bytes}};
    return cwb_broker_channel_ask(bridge->broker_channel, CW_OP_DEED, parts, 4, on_answer, owner);
}
