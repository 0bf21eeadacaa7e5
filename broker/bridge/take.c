/*
 * Takes: an array of a peer, read piece by piece into an array of ours; see frame.h and parts.h.
 *
 * Invariant: each chunk is wanted, asked for, or here; the array is told to its owner only when all
 * are here and the hash over all of it is the one that the peer computed. WINDOW chunks are asked
 * for at once, which is the credit. A link that ends makes what was asked for wanted again, and the
 * take goes on over the next link with the rest, for CWB_RESUME_NS; if the peer's bridge was
 * started anew its sources are gone (-ESTALE), and the owner decides.
 *
 * The array may be a ring, of fewer bytes than come: then a chunk is asked for only when its place
 * is the take's, which it is until on_progress tells of the chunk, and again once its owner has
 * given the place back (cwb_take_landed).
 */
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "broker/bridge/parts.h"
#include "ipc/name_key.h"

#define WINDOW 16u

enum chunk { WANTED, ASKED, HERE };

struct cwb_take_state {
    struct cwb_waiter waiter; /* first: it is cast back */
    struct cwb_take *take;
    bool waits;
    uint64_t run; /* of the peer's bridge, whose number the source is */
    uint8_t *chunks, *bytes;
    uint64_t count, next, here, hashed; /* chunks; from next on all are WANTED */
    uint64_t ring, landed; /* chunks that the array has room for; that it has room for again */
    uint32_t chunk_bytes;
    struct cwb_request *asked[WINDOW];
    uint32_t asked_count;
    struct cwb_request *closing;
    XXH3_state_t *hash;
};

static void pump(struct cwb_take_state *state);

static void forget(struct cwb_take *take) {
    struct cwb_take_state *state = take->state;
    if (!state)
        return;
    for (uint32_t i = 0; i < state->asked_count; i++)
        cwb_request_forget(state->asked[i]);
    if (state->closing)
        cwb_request_forget(state->closing);
    if (state->waits)
        cwb_peer_forget(take->peer, &state->waiter);
    XXH3_freeState(state->hash);
    free(state->chunks);
    free(state);
    take->state = NULL;
}

void cwb_take_refuse(struct cwb_peer *peer, uint64_t run, uint64_t source) {
    struct cwb_link *link = cwb_peer_link(peer);
    struct cwb_close close = {.source = source, .unneeded = 1};
    struct iovec part = {&close, sizeof close};
    if (link && link->state == CWB_OPEN_LINK && peer->run == run)
        cwb_request_forget(cwb_link_ask(link, CWB_CLOSE, &part, 1, NULL, NULL));
}

/* Nobody reads the rest. */
static void give_up(const struct cwb_take *take) {
    cwb_take_refuse(take->peer, take->state->run, take->source);
}

static void finish(struct cwb_take_state *state, int status) {
    struct cwb_take *take = state->take;
    if (status && status != -EAGAIN) /* after -EAGAIN it was closed */
        give_up(take);
    forget(take);
    take->on_done(take, status);
}

static void on_link(struct cwb_waiter *waiter, struct cwb_link *link) {
    struct cwb_take_state *state = (struct cwb_take_state *)waiter;
    state->waits = false;
    if (link)
        pump(state);
    else
        finish(state, -EREMOTEIO);
}

static void await_link(struct cwb_take_state *state) {
    if (state->waits)
        return;
    state->waits = true;
    state->waiter = (struct cwb_waiter){.on_link = on_link};
    cwb_peer_await(state->take->bridge, state->take->peer, &state->waiter, CWB_RESUME_NS);
}

static uint32_t chunk_length(const struct cwb_take_state *state, uint64_t chunk) {
    uint64_t left = state->take->size_bytes - chunk * state->chunk_bytes;
    return left < state->chunk_bytes ? (uint32_t)left : state->chunk_bytes;
}

static uint8_t *place_of(const struct cwb_take_state *state, uint64_t chunk) {
    return state->bytes + chunk % state->ring * state->chunk_bytes;
}

/* What is here from the begin on without a gap is hashed. */
static void hash_on(struct cwb_take_state *state) {
    uint64_t before = state->hashed;
    while (state->hashed < state->count && state->chunks[state->hashed] == HERE) {
        XXH3_64bits_update(state->hash, place_of(state, state->hashed),
                           chunk_length(state, state->hashed));
        state->hashed++;
    }
    if (state->hashed > before && state->take->on_progress)
        state->take->on_progress(state->take, state->hashed == state->count
                                                  ? state->take->size_bytes
                                                  : state->hashed * state->chunk_bytes);
}

