/*
 * Fuzzes the bridge's state machine: links in every state, what their peer says, what local clients
 * ask, cuts, and time. All of the bridge is real but for what lies around it, which is played here
 * (link/around.c): sockets, TLS, helpers and the bridge's own channel to its broker. Memory and
 * names are those of a broker that runs beside.
 *
 * An input is a row of commands, a byte each with its own bytes behind it. Most numbers are small
 * ones of what there is, so that most frames mean something.
 * What must hold: nothing is read or written beside (AddressSanitizer), no assertion fails, each
 * job is answered once, and when all links have ended and time has passed nothing is left.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/bridge/serve/tree_parts.h"
#include "ipc/base/meta.h"
#include "ipc/client.h"
#include "tests/fuzz/link/around.h"
#include "tests/fuzz/link/body.h"

#define STEPS_MOST 200u
#define LINKS_MOST 4u
#define SECOND     1000000000ll

static const char *const names[] = {"s/none", "s/small", "s/middle", "s/large",
                                    "in/x",   "s/new",   "s/tree"};
#define NAMES_COUNT (sizeof names / sizeof *names)

struct fuzz {
    struct cwb_bridge bridge;
    struct cwb_peer *peer;
    const uint8_t *at, *end;
    uint64_t jobs, next_id;
    uint64_t open[16]; /* jobs that were begun */
};

static uint8_t byte(struct fuzz *f) {
    return f->at < f->end ? *f->at++ : 0;
}

/* A number that is likely to mean something, or any. */
static uint64_t number(struct fuzz *f) {
    uint8_t kind = byte(f);
    if (kind < 200)
        return kind % 32;
    uint64_t any = 0;
    for (int i = 0; i < 8; i++)
        any = any << 8 | byte(f);
    return any;
}

static struct cwb_link *link_of(struct fuzz *f) {
    uint32_t skip = byte(f) % LINKS_MOST;
    struct cwb_link *link = f->bridge.links;
    while (link && link->next && skip--)
        link = link->next;
    return link;
}

static uint32_t link_count(const struct fuzz *f) {
    uint32_t count = 0;
    for (const struct cwb_link *link = f->bridge.links; link; link = link->next)
        count++;
    return count;
}

/* ---- frames ---- */

static uint64_t size_of(struct fuzz *f) {
    static const uint64_t sizes[] = {0, 1, 100, 16384, 16385, 65536, 300000, 1 << 20, 3 << 20};
    uint8_t which = byte(f);
    return which < 240 ? sizes[which % (sizeof sizes / sizeof *sizes)] : number(f);
}

