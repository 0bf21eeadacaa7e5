/*
 * Downloads: an array of a peer, read piece by piece into an array of ours; see frame.h and
 * download.h.
 *
 * Invariant: each chunk is wanted, asked for, or here (transfer_plan.h); the array is told to its
 * owner only when all are here and the hash over all of it is the one that the peer computed.
 * WINDOW chunks are asked for at once over the link, which is the credit; those of CWB_STREAM_BYTES
 * and more are read by the streams of the peer as well, each by its own credit. A link or stream
 * that ends makes what was asked for over it wanted again. What came with the OPEN (link.h) is
 * taken over, if the download begins within its reply. Without a link the download waits for the
 * next one, for wait_ns at most, and goes on with the rest; if the peer's bridge was started
 * anew its uploads are gone (-ESTALE), and the owner decides.
 *
 * Nothing is asked for in vain for longer than the bridge's stall_ns: if no piece of it comes, or
 * is asked for, and none is coming, for so long while the peer is heard, the download fails
 * (-EREMOTEIO). One that waits for a link is not meant, nor one whose ring is full. A peer whose
 * bytes are not there yet for a reason of its own (a kernel that runs) says so (-EINPROGRESS), and
 * is asked again.
 *
 * The array may be a ring, of fewer bytes than come: then a chunk is asked for only when its place
 * is the download's, which it is until on_progress tells of the chunk, and again once its owner has
 * given the place back (cwb_download_consumed).
 */
#include "broker/bridge/fetch/download.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/transfer_plan.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/link/streams.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/wire/checksum.h"
#include "broker/bridge/wire/frame.h"
#include "broker/bridge/wire/wire.h"
#include "ipc/array/first_touch.h"

#define WINDOW  16u
#define LOOK_NS 1000000000 /* between looks at who brings nothing */

struct cwb_download_state {
    struct cwb_waiter waiter; /* first: it is cast back */
    struct cwb_download *download;
    bool waits;
    uint64_t run;                   /* of the peer's bridge, whose number the source is */
    struct cwb_transfer_plan *plan; /* one reference */
    struct cwb_request *asked[WINDOW];
    uint32_t asked_count;
    struct cwb_request *closing;
    uint64_t told_bytes; /* on_progress */
    bool telling;        /* within it */
    bool is_spread;      /* streams read it, too: it is on its peer's list */
    struct cwb_download_state *next, *prev;
    int64_t moved_ns; /* when a step was last seen, or nothing was asked for */
    uint64_t moves;
    struct cwb_download_state *all_next, *all_prev; /* of the bridge */
};

static void pump(struct cwb_download_state *state);
static void on_chunk(struct cwb_request *request, const struct cwb_frame *frame);

static void forget(struct cwb_download *download) {
    struct cwb_download_state *state = download->state;
    if (!state)
        return;
    for (uint32_t i = 0; i < state->asked_count; i++)
        cwb_request_forget(state->asked[i]);
    if (state->closing)
        cwb_request_forget(state->closing);
    if (state->waits)
        cwb_peer_forget(download->peer, &state->waiter);
    if (state->is_spread)
        DL_DELETE(download->peer->downloads, state);
    DL_DELETE2(download->bridge->downloads, state, all_prev, all_next);
    cwb_transfer_plan_stop(state->plan);
    cwb_transfer_plan_unref(state->plan);
    free(state);
    download->state = NULL;
}

void cwb_download_refuse(struct cwb_peer *peer, uint64_t run, uint64_t source) {
    struct cwb_link *link = cwb_peer_link(peer);
    struct cwb_close close = {.source = source, .unneeded = 1};
    struct iovec part = {&close, sizeof close};
    if (link && link->state == CWB_OPEN_LINK && peer->run == run) /* else it ends there unread */
        (void)cwb_link_ask(link, CWB_CLOSE, &part, 1, NULL, NULL);
}

/* Nobody reads the rest. */
static void give_up(const struct cwb_download *download) {
    cwb_download_refuse(download->peer, download->state->run, download->source);
}

static void finish(struct cwb_download_state *state, int status) {
    struct cwb_download *download = state->download;
    if (status && status != -EAGAIN) /* after -EAGAIN it was closed */
        give_up(download);
    forget(download);
    download->on_done(download, status);
}

static void on_link(struct cwb_waiter *waiter, struct cwb_link *link) {
    struct cwb_download_state *state = (struct cwb_download_state *)waiter;
    state->waits = false;
    if (link)
        pump(state);
    else
        finish(state, -EREMOTEIO);
}

static void await_link(struct cwb_download_state *state) {
    if (state->waits)
        return;
    state->waits = true;
    state->waiter = (struct cwb_waiter){.on_link = on_link};
    cwb_peer_await(state->download->bridge, state->download->peer, &state->waiter,
                   state->download->wait_ns ? state->download->wait_ns : CWB_SILENCE_NS);
}

