/*
 * Tree receive: see tree_receive.h. The loop's thread, but for what helpers do: they read the
 * peer's index, and write and group ours, while the loop touches none of it.
 */
#include "broker/bridge/fetch/tree_receive.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/download.h"
#include "broker/bridge/fetch/gpu_receive.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/memory.h"
#include "ipc/array/array.h"
#include "ipc/base/hash.h"
#include "ipc/tree/tree.h"

struct task {
    struct cwb_work work;
    struct cwb_tree_receive *receive;
};

struct cwb_tree_receive {
    struct cwb_waiter waiter; /* first: it is cast back */
    struct task making, reading, grouping;
    struct cwb_bridge *bridge;
    struct cwb_tree_receive_spec spec;
    struct cw_name_key key;
    struct cwb_offer offer;
    uint32_t gpu;          /* on which all is to lie, from 1; 0: host memory */
    cwb_on_array *on_done; /* NULL: told, or cancelled */
    void *owner;
    unsigned tasks; /* of helpers, and memory that is being made: it stays for these */
    bool waits;     /* for a link */
    struct cwb_request *asked;
    /* the peer's index, once it is read */
    struct cw_index index;
    struct cw_index_span *spans;
    /* of each part, by its number there */
    cw_array **arrays;
    uint32_t *numbers;           /* here */
    struct cw_index_part *parts; /* as they lie here, part_count */
    uint32_t part_count;
    uint32_t at;              /* the part that comes */
    struct cwb_opened opened; /* it */
    uint8_t *inside;          /* its bytes, or those of the index, if they came inside */
    struct cwb_download download;
    struct cwb_gpu_receive *gpu_receive;
    cw_array *array; /* into which it comes */
    cw_array *whole; /* our index */
};

static struct cwb_tree_receive *receive_of(struct cwb_download *download) {
    return (struct cwb_tree_receive *)((char *)download -
                                       offsetof(struct cwb_tree_receive, download));
}

/* Frees it, unless somebody is at it still. */
static void release(struct cwb_tree_receive *receive) {
    if (receive->on_done || receive->tasks)
        return;
    for (uint32_t i = 0; receive->arrays && i < receive->index.head->parts; i++)
        cwb_local_close(receive->bridge, receive->arrays[i]);
    cwb_local_close(receive->bridge, receive->array);
    cw_array_close(receive->whole);
    cw_index_deinit(&receive->index);
    free(receive->spans);
    free(receive->arrays);
    free(receive->numbers);
    free(receive->parts);
    free(receive->inside);
    free(receive);
}

/* From now on nothing calls back but helpers. */
static void stop(struct cwb_tree_receive *receive) {
    if (receive->waits)
        cwb_peer_forget(receive->spec.peer, &receive->waiter);
    if (receive->asked)
        cwb_request_forget(receive->asked);
    cwb_download_cancel(&receive->download);
    cwb_gpu_receive_cancel(receive->gpu_receive);
    receive->waits = false;
    receive->asked = NULL;
    receive->gpu_receive = NULL;
    receive->on_done = NULL;
}

void cwb_tree_receive_cancel(struct cwb_tree_receive *receive) {
    if (!receive)
        return;
    stop(receive);
    release(receive);
}

static void finish(struct cwb_tree_receive *receive, int code) {
    cwb_on_array *on_done = receive->on_done;
    void *owner = receive->owner;
    cw_array *whole = receive->whole;
    char sentence[CW_DETAIL_MAX];
    strcpy(sentence, cw_detail());
    receive->whole = NULL;
    stop(receive);
    release(receive);
    if (code)
        cw_fail(code, "%s", sentence);
    on_done(owner, code, whole);
}

static void begin_task(struct cwb_tree_receive *receive, struct cwb_helpers *helpers,
                       struct task *task, void (*run)(struct cwb_work *),
                       void (*done)(struct cwb_work *)) {
    *task = (struct task){.work = {.run = run, .done = done}, .receive = receive};
    receive->tasks++;
    cwb_work_begin(helpers, &task->work);
}