/* A frame with that op: its body is right in its form, more often than not. */
static void fill(struct fuzz *f, uint16_t op, struct body *body) {
    const char *name = names[byte(f) % NAMES_COUNT];
    uint8_t meta[CW_META_BYTES_MAX];
    switch (op) {
    case CWB_HELLO: {
        struct cwb_hello hello = {.magic = CWB_MAGIC,
                                  .version_min = CWB_VERSION_MIN,
                                  .version_max = CWB_VERSION,
                                  .run = 1 + byte(f) % 4,
                                  .read_max = CWB_READ_MIN << byte(f) % 6,
                                  .requests_max = CWB_REQUESTS_MIN << byte(f) % 7,
                                  .instance = 1 + byte(f) % 2,
                                  .up_ns = number(f) * SECOND};
        strcpy(hello.node, "evil");
        add(body, &hello, sizeof hello);
        return;
    }
    case CWB_STREAM: {
        struct cwb_stream_hello hello = {
            .magic = CWB_MAGIC, .run = 1 + byte(f) % 4, .to_run = f->bridge.run};
        add(body, &hello, sizeof hello);
        return;
    }
    case CWB_STREAMS: {
        struct cwb_streams_said said = {.streams = 1 + byte(f) % 8};
        add(body, &said, sizeof said);
        return;
    }
    case CWB_OPEN:
    case CWB_WAIT:
    case CWB_NAMES: {
        struct cwb_key key = {.key_bytes = key_bytes(name),
                              .flags = byte(f) % (op == CWB_OPEN ? 4 : 2)};
        struct cwb_part part;
        struct cwb_after after;
        around_part(byte(f), &part);
        after = (struct cwb_after){.instance = byte(f) % 2 ? part.instance : 0,
                                   .version = part.version - byte(f) % 2};
        if (op == CWB_OPEN)
            key.flags |= (uint32_t)(byte(f) % (CWB_AHEAD_MAX + 1)) << CWB_AHEAD_SHIFT;
        add(body, &key, sizeof key);
        add_key(body, name);
        if (op == CWB_OPEN && key.flags & CWB_PART)
            add(body, &part, sizeof part);
        if (op == CWB_WAIT && key.flags & CWB_AFTER)
            add(body, &after, sizeof after);
        return;
    }
    case CWB_READ: {
        struct cwb_read read = {.source = f->bridge.next_upload - number(f),
                                .offset_bytes = number(f) * CWB_READ_MIN,
                                .length_bytes = (uint32_t)size_of(f)};
        add(body, &read, sizeof read);
        return;
    }
    case CWB_CLOSE: {
        struct cwb_close close = {.source = f->bridge.next_upload - number(f),
                                  .unneeded = byte(f) % 2};
        add(body, &close, sizeof close);
        return;
    }
    case CWB_OFFER: {
        uint64_t size = size_of(f);
        uint64_t token = 1 + byte(f) % 8;
        struct cwb_offer offer = {.token = {.instance = 1, .number = token, .settled = token / 2},
                                  .size_bytes = size,
                                  .inside = size <= 100,
                                  .source = size <= 100 ? 0 : 1 + number(f),
                                  .flags = CW_PUT_REPLACE | (byte(f) % 2 ? CWB_AGAIN : 0),
                                  .key_bytes = key_bytes(name),
                                  .meta_bytes = meta_of(size, meta)};
        uint8_t data[100] = {0};
        if (offer.inside)
            offer.hash = byte(f) % 8 ? around_hash(data, size) : 1;
        add(body, &offer, sizeof offer);
        add_key(body, name);
        add(body, meta, offer.meta_bytes);
        if (offer.inside)
            add(body, data, size);
        return;
    }
    case CWB_REMOVE: {
        uint64_t token = 1 + byte(f) % 8;
        struct cwb_remove remove = {.token = {.instance = 1, .number = token, .settled = 1},
                                    .key_bytes = key_bytes(name),
                                    .flags = byte(f) % 2 ? CWB_AGAIN : 0};
        add(body, &remove, sizeof remove);
        add_key(body, name);
        return;
    }
    case CWB_CANCEL: {
        struct cwb_cancel cancel = {.id = f->next_id - number(f)};
        add(body, &cancel, sizeof cancel);
        return;
    }
    case CWB_CHANGED: {
        struct cwb_changed changed = {
            .instance = 1 + byte(f) % 2, .entry = number(f), .key_bytes = key_bytes(name)};
        add(body, &changed, sizeof changed);
        add_key(body, name);
        return;
    }
    default:
        return;
    }
}

static void feed(struct cwb_link *link, const void *bytes, uint32_t count) {
    uint8_t *copy = malloc(count + 1); /* a place of its own: what lies behind it is found */
    if (copy && link->state != CWB_DIALING && !link->wire.socket.closing) {
        memcpy(copy, bytes, count);
        link->wire.socket.calls->on_data(&link->wire.socket, copy, count);
    }
    free(copy);
}

static void say(struct fuzz *f, struct cwb_link *link, struct cw_message head, struct body *body,
                const void *data, uint32_t data_bytes) {
    uint8_t *frame = malloc(sizeof head + body->used + data_bytes);
    uint32_t cut = byte(f) < 8 ? byte(f) : 0;
    head.size_bytes = (uint32_t)sizeof head + body->used + data_bytes;
    if (!frame)
        return;
    memcpy(frame, &head, sizeof head);
    memcpy(frame + sizeof head, body->bytes, body->used);
    if (data_bytes)
        memcpy(frame + sizeof head + body->used, data, data_bytes);
    feed(link, frame, head.size_bytes > cut ? head.size_bytes - cut : 0);
    free(frame);
}

