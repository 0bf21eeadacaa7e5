/*
 * Puts to a peer: a local array is offered, the peer reads it, and answers when it stands under its
 * name there. See frame.h.
 *
 * A link that ends before the answer leaves the outcome open: the offer is made again with the same
 * token, by which the peer's broker knows whether it was done (once.h).
 */
#include "broker/bridge/local/outgoing_put.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/floor.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/local/job.h"
#include "broker/bridge/local/once.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/tree_parts.h"
#include "broker/bridge/serve/upload.h"
#include "broker/bridge/wire/frame.h"
#include "ipc/base/hash.h"

struct putting {
    struct cwb_waiter waiter; /* first: it is cast back */
    struct cwb_job *job;
    bool waits;
    cw_array *array;
    bool on_gpu; /* then its bytes come by way of host memory */
    struct cwb_upload *upload;
    struct cwb_request *asked;
    cw_array *index;       /* of a tree: a lease more, until it is offered: */
    struct cwb_tree *tree; /* then the peer opens its parts */
};

static void putting_free(struct putting *p) {
    if (p->waits)
        cwb_peer_forget(p->job->peer, &p->waiter);
    if (p->asked)
        cwb_request_forget(p->asked);
    if (p->tree)
        cwb_tree_withdraw(p->tree);
    cw_array_close(p->index);
    if (p->upload) {
        cwb_upload_end(p->upload);
        cwb_upload_unref(p->upload);
    } else {
        cw_array_close(p->array);
    }
    free(p);
}

static void finish(struct putting *p, int status, uint64_t version) {
    struct cwb_job *job = p->job;
    const struct cw_remote_put_tree put = {.instance = job->asked_of, .version = version};
    char sentence[CW_DETAIL_MAX];
    strcpy(sentence, cw_detail());
    putting_free(p);
    if (status)
        cw_fail(status, "%s", sentence);
    cwb_job_done(job, status, &put, version ? sizeof put : 0);
}

static void fail(struct putting *p, int status) {
    finish(p, status, 0);
}

static void cancel(struct cwb_job *job) {
    struct putting *p = job->owner;
    struct cwb_link *link = p->asked ? p->asked->link : NULL;
    struct cwb_cancel cancel = {.id = p->asked ? p->asked->id : 0};
    struct iovec part = {&cancel, sizeof cancel};
    if (link && link->state == CWB_OPEN_LINK)
        cwb_link_say(link, CWB_CANCEL, &part, 1);
    putting_free(p);
}

static void offer(struct putting *p);

static void on_reply(struct cwb_request *request, const struct cwb_frame *frame) {
    struct putting *p = request->owner;
    p->asked = NULL;
    if (!frame) {
        offer(p);
        return;
    }
    cwb_floor_answer(p->job, frame->head.status, NULL);
    if (frame->head.status < 0)
        cwb_link_refused(p->job->peer, frame);
    if (frame->head.status < 0)
        fail(p, frame->head.status);
    else if (p->tree && !frame->put_done.version)
        fail(p, cw_fail(-EREMOTEIO, "%s put the tree, and did not say as which version",
                        p->job->peer->config.name));
    else
        finish(p, 0, p->tree ? frame->put_done.version : 0);
}

/* When the peer last asked for bytes of it. */
static int64_t read_ns(const struct cwb_request *request) {
    const struct putting *p = request->owner;
    int64_t used_ns = p && p->upload ? cwb_upload_used_ns(p->upload) : 0;
    int64_t tree_ns = p && p->tree ? cwb_tree_used_ns(p->tree) : 0;
    return used_ns > tree_ns ? used_ns : tree_ns;
}

