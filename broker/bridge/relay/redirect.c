/*
 * Redirect: see redirect.h and fan_out.h.
 *
 *   the owner's answer --> LINK (to the other node) --> OPEN (until it has the array whole)
 *      --> the replica's memory, and its download, from there --> DIGEST (a helper) --> put
 *   whatever fails of it --> the owner is asked again, CWB_REFERRALS_MAX times so, then for its
 * bytes
 *
 * One redirect of a replica at a time, the replica's, and gone when it is put or asked for anew.
 * The helper holds the array by a lease of its own; if the replica goes meanwhile, the redirect is
 * the helper's. The loop's thread owns all else. Deaths: fan_out.h.
 */
#include "broker/bridge/relay/redirect.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/replica.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/link/peer_table.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/relay/fan_out.h"
#include "broker/bridge/tls/digest.h"

#define CUT_NS 500000000 /* so long a cut link is waited for: others have the bytes, too */

struct cwb_redirect {
    struct cwb_waiter waiter;    /* first: it is cast back */
    struct cwb_replica *replica; /* NULL: gone, and this is the helper's */
    struct cwb_peer *from;       /* who has the bytes */
    struct cwb_referral referral;
    struct cwb_request *asked;
    bool waits, checking;
    struct cwb_work work;
    cw_array *array; /* checking: a lease of the helper's */
    bool is_right;
};

void cwb_redirect_cancel(struct cwb_redirect *redirect) {
    if (!redirect)
        return;
    if (redirect->waits)
        cwb_peer_forget(redirect->from, &redirect->waiter);
    if (redirect->asked)
        cwb_request_forget(redirect->asked);
    redirect->replica = NULL;
    if (!redirect->checking)
        free(redirect);
}

/* It did not bring them, cw_detail() says why. */
static void failed(struct cwb_redirect *redirect) {
    struct cwb_replica *replica = redirect->replica;
    struct cwb_bridge *bridge = replica->bridge;
    if (redirect->from && cwb_peer_may_log(bridge, redirect->from))
        cwb_log("an array of %s did not come from %s, which has it, too: %s",
                replica->peer->config.name, redirect->referral.node, cw_detail());
    replica->referrals++;
    cwb_replica_anew(replica);
}

/* ---- the digest ---- */

static void check(struct cwb_work *work) {
    struct cwb_redirect *redirect =
        (struct cwb_redirect *)((char *)work - offsetof(struct cwb_redirect, work));
    uint8_t digest[CWB_DIGEST_BYTES];
    int code =
        cwb_digest(cw_array_lowest(redirect->array), cw_array_nbytes(redirect->array), digest);
    redirect->is_right =
        code == 0 && cwb_same_bytes(digest, redirect->referral.digest, sizeof digest);
    cwb_work_set(work, code);
}

static void checked(struct cwb_work *work) {
    struct cwb_redirect *redirect =
        (struct cwb_redirect *)((char *)work - offsetof(struct cwb_redirect, work));
    struct cwb_replica *replica = redirect->replica;
    redirect->checking = false;
    cw_array_close(redirect->array);
    if (!replica) {
        free(redirect);
    } else if (redirect->is_right) {
        replica->redirect = NULL;
        free(redirect);
        cwb_replica_put(replica);
    } else {
        if (work->code)
            cw_fail(work->code, "%s", work->detail);
        else
            cw_fail(-EREMOTEIO, "the bytes that came are not those of which %s has the digest",
                    replica->peer->config.name);
        failed(redirect);
    }
}

void cwb_redirect_came(struct cwb_replica *replica, int status) {
    struct cwb_redirect *redirect = replica->redirect;
    if (status == 0)
        status = cwb_local_hold(replica->array, &redirect->array);
    if (status) {
        failed(redirect);
        return;
    }
    redirect->work = (struct cwb_work){.run = check, .done = checked};
    redirect->checking = true;
    cwb_work_begin(replica->bridge->memory_helpers, &redirect->work);
}

/* ---- the other node ---- */

static void on_opened(struct cwb_request *request, const struct cwb_frame *frame) {
    struct cwb_redirect *redirect = request->owner;
    struct cwb_replica *replica = redirect->replica;
    redirect->asked = NULL;
    if (!frame) { /* cut */
        failed(redirect);
        return;
    }
    if (frame->head.status < 0) {
        cwb_link_refused(redirect->from, frame);
        failed(redirect);
        return;
    }
    const struct cwb_opened *opened = &frame->opened;
    if (opened->inside || opened->size_bytes != replica->opened.size_bytes ||
        opened->instance != replica->opened.instance || opened->entry != replica->opened.entry) {
        if (!opened->inside)
            cwb_download_refuse(redirect->from, redirect->from->run, opened->source);
        cw_fail(-EREMOTEIO, "it has another array");
        failed(redirect);
        return;
    }
    cwb_replica_fetch(replica, redirect->from, opened->source, CUT_NS);
}

/* It may still get it itself: so it has that much time more to answer. */
static int64_t moved_ns(const struct cwb_request *request) {
    const struct cwb_redirect *redirect = request->owner;
    const uint64_t more_ms =
        redirect ? redirect->replica->opened.size_bytes / (CWB_RELAY_SLOWEST / 1000) : 0;
    return request->asked_ns + (int64_t)more_ms * 1000000;
}

static void on_link(struct cwb_waiter *waiter, struct cwb_link *link) {
    struct cwb_redirect *redirect = (struct cwb_redirect *)waiter;
    struct cwb_replica *replica = redirect->replica;
    redirect->waits = false;
    if (!link) {
        failed(redirect);
        return;
    }
    struct cwb_ticket ticket = {
        .instance = replica->opened.instance,
        .entry = replica->opened.entry,
        .turn = redirect->referral.turn,
        .secret = {redirect->referral.secret[0], redirect->referral.secret[1]}};
    struct cwb_key key = {.key_bytes = replica->name_bytes, .flags = CWB_TICKET};
    char text[CW_KEY_MAX + sizeof ticket];
    memcpy(text, replica->there.text, replica->name_bytes);
    memcpy(text + replica->name_bytes, &ticket, sizeof ticket);
    redirect->asked = cwb_link_open(link, &key, text, replica->name_bytes + (uint32_t)sizeof ticket,
                                    false, on_opened, redirect);
    if (redirect->asked)
        redirect->asked->moved_ns = moved_ns;
    else
        failed(redirect);
}

void cwb_redirect_begin(struct cwb_replica *replica, const struct cwb_referral *referral) {
    struct cwb_redirect *redirect = calloc(1, sizeof *redirect);
    if (!redirect) {
        cwb_replica_fail(replica, cwb_no_memory("an array of another node"));
        return;
    }
    *redirect = (struct cwb_redirect){
        .waiter = {.on_link = on_link},
        .replica = replica,
        .referral = *referral,
        .from = cwb_peer_find(replica->bridge, referral->node, strlen(referral->node))};
    replica->redirect = redirect;
    if (!redirect->from) { /* it has another name here, or is not known */
        failed(redirect);
        return;
    }
    redirect->waits = true;
    cwb_peer_await(replica->bridge, redirect->from, &redirect->waiter, 0);
}
