/*
 * The streams of each peer, as the bridge's loop sees them: how many there are to be, dialing,
 * letting in, handing over to I/O threads, and their end. See stream.h for one stream.
 *
 * How many connections a peer's large arrays go over is the smaller of both sides' --streams; with
 * one it is the link, which from two on stands beside them. Each side says its number after the
 * HELLOs. The side that dialed the link dials the streams, since the other may not be able to: in
 * the first moment in which an array of CWB_STREAM_BYTES or more is to go either way. A try that
 * fails is repeated after STREAM_PAUSE_NS, while large arrays are wanted; nothing waits for it,
 * they go over what there is.
 */
#include "broker/bridge/link/streams.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/download.h"
#include "broker/bridge/fetch/transfer_plan.h"
#include "broker/bridge/io/helpers.h"
#include "broker/bridge/io/io.h"
#include "broker/bridge/io/io_thread.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/link/stream.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/staging.h"
#include "broker/bridge/wire/wire.h"

#define STREAM_PAUSE_NS 1000000000

static uint32_t count_of(const struct cwb_peer *peer) {
    const struct cwb_stream *stream;
    uint32_t count = 0;
    for (stream = peer->streams; stream; stream = stream->next)
        count++;
    return count;
}

bool cwb_streams_open(const struct cwb_peer *peer) {
    const struct cwb_stream *stream = peer->streams;
    while (stream && !stream->open)
        stream = stream->next;
    return stream != NULL;
}

/* ---- what is agreed ---- */

/* All connections to one peer, as STREAMS counts them: the link, and the streams beside it. */
static uint32_t connections(const struct cwb_bridge *bridge) {
    return bridge->options.streams > 1 ? bridge->options.streams + 1 : 1;
}

void cwb_streams_met(struct cwb_link *link, uint64_t run) {
    struct cwb_streams_said said = {.streams = connections(link->bridge)};
    struct iovec part = {&said, sizeof said};
    if (link->peer->run != run)
        cwb_streams_end(link->peer);
    link->peer->streams_max = 1; /* until it says more */
    cwb_link_say(link, CWB_STREAMS, &part, 1);
}

void cwb_streams_agree(struct cwb_link *link, uint32_t streams) {
    uint32_t ours = connections(link->bridge);
    link->peer->streams_max = streams < ours ? streams : ours;
    link->bridge->tick_now = true; /* a large array may be wanted already */
}

/* ---- one stream ---- */

static void drop(struct cwb_stream *stream) {
    struct cwb_peer *peer = stream->peer;
    DL_DELETE(peer->streams, stream);
    cwb_wire_counts(&stream->wire, &peer->bytes_in, &peer->bytes_out);
}

static void on_opened(struct cwb_work *work) {
    struct cwb_stream *stream =
        (struct cwb_stream *)((char *)work - offsetof(struct cwb_stream, opened));
    stream->open = true;
    stream->opened_ns = stream->bridge->loop.now_ns;
    cwb_downloads_spread(stream->peer);
}

static void on_ended(struct cwb_work *work) {
    struct cwb_stream *stream =
        (struct cwb_stream *)((char *)work - offsetof(struct cwb_stream, ended));
    struct cwb_bridge *bridge = stream->bridge;
    if (cwb_peer_may_log(bridge, stream->peer))
        cwb_log("stream %s %s, peer %s ended: %s", stream->dialed ? "to" : "from", stream->where,
                stream->peer->config.name, work->detail);
    stream->peer->streams_after_ns = bridge->loop.now_ns + STREAM_PAUSE_NS;
    bridge->tick_now = true;
    stream->open = false;
    cwb_stagings_forget(bridge, stream);
    struct cwb_peer *peer = stream->peer;
    drop(stream);
    if (!cwb_streams_open(peer))
        cwb_downloads_spread(peer);
    cwb_stream_free(stream); /* the last that its I/O thread is told of it */
}

static struct cwb_stream *stream_new(struct cwb_bridge *bridge, struct cwb_peer *peer, bool dialed,
                                     const char *where) {
    struct cwb_stream *stream = calloc(1, sizeof *stream);
    if (!stream) {
        cwb_no_memory("a stream");
        return NULL;
    }
    stream->bridge = bridge;
    stream->peer = peer;
    stream->dialed = dialed;
    stream->opened.done = on_opened;
    stream->ended.done = on_ended;
    snprintf(stream->where, sizeof stream->where, "%s", where);
    DL_APPEND(peer->streams, stream);
    return stream;
}

/* The I/O thread with the fewest streams of this peer; made if it is not there. */
static int find_io_thread(struct cwb_stream *stream) {
    struct cwb_bridge *bridge = stream->bridge;
    uint32_t least = UINT32_MAX, best = 0;
    for (uint32_t i = 0; i < bridge->options.streams; i++) {
        uint32_t count = 0;
        const struct cwb_stream *other;
        for (other = stream->peer->streams; other; other = other->next)
            count += other->io_thread && other->io_thread == bridge->io_threads[i];
        if (count < least) {
            least = count;
            best = i;
        }
    }
    if (!bridge->io_threads[best]) {
        bool use_epoll = strcmp(cwb_io_kind(bridge->loop.io), "epoll") == 0;
        int code = cwb_io_thread_new(use_epoll, &bridge->io_threads[best]);
        if (code)
            return code;
    }
    stream->io_thread = bridge->io_threads[best];
    return 0;
}

