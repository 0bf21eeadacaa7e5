/*
 * Wires: their begin, hand-over and end; see wire.h. What comes in is receive.c, what goes out
 * send.c.
 */
#include "broker/bridge/wire/wire.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/wire/send.h"
#include "broker/bridge/wire/turns.h"
#include "shm/base/error.h"

void cwb_wire_init(struct cwb_wire *wire, struct cwb_loop *loop,
                   const struct cwb_wire_calls *calls) {
    wire->loop = loop;
    wire->calls = calls;
    wire->heard_ns = loop->now_ns;
    wire->pieces_end = &wire->pieces;
}

static void undirty(struct cwb_wire *wire) {
    struct cwb_wire **at = &wire->loop->dirty;
    if (!wire->is_dirty)
        return;
    while (*at != wire)
        at = &(*at)->dirty_next;
    *at = wire->dirty_next;
    wire->is_dirty = false;
}

void cwb_wire_deinit(struct cwb_wire *wire) {
    undirty(wire);
    cwb_wire_unhold(wire);
    free(wire->kept.data);
    wire->kept = (struct cwb_bytes){.data = NULL};
    cwb_tls_end_deinit(&wire->tls);
    free(wire->out.data);
    free(wire->flying.data);
    free(wire->body);
    wire->body = NULL;
    wire->out = wire->flying = (struct cwb_bytes){.data = NULL};
}

void cwb_wire_move(struct cwb_wire *from, struct cwb_wire *to, struct cwb_loop *loop,
                   const struct cwb_wire_calls *calls) {
    CW_ASSERT(!from->is_dirty && !from->sending && !from->pieces && !from->in_data && !from->held);
    to->loop = loop; /* another thread's: not looked into here */
    to->calls = calls;
    to->pieces_end = &to->pieces;
    cwb_tls_end_move(&from->tls, &to->tls, &to->out);
    to->socket.fd = from->socket.fd;
    to->greeted = from->greeted;
    to->heard_ns = from->heard_ns;
    to->bytes_in = from->bytes_in;
    to->bytes_out = from->bytes_out;
    to->key_updates = from->key_updates;
    to->out = from->out;
    to->body = from->body;
    to->peer_unread = from->peer_unread;
    to->all_unread = from->all_unread;
    to->unread_told = from->unread_told;
    from->peer_unread = NULL;
    from->out = (struct cwb_bytes){.data = NULL};
    from->body = NULL;
}

void cwb_wire_end(struct cwb_wire *wire) {
    struct cwb_piece *piece;
    wire->ended = true;
    cwb_wire_tell_unread(wire);
    while ((piece = wire->pieces)) {
        wire->pieces = piece->next;
        piece->on_done(piece->owner, wire->loop, &piece->read, false);
        free(piece);
    }
    wire->pieces_end = &wire->pieces;
    wire->piece_count = 0;
}

void cwb_wire_counts(struct cwb_wire *wire, uint64_t *in, uint64_t *out) {
    *in += CW_LOAD(BW1, &wire->bytes_in, relaxed);
    *out += CW_LOAD(BW1, &wire->bytes_out, relaxed);
}

uint32_t cwb_wire_key_updates(struct cwb_wire *wire) {
    return CW_LOAD(BW2, &wire->key_updates, relaxed);
}
