/*
 * Stalls: requests to a peer that is heard, and does not answer them. Those whose answer needs
 * nobody else fail when nothing of it has come for the bridge's stall_ns (--stall); of arrays'
 * bytes download.c knows. Each link has them in the order in which they were sent. If the answer
 * comes later it goes nowhere, and is no breach. The loop's thread owns all; if this process dies
 * they are gone.
 */
#include "broker/bridge/link/stall.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/download.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/wire/frame.h"

/* Those whose answers need nobody else. Of arrays' bytes the download knows more; a WAIT may be
 * long.
 */
static bool has_limit(uint16_t op) {
    return op == CWB_OPEN || op == CWB_NAMES || op == CWB_REMOVE || op == CWB_OFFER;
}

void cwb_link_time(struct cwb_request *request) {
    struct cwb_link *link = request->link;
    if (!has_limit(request->op))
        return;
    request->is_timed = true;
    request->asked_ns = link->bridge->loop.now_ns;
    DL_APPEND2(link->timed, request, timed_prev, timed_next);
}

void cwb_link_untime(struct cwb_request *request) {
    if (!request->is_timed)
        return;
    request->is_timed = false;
    DL_DELETE2(request->link->timed, request, timed_prev, timed_next);
}

/* It fails as if it had been answered so. Its number stays, for the answer may come yet. */
static void expire(struct cwb_request *request) {
    struct cwb_link *link = request->link;
    struct cwb_frame frame = {.head = {.op = request->op | CW_OP_REPLY, .id = request->id}};
    struct cwb_request *left = malloc(sizeof *left);
    char sentence[CW_DETAIL_MAX];
    cwb_link_untime(request);
    if (!left)
        return;
    frame.head.status = cwb_stalled(link->bridge, link->peer, "in answer to a request");
    snprintf(sentence, sizeof sentence, "%s%.400s",
             request->op == CWB_OFFER || request->op == CWB_REMOVE
                 ? "whether it was done there is not known: "
                 : "",
             cw_detail());
    frame.sentence = sentence;
    frame.sentence_bytes = (uint32_t)strlen(sentence);
    *left = *request;
    left->on_reply = NULL;
    left->owner = NULL;
    HASH_ADD(hh, link->requests, id, sizeof left->id, left); /* beside the other: it is not empty */
    if (!CWD_ADDED(left)) {
        free(left);
        return;
    }
    HASH_DEL(link->requests, request);
    if (request->on_reply)
        request->on_reply(request, &frame);
    free(request);
}

void cwb_link_expire(struct cwb_link *link) {
    const int64_t now_ns = link->bridge->loop.now_ns, stall_ns = link->bridge->options.stall_ns;
    struct cwb_request *request = link->timed;
    while (stall_ns && request && now_ns - request->asked_ns >= stall_ns) {
        if (request->moved_ns && now_ns - request->moved_ns(request) < stall_ns) {
            request = request->timed_next;
            continue;
        }
        expire(request);
        request = link->timed; /* others may have ended with it */
    }
}
