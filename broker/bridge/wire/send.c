/*
 * What goes out over a wire: frames and pieces into `out`, and `out` to the kernel when what was
 * sent before has gone. One piece is encrypted straight from the array's memory, slice by slice,
 * and each slice goes as soon as it can, so that the other side decrypts it while the next one is
 * encrypted; nothing comes between the slices of a piece. The first slices after a rest and the
 * last before one are smaller, since for these the other side does wait; and the last goes with
 * what is said about the piece, such as the hash over all of it, in one. See wire.h.
 */
#include "broker/bridge/wire/send.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/memory.h"

#define CWB_UNREAD_STEP (64u << 10) /* in which a wire tells what is unread */
#define SLICE_BYTES     CWB_IO_AT_ONCE_BYTES
#define SLICE_LEAST     (16u << 10)  /* a record of TLS */
#define TURN_BYTES      (1u << 20)   /* of pieces; then what came is looked at */
#define ENOUGH_BYTES    (256u << 10) /* encrypted ahead of what is being sent */
#define KEEP_BYTES      (64u << 10)  /* larger buffers are freed when the wire rests */

void cwb_wire_touch(struct cwb_wire *wire) {
    if (wire->is_dirty || wire->ended)
        return;
    wire->is_dirty = true;
    wire->dirty_next = wire->loop->dirty;
    wire->loop->dirty = wire;
}

void cwb_wire_write(struct cwb_wire *wire, const void *bytes, uint32_t size_bytes) {
    if (wire->ended)
        return; /* whoever waits was told */
    cwb_wire_touch(wire);
    int code = cwb_tls_write(&wire->tls, bytes, size_bytes);
    if (code)
        wire->broken = code; /* the flush ends it: no request ends within its own making */
}

void cwb_wire_frame(struct cwb_wire *wire, const struct cw_message *head, const struct iovec *parts,
                    uint32_t count) {
    uint8_t frame[CWB_FRAME_MAX];
    cwb_frame_fill(frame, head, parts, count);
    cwb_wire_write(wire, frame, head->size_bytes);
}

void cwb_wire_reply(struct cwb_wire *wire, uint16_t op, uint64_t id, int status, const char *detail,
                    const struct iovec *parts, uint32_t count) {
    struct iovec sentence = {(void *)(uintptr_t)detail, detail ? strlen(detail) : 0};
    if (status < 0) {
        parts = &sentence;
        count = 1;
    }
    struct cw_message head = {.size_bytes = cwb_frame_bytes(parts, count),
                              .op = (uint16_t)(op | CW_OP_REPLY),
                              .id = id,
                              .status = status};
    cwb_wire_frame(wire, &head, parts, count);
}

uint64_t cwb_wire_unread(const struct cwb_wire *wire) {
    return (uint64_t)wire->out.used + (wire->sending ? wire->flying.used : 0);
}

void cwb_wire_tell_unread(struct cwb_wire *wire) {
    uint64_t now = wire->ended ? 0 : cwb_wire_unread(wire), before = wire->unread_told;
    uint64_t moved = now > before ? now - before : before - now;
    if (!wire->peer_unread || (moved < CWB_UNREAD_STEP && now))
        return;
    if (moved == 0)
        return;
    /* BW3: a sum that several threads add to; nothing is ordered by it. */
    CW_ADD(BW3, wire->peer_unread, now - before, relaxed);
    CW_ADD(BW3, wire->all_unread, now - before, relaxed);
    wire->unread_told = now;
}

int cwb_wire_may_ask(struct cwb_wire *wire) {
    cwb_wire_tell_unread(wire);
    /* BW3: the same. */
    uint64_t unread = wire->peer_unread ? CW_LOAD(BW3, wire->peer_unread, relaxed) : 0;
    /* BW3: the same. */
    uint64_t all = unread > CWB_OUT_OWN ? CW_LOAD(BW3, wire->all_unread, relaxed) : 0;
    if (all > CWB_OUT_ALL_MAX)
        return cw_fail(-EPROTO,
                       "it asks on, and %llu bytes of answers were not read by it and %llu by all "
                       "nodes, of which there may be %u and %u (CWB_OUT_OWN, CWB_OUT_ALL_MAX)",
                       (unsigned long long)unread, (unsigned long long)all, CWB_OUT_OWN,
                       CWB_OUT_ALL_MAX);
    if (unread <= CWB_OUT_MAX)
        return 0;
    return cw_fail(-EPROTO,
                   "it asks on, and %llu bytes of answers were not read over all of its "
                   "connections, of which there may be %u (CWB_OUT_MAX)",
                   (unsigned long long)unread, CWB_OUT_MAX);
}