/* A helper is done. false: nobody wants it any more, or it failed, and all was said. */
static bool end_task(struct cwb_tree_receive *receive, const struct task *task) {
    receive->tasks--;
    if (!receive->on_done) {
        release(receive);
        return false;
    }
    if (task->work.code == 0)
        return true;
    cw_fail(task->work.code, "%s", task->work.detail);
    finish(receive, task->work.code);
    return false;
}

/* ---- our index ---- */

static void group(struct cwb_work *work) {
    struct cwb_tree_receive *receive = ((struct task *)work)->receive;
    cw_client *client = receive->bridge->client;
    struct cw_index index;
    int code = cw_index_move(client, &receive->index, receive->spans, receive->numbers,
                             receive->parts, receive->part_count, &index, &receive->whole);
    if (code) {
        receive->whole = NULL;
        cwb_work_set(work, code);
        return;
    }
    cw_array_freeze(receive->whole);
    cw_parts_published(client, receive->arrays, receive->index.head->parts);
    code = cw_index_group(client, receive->whole, receive->parts, receive->part_count);
    cw_index_deinit(&index);
    if (code) {
        cw_array_close(receive->whole);
        receive->whole = NULL;
    }
    cwb_work_set(work, code);
}

static void grouped(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_tree_receive *receive = task->receive;
    if (receive->on_done)
        receive->spec.on_broker(receive->owner, false);
    if (end_task(receive, task))
        finish(receive, 0);
}

/* ---- parts ---- */

static void open_part(struct cwb_tree_receive *receive);
static void read_index(struct cwb_work *work);
static void index_read(struct cwb_work *work);

/* The part is here. It is taken over. */
static void add_part(struct cwb_tree_receive *receive, cw_array *array) {
    cw_array_freeze(array);
    receive->parts[receive->part_count] = cw_part_of(array);
    receive->arrays[receive->at] = array;
    receive->numbers[receive->at] = receive->part_count++;
    receive->at++;
    open_part(receive);
}

static void on_downloaded(struct cwb_download *download, int status) {
    struct cwb_tree_receive *receive = receive_of(download);
    cw_array *array = receive->array;
    if (status) {
        finish(receive, status);
    } else if (!receive->spans) {
        begin_task(receive, receive->bridge->helpers, &receive->reading, read_index, index_read);
    } else {
        receive->array = NULL;
        add_part(receive, array);
    }
}

/* Bytes of the peer's, into the array. */
static void download(struct cwb_tree_receive *receive, uint64_t source, uint64_t size_bytes) {
    receive->download = (struct cwb_download){.on_done = on_downloaded,
                                              .bridge = receive->bridge,
                                              .peer = receive->spec.peer,
                                              .source = source,
                                              .size_bytes = size_bytes,
                                              .wait_ns = CWB_RESUME_NS,
                                              .array = receive->array};
    cwb_download_begin(&receive->download, receive->spec.run);
}

static void on_received(void *owner, int code, cw_array *array) {
    struct cwb_tree_receive *receive = owner;
    receive->gpu_receive = NULL;
    if (code)
        finish(receive, code);
    else
        add_part(receive, array);
}

static void refuse(const struct cwb_tree_receive *receive) {
    if (!receive->opened.inside)
        cwb_download_refuse(receive->spec.peer, receive->spec.run, receive->opened.source);
}

static void on_array(void *owner, int code, cw_array *array) {
    struct cwb_tree_receive *receive = owner;
    receive->tasks--;
    receive->array = array;
    if (!receive->on_done) {
        refuse(receive);
        release(receive);
        return;
    }
    receive->spec.on_broker(receive->owner, false);
    if (code == 0 && receive->opened.inside)
        code = cw_array_write(array, 0, receive->inside, receive->opened.size_bytes);
    if (code) {
        char sentence[CW_DETAIL_MAX];
        strcpy(sentence, cw_detail());
        refuse(receive);
        cw_fail(code, "%s", sentence);
        finish(receive, code);
    } else if (receive->opened.inside) {
        receive->array = NULL;
        add_part(receive, array);
    } else {
        download(receive, receive->opened.source, receive->opened.size_bytes);
    }
}

