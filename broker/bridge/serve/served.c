/*
 * Requests of peers that are answered later: see serve.h. Each is on its link until it is answered,
 * cancelled, or its link ends; who keeps it then hears of it by on_cancel. The loop's thread alone.
 */
#include <stdlib.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/deferred.h"
#include "broker/bridge/serve/serve.h"

struct cwb_served *cwb_served_new(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_served *served = calloc(1, sizeof *served);
    if (served) {
        served->id = frame->head.id;
        served->op = frame->head.op;
        served->link = link;
        HASH_ADD(hh, link->served, id, sizeof served->id, served);
    }
    if (!served || !CWD_ADDED(served)) {
        free(served);
        cwb_no_memory("a peer's request");
        return NULL;
    }
    link->served_count++;
    link->wait_count += served->op == CWB_WAIT;
    return served;
}

static void leave_link(struct cwb_served *served) {
    if (!served->link)
        return;
    cwb_deferred_end(served);
    HASH_DEL(served->link->served, served);
    served->link->served_count--;
    served->link->wait_count -= served->op == CWB_WAIT;
    served->link = NULL;
}

struct cwb_link *cwb_served_leave(struct cwb_served *served) {
    struct cwb_link *link = served->link;
    leave_link(served);
    free(served);
    return link;
}

void cwb_served_reply(struct cwb_served *served, int status, const struct iovec *parts,
                      uint32_t count) {
    struct cwb_link *link = served->link;
    leave_link(served);
    if (link)
        cwb_link_reply(link, served->op, served->id, status, cw_detail(), parts, count);
    free(served);
}

void cwb_served_refuse(struct cwb_served *served, int status) {
    void (*on_cancel)(struct cwb_served *) = served->on_cancel;
    struct cwb_link *link = served->link;
    leave_link(served);
    cwb_link_reply(link, served->op, served->id, status, cw_detail(), NULL, 0);
    on_cancel(served);
}

void cwb_serve_end(struct cwb_link *link) {
    struct cwb_served *served, *next;
    HASH_ITER(hh, link->served, served, next) {
        leave_link(served);
        if (served->on_cancel)
            served->on_cancel(served);
    }
}