static void ask(struct fuzz *f, struct cwb_link *link) {
    static struct body body;
    uint16_t op = byte(f) % (CWB_OPS + 1);
    bool known = byte(f) < 8;
    struct cw_message head = {.op = op, .id = known ? f->next_id : ++f->next_id};
    f->next_id += CWB_AHEAD_MAX + 1; /* of what may come with it */
    body.used = 0;
    fill(f, op, &body);
    say(f, link, head, &body, NULL, 0);
}

/* One of the requests that the bridge has sent and that is not answered. */
static struct cwb_request *request_of(struct fuzz *f, struct cwb_link *link) {
    struct cwb_request *request = link->requests;
    for (uint32_t skip = byte(f) % 8; request && skip; skip--)
        request = request->hh.next ? request->hh.next : request;
    return request;
}

static void answer(struct fuzz *f, struct cwb_link *link) {
    static struct body body;
    static uint8_t data[CWB_READ_MAX];
    uint8_t meta[CW_META_BYTES_MAX];
    struct cwb_request *request = request_of(f, link);
    uint8_t how = byte(f);
    uint32_t data_bytes = 0;
    if (!request)
        return;
    body.used = 0;
    struct cw_message head = {.op = request->op | CW_OP_REPLY, .id = request->id};
    if (how >= 216) {
        static const int statuses[] = {-ENOENT, -ESTALE, -EDQUOT, -EREMOTEIO, -EAGAIN, -EPERM};
        head.status = statuses[how % 6];
        add(&body, "no", 2);
    } else if (request->op == CWB_OPEN || request->op == CWB_NAMES) {
        uint64_t size = size_of(f);
        struct cwb_opened opened = {.size_bytes = size,
                                    .instance = 1 + byte(f) % 2,
                                    .entry = number(f),
                                    .inside = size <= 100};
        bool names_asked = request->op == CWB_NAMES;
        opened.meta_bytes = names_asked ? 0 : meta_of(size, meta);
        if (!names_asked && byte(f) % 4 == 0) {
            struct cw_meta_remote_tree told = {
                .tree = {.version = CW_META_REMOTE_TREE_VERSION, .leaves = 2, .parts = 2},
                .instance = 1 + byte(f) % 2,
                .version = number(f)};
            memcpy(meta, &told, sizeof told);
            opened.meta_bytes = sizeof told;
        }
        if (names_asked)
            opened.instance = opened.entry = 0;
        opened.source = opened.inside ? 0 : 1 + number(f);
        opened.hash = opened.inside ? around_hash(data, size) : 0;
        if (!opened.inside && request->op == CWB_OPEN)
            opened.ahead = byte(f) % (CWB_AHEAD_MAX + 1);
        add(&body, &opened, sizeof opened);
        add(&body, meta, opened.meta_bytes);
        if (opened.inside)
            add(&body, data, size);
    } else if (request->op == CWB_READ) {
        add(&body, &request->read, sizeof request->read);
        data_bytes = request->read.length_bytes;
    } else if (request->op == CWB_CLOSE) {
        struct cwb_closed closed = {.hash = how % 4 ? around_hash_of_zeros(number(f)) : 1};
        add(&body, &closed, sizeof closed);
    }
    say(f, link, head, &body, data, data_bytes <= sizeof data ? data_bytes : 0);
}

/* All READs are answered, and then the hash: a transfer that comes to its end. */
static void answer_all(struct fuzz *f, struct cwb_link *link) {
    static struct body body;
    static const uint8_t zeros[CWB_READ_MAX];
    for (unsigned i = 0; i < 64 && link->state == CWB_OPEN_LINK; i++) {
        struct cwb_request *request = link->requests;
        while (request && (request->op != CWB_READ || request->frame))
            request = request->hh.next;
        if (!request)
            return;
        struct cw_message head = {.op = CWB_READ | CW_OP_REPLY,
                                  .id = request->id,
                                  .size_bytes = (uint32_t)sizeof head + sizeof request->read +
                                                request->read.length_bytes};
        body.used = 0;
        add(&body, &head, sizeof head);
        add(&body, &request->read, sizeof request->read);
        uint32_t length = request->read.length_bytes;
        feed(link, body.bytes, body.used);
        feed(link, zeros, length);
    }
    (void)f;
}