static void bring(struct cwb_tree_receive *receive) {
    const struct cwb_opened *opened = &receive->opened;
    if (!receive->gpu) {
        receive->tasks++;
        receive->spec.on_broker(receive->owner, true);
        cwb_local_new(receive->bridge, opened->size_bytes, on_array, receive);
        return;
    }
    const struct cwb_gpu_receive_spec spec = {.size_bytes = opened->size_bytes,
                                              .gpu = {.device = receive->gpu - 1},
                                              .inside = opened->inside ? receive->inside : NULL,
                                              .peer = opened->inside ? NULL : receive->spec.peer,
                                              .run = receive->spec.run,
                                              .source = opened->source,
                                              .wait_ns = CWB_RESUME_NS};
    receive->gpu_receive = cwb_gpu_receive_begin(receive->bridge, &spec, on_received, receive);
    if (!receive->gpu_receive)
        finish(receive, -EDQUOT);
}

/* 0, or what is wrong with what the peer opened. */
static int check_opened(const struct cwb_tree_receive *receive, const struct cwb_frame *frame) {
    const char *name = receive->spec.peer->config.name;
    const uint64_t size_bytes = receive->spans[receive->at].size_bytes;
    if (frame->opened.size_bytes != size_bytes)
        return cw_fail(-EREMOTEIO,
                       "%s sent part %u of the tree with %llu bytes, its index says %llu", name,
                       receive->at, (unsigned long long)frame->opened.size_bytes,
                       (unsigned long long)size_bytes);
    if (frame->opened.inside && cw_hash(frame->data, size_bytes, 0) != frame->opened.hash)
        return cw_fail(-EREMOTEIO, "the bytes of the tree are not those that %s hashed", name);
    return 0;
}

static void on_opened(struct cwb_request *request, const struct cwb_frame *frame) {
    struct cwb_tree_receive *receive = request->owner;
    receive->asked = NULL;
    if (!frame) { /* cut: it is asked for again over the next link */
        open_part(receive);
        return;
    }
    if (frame->head.status < 0) {
        finish(receive, cwb_link_refused(receive->spec.peer, frame));
        return;
    }
    receive->opened = frame->opened;
    int code = check_opened(receive, frame);
    free(receive->inside);
    receive->inside = NULL;
    if (code == 0 && frame->opened.inside) {
        receive->inside = malloc(frame->opened.size_bytes);
        if (receive->inside)
            memcpy(receive->inside, frame->data, frame->opened.size_bytes);
        else
            code = cwb_no_memory("a tree that a peer puts");
    }
    if (code == 0) {
        bring(receive);
        return;
    }
    char sentence[CW_DETAIL_MAX];
    strcpy(sentence, cw_detail());
    refuse(receive);
    cw_fail(code, "%s", sentence);
    finish(receive, code);
}

static void on_link(struct cwb_waiter *waiter, struct cwb_link *link) {
    struct cwb_tree_receive *receive = (struct cwb_tree_receive *)waiter;
    receive->waits = false;
    if (!link) {
        finish(receive, -EREMOTEIO);
        return;
    }
    if (receive->spec.peer->run != receive->spec.run) {
        finish(receive, cw_fail(-ESTALE, "the bridge of %s was started anew while it put a tree",
                                receive->spec.peer->config.name));
        return;
    }
    const struct cwb_part part = {.instance = receive->offer.token.instance,
                                  .version = receive->offer.token.number,
                                  .number = receive->at};
    struct cwb_key key = {.key_bytes = receive->key.length, .flags = CWB_PART | CWB_PUT_PART};
    char text[CW_KEY_MAX + sizeof part];
    memcpy(text, receive->key.text, receive->key.length);
    memcpy(text + receive->key.length, &part, sizeof part);
    receive->asked = cwb_link_open(link, &key, text, receive->key.length + (uint32_t)sizeof part,
                                   false, on_opened, receive);
    if (!receive->asked)
        finish(receive, -EDQUOT);
}

