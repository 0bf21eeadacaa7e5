/*
 * Turns of wires: who is read when. See wire.h.
 */
#include "broker/bridge/wire/turns.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/io/io.h"
#include "broker/bridge/tls/tls.h"
#include "broker/bridge/wire/receive.h"
#include "broker/bridge/wire/send.h"
#include "broker/bridge/wire/wire.h"
#include "shm/base/error.h"
#include "shm/base/wait.h"

void cwb_wire_hold(struct cwb_wire *wire) {
    struct cwb_wire **at = &wire->loop->held;
    while (*at)
        at = &(*at)->held_next;
    *at = wire;
    wire->held_next = NULL;
    wire->held = true;
}

void cwb_wire_unhold(struct cwb_wire *wire) {
    struct cwb_wire **at = &wire->loop->held;
    if (!wire->held)
        return;
    while (*at != wire)
        at = &(*at)->held_next;
    *at = wire->held_next;
    wire->held = false;
}

/* What is left of it is in `kept`, and so many bytes of room behind it. false: there is no memory,
 * and the next flush ends it. */
static bool gather(struct cwb_wire *wire, uint32_t more) {
    struct cwb_bytes *kept = &wire->kept;
    uint32_t left = wire->tls.in_left;
    bool here = wire->held || wire->in_turn;
    int code = 0;
    if (!here) {
        const uint8_t *in = wire->tls.in;
        kept->used = 0;
        code = cwb_bytes_reserve(kept, left + more);
        if (left && code == 0)
            memcpy(kept->data, in, left);
    } else if (kept->room - kept->used < more) {
        if (left)
            memmove(kept->data, wire->tls.in, left);
        kept->used = left;
        code = cwb_bytes_reserve(kept, more);
    } else {
        return true;
    }
    if (code) {
        wire->broken = code;
        cwb_wire_touch(wire);
        left = wire->tls.in_left = 0;
    }
    kept->used = left;
    wire->tls.in = kept->data;
    return code == 0;
}

void cwb_wire_keep(struct cwb_wire *wire, const uint8_t *bytes, uint32_t size_bytes) {
    struct cwb_bytes *kept = &wire->kept;
    if (!gather(wire, size_bytes))
        return;
    if (size_bytes)
        memcpy(kept->data + kept->used, bytes, size_bytes);
    kept->used += size_bytes;
    wire->tls.in_left += size_bytes;
    wire->has_closed = wire->has_closed || size_bytes == 0;
    if (!wire->held)
        cwb_wire_hold(wire);
    if (wire->tls.in_left >= CWB_KEPT_BYTES && !wire->is_paused) {
        wire->is_paused = true;
        cwb_io_pause(wire->loop->io, &wire->socket);
    }
}

bool cwb_wire_turn_over(struct cwb_wire *wire, int64_t *at_ns, bool counts) {
    int64_t now_ns = cw_now_ns();
    if (wire->turn != wire->loop->turn)
        wire->turn_ns = 0;
    wire->turn = wire->loop->turn;
    wire->turn_ns += counts ? now_ns - *at_ns : 0;
    *at_ns = now_ns;
    if (wire->turn_ns < CWB_TURN_NS || wire->ended || wire->held)
        return false;
    if (gather(wire, 0))
        cwb_wire_hold(wire);
    return true;
}

/* All that was kept was read. */
static void rest(struct cwb_wire *wire) {
    free(wire->kept.data);
    wire->kept = (struct cwb_bytes){.data = NULL};
    if (wire->has_closed) {
        wire->has_closed = false;
        wire->socket.calls->on_data(&wire->socket, NULL, 0);
    } else if (wire->is_paused) {
        wire->is_paused = false;
        cwb_io_start(wire->loop->io, &wire->socket);
    }
}

static void take_turn(struct cwb_wire *wire) {
    wire->held = false;
    wire->in_turn = true;
    wire->heard_ns = wire->loop->now_ns; /* it has said so much that it must wait */
    int code = wire->calls->on_turn ? wire->calls->on_turn(wire) : cwb_wire_read_on(wire);
    wire->in_turn = false;
    if (wire->ended)
        return;
    if (code < 0)
        wire->calls->on_broken(wire);
    else if (!wire->held)
        rest(wire);
}

void cwb_wires_turn(struct cwb_loop *loop) {
    struct cwb_wire *wire, *last = loop->held;
    loop->turn++;
    while (last && last->held_next)
        last = last->held_next;
    for (bool more = last != NULL; more;) { /* who comes to wait meanwhile has the next turn */
        wire = loop->held;
        loop->held = wire->held_next;
        more = wire != last;
        if (wire->ended)
            wire->held = false;
        else
            take_turn(wire);
    }
}
