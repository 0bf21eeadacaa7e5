/*
 * Links: see link.h. Their life, and requests; what comes in is receive.c. If the other side dies
 * its end of the connection closes, or nothing is heard for CWB_SILENCE_NS; if this process dies
 * the kernel closes ours. Either way each side drops what the other was reading only after
 * CWB_RESUME_NS without a link, so that a cut alone loses nothing.
 */
#include "broker/bridge/link/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/bridge/link/identity.h"
#include "broker/bridge/link/idle.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/link/receive.h"
#include "broker/bridge/link/stall.h"
#include "broker/bridge/link/stream.h"
#include "broker/bridge/link/streams.h"
#include "broker/bridge/local/broker_channel.h"
#include "broker/bridge/serve/serve.h"
#include "broker/bridge/wire/send.h"
#include "shm/base/wait.h"

#define AHEAD_UNTIL 64u /* requests under way on a link: then READs come with an OPEN no more */

static void on_error(struct cwb_socket *socket, int error) {
    struct cwb_link *link = (struct cwb_link *)socket;
    cw_fail(-EREMOTEIO, "the connection broke: %s", strerror(-error));
    cwb_link_end(link);
}

static void on_closed(struct cwb_socket *socket) {
    struct cwb_link *link = (struct cwb_link *)socket;
    DL_DELETE(link->bridge->links, link);
    if (link->state == CWB_LEAVING)
        cwb_streams_arrived(link);
    else if (socket->keep)
        close(socket->fd);
    cwb_wire_deinit(&link->wire);
    cwb_link_drop_first(link);
    free(link);
}

/* The other side has shown a certificate: who is it? */
static enum cwb_known allow(struct cwb_tls_end *end, const uint8_t print[CWB_PRINT_BYTES],
                            const char *node) {
    struct cwb_link *link = (struct cwb_link *)((char *)end - offsetof(struct cwb_link, wire.tls));
    return cwb_peer_known(link->bridge, &link->peer, print, node);
}

int cwb_link_begin_tls(struct cwb_link *link) {
    link->wire.tls.allow = allow;
    int code = cwb_tls_end_init(&link->wire.tls, link->bridge->tls, !link->dialed, &link->wire.out);
    if (code == 0)
        code = cwb_tls_shake(&link->wire.tls);
    cwb_wire_touch(&link->wire);
    return code < 0 ? code : 0;
}

static void on_connected(struct cwb_socket *socket, int error) {
    struct cwb_link *link = (struct cwb_link *)socket;
    if (error) {
        cw_fail(-EREMOTEIO, "connecting to %s failed: %s", link->where, strerror(-error));
        cwb_link_end(link);
        return;
    }
    link->state = CWB_SHAKING;
    link->wire.heard_ns = link->bridge->loop.now_ns;
    cwb_io_start(link->bridge->loop.io, socket);
    if (cwb_link_begin_tls(link) < 0)
        cwb_link_end(link);
}

static const struct cwb_socket_calls calls = {on_connected, cwb_link_on_data, cwb_wire_on_sent,
                                              on_error, on_closed};

/* Of strangers one line a second, however many there are. */
static bool may_tell(struct cwb_bridge *bridge) {
    int64_t *told_ns = &bridge->unknown_told_ns, now_ns = bridge->loop.now_ns;
    if (*told_ns && now_ns - *told_ns < 1000000000)
        return false;
    *told_ns = now_ns;
    return true;
}

