/*
 * What comes in over a link: the handshake, the greeting, and frames to whom they concern. The data
 * of a READ's reply are decrypted straight into the array for which they were asked (receive.c).
 * Whatever breaks the form ends the link.
 */
#include "broker/bridge/link/receive.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/link/idle.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/link/stall.h"
#include "ipc/client.h"
#include "broker/bridge/local/once.h"
#include "broker/bridge/link/stream.h"
#include "broker/bridge/link/streams.h"
#include "broker/bridge/local/once.h"
#include "broker/bridge/serve/serve.h"
#include "broker/bridge/wire/receive.h"
#include "broker/bridge/wire/send.h"
#include "broker/bridge/wire/turns.h"
#include "shm/base/wait.h"

/* ---- the greeting ---- */

static void say_hello(struct cwb_link *link) {
    struct cwb_hello hello = {.magic = CWB_MAGIC,
                              .version_min = CWB_VERSION_MIN,
                              .version_max = CWB_VERSION,
                              .run = link->bridge->run,
                              .read_max = CWB_READ_MAX,
                              .requests_max = CWB_REQUESTS_MAX,
                              .instance = cw_client_instance(link->bridge->client),
                              .up_ns = cwb_deed_now_ns() - link->bridge->client->root->since_ns};
    strcpy(hello.node, link->bridge->node);
    struct iovec part = {&hello, sizeof hello};
    cwb_link_say(link, CWB_HELLO, &part, 1);
}

static void say_stream(struct cwb_link *link) {
    struct cwb_stream_hello hello = {
        .magic = CWB_MAGIC, .run = link->bridge->run, .to_run = link->peer->run};
    struct iovec part = {&hello, sizeof hello};
    cwb_link_say(link, CWB_STREAM, &part, 1);
}

/* Of a peer that makes connections and does not say what they are to be, or nothing over them, the
 * oldest gives way. */
static void bound_greeting(const struct cwb_link *link) {
    struct cwb_link *other, *oldest = NULL;
    uint32_t count = 0;
    DL_FOREACH(link->bridge->links, other) {
        bool waits = other->state == CWB_GREETING || other->state == CWB_PROVING;
        if (other->peer != link->peer || !waits || other->dialed)
            continue;
        oldest = oldest ? oldest : other;
        count++;
    }
    if (count < CWB_LINKS_MAX)
        return;
    cw_fail(-EDQUOT,
            "the peer has made more than %u connections without a HELLO, or a word after it",
            CWB_LINKS_MAX);
    cwb_link_end(oldest);
}

/* TLS is there, and the key is a peer's. Who dialed speaks first: it says what this is to be. */
static void greet(struct cwb_link *link) {
    if (!link->dialed)
        bound_greeting(link);
    if (link->counted_unknown)
        link->bridge->unknown--;
    link->counted_unknown = false;
    link->wire.peer_unread = &link->peer->unread_bytes;
    link->wire.all_unread = &link->bridge->unread_bytes;
    link->state = CWB_GREETING;
    link->limit_ns = link->bridge->loop.now_ns + CWB_DIAL_NS;
    if (link->stream)
        say_stream(link);
    else if (link->dialed)
        say_hello(link);
}

/* The other side has this link open, too. What is read from now on is of this connection. */
static void open_link(struct cwb_link *link) {
    cwb_peer_replace(link);
    link->state = CWB_OPEN_LINK;
    link->opened_ns = link->used_ns = link->bridge->loop.now_ns;
    cwb_streams_met(link, link->run);
    link->peer->run = link->run;
    cwb_peer_opened(link);
}

static int take_hello(struct cwb_link *link, const struct cwb_hello *hello) {
    if (link->stream)
        return cw_fail(-EPROTO, "a HELLO as the answer to a STREAM");
    link->run = hello->run;
    link->version = hello->version_max < CWB_VERSION ? hello->version_max : CWB_VERSION;
    link->read_max = hello->read_max < CWB_READ_MAX ? hello->read_max : CWB_READ_MAX;
    link->requests_max =
        hello->requests_max < CWB_REQUESTS_MAX ? hello->requests_max : CWB_REQUESTS_MAX;
    link->instance = hello->instance;
    link->since_ns = cwb_deed_since_ns(hello->up_ns);
    link->wire.greeted = true;
    if (!link->dialed) {
        int code = cwb_peer_may_open(link);
        if (code)
            return code; /* and no HELLO: it is not to take this one for open */
        say_hello(link);
    }
    if (!link->dialed && link->peer->link)
        link->state = CWB_PROVING;
    else
        open_link(link);
    return 0;
}

