/*
 * Streams on their I/O thread: see stream.h.
 */
#include "broker/bridge/link/stream.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/fetch/transfer_plan.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/upload.h"
#include "broker/bridge/wire/receive.h"
#include "broker/bridge/wire/send.h"
#include "broker/bridge/wire/turns.h"

static void end(struct cwb_stream *stream);

/* ---- our READs ---- */

static void flow_drop(struct cwb_stream *stream, struct cwb_flow *flow) {
    LL_DELETE(stream->flows, flow);
    cwb_transfer_plan_unref(flow->plan);
    free(flow);
}

static struct cwb_flow *flow_of(struct cwb_stream *stream, const struct cwb_transfer_plan *plan) {
    struct cwb_flow *flow;
    LL_FOREACH(stream->flows, flow) {
        if (flow->plan == plan)
            break;
    }
    return flow;
}

static void send_read(struct cwb_stream *stream, struct cwb_transfer_plan *plan,
                      const struct cwb_read *read) {
    struct cwb_ask *ask = stream->asks;
    struct iovec part = {(void *)(uintptr_t)read, sizeof *read};
    while (ask->plan)
        ask++;
    cwb_transfer_plan_ref(plan);
    *ask = (struct cwb_ask){.id = ++stream->next_id, .plan = plan, .read = *read};
    if (stream->ask_count++ == 0)
        stream->moved_ns = stream->wire.loop->now_ns;
    stream->used_ns = stream->wire.loop->now_ns;
    struct cw_message head = {
        .size_bytes = CWB_HEAD_BYTES + sizeof *read, .op = CWB_READ, .id = ask->id};
    cwb_wire_frame(&stream->wire, &head, &part, 1);
}

/* Asks for what is wanted, one chunk of each array after another, as far as the credit goes. */
static void pump(struct cwb_stream *stream) {
    struct cwb_flow *flow, *next;
    struct cwb_read read;
    bool more = true;
    while (more && stream->ask_count < CWB_STREAM_ASKS) {
        more = false;
        LL_FOREACH_SAFE(stream->flows, flow, next) {
            if (stream->ask_count == CWB_STREAM_ASKS)
                return;
            if (flow->asked < cwb_transfer_plan_share(flow->plan, CWB_STREAM_WINDOW) &&
                cwb_transfer_plan_ask(flow->plan, &read)) {
                flow->asked++;
                send_read(stream, flow->plan, &read);
                more = true;
            } else if (flow->asked == 0) {
                flow_drop(stream, flow); /* what comes back to it is told anew */
            }
        }
    }
}

/* Which READ a reply answers; NULL: none. */
static struct cwb_ask *asked(struct cwb_stream *stream, uint64_t id) {
    for (uint32_t i = 0; i < CWB_STREAM_ASKS; i++)
        if (stream->asks[i].plan && stream->asks[i].id == id)
            return &stream->asks[i];
    return NULL;
}

/* It is free; its reference is the caller's. */
static struct cwb_transfer_plan *answered(struct cwb_stream *stream, struct cwb_ask *ask) {
    struct cwb_transfer_plan *plan = ask->plan;
    ask->plan = NULL;
    stream->ask_count--;
    stream->moved_ns = stream->wire.loop->now_ns;
    flow_of(stream, plan)->asked--;
    return plan;
}

static int on_data(struct cwb_wire *wire, const struct cwb_frame *frame, uint8_t **target) {
    struct cwb_stream *stream = (struct cwb_stream *)wire;
    struct cwb_ask *ask = asked(stream, frame->head.id);
    if (!ask || memcmp(&ask->read, &frame->read, sizeof ask->read) != 0)
        return cw_fail(-EPROTO, "bytes of an array came that were not asked for");
    *target = cwb_transfer_plan_target(ask->plan, &ask->read);
    wire->mapped = !ask->plan->fresh;
    return 0;
}

static int on_data_end(struct cwb_wire *wire, const struct cwb_frame *frame) {
    struct cwb_stream *stream = (struct cwb_stream *)wire;
    struct cwb_ask *ask = asked(stream, frame->head.id);
    struct cwb_read read = ask->read;
    struct cwb_transfer_plan *plan = answered(stream, ask);
    pump(stream); /* first: what is asked for comes while this is hashed */
    if (cwb_transfer_plan_here(plan, &read))
        cwb_transfer_plan_tell(plan);
    cwb_transfer_plan_unref(plan);
    return 0;
}