static struct cwb_link *link_new(struct cwb_bridge *bridge, int fd, const char *where) {
    int one = 1;
    struct cwb_link *link = calloc(1, sizeof *link);
    if (!link) {
        close(fd);
        cwb_no_memory("a connection");
        return NULL;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* only speed depends on it */
    link->wire.socket = (struct cwb_socket){.calls = &calls, .fd = fd};
    cwb_wire_init(&link->wire, &bridge->loop, &cwb_link_wire_calls);
    link->bridge = bridge;
    link->backlog_end = &link->backlog;
    link->changed_left = CWB_CHANGED_SPARE;
    strncpy(link->where, where, sizeof link->where - 1);
    DL_APPEND(bridge->links, link);
    bridge->tick_now = true; /* its limits count from now on */
    return link;
}

void cwb_link_accept(struct cwb_bridge *bridge, int fd, const char *where) {
    if (bridge->unknown == CWB_UNKNOWN_MAX) { /* the oldest of them goes */
        struct cwb_link *link;
        for (link = bridge->links; link && !(link->counted_unknown); link = link->next)
            continue;
        CW_ASSERT(link);
        cw_fail(-EDQUOT, "%u connections at once had not shown who they are", CWB_UNKNOWN_MAX);
        cwb_link_end(link);
    }
    struct cwb_link *link = link_new(bridge, fd, where);
    if (!link) {
        if (may_tell(bridge))
            cwb_log("connection from %s ended: %s", where, cw_detail());
        return;
    }
    link->state = CWB_SHAKING;
    link->counted_unknown = true;
    bridge->unknown++;
    link->limit_ns = bridge->loop.now_ns + CWB_UNKNOWN_NS;
    cwb_io_start(bridge->loop.io, &link->wire.socket);
}

struct cwb_link *cwb_link_dial(struct cwb_bridge *bridge, struct cwb_peer *peer, int fd,
                               const struct sockaddr *address, socklen_t length,
                               const char *where) {
    struct cwb_link *link = link_new(bridge, fd, where);
    if (!link)
        return NULL;
    link->state = CWB_DIALING;
    link->dialed = true;
    link->peer = peer;
    link->limit_ns = bridge->loop.now_ns + CWB_DIAL_NS;
    cwb_io_connect(bridge->loop.io, &link->wire.socket, address, length);
    return link;
}

struct cwb_link *cwb_link_dial_stream(struct cwb_stream *stream, int fd,
                                      const struct sockaddr *address, socklen_t length,
                                      const char *where) {
    struct cwb_link *link = cwb_link_dial(stream->bridge, stream->peer, fd, address, length, where);
    if (link)
        link->stream = stream;
    return link;
}

void cwb_link_leave(struct cwb_link *link) {
    link->state = CWB_LEAVING;
    link->wire.ended = true; /* here */
    link->wire.socket.keep = true;
    cwb_io_close(link->bridge->loop.io, &link->wire.socket);
}

/* ---- the end ---- */

static void fail_requests(struct cwb_link *link, const char *reason) {
    struct cwb_request *request, *next;
    link->ahead.source = 0;
    HASH_ITER(hh, link->requests, request, next) {
        HASH_DEL(link->requests, request);
        cwb_link_untime(request);
        cw_fail(-EREMOTEIO, "%s", reason);
        if (request->on_reply)
            request->on_reply(request, NULL);
        free(request->frame);
        free(request);
    }
}

static void log_end(struct cwb_link *link, bool unknown, const char *reason) {
    if (link->bridge->stopping)
        return;
    /* Unknown: also who showed a peer's certificate, and not that it has the key. */
    if (unknown && !may_tell(link->bridge))
        return;
    if (link->peer && !cwb_peer_may_log(link->bridge, link->peer))
        return;
    cwb_log("connection %s %s%s%s ended: %s", link->dialed ? "to" : "from", link->where,
            link->peer ? ", peer " : "", link->peer ? link->peer->config.name : "", reason);
}

/* No more comes or goes over it, and it counts for nothing. */
static void shut(struct cwb_link *link, enum cwb_link_state was, const char *reason) {
    link->state = CWB_ENDED;
    cwb_wire_end(&link->wire);
    /* A dialed link's repeated failures are told once, by peer.c. */
    if (was == CWB_OPEN_LINK || !link->dialed)
        log_end(link, link->counted_unknown, reason);
    link->bridge->unknown -= link->counted_unknown;
    link->counted_unknown = false;
}

static void hang_up(struct cwb_link *link) {
    /* Why it ends (an alert of TLS) is told if that takes no waiting. */
    if (link->wire.out.used && !link->wire.sending)
        (void)!send(link->wire.socket.fd, link->wire.out.data, link->wire.out.used,
                    MSG_DONTWAIT | MSG_NOSIGNAL);
    cwb_io_close(link->bridge->loop.io, &link->wire.socket);
}

void cwb_link_end(struct cwb_link *link) {
    char reason[CW_DETAIL_MAX];
    if (link->state == CWB_ENDED)
        return;
    enum cwb_link_state was = link->state;
    if (link->parting)
        cw_fail(-EREMOTEIO, "it was idle");
    strcpy(reason, cw_detail());
    shut(link, was, reason);
    if (link->stream)
        cwb_streams_lost(link, reason);
    else if (link->peer)
        cwb_peer_ended(link, was, reason);
    fail_requests(link, reason);
    cwb_serve_end(link);
    if (link->wire.tls.ssl && was == CWB_OPEN_LINK)
        cwb_tls_bye(&link->wire.tls);
    hang_up(link);
}

void cwb_link_end_stream(struct cwb_link *link, const char *reason) {
    CW_ASSERT(link->stream && link->state != CWB_ENDED && !link->requests && !link->served);
    shut(link, link->state, reason);
    cwb_streams_lost(link, reason);
    hang_up(link);
}

/* ---- requests ---- */

/* NULL: there is no memory. */
static struct cwb_request *expect(struct cwb_link *link, uint64_t id, uint16_t op) {
    struct cwb_request *request = calloc(1, sizeof *request);
    if (request) {
        request->id = id;
        request->op = op;
        request->link = link;
        HASH_ADD(hh, link->requests, id, sizeof request->id, request);
    }
    if (request && CWD_ADDED(request))
        return request;
    free(request);
    cwb_no_memory("a request to a peer");
    return NULL;
}

static struct cwb_request *request_new(struct cwb_link *link, uint16_t op, cwb_on_reply *on_reply,
                                       void *owner) {
    CW_ASSERT(link->state == CWB_OPEN_LINK);
    struct cwb_request *request = expect(link, ++link->next_id, op);
    if (op != CWB_PING && op != CWB_IDLE)
        cwb_link_use(link);
    if (request) {
        request->on_reply = on_reply;
        request->owner = owner;
    }
    return request;
}

/* For how many it counts. With an OPEN come its READs and the CLOSE. */
static uint32_t weight(const struct cwb_request *request) {
    if (request->op == CWB_OPEN && request->ahead)
        return request->ahead + 2;
    return request->op != CWB_WAIT;
}

/* Those that the other side has promised to take at once go without waiting. */
static bool may_go(const struct cwb_link *link, const struct cwb_request *request) {
    return request->op == CWB_WAIT || request->op == CWB_PING ||
           (!link->backlog && link->request_count + weight(request) <= link->requests_max);
}

/* The request; NULL: there is no memory, and it is gone. */
static struct cwb_request *send_request(struct cwb_request *request, const struct iovec *parts,
                                        uint32_t count) {
    if (!request)
        return NULL;
    struct cwb_link *link = request->link;
    struct cw_message head = {
        .size_bytes = cwb_frame_bytes(parts, count), .op = request->op, .id = request->id};
    if (may_go(link, request)) {
        link->request_count += weight(request);
        cwb_link_time(request);
        cwb_wire_frame(&link->wire, &head, parts, count);
        return request;
    }
    request->frame = malloc(head.size_bytes);
    if (!request->frame) {
        HASH_DEL(link->requests, request);
        free(request);
        cwb_no_memory("a request to a peer");
        return NULL;
    }
    cwb_frame_fill(request->frame, &head, parts, count);
    *link->backlog_end = request;
    link->backlog_end = &request->backlog_next;
    return request;
}

void cwb_link_answered(struct cwb_link *link, const struct cwb_request *request) {
    link->request_count -= weight(request);
    if (request->closing)
        request->closing->ahead--;
    /* An OPEN gives back what was never answered of what came with it; of the backlog nothing comes
     * with any, and each weighs one. */
    for (struct cwb_request *next;
         (next = link->backlog) && link->request_count < link->requests_max;) {
        struct cw_message head;
        memcpy(&head, next->frame, sizeof head);
        link->backlog = next->backlog_next;
        if (!link->backlog)
            link->backlog_end = &link->backlog;
        link->request_count++;
        cwb_wire_write(&link->wire, next->frame, head.size_bytes);
        free(next->frame);
        next->frame = NULL;
        cwb_link_time(next);
    }
}

struct cwb_request *cwb_link_ask(struct cwb_link *link, uint16_t op, const struct iovec *parts,
                                 uint32_t count, cwb_on_reply *on_reply, void *owner) {
    return send_request(request_new(link, op, on_reply, owner), parts, count);
}

struct cwb_request *cwb_link_open(struct cwb_link *link, struct cwb_key *key, const char *text,
                                  uint32_t bytes, bool ahead, cwb_on_reply *on_reply, void *owner) {
    struct iovec parts[] = {{key, sizeof *key}, {(void *)(uintptr_t)text, bytes}};
    struct cwb_request *request = request_new(link, CWB_OPEN, on_reply, owner);
    if (!request)
        return NULL;
    link->changed_left += key->flags & CWB_WATCH;
    request->may_refer = key->flags & CWB_REFER;
    /* Who has much under way waits for bytes anyway. */
    request->ahead = ahead ? CWB_AHEAD_MAX : 0;
    if (link->request_count >= AHEAD_UNTIL || !may_go(link, request))
        request->ahead = 0;
    key->flags |= request->ahead << CWB_AHEAD_SHIFT;
    if (request->ahead)
        link->next_id += request->ahead + 1;
    return send_request(request, parts, 2);
}

uint32_t cwb_link_piece_bytes(const struct cwb_link *link) {
    return link->read_max / CWB_READ_MIN * CWB_READ_MIN;
}

struct cwb_read cwb_link_piece(const struct cwb_link *link, uint64_t source, uint64_t size_bytes,
                               uint32_t number) {
    uint32_t piece = cwb_link_piece_bytes(link);
    uint64_t from = (uint64_t)number * piece, left = size_bytes - from;
    return (struct cwb_read){.source = source,
                             .offset_bytes = from,
                             .length_bytes = left < piece ? (uint32_t)left : piece};
}

int cwb_link_refused(const struct cwb_peer *peer, const struct cwb_frame *frame) {
    return cw_fail(frame->head.status, "on node %s: %.*s", peer->config.name,
                   (int)frame->sentence_bytes, frame->sentence);
}

/* One that came with an OPEN: it was sent. */
static struct cwb_request *expect_sent(struct cwb_link *link, uint64_t id, uint16_t op) {
    struct cwb_request *request = expect(link, id, op);
    if (request)
        link->request_count++;
    return request;
}

int cwb_link_expect(struct cwb_link *link, const struct cwb_request *request,
                    const struct cwb_opened *opened) {
    struct cwb_ahead *ahead = &link->ahead;
    const uint64_t piece = cwb_link_piece_bytes(link), size = opened->size_bytes;
    *ahead = (struct cwb_ahead){.source = 0};
    if (opened->ahead == 0)
        return 0;
    if (opened->ahead > request->ahead || opened->ahead > (size + piece - 1) / piece)
        return cw_fail(-EPROTO, "%u pieces of an array of %llu bytes, of which %u were asked for",
                       opened->ahead, (unsigned long long)size, request->ahead);
    ahead->source = opened->source;
    ahead->count = opened->ahead;
    for (uint32_t i = 0; i < ahead->count; i++) {
        ahead->reads[i] = expect_sent(link, request->id + 1 + i, CWB_READ);
        if (!ahead->reads[i])
            return -EDQUOT; /* the link ends, and all of it with that */
        ahead->reads[i]->read = cwb_link_piece(link, opened->source, size, i);
    }
    if (ahead->count * piece < size)
        return 0;
    ahead->closing = expect_sent(link, request->id + 1 + ahead->count, CWB_CLOSE);
    if (!ahead->closing)
        return -EDQUOT;
    ahead->closing->ahead = ahead->count;
    for (uint32_t i = 0; i < ahead->count; i++)
        ahead->reads[i]->closing = ahead->closing;
    return 0;
}

struct cwb_request *cwb_link_read(struct cwb_link *link, const struct cwb_read *read,
                                  uint8_t *target, cwb_on_reply *on_reply, void *owner) {
    struct iovec part = {(void *)(uintptr_t)read, sizeof *read};
    struct cwb_request *request = request_new(link, CWB_READ, on_reply, owner);
    if (!request)
        return NULL;
    request->read = *read;
    request->target = target;
    return send_request(request, &part, 1);
}

void cwb_request_forget(struct cwb_request *request) {
    request->on_reply = NULL;
    request->owner = NULL;
    request->target = NULL;
    if (request->link->reading == request)
        request->link->wire.target = NULL; /* the rest of its data goes nowhere */
}

void cwb_link_say(struct cwb_link *link, uint16_t op, const struct iovec *parts, uint32_t count) {
    struct cw_message head = {
        .size_bytes = cwb_frame_bytes(parts, count), .op = op, .id = ++link->next_id};
    cwb_wire_frame(&link->wire, &head, parts, count);
}

void cwb_link_reply(struct cwb_link *link, uint16_t op, uint64_t id, int status, const char *detail,
                    const struct iovec *parts, uint32_t count) {
    cwb_broker_channel_check(link->bridge->broker_channel);
    cwb_wire_reply(&link->wire, op, id, status, detail, parts, count);
}

/* ---- time ---- */

static void on_pong(struct cwb_request *request, const struct cwb_frame *frame) {
    struct cwb_link *link = request->link;
    link->pings--;
    if (frame)
        link->rtt_ns = cw_now_ns() - link->ping_sent_ns; /* the loop's time is the turn's begin */
}

int64_t cwb_links_tick(struct cwb_bridge *bridge) {
    struct cwb_link *link, *next;
    int64_t due_ns = INT64_MAX;
    DL_FOREACH_SAFE(bridge->links, link, next) {
        int64_t at_ns = INT64_MAX;
        if (link->state == CWB_ENDED || link->state == CWB_LEAVING)
            continue;
        if (link->state != CWB_OPEN_LINK) {
            at_ns = link->limit_ns;
            if (bridge->loop.now_ns >= at_ns) {
                cw_fail(-EREMOTEIO, "%s in %d s",
                        link->state == CWB_DIALING   ? "no connection came"
                        : link->state == CWB_SHAKING ? "no TLS handshake came to its end"
                        : link->state == CWB_PROVING ? "nothing came after its HELLO"
                                                     : "no HELLO came",
                        (int)((link->dialed ? CWB_DIAL_NS : CWB_UNKNOWN_NS) / 1000000000));
                cwb_link_end(link);
                continue;
            }
        } else if (bridge->loop.now_ns - link->wire.heard_ns >= CWB_SILENCE_NS) {
            cw_fail(-EREMOTEIO,
                    "nothing was heard for %d s: the node is stopped, or the network is cut",
                    (int)(CWB_SILENCE_NS / 1000000000));
            cwb_link_end(link);
            continue;
        } else {
            if (bridge->loop.now_ns - link->pinged_ns >= CWB_PING_NS) {
                link->pinged_ns = bridge->loop.now_ns;
                link->ping_sent_ns = cw_now_ns();
                if (cwb_link_ask(link, CWB_PING, NULL, 0, on_pong, NULL)) /* or the next one */
                    link->pings++;
                cwb_link_expire(link);
            }
            at_ns = link->pinged_ns + CWB_PING_NS;
            if (link->wire.heard_ns + CWB_SILENCE_NS < at_ns)
                at_ns = link->wire.heard_ns + CWB_SILENCE_NS;
            int64_t idle_ns = cwb_link_idle_tick(link);
            at_ns = idle_ns < at_ns ? idle_ns : at_ns;
        }
        due_ns = at_ns < due_ns ? at_ns : due_ns;
    }
    return due_ns;
}