/* ---- local clients ---- */

static void begin_job(struct fuzz *f) {
    struct {
        struct cw_remote_job head;
        struct cw_remote remote;
        uint8_t text[CW_KEY_MAX + CW_META_BYTES_MAX];
    } job = {.head = {.job = ++f->jobs}};
    uint8_t meta[CW_META_BYTES_MAX];
    const char *name = names[byte(f) % NAMES_COUNT];
    int length = snprintf((char *)job.text, CW_KEY_MAX, "%c//%s/%s", 0,
                          byte(f) % 16 ? "evil" : "nobody", name);
    job.remote.verb = 1 + byte(f) % (CW_REMOTE_VERBS - 1);
    job.remote.key_bytes = (uint16_t)length;
    if (job.remote.verb == CW_REMOTE_PUT || job.remote.verb == CW_REMOTE_REMOVE) {
        job.head.deed = f->jobs;
        job.head.handed = byte(f) % 2;
        job.head.taken_ns = number(f) * SECOND;
    }
    if ((job.remote.verb == CW_REMOTE_GET || job.remote.verb == CW_REMOTE_WAIT) && byte(f) % 2) {
        job.remote.flags = 1; /* CW_REMOTE_PART, CW_REMOTE_AFTER */
        job.remote.instance = 1 + byte(f) % 2;
        job.remote.gen = 1 + number(f) % 1000;
        job.remote.block = byte(f) % 4;
        job.remote.offset_bytes = job.remote.size_bytes = byte(f) % 4;
    }
    if (job.remote.verb == CW_REMOTE_PUT)
        around_handle(byte(f), &job.remote);
    job.remote.meta_bytes =
        (uint16_t)(job.remote.verb == CW_REMOTE_PUT ? meta_of(job.remote.size_bytes, meta) : 0);
    memcpy(job.text + length, meta, job.remote.meta_bytes);
    if (around_job(&f->bridge, &job,
                   (uint32_t)(sizeof job.head + sizeof job.remote + (unsigned)length +
                              job.remote.meta_bytes)))
        f->open[f->jobs % 16] = f->jobs;
    else
        f->jobs--;
}

static void cancel_job(struct fuzz *f) {
    struct cw_remote_job head = {.job = f->open[byte(f) % 16], .cancelled = 1};
    if (head.job)
        (void)around_job(&f->bridge, &head, sizeof head);
}

/* ---- turns and time ---- */

static void turn(struct fuzz *f) {
    struct cwb_bridge *bridge = &f->bridge;
    cwb_wires_turn(&bridge->loop);
    cwb_wires_flush(&bridge->loop);
    bridge->peers_now |= bridge->tick_now; /* as in cwb_bridge_run() */
    bridge->tick_now = false;
    (void)cwb_links_tick(bridge);
    (void)cwb_peers_tick(bridge);
    (void)cwb_replicas_tick(bridge);
    (void)cwb_jobs_tick(bridge);
    (void)cwb_streams_tick(bridge);
    (void)cwb_deferred_tick(bridge);
    (void)cwb_downloads_tick(bridge);
    cwb_uploads_tick(bridge);
    cwb_trees_tick(bridge);
    cwb_incoming_puts_tick(bridge);
    cwb_lists_turn(bridge);
    cwb_changes_turn(bridge);
    cwb_wires_flush(&bridge->loop);
    around_turn(bridge);
}

static void cut(struct fuzz *f, struct cwb_link *link) {
    if (link->wire.socket.closing)
        return;
    if (byte(f) % 2 && link->state != CWB_DIALING)
        link->wire.socket.calls->on_data(&link->wire.socket, NULL, 0);
    else if (link->state != CWB_DIALING)
        link->wire.socket.calls->on_error(&link->wire.socket, -ECONNRESET);
}