static void on_closed(struct cwb_request *request, const struct cwb_frame *frame) {
    struct cwb_take_state *state = request->owner;
    state->closing = NULL;
    if (!frame) {
        await_link(state);
        return;
    }
    int status = frame->head.status;
    if (status < 0)
        cw_fail(status, "%.*s", (int)frame->sentence_bytes, frame->sentence);
    else if (frame->closed.hash != XXH3_64bits_digest(state->hash))
        status = cw_fail(-EAGAIN, "the bytes that came are not those that were sent: somebody "
                                  "writes into the array while it is read");
    finish(state, status);
}

static void ask_hash(struct cwb_take_state *state, struct cwb_link *link) {
    struct cwb_close close = {.source = state->take->source};
    struct iovec part = {&close, sizeof close};
    if (!state->closing)
        state->closing = cwb_link_ask(link, CWB_CLOSE, &part, 1, on_closed, state);
}

static void on_chunk(struct cwb_request *request, const struct cwb_frame *frame) {
    struct cwb_take_state *state = request->owner;
    uint64_t chunk = request->read.offset_bytes / state->chunk_bytes;
    uint32_t i = 0;
    while (state->asked[i] != request)
        i++;
    state->asked[i] = state->asked[--state->asked_count];
    if (!frame) { /* cut: wanted again */
        state->chunks[chunk] = WANTED;
        if (chunk < state->next)
            state->next = chunk;
        await_link(state);
        return;
    }
    if (frame->head.status < 0) {
        cw_fail(frame->head.status, "%.*s", (int)frame->sentence_bytes, frame->sentence);
        finish(state, frame->head.status);
        return;
    }
    state->chunks[chunk] = HERE;
    state->here++;
    hash_on(state);
    pump(state);
}

/* Asks for what is wanted, as far as the window goes. */
static void pump(struct cwb_take_state *state) {
    struct cwb_take *take = state->take;
    struct cwb_link *link = cwb_peer_link(take->peer);
    if (!link) {
        await_link(state);
        return;
    }
    if (take->peer->run != state->run) {
        cw_fail(-ESTALE, "the bridge of %s was started anew meanwhile", take->peer->config.name);
        finish(state, -ESTALE);
        return;
    }
    while (state->asked_count < WINDOW && link->state == CWB_OPEN_LINK) {
        while (state->next < state->count && state->chunks[state->next] != WANTED)
            state->next++;
        if (state->next == state->count || state->next >= state->landed + state->ring)
            break;
        uint64_t chunk = state->next++;
        struct cwb_read read = {.source = take->source,
                                .offset_bytes = chunk * state->chunk_bytes,
                                .length_bytes = chunk_length(state, chunk)};
        state->chunks[chunk] = ASKED;
        state->asked[state->asked_count++] =
            cwb_link_read(link, &read, place_of(state, chunk), on_chunk, state);
    }
    if (state->here == state->count && link->state == CWB_OPEN_LINK)
        ask_hash(state, link);
}

void cwb_take_begin(struct cwb_take *take, uint64_t run) {
    struct cwb_link *link = cwb_peer_link(take->peer);
    struct cwb_take_state *state = calloc(1, sizeof *state);
    CW_ASSERT(state);
    take->state = state;
    state->take = take;
    state->run = run;
    state->chunk_bytes = link ? link->read_max : CWB_READ_MIN;
    state->count = (take->size_bytes + state->chunk_bytes - 1) / state->chunk_bytes;
    state->chunks = calloc(state->count, 1);
    state->hash = XXH3_createState();
    CW_ASSERT(state->chunks && state->hash);
    XXH3_64bits_reset(state->hash);
    state->bytes = cw_array_lowest(take->array);
    state->ring = take->ring_bytes ? take->ring_bytes / state->chunk_bytes : state->count;
    CW_ASSERT(state->ring);
    pump(state);
}

void cwb_take_landed(struct cwb_take *take, uint64_t bytes) {
    struct cwb_take_state *state = take->state;
    if (!state)
        return; /* all is here: it is done */
    state->landed = bytes / state->chunk_bytes;
    if (state->here < state->count)
        pump(state);
}

uint64_t cwb_take_ring_bytes(const struct cwb_take *take) {
    return take->state->ring * take->state->chunk_bytes;
}

void cwb_take_cancel(struct cwb_take *take) {
    if (take->state)
        give_up(take);
    forget(take);
}