void cwb_streams_arrived(struct cwb_link *link) {
    struct cwb_stream *stream = link->stream;
    struct cwb_peer *peer = stream->peer;
    int code = find_io_thread(stream);
    stream->link = NULL;
    if (code || !peer->link) {
        if (code)
            cwb_log("a stream to %s cannot be had: %s", peer->config.name, cw_detail());
        close(link->wire.socket.fd);
        peer->streams_after_ns = link->bridge->loop.now_ns + CWB_STREAM_IDLE_NS;
        drop(stream);
        free(stream);
        return;
    }
    stream->read_max = peer->link->read_max;
    cwb_wire_move(&link->wire, &stream->wire, &stream->io_thread->loop, NULL);
    cwb_stream_begin(stream);
}

void cwb_streams_lost(struct cwb_link *link, const char *reason) {
    struct cwb_stream *stream = link->stream;
    struct cwb_peer *peer = stream->peer;
    if (stream->dialed && peer->link)
        cwb_log("a stream to %s at %s cannot be had: %s", peer->config.name, link->where, reason);
    peer->streams_after_ns = link->bridge->loop.now_ns + STREAM_PAUSE_NS;
    link->stream = NULL;
    link->bridge->tick_now = true;
    cwb_wire_counts(&link->wire, &peer->bytes_in, &peer->bytes_out);
    drop(stream);
    free(stream);
}

int cwb_streams_accept(struct cwb_link *link, const struct cwb_frame *frame) {
    struct cwb_bridge *bridge = link->bridge;
    struct cwb_peer *peer = link->peer;
    if (!peer->link || frame->stream.to_run != bridge->run || frame->stream.run != peer->run)
        return cw_fail(-EPERM, "a stream without an open connection of the same two bridges");
    if (count_of(peer) + 1 >= connections(bridge))
        return cw_fail(-EDQUOT,
                       "%u connections for large arrays, beside the link, are what the node %s has "
                       "for each peer; `--streams` there makes it more (at most %u)",
                       connections(bridge) - 1, bridge->node, CW_STREAMS_MAX);
    link->stream = stream_new(bridge, peer, false, link->where);
    if (!link->stream)
        return -EDQUOT;
    link->stream->link = link;
    link->stream->began_with = frame->head.id;
    return 0;
}

/* ---- all of a peer ---- */

void cwb_streams_read(struct cwb_peer *peer, struct cwb_transfer_plan *plan) {
    struct cwb_stream *stream;
    uint32_t open = 0;
    DL_FOREACH(peer->streams, stream) {
        open += stream->open;
    }
    cwb_transfer_plan_readers(plan, open);
    DL_FOREACH(peer->streams, stream) {
        if (stream->open)
            cwb_stream_read(stream, plan);
    }
}

void cwb_streams_end(struct cwb_peer *peer) {
    struct cwb_stream *stream, *next;
    DL_FOREACH_SAFE(peer->streams, stream, next) {
        if (stream->io_thread)
            cwb_stream_end(stream);
        else if (stream->link)
            cwb_link_end_stream(stream->link, "the peer has no other connection any more");
    }
}

void cwb_streams_want(struct cwb_bridge *bridge, struct cwb_peer *peer) {
    peer->streams_until_ns = bridge->loop.now_ns + CWB_STREAM_IDLE_NS;
    if (peer->streams_max > count_of(peer) + 1 && peer->streams_after_ns <= bridge->loop.now_ns)
        bridge->tick_now = true;
}

/* ---- dialing ---- */

static void dial(struct cwb_bridge *bridge, struct cwb_peer *peer, const struct cwb_link *along) {
    struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
    socklen_t length = sizeof address;
    if (getpeername(along->wire.socket.fd, (struct sockaddr *)&address, &length) < 0)
        return; /* it is ending; the next tick knows */
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        peer->streams_after_ns = bridge->loop.now_ns + STREAM_PAUSE_NS;
        return;
    }
    struct cwb_stream *stream = stream_new(bridge, peer, true, along->where);
    if (!stream) {
        close(fd);
        peer->streams_after_ns = bridge->loop.now_ns + STREAM_PAUSE_NS;
        return;
    }
    stream->link =
        cwb_link_dial_stream(stream, fd, (struct sockaddr *)&address, length, along->where);
    if (stream->link)
        return;
    peer->streams_after_ns = bridge->loop.now_ns + STREAM_PAUSE_NS;
    drop(stream);
    free(stream);
}

int64_t cwb_streams_tick(struct cwb_bridge *bridge) {
    int64_t due_ns = INT64_MAX, now_ns = bridge->loop.now_ns;
    for (struct cwb_peer *peer = bridge->met; peer; peer = peer->met_next) {
        if (peer->downloads)
            peer->streams_until_ns = now_ns + CWB_STREAM_IDLE_NS;
        if (!peer->link || peer->streams_max < 2 || peer->streams_until_ns <= now_ns)
            continue;
        uint32_t count = count_of(peer);
        if (count + 1 >= peer->streams_max)
            continue;
        if (peer->streams_after_ns > now_ns) {
            due_ns = peer->streams_after_ns < due_ns ? peer->streams_after_ns : due_ns;
            continue;
        }
        for (; peer->link->dialed && count + 1 < peer->streams_max; count++)
            dial(bridge, peer, peer->link);
    }
    return due_ns;
}