static int read_failed(struct cwb_stream *stream, const struct cwb_frame *frame) {
    struct cwb_ask *ask = asked(stream, frame->head.id);
    if (!ask)
        return cw_fail(-EPROTO, "a reply to a READ that was not asked");
    struct cwb_read read = ask->read;
    struct cwb_transfer_plan *plan = answered(stream, ask);
    if (frame->head.status != -EINPROGRESS) /* else it is asked for again */
        cwb_transfer_plan_fail(plan, frame->head.status, frame->sentence, frame->sentence_bytes);
    cwb_transfer_plan_back(plan, &read);
    cwb_transfer_plan_tell(plan);
    cwb_transfer_plan_unref(plan);
    pump(stream);
    return 0;
}

/* ---- what comes ---- */

static void tell_open(struct cwb_stream *stream) {
    stream->heard = true;
    cwb_work_tell(stream->bridge->helpers, &stream->opened);
}

static int on_frame(struct cwb_wire *wire, const struct cwb_frame *frame) {
    struct cwb_stream *stream = (struct cwb_stream *)wire;
    if (!stream->heard)
        tell_open(stream);
    switch (frame->head.op) {
    case CWB_READ:
        stream->used_ns = wire->loop->now_ns;
        if (wire->piece_count + stream->parked >= CWB_REQUESTS_MAX + CWB_REQUESTS_SPARE)
            return cw_fail(-EPROTO, "more than %u requests at once", CWB_REQUESTS_MAX);
        if (cwb_wire_may_ask(wire) < 0)
            return -EPROTO;
        return cwb_upload_serve_stream_read(stream, frame);
    case CWB_READ | CW_OP_REPLY:
        return read_failed(stream, frame);
    case CWB_PING:
        cwb_wire_reply(wire, CWB_PING, frame->head.id, 0, NULL, NULL, 0);
        return cwb_wire_may_ask(wire);
    case CWB_PING | CW_OP_REPLY:
        if (!stream->ping_id || frame->head.id != stream->ping_id)
            return cw_fail(-EPROTO, "a reply to a PING that was not asked");
        stream->ping_id = 0;
        return 0;
    default:
        return cw_fail(-EPROTO, "op %u over a stream, which has READ and PING alone",
                       frame->head.op);
    }
}

static void on_broken(struct cwb_wire *wire) {
    end((struct cwb_stream *)wire);
}

static const struct cwb_wire_calls wire_calls = {on_frame, on_data, on_data_end, on_broken, NULL};

static void on_bytes(struct cwb_socket *socket, const uint8_t *bytes, uint32_t size_bytes) {
    struct cwb_stream *stream = (struct cwb_stream *)socket;
    if (stream->wire.ended)
        return;
    if (size_bytes == 0) {
        if (stream->wire.held) { /* first what it has said before */
            cwb_wire_keep(&stream->wire, NULL, 0);
            return;
        }
        cw_fail(-EREMOTEIO, "the other side closed the connection");
        end(stream);
        return;
    }
    cwb_wire_heard(&stream->wire, size_bytes);
    if (cwb_wire_feed(&stream->wire, bytes, size_bytes) < 0)
        end(stream);
}

static void on_error(struct cwb_socket *socket, int error) {
    cw_fail(-EREMOTEIO, "the connection broke: %s", strerror(-error));
    end((struct cwb_stream *)socket);
}

/* ---- its end ---- */

static void on_closed(struct cwb_socket *socket) {
    struct cwb_stream *stream = (struct cwb_stream *)socket;
    cwb_wire_deinit(&stream->wire);
    DL_DELETE2(stream->io_thread->streams, stream, thread_prev, thread_next);
    cwb_work_tell(stream->bridge->helpers, &stream->ended);
}

static const struct cwb_socket_calls socket_calls = {NULL, on_bytes, cwb_wire_on_sent, on_error,
                                                     on_closed};

