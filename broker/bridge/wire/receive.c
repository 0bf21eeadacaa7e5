/*
 * What comes in over a wire: bytes to TLS, TLS to frames, frames to the wire's owner. See wire.h.
 */
#include "broker/bridge/wire/receive.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "broker/bridge/memory.h"
#include "broker/bridge/tls/tls.h"
#include "broker/bridge/wire/frame.h"
#include "broker/bridge/wire/turns.h"
#include "broker/bridge/wire/wire.h"
#include "ipc/base/layout.h"
#include "shm/base/error.h"
#include "shm/base/wait.h"

#define NOWHERE_BYTES  (16u << 10)
#define BULK_BYTES     4096 /* data in smaller records cost what frames do */
#define PAGE_BYTES     4096
#define POPULATE_BYTES (16u * PAGE_BYTES) /* fewer come by faults */
#ifndef MADV_POPULATE_WRITE               /* glibc 2.34 has no name for it */
#define MADV_POPULATE_WRITE 23
#endif

static bool is_data(const struct cw_message *head) {
    return head->op == (CWB_READ | CW_OP_REPLY) && head->status == 0;
}

/* A whole frame, but for a READ's data. */
static int take_frame(struct cwb_wire *wire) {
    struct cwb_frame frame;
    if (wire->head.op & CW_OP_REPLY && wire->head.status < 0) /* a sentence, which people read */
        cw_text_clean((char *)wire->body, wire->head.size_bytes - CWB_HEAD_BYTES);
    int code = cwb_frame_parse(&wire->head, wire->body, &frame);
    return code ? code : wire->calls->on_frame(wire, &frame);
}

/* The pages of new memory come in one call, and not by a fault for each 4 KiB, which took a tenth
 * of the CPU of a transfer; to look for those that are there already took a fortieth. The kernel
 * may refuse (before Linux 5.14, or without memory): then they come by faults, as they would have.
 */
static void populate(uint8_t *target, uint32_t size_bytes) {
    uintptr_t begin = (uintptr_t)target & ~(uintptr_t)(PAGE_BYTES - 1);
    if (size_bytes >= POPULATE_BYTES)
        (void)madvise((void *)begin, (uintptr_t)target + size_bytes - begin, MADV_POPULATE_WRITE);
}

/* The begin of a READ's reply: it must be the answer to what was asked. */
static int begin_data(struct cwb_wire *wire) {
    struct cwb_frame frame;
    int code = cwb_frame_parse(&wire->head, wire->body, &frame);
    if (code == 0)
        code = wire->calls->on_data(wire, &frame, &wire->target);
    if (code)
        return code;
    if (wire->target && !wire->mapped)
        populate(wire->target, frame.read.length_bytes);
    wire->in_data = true;
    wire->data_need = frame.read.length_bytes;
    wire->data_have = 0;
    return 0;
}

/* Where the next bytes go, and how many at most. */
static uint32_t next_target(struct cwb_wire *wire, uint8_t **into) {
    /* What nobody wants any more. Nothing is ever read from it, so the wires of a thread share one;
     * it is each thread's own, since two that wrote to one would be a data race. */
    static _Thread_local uint8_t nowhere[NOWHERE_BYTES];
    if (wire->head_have < CWB_HEAD_BYTES) {
        *into = (uint8_t *)&wire->head + wire->head_have;
        return CWB_HEAD_BYTES - wire->head_have;
    }
    if (!wire->in_data) {
        *into = wire->body + wire->body_have;
        return wire->body_need - wire->body_have;
    }
    uint32_t left = wire->data_need - wire->data_have;
    if (wire->target) {
        *into = wire->target + wire->data_have;
        return left;
    }
    *into = nowhere;
    return left < NOWHERE_BYTES ? left : NOWHERE_BYTES;
}

/* So many bytes came there. */
static int advance(struct cwb_wire *wire, uint32_t count) {
    int code = 0;
    if (wire->head_have < CWB_HEAD_BYTES) {
        wire->head_have += count;
        if (wire->head_have < CWB_HEAD_BYTES)
            return 0;
        code = cwb_head_check(&wire->head, wire->greeted, CWB_READ_MAX);
        if (code)
            return code;
        wire->body_have = 0;
        wire->body_need = is_data(&wire->head) ? (uint32_t)sizeof(struct cwb_read)
                                               : wire->head.size_bytes - CWB_HEAD_BYTES;
    } else if (wire->in_data) {
        wire->data_have += count;
        if (wire->data_have < wire->data_need)
            return 0;
        wire->in_data = false;
        wire->head_have = 0;
        struct cwb_frame frame = {.head = wire->head};
        return wire->calls->on_data_end(wire, &frame);
    } else {
        wire->body_have += count;
    }
    if (wire->body_have < wire->body_need)
        return 0;
    if (is_data(&wire->head))
        return begin_data(wire);
    wire->head_have = 0;
    return take_frame(wire);
}

int cwb_wire_read_on(struct cwb_wire *wire) {
    if (!wire->body) {
        wire->body = malloc(CWB_FRAME_MAX);
        if (!wire->body)
            return cwb_no_memory("what comes over a connection");
    }
    int64_t at_ns = cw_now_ns();
    while (!wire->ended) {
        uint8_t *into;
        uint32_t room = next_target(wire, &into);
        bool asked_for = wire->in_data;
        int count = cwb_tls_read(&wire->tls, into, room);
        if (count <= 0)
            return count;
        int code = advance(wire, (uint32_t)count);
        if (code)
            return code;
        if (cwb_wire_turn_over(wire, &at_ns, !asked_for || count < BULK_BYTES))
            return 0;
    }
    return 0;
}

int cwb_wire_feed(struct cwb_wire *wire, const uint8_t *bytes, uint32_t size_bytes) {
    if (wire->held) {
        cwb_wire_keep(wire, bytes, size_bytes);
        return 0;
    }
    wire->tls.in = bytes;
    wire->tls.in_left = size_bytes;
    return cwb_wire_read_on(wire);
}

void cwb_wire_heard(struct cwb_wire *wire, uint32_t size_bytes) {
    wire->heard_ns = wire->loop->now_ns;
    CW_STORE(BW1, &wire->bytes_in, CW_LOAD(BW1, &wire->bytes_in, relaxed) + size_bytes, relaxed);
}