static void on_link(struct cwb_waiter *waiter, struct cwb_link *link) {
    struct putting *p = (struct putting *)waiter;
    struct cwb_job *job = p->job;
    p->waits = false;
    if (!link) {
        fail(p, cwb_deed_fail(job, -EREMOTEIO));
        return;
    }
    if (p->index) {
        int code = cwb_tree_offer(job->bridge, job->peer, &job->there, job->head.deed, p->index,
                                  job->remote.size_bytes, &p->tree);
        if (code) {
            fail(p, cwb_deed_fail(job, code));
            return;
        }
        p->index = NULL;
    }
    struct cwb_offer message = {.size_bytes = job->remote.size_bytes,
                                .flags = job->remote.flags &
                                         (CW_PUT_REPLACE | CW_PUT_KEEP | CW_PUT_TREE | CW_PUT_GPU),
                                .key_bytes = job->there.length,
                                .meta_bytes = job->remote.meta_bytes};
    uint8_t inside[CWB_INLINE_MAX];
    struct iovec parts[] = {{&message, sizeof message},
                            {job->there.text, job->there.length},
                            {job->meta, job->remote.meta_bytes},
                            {inside, 0}};
    if (message.size_bytes <= CWB_INLINE_MAX && !p->on_gpu) {
        message.inside = 1;
        if (message.size_bytes)
            memcpy(inside, cw_array_lowest(p->array), message.size_bytes);
        message.hash = cw_hash(inside, message.size_bytes, 0);
        parts[3].iov_len = message.size_bytes;
    } else if (!p->upload) {
        int code = p->on_gpu
                       ? cwb_upload_new_staged(job->bridge, job->peer, p->array, message.size_bytes,
                                               link->read_max, true, &p->upload)
                       : cwb_upload_new(job->bridge, job->peer, p->array, cw_array_lowest(p->array),
                                        message.size_bytes, CWB_UPLOAD_PUT, &p->upload);
        if (code) {
            fail(p, cwb_deed_fail(job, code));
            return;
        }
        cwb_upload_ref(p->upload);
    }
    if (p->upload)
        message.source = cwb_upload_id(p->upload);
    uint64_t asked_before = job->asked_of;
    int code = cwb_deed_ask(job, link, &message.token, &message.flags);
    if (code) {
        fail(p, code);
        return;
    }
    p->asked = cwb_link_ask(link, CWB_OFFER, parts, 4, on_reply, p);
    if (!p->asked) {
        job->asked_of = asked_before;
        fail(p, cwb_deed_fail(job, -EDQUOT));
    } else {
        p->asked->moved_ns = read_ns;
    }
}

static void offer(struct putting *p) {
    p->waits = true;
    p->waiter = (struct cwb_waiter){.on_link = on_link};
    cwb_peer_await(p->job->bridge, p->job->peer, &p->waiter, cwb_deed_wait_ns(p->job));
}

/* ---- the array, by a helper ---- */

struct opening {
    struct cwb_work work;
    struct putting *p; /* NULL: cancelled */
    struct cwb_bridge *bridge;
    struct cw_remote remote;
    cw_array *array, *index;
    bool on_gpu;
};

static void open_array(struct cwb_work *work) {
    struct opening *o = (struct opening *)work;
    int code = cwb_local_open_at(o->bridge, &o->remote, &o->array, &o->on_gpu);
    if (code == 0 && o->remote.flags & CW_PUT_TREE)
        code = o->on_gpu ? cw_fail(-EINVAL, "the index of a tree lies in host memory")
                         : cwb_local_open_at(o->bridge, &o->remote, &o->index, &o->on_gpu);
    cwb_work_set(work, code);
}

static void opened(struct cwb_work *work) {
    struct opening *o = (struct opening *)work;
    struct putting *p = o->p;
    if (!p) {
        cw_array_close(o->array);
        cw_array_close(o->index);
    } else {
        p->array = o->array;
        p->index = o->index;
        p->on_gpu = o->on_gpu && o->remote.size_bytes > 0;
        p->job->on_cancel = cancel;
        p->job->owner = p;
        if (work->code) {
            cw_fail(work->code, "%s", work->detail);
            fail(p, cwb_deed_fail(p->job, work->code));
        } else {
            offer(p);
        }
    }
    free(o);
}

static void cancel_opening(struct cwb_job *job) {
    struct opening *o = job->owner;
    free(o->p);
    o->p = NULL;
}

void cwb_job_put(struct cwb_job *job) {
    struct putting *p = calloc(1, sizeof *p);
    struct opening *o = calloc(1, sizeof *o);
    if (!p || !o) {
        free(p);
        free(o);
        cwb_job_done(job, cwb_deed_fail(job, cwb_no_memory("a put to another node")), NULL, 0);
        return;
    }
    p->job = job;
    *o = (struct opening){.work = {.run = open_array, .done = opened},
                          .p = p,
                          .bridge = job->bridge,
                          .remote = job->remote};
    job->owner = o;
    job->on_cancel = cancel_opening;
    cwb_work_begin(job->bridge->broker_helpers, &o->work);
}