static void tell_progress(struct cwb_download_state *state) {
    struct cwb_download *download = state->download;
    uint64_t bytes = download->on_progress ? cwb_sum_prefix(state->plan->sum) : 0;
    if (bytes <= state->told_bytes)
        return;
    state->told_bytes = bytes;
    state->telling = true; /* pump may end it: that is left to who called */
    download->on_progress(download, bytes);
    state->telling = false;
}

static void on_closed(struct cwb_request *request, const struct cwb_frame *frame) {
    struct cwb_download_state *state = request->owner;
    state->closing = NULL;
    if (!frame) {
        await_link(state);
        return;
    }
    int status = frame->head.status;
    if (status < 0)
        cwb_link_refused(state->download->peer, frame);
    else if (frame->closed.hash != cwb_sum_digest(state->plan->sum))
        status = cw_fail(-EAGAIN, "the bytes that came are not those that were sent: somebody "
                                  "writes into the array while it is read");
    else /* an I/O thread that brought the last of them may not have told us yet */
        tell_progress(state);
    finish(state, status);
}

static void ask_hash(struct cwb_download_state *state, struct cwb_link *link) {
    struct cwb_close close = {.source = state->download->source};
    struct iovec part = {&close, sizeof close};
    if (state->closing)
        return;
    state->closing = cwb_link_ask(link, CWB_CLOSE, &part, 1, on_closed, state);
    if (!state->closing)
        finish(state, -EDQUOT);
}

/* The READ of a chunk that was ASKED. false: there is no memory, and the download is done. */
static bool ask_chunk(struct cwb_download_state *state, struct cwb_link *link,
                      const struct cwb_read *read) {
    struct cwb_request *request =
        cwb_link_read(link, read, cwb_transfer_plan_target(state->plan, read), on_chunk, state);
    if (request)
        state->asked[state->asked_count++] = request;
    else
        finish(state, -EDQUOT);
    return request != NULL;
}

static void on_chunk(struct cwb_request *request, const struct cwb_frame *frame) {
    struct cwb_download_state *state = request->owner;
    uint32_t i = 0;
    while (state->asked[i] != request)
        i++;
    state->asked[i] = state->asked[--state->asked_count];
    if (!frame) { /* cut: wanted again */
        cwb_transfer_plan_back(state->plan, &request->read);
        await_link(state);
        return;
    }
    if (frame->head.status == -EINPROGRESS) {
        cwb_transfer_plan_back(state->plan, &request->read);
        pump(state);
        return;
    }
    if (frame->head.status < 0) {
        finish(state, cwb_link_refused(state->download->peer, frame));
        return;
    }
    (void)cwb_transfer_plan_here(state->plan, &request->read);
    tell_progress(state);
    pump(state);
}

/* Asks for what is wanted, as far as the window goes. */
static void pump(struct cwb_download_state *state) {
    struct cwb_download *download = state->download;
    struct cwb_link *link = cwb_peer_link(download->peer);
    struct cwb_read read;
    int status = cwb_transfer_plan_status(state->plan);
    if (status) { /* what the peer said over a stream, as cwb_link_refused() */
        char said[CW_DETAIL_MAX];
        strcpy(said, cw_detail());
        finish(state, cw_fail(status, "on node %s: %s", download->peer->config.name, said));
        return;
    }
    bool by_streams = state->is_spread && cwb_streams_open(download->peer);
    if (by_streams && cwb_transfer_plan_refilled(state->plan))
        cwb_streams_read(download->peer, state->plan);
    if (!link) {
        await_link(state);
        return;
    }
    if (download->peer->run != state->run) {
        cw_fail(-ESTALE, "the bridge of %s was started anew meanwhile",
                download->peer->config.name);
        finish(state, -ESTALE);
        return;
    }
    while (!by_streams && state->asked_count < WINDOW && link->state == CWB_OPEN_LINK &&
           cwb_transfer_plan_ask(state->plan, &read))
        if (!ask_chunk(state, link, &read))
            return;
    if (cwb_transfer_plan_whole(state->plan) && link->state == CWB_OPEN_LINK)
        ask_hash(state, link);
}

/* A stream made it whole, brought more, failed it, or ended and gave something back. */
static void on_told(void *owner) {
    struct cwb_download_state *state = owner;
    tell_progress(state);
    pump(state);
}

void cwb_downloads_spread(struct cwb_peer *peer) {
    struct cwb_download_state *state;
    for (state = peer->downloads; state; state = state->next) {
        cwb_streams_read(peer, state->plan);
        cwb_transfer_plan_tell(state->plan);
    }
}