static void end(struct cwb_stream *stream) {
    if (stream->wire.ended)
        return;
    cwb_work_set(&stream->ended, -EREMOTEIO); /* keeps cw_detail() */
    cwb_wire_end(&stream->wire);
    for (uint32_t i = 0; i < CWB_STREAM_ASKS; i++) {
        struct cwb_ask ask = stream->asks[i];
        if (!ask.plan)
            continue;
        cwb_transfer_plan_back(answered(stream, &stream->asks[i]), &ask.read);
        cwb_transfer_plan_tell(ask.plan);
        cwb_transfer_plan_unref(ask.plan);
    }
    while (stream->flows)
        flow_drop(stream, stream->flows);
    cwb_tls_bye(&stream->wire.tls);
    if (stream->wire.out.used && !stream->wire.sending)
        (void)!send(stream->wire.socket.fd, stream->wire.out.data, stream->wire.out.used,
                    MSG_DONTWAIT | MSG_NOSIGNAL);
    cwb_io_close(stream->wire.loop->io, &stream->wire.socket);
}

/* ---- what the bridge's loop tells ---- */

static void ping(struct cwb_stream *stream) {
    stream->pinged_ns = stream->wire.loop->now_ns;
    stream->ping_id = ++stream->next_id;
    struct cw_message head = {.size_bytes = CWB_HEAD_BYTES, .op = CWB_PING, .id = stream->ping_id};
    cwb_wire_frame(&stream->wire, &head, NULL, 0);
}

static void begin(struct cwb_note *note) {
    struct cwb_stream *stream =
        (struct cwb_stream *)((char *)note - offsetof(struct cwb_stream, begin));
    struct cwb_wire *wire = &stream->wire;
    DL_APPEND2(stream->io_thread->streams, stream, thread_prev, thread_next);
    wire->calls = &wire_calls;
    wire->socket.calls = &socket_calls;
    wire->greeted = true;
    wire->heard_ns = stream->used_ns = wire->loop->now_ns;
    cwb_io_start(wire->loop->io, &wire->socket);
    if (!stream->dialed) { /* it speaks first: nothing came while nobody listened */
        cwb_wire_reply(wire, CWB_STREAM, stream->began_with, 0, NULL, NULL, 0);
        return;
    }
    ping(stream);
    tell_open(stream);
}

void cwb_stream_begin(struct cwb_stream *stream) {
    stream->begin.run = begin;
    cwb_io_thread_tell(stream->io_thread, &stream->begin);
}

struct order {
    struct cwb_note note;
    struct cwb_stream *stream;
    struct cwb_transfer_plan *plan; /* one reference */
};

/* Also over this stream. Without memory for its books the stream ends. */
static void add_flow(struct cwb_stream *stream, struct cwb_transfer_plan *plan) {
    struct cwb_flow *flow = calloc(1, sizeof *flow);
    if (!flow) {
        cwb_transfer_plan_unref(plan);
        cwb_no_memory("an array that comes over a stream");
        end(stream);
        return;
    }
    flow->plan = plan;
    LL_APPEND(stream->flows, flow);
}

static void obey(struct cwb_note *note) {
    struct order *order = (struct order *)note;
    struct cwb_stream *stream = order->stream;
    struct cwb_transfer_plan *plan = order->plan;
    free(order);
    if (stream->wire.ended || flow_of(stream, plan))
        cwb_transfer_plan_unref(plan);
    else
        add_flow(stream, plan);
    if (!stream->wire.ended)
        pump(stream);
}

static void obey_end(struct cwb_note *note) {
    struct cwb_stream *stream =
        (struct cwb_stream *)((char *)note - offsetof(struct cwb_stream, ending));
    if (stream->no_memory)
        cwb_no_memory("a stream");
    else
        cw_fail(-ECONNRESET, "the peer has no other connection any more");
    end(stream);
}

/* It needs no memory. */
static void tell_end(struct cwb_stream *stream, bool no_memory) {
    if (stream->told_end)
        return;
    stream->told_end = true;
    stream->no_memory = no_memory;
    stream->ending.run = obey_end;
    cwb_io_thread_tell(stream->io_thread, &stream->ending);
}

