/*
 * What comes in over a link: bytes to TLS, TLS to frames, frames to whom they concern. The data of
 * a READ's reply are decrypted straight into the array for which they were asked. Whatever breaks
 * the form ends the link.
 */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "broker/bridge/parts.h"

#define NOWHERE_BYTES (16u << 10)

static void say_hello(struct cwb_link *link) {
    struct cwb_hello hello = {.magic = CWB_MAGIC,
                              .version_min = CWB_VERSION,
                              .version_max = CWB_VERSION,
                              .run = link->bridge->run,
                              .read_max = CWB_READ_MAX,
                              .requests_max = CWB_REQUESTS_MAX};
    strcpy(hello.node, link->bridge->node);
    struct iovec part = {&hello, sizeof hello};
    cwb_link_say(link, CWB_HELLO, &part, 1);
}

/* TLS is there, and the key is a peer's. */
static void greet(struct cwb_link *link) {
    if (link->counted_unknown)
        link->bridge->unknown--;
    link->counted_unknown = false;
    link->state = CWB_GREETING;
    link->limit_ns = link->bridge->now_ns + CWB_DIAL_NS;
    link->body = malloc(CWB_FRAME_MAX);
    CW_ASSERT(link->body);
    say_hello(link);
}

static void take_hello(struct cwb_link *link, const struct cwb_hello *hello) {
    link->read_max = hello->read_max < CWB_READ_MAX ? hello->read_max : CWB_READ_MAX;
    link->requests_max =
        hello->requests_max < CWB_REQUESTS_MAX ? hello->requests_max : CWB_REQUESTS_MAX;
    link->state = CWB_OPEN_LINK;
    link->opened_ns = link->bridge->now_ns;
    link->peer->run = hello->run;
    struct cwb_link *open;
    uint32_t count;
    DL_COUNT2(link->peer->links, open, count, peer_next);
    if (count >= CWB_LINKS_MAX) {
        cw_fail(-EDQUOT, "the peer has made more than %u connections", CWB_LINKS_MAX);
        cwb_link_end(link->peer->links);
    }
    cwb_peer_opened(link);
}

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
    HASH_DEL(link->requests, request);
    cwb_link_answered(link, request);
    if (request->on_reply)
        request->on_reply(request, frame);
    free(request);
    return 0;
}

/* A whole frame, but for a READ's data. */
static int take_frame(struct cwb_link *link) {
    struct cwb_frame frame;
    int code = cwb_frame_parse(&link->head, link->body, &frame);
    if (code)
        return code;
    if (link->head.op == CWB_HELLO) {
        take_hello(link, &frame.hello);
        return 0;
    }
    if (link->head.op & CW_OP_REPLY)
        return take_reply(link, &frame);
    return cwb_serve(link, &frame);
}

static bool is_data(const struct cw_message *head) {
    return head->op == (CWB_READ | CW_OP_REPLY) && head->status == 0;
}

/* The begin of a READ's reply: it must be the answer to what was asked. */
static int begin_data(struct cwb_link *link) {
    struct cwb_frame frame;
    int code = cwb_frame_parse(&link->head, link->body, &frame);
    struct cwb_request *request = code ? NULL : asked(link, &link->head);
    if (code)
        return code;
    if (!request || memcmp(&request->read, &frame.read, sizeof frame.read) != 0)
        return cw_fail(-EPROTO, "bytes of an array came that were not asked for");
    link->reading = request;
    link->in_data = true;
    link->data_have = 0;
    return 0;
}

/* Where the next bytes go, and how many at most. */
static uint32_t next_place(struct cwb_link *link, uint8_t **place) {
    static uint8_t nowhere[NOWHERE_BYTES]; /* what nobody wants any more */
    if (link->head_have < CWB_HEAD_BYTES) {
        *place = (uint8_t *)&link->head + link->head_have;
        return CWB_HEAD_BYTES - link->head_have;
    }
    if (!link->in_data) {
        *place = link->body + link->body_have;
        return link->body_need - link->body_have;
    }
    uint32_t left = link->reading->read.length_bytes - link->data_have;
    if (link->reading->target) {
        *place = link->reading->target + link->data_have;
        return left;
    }
    *place = nowhere;
    return left < NOWHERE_BYTES ? left : NOWHERE_BYTES;
}

/* So many bytes came there. */
static int advance(struct cwb_link *link, uint32_t count) {
    int code = 0;
    if (link->head_have < CWB_HEAD_BYTES) {
        link->head_have += count;
        if (link->head_have < CWB_HEAD_BYTES)
            return 0;
        code = cwb_head_check(&link->head, link->state == CWB_OPEN_LINK, CWB_READ_MAX);
        if (code)
            return code;
        link->body_have = 0;
        link->body_need = is_data(&link->head) ? (uint32_t)sizeof(struct cwb_read)
                                               : link->head.size_bytes - CWB_HEAD_BYTES;
    } else if (link->in_data) {
        link->data_have += count;
        if (link->data_have < link->reading->read.length_bytes)
            return 0;
        link->in_data = false;
        link->reading = NULL;
        link->head_have = 0;
        struct cwb_frame frame = {.head = link->head};
        return take_reply(link, &frame);
    } else {
        link->body_have += count;
    }
    if (link->body_have < link->body_need)
        return 0;
    if (is_data(&link->head))
        return begin_data(link);
    link->head_have = 0;
    return take_frame(link);
}

static int read_frames(struct cwb_link *link) {
    for (;;) {
        uint8_t *place;
        uint32_t room = next_place(link, &place);
        int count = cwb_tls_read(&link->tls, place, room);
        if (count <= 0)
            return count;
        int code = advance(link, (uint32_t)count);
        if (code || link->state == CWB_ENDED)
            return code;
    }
}

/* A server's own TLS state is made when the first bytes come, not before. */
static int shake(struct cwb_link *link, const uint8_t *bytes, uint32_t size_bytes) {
    if (link->counted_unknown && link->bytes_in > CWB_UNKNOWN_BYTES)
        return cw_fail(-EPROTO, "more than %u bytes came before it showed who it is",
                       CWB_UNKNOWN_BYTES);
    if (!link->tls.ssl) {
        int code = cwb_link_begin_tls(link);
        if (code)
            return code;
    }
    link->tls.in = bytes;
    link->tls.in_left = size_bytes;
    int code = cwb_tls_shake(&link->tls);
    cwb_link_touch(link);
    if (code <= 0)
        return code;
    greet(link);
    return read_frames(link);
}

static int feed(struct cwb_link *link, const uint8_t *bytes, uint32_t size_bytes) {
    if (link->state == CWB_SHAKING)
        return shake(link, bytes, size_bytes);
    link->tls.in = bytes;
    link->tls.in_left = size_bytes;
    return read_frames(link);
}

void cwb_link_on_data(struct cwb_socket *socket, const uint8_t *bytes, uint32_t size_bytes) {
    struct cwb_link *link = (struct cwb_link *)socket;
    if (link->state == CWB_ENDED)
        return;
    if (size_bytes == 0) {
        cw_fail(-EREMOTEIO, "the other side closed the connection");
        cwb_link_end(link);
        return;
    }
    link->heard_ns = link->bridge->now_ns;
    link->bytes_in += size_bytes;
    if (feed(link, bytes, size_bytes) < 0)
        cwb_link_end(link);
}