static void step(struct fuzz *f) {
    uint8_t what = byte(f);
    struct cwb_link *link = what % 16 < 8 ? link_of(f) : NULL;
    switch (what % 16) {
    case 0:
    case 1:
    case 2:
        if (link)
            ask(f, link);
        break;
    case 3:
    case 4:
        if (link)
            answer(f, link);
        break;
    case 5:
        if (link)
            answer_all(f, link);
        break;
    case 6:
        if (link) {
            uint32_t count = byte(f);
            count = count < (uint32_t)(f->end - f->at) ? count : (uint32_t)(f->end - f->at);
            feed(link, f->at, count);
            f->at += count;
        }
        break;
    case 7:
        if (link && byte(f) < 64)
            cut(f, link);
        break;
    case 8:
        if (link_count(f) < LINKS_MOST)
            cwb_link_accept(&f->bridge, around_socket(), "evil:1");
        break;
    case 9:
    case 10:
        begin_job(f);
        break;
    case 11:
        cancel_job(f);
        break;
    case 12:
        around_answer(&f->bridge, byte(f), byte(f));
        break;
    case 13:
        if (byte(f) < 16) /* it waits for a broker: rarely */
            around_change(byte(f));
        break;
    case 14:
        f->bridge.loop.now_ns += 1000000ll << byte(f) % 14;
        turn(f);
        break;
    default:
        turn(f);
        break;
    }
}

/* A link that is open, so that inputs need not find the way there each time. */
static void open_one(struct fuzz *f, uint64_t run) {
    static struct body body;
    cwb_link_accept(&f->bridge, around_socket(), "evil:1");
    struct cwb_link *link = f->bridge.links->prev;
    struct cwb_hello hello = {.magic = CWB_MAGIC,
                              .version_min = CWB_VERSION_MIN,
                              .version_max = CWB_VERSION,
                              .run = run,
                              .read_max = CWB_READ_MAX,
                              .requests_max = CWB_REQUESTS_MAX,
                              .instance = 1};
    struct cw_message head = {.op = CWB_HELLO, .id = 1, .size_bytes = sizeof head + sizeof hello};
    strcpy(hello.node, "evil");
    body.used = 0;
    feed(link, "\x16\x03\x01\x00\x00", 5); /* a record of TLS, as far as anybody looks */
    add(&body, &head, sizeof head);
    add(&body, &hello, sizeof hello);
    feed(link, body.bytes, body.used);
}

/* What is left after all waits is a leak. */
static void finish(struct fuzz *f) {
    struct cwb_bridge *bridge = &f->bridge;
    struct cwb_link *link, *next;
    f->peer->config.address[0] = 0; /* nobody is dialed any more */
    DL_FOREACH_SAFE(bridge->links, link, next) {
        cw_fail(-EREMOTEIO, "over");
        cwb_link_end(link);
    }
    for (unsigned i = 0; i < 40; i++) {
        bridge->loop.now_ns += i < 20 ? SECOND : 60 * SECOND;
        while (around_answer(bridge, 0, 0))
            continue;
        turn(f);
    }
    promise(!bridge->links && !bridge->replicas && !bridge->gc_order && !bridge->watched);
    promise(!bridge->wait_count && !bridge->deferred && !bridge->lingering);
    promise(!bridge->lists && !bridge->gpu_receives && !bridge->stagings && !f->peer->trees);
    promise(!f->peer->uploads && !f->peer->incoming_puts && !f->peer->downloads &&
            !f->peer->waiting);
    promise(!f->peer->streams && !f->peer->wait_count && !f->peer->watches);
    around_end(bridge, f->jobs);
    free(f->peer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct fuzz f;
    memset(&f, 0, sizeof f);
    f.at = data;
    f.end = data + size;
    f.next_id = 100;
    f.peer = around_begin(&f.bridge);
    if (byte(&f) % 4)
        open_one(&f, 1);
    for (unsigned i = 0; i < STEPS_MOST && f.at < f.end; i++)
        step(&f);
    finish(&f);
    return 0;
}