bool cwb_wire_send_piece(struct cwb_wire *wire, uint64_t id, const struct cwb_read *read,
                         const uint8_t *bytes, cwb_on_piece *on_done, void *owner) {
    struct cwb_piece *piece = calloc(1, sizeof *piece);
    if (!piece) {
        wire->broken = -EDQUOT;
        cwb_wire_touch(wire);
        return false;
    }
    *piece = (struct cwb_piece){
        .id = id, .read = *read, .bytes = bytes, .on_done = on_done, .owner = owner};
    *wire->pieces_end = piece;
    wire->pieces_end = &piece->next;
    wire->piece_count++;
    cwb_wire_touch(wire);
    return true;
}

static void let_go(struct cwb_bytes *bytes) {
    if (bytes->room <= KEEP_BYTES)
        return;
    free(bytes->data);
    *bytes = (struct cwb_bytes){.data = NULL};
}

/* What was encrypted goes to the kernel, if what went before is sent. */
static void launch(struct cwb_wire *wire) {
    if (wire->sending || wire->out.used == 0)
        return;
    CW_STORE(BW2, &wire->key_updates, wire->tls.key_updates, relaxed);
    struct cwb_bytes flying = wire->out;
    wire->out = wire->flying;
    wire->out.used = 0;
    wire->flying = flying;
    wire->sending = true;
    CW_STORE(BW1, &wire->bytes_out, CW_LOAD(BW1, &wire->bytes_out, relaxed) + flying.used, relaxed);
    cwb_io_send(wire->loop->io, &wire->socket, flying.data, flying.used);
}

/* last: nothing follows but what is said about the piece. */
static uint32_t slice_bytes(uint32_t left, uint32_t most, bool last) {
    if (!last || left > SLICE_BYTES || left <= SLICE_LEAST)
        return left < most ? left : most;
    uint32_t half = (left / 2 + SLICE_LEAST - 1) / SLICE_LEAST * SLICE_LEAST;
    return half < most ? half : most;
}

static int write_slices(struct cwb_wire *wire, const struct cwb_piece *piece, bool rested) {
    uint32_t left = piece->read.length_bytes, most = rested ? SLICE_LEAST : SLICE_BYTES;
    bool last = !piece->next;
    int code = 0;
    for (const uint8_t *at = piece->bytes; left && code == 0;) {
        uint32_t slice = slice_bytes(left, most, last);
        code = cwb_tls_write(&wire->tls, at, slice);
        at += slice;
        left -= slice;
        most = 2 * most < SLICE_BYTES ? 2 * most : SLICE_BYTES;
        if (code == 0 && (left || !last))
            launch(wire);
    }
    return code;
}

/* Encrypts the next piece. */
static int write_piece(struct cwb_wire *wire, bool rested) {
    struct cwb_piece *piece = wire->pieces;
    struct {
        struct cw_message head;
        struct cwb_read read;
    } begin = {.head = {.size_bytes = (uint32_t)sizeof begin + piece->read.length_bytes,
                        .op = CWB_READ | CW_OP_REPLY,
                        .id = piece->id},
               .read = piece->read};
    int code = cwb_tls_write(&wire->tls, &begin, sizeof begin);
    if (code == 0)
        code = write_slices(wire, piece, rested);
    wire->pieces = piece->next;
    if (!wire->pieces)
        wire->pieces_end = &wire->pieces;
    wire->piece_count--;
    piece->on_done(piece->owner, wire->loop, &piece->read, code == 0);
    free(piece);
    return code;
}

static void flush(struct cwb_wire *wire) {
    uint32_t turn_bytes = 0;
    if (wire->broken) {
        if (wire->broken == -EDQUOT)
            cwb_no_memory("what goes over a connection");
        else
            cw_fail(wire->broken, "TLS failed");
        wire->calls->on_broken(wire);
        return;
    }
    while (wire->pieces && wire->out.used < ENOUGH_BYTES && turn_bytes < TURN_BYTES) {
        bool rested = turn_bytes == 0 && !wire->sending && wire->out.used < SLICE_LEAST;
        turn_bytes += wire->pieces->read.length_bytes;
        if (write_piece(wire, rested) < 0) {
            wire->calls->on_broken(wire);
            return;
        }
    }
    launch(wire);
    if (!wire->sending && !wire->pieces) {
        let_go(&wire->out);
        let_go(&wire->flying);
    }
}

void cwb_wire_on_sent(struct cwb_socket *socket) {
    struct cwb_wire *wire = (struct cwb_wire *)socket;
    wire->sending = false;
    cwb_wire_tell_unread(wire);
    cwb_wire_touch(wire);
}

void cwb_wires_flush(struct cwb_loop *loop) {
    struct cwb_wire *wire, *list = loop->dirty;
    loop->dirty = NULL; /* who has more to send than may go in a turn is there again */
    while ((wire = list)) {
        list = wire->dirty_next;
        if (!wire->ended)
            flush(wire); /* what is sent within it touches nothing */
        wire->is_dirty = false;
        if (wire->pieces && wire->out.used < ENOUGH_BYTES)
            cwb_wire_touch(wire);
    }
}