void cwb_stream_read(struct cwb_stream *stream, struct cwb_transfer_plan *plan) {
    struct order *order = calloc(1, sizeof *order);
    if (!order) {
        tell_end(stream, true);
        return;
    }
    cwb_transfer_plan_ref(plan);
    *order = (struct order){.note = {.run = obey}, .stream = stream, .plan = plan};
    cwb_io_thread_tell(stream->io_thread, &order->note);
}

struct answer { /* to a READ of theirs, from the loop */
    struct cwb_note note;
    struct cwb_stream *stream;
    uint64_t id;
    struct cwb_upload *upload; /* one reference; NULL: refused */
    struct cwb_read read;
    const uint8_t *bytes;
    int status;
    char detail[CW_DETAIL_MAX];
};

static void give(struct cwb_note *note) {
    struct answer *answer = (struct answer *)note;
    struct cwb_wire *wire = &answer->stream->wire;
    answer->stream->parked--;
    if (!answer->upload) {
        cwb_wire_reply(wire, CWB_READ, answer->id, answer->status, answer->detail, NULL, 0);
    } else if (wire->ended ||
               !cwb_upload_send(answer->upload, wire, answer->id, &answer->read, answer->bytes)) {
        cwb_upload_release_piece(answer->upload, wire->loop, &answer->read, false);
    } else {
        cwb_upload_drop(answer->upload, wire->loop);
    }
    free(answer);
}

bool cwb_stream_send_piece(struct cwb_stream *stream, uint64_t id, struct cwb_upload *upload,
                           const struct cwb_read *read, const uint8_t *bytes) {
    struct answer *answer = calloc(1, sizeof *answer);
    if (!answer) {
        tell_end(stream, true);
        return false;
    }
    cwb_upload_ref(upload);
    *answer = (struct answer){.note = {.run = give},
                              .stream = stream,
                              .id = id,
                              .upload = upload,
                              .read = *read,
                              .bytes = bytes};
    cwb_io_thread_tell(stream->io_thread, &answer->note);
    return true;
}

void cwb_stream_refuse(struct cwb_stream *stream, uint64_t id, int status) {
    struct answer *answer = calloc(1, sizeof *answer);
    if (!answer) {
        tell_end(stream, true);
        return;
    }
    *answer = (struct answer){.note = {.run = give}, .stream = stream, .id = id, .status = status};
    strcpy(answer->detail, cw_detail());
    cwb_io_thread_tell(stream->io_thread, &answer->note);
}

void cwb_stream_end(struct cwb_stream *stream) {
    tell_end(stream, false);
}

static void run_free(struct cwb_note *note) {
    free((char *)note - offsetof(struct cwb_stream, free));
}

void cwb_stream_free(struct cwb_stream *stream) {
    stream->free.run = run_free;
    cwb_io_thread_tell(stream->io_thread, &stream->free);
}

/* ---- time ---- */

/* Its READs are not answered. Downloads find that out first (download.c), and let go of what is
 * here.
 */
static bool stalls(const struct cwb_stream *stream, int64_t now_ns) {
    const int64_t stall_ns = stream->bridge->options.stall_ns;
    return stall_ns && stream->ask_count && now_ns - stream->moved_ns >= 2 * stall_ns;
}

void cwb_io_thread_tick(struct cwb_io_thread *io_thread) {
    struct cwb_stream *stream, *next;
    int64_t now_ns = io_thread->loop.now_ns;
    for (stream = io_thread->streams; stream; stream = next) {
        next = stream->thread_next;
        if (stream->wire.ended)
            continue;
        if (now_ns - stream->wire.heard_ns >= CWB_SILENCE_NS) {
            cw_fail(-EREMOTEIO,
                    "nothing was heard for %d s: the node is stopped, or the network is cut",
                    (int)(CWB_SILENCE_NS / 1000000000));
            end(stream);
        } else if (stalls(stream, now_ns)) {
            cw_fail(-EREMOTEIO, "nothing came of what was asked for over it");
            end(stream);
        } else if (stream->dialed && now_ns - stream->used_ns >= CWB_STREAM_IDLE_NS) {
            cw_fail(-ECONNRESET, "nothing was to be read over it");
            end(stream);
        } else if (stream->heard && !stream->ping_id && now_ns - stream->pinged_ns >= CWB_PING_NS) {
            ping(stream);
        }
    }
}