/* What came with the OPEN is ours. */
static void adopt_ahead(struct cwb_download_state *state, const struct cwb_ahead *ahead) {
    struct cwb_read read;
    for (uint32_t i = 0; i < ahead->count; i++) {
        struct cwb_request *request = ahead->reads[i];
        bool same = cwb_transfer_plan_ask(state->plan, &read) &&
                    memcmp(&read, &request->read, sizeof read) == 0;
        CW_ASSERT(same);
        request->target = cwb_transfer_plan_target(state->plan, &read);
        request->on_reply = on_chunk;
        request->owner = state;
        state->asked[state->asked_count++] = request;
    }
    state->closing = ahead->closing;
    if (!state->closing)
        return;
    state->closing->on_reply = on_closed;
    state->closing->owner = state;
}

void cwb_download_begin(struct cwb_download *download, uint64_t run) {
    struct cwb_link *link = cwb_peer_link(download->peer);
    struct cwb_download_state *state = calloc(1, sizeof *state);
    cw_array *lease = NULL;
    bool fresh = cw_fresh_take(download->array);
    /* Streams may still write when the download was given up: the memory must stay for them. */
    bool is_spread = download->size_bytes >= CWB_STREAM_BYTES &&
                     download->bridge->options.streams > 1 &&
                     cwb_local_hold(download->array, &lease) == 0;
    struct cwb_transfer_plan *plan =
        state ? cwb_transfer_plan_new(download->bridge->helpers, download->array, lease,
                                      download->source, download->size_bytes, download->ring_bytes,
                                      link ? cwb_link_piece_bytes(link) : CWB_READ_MIN)
              : NULL;
    if (!plan) {
        free(state);
        cw_array_close(lease);
        cwb_download_refuse(download->peer, run, download->source);
        download->on_done(download, cwb_no_memory("an array of another node"));
        return;
    }
    download->state = state;
    state->download = download;
    state->run = run;
    state->moved_ns = download->bridge->loop.now_ns;
    DL_APPEND2(download->bridge->downloads, state, all_prev, all_next);
    state->is_spread = is_spread;
    state->plan = plan;
    plan->fresh = fresh;
    state->plan->progress_bytes = download->on_progress ? download->progress_bytes : 0;
    state->plan->on_told = on_told;
    state->plan->owner = state;
    /* Bytes of this array may be coming already, over its OPEN. */
    if (link && link->ahead.source == download->source && !download->ring_bytes)
        adopt_ahead(state, &link->ahead);
    if (state->is_spread) {
        DL_APPEND(download->peer->downloads, state);
        cwb_streams_want(download->bridge, download->peer);
        cwb_streams_read(download->peer, state->plan);
    }
    pump(state);
}

/* Is it waited for the peer, and nothing comes? */
static bool stalls(struct cwb_download_state *state) {
    struct cwb_download *download = state->download;
    const struct cwb_link *link = cwb_peer_link(download->peer);
    const int64_t now_ns = download->bridge->loop.now_ns;
    uint64_t moves;
    bool waits = cwb_transfer_plan_wait(state->plan, &moves) || state->closing;
    if (!waits || state->waits || moves != state->moves)
        state->moved_ns = now_ns;
    else if (link && link->reading && link->reading->owner == state)
        state->moved_ns = link->wire.heard_ns; /* whatever comes is of this piece */
    state->moves = moves;
    return now_ns - state->moved_ns >= download->bridge->options.stall_ns;
}

int cwb_stalled(const struct cwb_bridge *bridge, const struct cwb_peer *peer, const char *what) {
    return cw_fail(-EREMOTEIO,
                   "the peer %s answers heartbeats, and has sent nothing %s for %lld s, which is "
                   "the most (--stall): it hangs, or is far too slow",
                   peer->config.name, what, (long long)(bridge->options.stall_ns / 1000000000));
}

int64_t cwb_downloads_tick(struct cwb_bridge *bridge) {
    struct cwb_download_state *state, *next;
    const int64_t now_ns = bridge->loop.now_ns;
    if (!bridge->downloads || !bridge->options.stall_ns)
        return INT64_MAX;
    if (now_ns - bridge->downloads_looked_ns < LOOK_NS)
        return bridge->downloads_looked_ns + LOOK_NS;
    bridge->downloads_looked_ns = now_ns;
    for (state = bridge->downloads; state; state = next) {
        next = state->all_next;
        if (!stalls(state))
            continue;
        cwb_stalled(bridge, state->download->peer, "of the array's bytes");
        finish(state, -EREMOTEIO);
        next =
            bridge->downloads; /* others may have ended with it; who is left has just been seen */
    }
    return now_ns + LOOK_NS;
}

void cwb_download_consumed(struct cwb_download *download, uint64_t bytes) {
    struct cwb_download_state *state = download->state;
    if (!state)
        return; /* all is here: it is done */
    cwb_transfer_plan_consumed(state->plan, bytes);
    if (cwb_transfer_plan_whole(state->plan))
        return;
    if (!state->telling)
        pump(state);
}

uint64_t cwb_download_ring_bytes(const struct cwb_download *download) {
    return download->state->plan->ring * download->state->plan->chunk_bytes;
}

void cwb_download_cancel(struct cwb_download *download) {
    if (download->state)
        give_up(download);
    forget(download);
}