/* The next part in which leaves lie; behind the last, our index. */
static void open_part(struct cwb_tree_receive *receive) {
    while (receive->at < receive->index.head->parts && !receive->spans[receive->at].size_bytes)
        receive->at++;
    if (receive->at == receive->index.head->parts) {
        receive->spec.on_broker(receive->owner, true);
        begin_task(receive, receive->bridge->broker_helpers, &receive->grouping, group, grouped);
        return;
    }
    receive->waits = true;
    receive->waiter = (struct cwb_waiter){.on_link = on_link};
    cwb_peer_await(receive->bridge, receive->spec.peer, &receive->waiter, CWB_RESUME_NS);
}

/* ---- the peer's index ---- */

static int take_index(struct cwb_tree_receive *receive) {
    const void *bytes = receive->inside ? receive->inside : cw_array_lowest(receive->array);
    int code = cw_index_read(bytes, receive->offer.size_bytes, &receive->index);
    if (code == -EPROTO) {
        char why[CW_DETAIL_MAX];
        strcpy(why, cw_detail());
        return cw_fail(-EREMOTEIO, "the tree that was put is damaged: %.600s", why);
    }
    if (code)
        return code;
    const size_t count = receive->index.head->parts + 1u;
    receive->spans = malloc(count * sizeof *receive->spans);
    receive->numbers = calloc(count, sizeof *receive->numbers);
    receive->parts = malloc(count * sizeof *receive->parts);
    receive->arrays = calloc(count, sizeof(void *));
    if (!receive->spans || !receive->numbers || !receive->parts || !receive->arrays)
        return cwb_no_memory("a tree that a peer puts");
    cw_index_spans(&receive->index, receive->spans);
    uint64_t left = receive->spec.parts_bytes;
    for (uint32_t i = 0; i + 1 < count; i++) {
        if (receive->spans[i].size_bytes > left)
            return cw_fail(-EREMOTEIO, "the tree that was put is larger than its offer says");
        left -= receive->spans[i].size_bytes;
    }
    return left ? cw_fail(-EREMOTEIO, "the tree that was put is smaller than its offer says") : 0;
}

static void read_index(struct cwb_work *work) {
    cwb_work_set(work, take_index(((struct task *)work)->receive));
}

static void index_read(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_tree_receive *receive = task->receive;
    if (!end_task(receive, task))
        return;
    cwb_local_close(receive->bridge, receive->array); /* it was copied */
    receive->array = NULL;
    open_part(receive);
}

static void make_index(struct cwb_work *work) {
    struct cwb_tree_receive *receive = ((struct task *)work)->receive;
    cwb_work_set(work, cwb_local_make(receive->bridge, receive->offer.size_bytes, &receive->array));
}

static void index_made(struct cwb_work *work) {
    struct task *task = (struct task *)work;
    struct cwb_tree_receive *receive = task->receive;
    if (receive->on_done)
        receive->spec.on_broker(receive->owner, false);
    if (end_task(receive, task))
        download(receive, receive->offer.source, receive->offer.size_bytes);
}

struct cwb_tree_receive *cwb_tree_receive_begin(struct cwb_bridge *bridge,
                                                const struct cwb_tree_receive_spec *spec,
                                                cwb_on_array *on_done, void *owner) {
    const struct cwb_offer *offer = spec->offer;
    struct cwb_tree_receive *receive = calloc(1, sizeof *receive);
    if (receive && offer->inside)
        receive->inside = malloc(offer->size_bytes);
    if (!receive || (offer->inside && !receive->inside)) {
        free(receive);
        cwb_no_memory("a tree that a peer puts");
        return NULL;
    }
    receive->bridge = bridge;
    receive->spec = *spec;
    receive->key = *spec->key;
    receive->offer = *offer;
    receive->gpu = (offer->flags & CW_PUT_GPU) >> CW_PUT_GPU_SHIFT;
    receive->on_done = on_done;
    receive->owner = owner;
    if (offer->inside) {
        memcpy(receive->inside, spec->inside, offer->size_bytes);
        begin_task(receive, bridge->helpers, &receive->reading, read_index, index_read);
    } else {
        spec->on_broker(owner, true);
        begin_task(receive, bridge->memory_helpers, &receive->making, make_index, index_made);
    }
    return receive;
}