/* The connection is to be a stream, or may be one. */
static int take_stream(struct cwb_link *link, const struct cwb_frame *frame) {
    if (frame->head.op & CW_OP_REPLY) {
        if (!link->stream)
            return cw_fail(-EPROTO, "a reply with op %u to nothing that was asked", frame->head.op);
        if (frame->head.status < 0)
            return cw_fail(frame->head.status, "%.*s", (int)frame->sentence_bytes, frame->sentence);
    } else {
        if (link->dialed)
            return cw_fail(-EPROTO, "a STREAM from who was called");
        int code = cwb_streams_accept(link, frame);
        if (code) {
            cwb_link_reply(link, CWB_STREAM, frame->head.id, code, cw_detail(), NULL, 0);
            return code;
        }
    }
    if (link->wire.tls.in_left || SSL_has_pending(link->wire.tls.ssl) ||
        cwb_wire_unread(&link->wire))
        return cw_fail(-EPROTO, "bytes followed a STREAM before it was answered");
    cwb_link_leave(link);
    return 0;
}

/* ---- frames ---- */

/* Whose reply this is. NULL: of nothing that was asked. */
static struct cwb_request *asked(struct cwb_link *link, const struct cw_message *head) {
    struct cwb_request *request;
    HASH_FIND(hh, link->requests, &head->id, sizeof head->id, request);
    bool sent = request && !request->frame; /* what is in the backlog nobody can answer */
    return sent && request->op == (head->op & ~CW_OP_REPLY) ? request : NULL;
}

static int take_reply(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_request *request = asked(link, &frame->head);
    if (!request)
        return cw_fail(-EPROTO, "a reply with op %u to nothing that was asked", frame->head.op);
    if (request->op == CWB_CLOSE && request->ahead)
        return cw_fail(-EPROTO, "the hash of an array before its bytes");
    if (frame->referral.turn && !request->may_refer)
        return cw_fail(-EPROTO, "a referral to another node that was not asked for");
    if (request->op == CWB_OPEN && frame->head.status == 0) {
        int code = cwb_link_expect(link, request, &frame->opened);
        if (code)
            return code;
    }
    HASH_DEL(link->requests, request);
    cwb_link_untime(request);
    cwb_link_answered(link, request);
    if (request->on_reply)
        request->on_reply(request, frame);
    link->ahead.source = 0;
    free(request);
    return 0;
}

static int on_frame(struct cwb_wire *wire, const struct cwb_frame *frame) {
    struct cwb_link *link = (struct cwb_link *)wire;
    uint32_t op = frame->head.op & ~CW_OP_REPLY;
    if (link->state == CWB_PROVING)
        open_link(link);
    if (op == CWB_HELLO)
        return take_hello(link, &frame->hello);
    if (op == CWB_STREAM)
        return take_stream(link, frame);
    if (op == CWB_STREAMS) {
        cwb_streams_agree(link, frame->streams.streams);
        return 0;
    }
    if (frame->head.op & CW_OP_REPLY)
        return take_reply(link, frame);
    if (op == CWB_IDLE)
        return cwb_link_take_idle(link, frame);
    if (op != CWB_PING)
        cwb_link_use(link);
    return cwb_serve(link, frame);
}

/* The begin of a READ's reply: it must be the answer to what was asked. */
static int on_data(struct cwb_wire *wire, const struct cwb_frame *frame, uint8_t **target) {
    struct cwb_link *link = (struct cwb_link *)wire;
    struct cwb_request *request = asked(link, &frame->head);
    if (!request || memcmp(&request->read, &frame->read, sizeof frame->read) != 0)
        return cw_fail(-EPROTO, "bytes of an array came that were not asked for");
    link->reading = request;
    *target = request->target;
    return 0;
}

static int on_data_end(struct cwb_wire *wire, const struct cwb_frame *frame) {
    struct cwb_link *link = (struct cwb_link *)wire;
    link->reading = NULL;
    return take_reply(link, frame);
}

static void on_broken(struct cwb_wire *wire) {
    struct cwb_link *link = (struct cwb_link *)wire;
    if (link->state == CWB_GREETING && !link->dialed && !wire->greeted)
        say_hello(link); /* it may be of another version, and is to know which this is */
    cwb_link_end(link);
}

/* ---- bytes ---- */

void cwb_link_drop_first(struct cwb_link *link) {
    free(link->first.data);
    link->first = (struct cwb_bytes){.data = NULL};
}

/*
 * Who has not said a whole ClientHello gets a copy of what it said and nothing more: OpenSSL's
 * state is ten times that. 1: it is whole, and *bytes all that came; 0: more must come; -EPROTO,
 * or -EDQUOT.
 */
static int first_record(struct cwb_link *link, const uint8_t **bytes, uint32_t *size_bytes) {
    struct cwb_bytes *first = &link->first;
    if (first->used) { /* most come whole, and are not copied */
        int code = cwb_bytes_reserve(first, *size_bytes);
        if (code)
            return code;
        memcpy(first->data + first->used, *bytes, *size_bytes);
        first->used += *size_bytes;
        *bytes = first->data;
        *size_bytes = first->used;
    }
    const uint8_t *head = *bytes; /* 22: handshake, 3.x, length */
    uint32_t length = *size_bytes < 5 ? 0 : 5 + ((uint32_t)head[3] << 8 | head[4]);
    if (head[0] != 22 || (*size_bytes > 1 && head[1] != 3) || length > CWB_FIRST_BYTES)
        return cw_fail(-EPROTO,
                       "what came is not the begin of TLS, or a ClientHello of more than %u bytes",
                       CWB_FIRST_BYTES);
    if (length && *size_bytes >= length)
        return 1;
    if (!first->used) {
        int code = cwb_bytes_reserve(first, *size_bytes);
        if (code)
            return code;
        memcpy(first->data, *bytes, *size_bytes);
        first->used = *size_bytes;
    }
    return 0;
}

/* A server's own TLS state is made when the first record has come, not before. */
static int shake(struct cwb_link *link, const uint8_t *bytes, uint32_t size_bytes) {
    if (!link->wire.tls.ssl) {
        int code = first_record(link, &bytes, &size_bytes);
        if (code == 1)
            code = cwb_link_begin_tls(link);
        else if (code == 0)
            return 0;
        if (code)
            return code;
    }
    link->wire.tls.in = bytes;
    link->wire.tls.in_left = size_bytes;
    int code = cwb_tls_shake(&link->wire.tls);
    cwb_link_drop_first(link); /* it was read */
    cwb_wire_touch(&link->wire);
    if (code <= 0)
        return code;
    greet(link);
    return cwb_wire_read_on(&link->wire);
}

static int shake_for(struct cwb_link *link, const uint8_t *bytes, uint32_t size_bytes) {
    int64_t begun_ns = cw_now_ns();
    int code = shake(link, bytes, size_bytes);
    link->bridge->shaking_ns += cw_now_ns() - begun_ns;
    return code;
}

/* Handshakes are dear, and anybody may begin one: has there been time for this one in this turn? */
static bool may_shake(const struct cwb_link *link) {
    struct cwb_bridge *bridge = link->bridge;
    if (bridge->shaking_turn != bridge->loop.turn)
        bridge->shaking_ns = 0;
    bridge->shaking_turn = bridge->loop.turn;
    return !link->counted_unknown || bridge->shaking_ns < CWB_SHAKING_NS;
}

static int on_turn(struct cwb_wire *wire) {
    struct cwb_link *link = (struct cwb_link *)wire;
    uint32_t size_bytes = wire->tls.in_left;
    if (link->state != CWB_SHAKING)
        return cwb_wire_read_on(wire);
    if (!may_shake(link)) {
        cwb_wire_hold(wire);
        return 0;
    }
    wire->tls.in_left = 0;
    return shake_for(link, wire->tls.in, size_bytes);
}

const struct cwb_wire_calls cwb_link_wire_calls = {on_frame, on_data, on_data_end, on_broken,
                                                   on_turn};

static int take_bytes(struct cwb_link *link, const uint8_t *bytes, uint32_t size_bytes) {
    struct cwb_wire *wire = &link->wire;
    if (link->state != CWB_SHAKING)
        return cwb_wire_feed(wire, bytes, size_bytes);
    if (link->counted_unknown && wire->bytes_in > CWB_UNKNOWN_BYTES)
        return cw_fail(-EPROTO, "more than %u bytes came before it showed who it is",
                       CWB_UNKNOWN_BYTES);
    if (!wire->held && may_shake(link))
        return shake_for(link, bytes, size_bytes);
    cwb_wire_keep(wire, bytes, size_bytes);
    return 0;
}

void cwb_link_on_data(struct cwb_socket *socket, const uint8_t *bytes, uint32_t size_bytes) {
    struct cwb_link *link = (struct cwb_link *)socket;
    if (link->state == CWB_ENDED)
        return;
    if (size_bytes == 0) {
        if (link->wire.held) { /* first what it has said before */
            cwb_wire_keep(&link->wire, NULL, 0);
            return;
        }
        cw_fail(-EREMOTEIO, "the other side closed the connection");
        cwb_link_end(link);
        return;
    }
    cwb_wire_heard(&link->wire, size_bytes);
    if (take_bytes(link, bytes, size_bytes) < 0)
        on_broken(&link->wire);
}
