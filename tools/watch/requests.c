/*
 * Requests in a session's ring: see requests.h. Records never wrap, so one begins where the ring
 * does; from there they follow one another to where the broker stands, and on to the last one. Who
 * overwrites them meanwhile leaves a 0 behind what he wrote (ring.h, I1), which ends the walk.
 */
#include "tools/watch/requests.h"

#include <stdio.h>
#include <string.h>

#include "ipc/wire.h"
#include "tools/monitor.h"

#define HEADER_BYTES 8u

struct record {
    uint32_t type, length_bytes;
    const uint8_t *payload; /* shared */
};

static uint64_t record_bytes(uint32_t length_bytes) {
    return HEADER_BYTES + (((uint64_t)length_bytes + 7) & ~7ull);
}

/* The record at a position; its length with the header, or 0: there is none that can be. */
static uint64_t read_record(struct cw_ring *ring, uint64_t position, struct record *out) {
    uint64_t at = position & (CW_CHANNEL_BYTES - 1);
    /* Pairs with R1: what lies behind a header that is seen is whole, unless it is overwritten. */
    uint64_t word = CW_LOAD(MON, (cw_a64 *)(void *)(ring->records + at), acquire);
    if ((uint32_t)word == 0)
        return 0;
    *out = (struct record){(uint32_t)(word >> 32), (uint32_t)word - 1,
                           ring->records + at + HEADER_BYTES};
    uint64_t bytes = record_bytes(out->length_bytes);
    return bytes <= CW_CHANNEL_BYTES - at ? bytes : 0;
}

/* Where in its payload the key of a request stands, and its length; false: it has none. */
static bool find_key(uint32_t op, const uint8_t *body, uint32_t bytes, uint32_t *at,
                     uint32_t *length) {
    struct cw_put put;
    struct cw_key key;
    uint32_t begin = op == CW_OP_WAIT_AFTER ? offsetof(struct cw_wait_after, key)
                     : op == CW_OP_CLAIM    ? offsetof(struct cw_claim, key)
                     : op == CW_OP_PUT_TREE ? offsetof(struct cw_put_tree, put)
                                            : 0;
    if (op == CW_OP_PUT || op == CW_OP_PUT_TREE) {
        *at = begin + (uint32_t)sizeof put;
        if (bytes < *at)
            return false;
        memcpy(&put, body + begin, sizeof put);
        *length = put.key_bytes;
    } else if (op == CW_OP_REMOVE || op == CW_OP_WAIT || op == CW_OP_WAIT_AFTER ||
               op == CW_OP_CLAIM) {
        *at = begin + (uint32_t)sizeof key;
        if (bytes < *at)
            return false;
        memcpy(&key, body + begin, sizeof key);
        *length = key.key_bytes;
    } else {
        return false;
    }
    return *length <= bytes - *at;
}

static void read_key(const struct record *record, struct requests_one *out) {
    uint32_t at, length, head = sizeof(struct cw_message);
    char key[sizeof out->name_space + sizeof out->key];
    if (!find_key(record->type, record->payload + head, record->length_bytes - head, &at,
                  &length) ||
        length >= sizeof key)
        return;
    memcpy(key, record->payload + head + at, length);
    key[length] = 0;
    size_t space = strlen(key);
    if (space >= length || space >= sizeof out->name_space || length - space - 1 >= sizeof out->key)
        return;
    memcpy(out->name_space, key, space + 1);
    memcpy(out->key, key + space + 1, length - space); /* the end with it */
}

static void read_request(const struct record *record, struct requests *out) {
    struct cw_message message;
    struct cw_cancel cancel;
    struct requests_one one = {.op = record->type};
    if (record->length_bytes < sizeof message)
        return;
    memcpy(&message, record->payload, sizeof message);
    one.id = message.id;
    if (one.op == CW_OP_CANCEL && record->length_bytes >= sizeof message + sizeof cancel) {
        memcpy(&cancel, record->payload + sizeof message, sizeof cancel);
        if (cancel.id == out->wait.id)
            out->wait = (struct requests_one){.op = 0};
    }
    read_key(record, &one);
    out->last = one;
    if (*one.key && (one.op == CW_OP_WAIT || one.op == CW_OP_WAIT_AFTER || one.op == CW_OP_CLAIM))
        out->wait = one;
}

void requests_look(void *base, struct requests *out) {
    struct cw_ring *ring = cw_session_requests(base);
    struct record record;
    uint64_t head = CW_LOAD(MON, &ring->head, acquire), bytes;
    uint64_t at = head & ~(uint64_t)(CW_CHANNEL_BYTES - 1);
    memset(out, 0, sizeof *out);
    if (head % HEADER_BYTES)
        return; /* no broker's */
    while (at < head && (bytes = read_record(ring, at, &record)) != 0) {
        if (record.type != CW_RING_PADDING)
            read_request(&record, out);
        at += bytes;
    }
    if (at != head) /* overwritten meanwhile: what was read is of another lap */
        memset(out, 0, sizeof *out);
    uint64_t end = head + CW_CHANNEL_BYTES;
    for (at = head; at < end && (bytes = read_record(ring, at, &record)) != 0; at += bytes) {
        if (record.type == CW_RING_PADDING)
            continue;
        read_request(&record, out);
        out->unread++;
    }
}

const char *requests_text(uint32_t op, char *text) {
    static const char *const names[] = {
        [CW_OP_HELLO] = "connect",
        [CW_OP_SLAB_ADD] = "new memory",
        [CW_OP_SLAB_OPEN] = "open memory",
        [CW_OP_SEGMENT_OPEN] = "open segment",
        [CW_OP_LEASE_TABLE] = "lease table",
        [CW_OP_FORK] = "fork",
        [CW_OP_FENCES_ADD] = "new fences",
        [CW_OP_FENCES_OPEN] = "open fences",
        [CW_OP_FENCES_BREAK] = "fences break",
        [CW_OP_PUT] = "put",
        [CW_OP_REMOVE] = "remove",
        [CW_OP_WAIT] = "wait",
        [CW_OP_CANCEL] = "cancel",
        [CW_OP_TRANSIT_BEGIN] = "send handle",
        [CW_OP_TRANSIT_END] = "end handle",
        [CW_OP_DROP] = "drop",
        [CW_OP_SLAB_CLOSE] = "close slab",
        [CW_OP_SLAB_ADOPT] = "adopt slab",
        [CW_OP_HOLDERS] = "holders",
        [CW_OP_STOP] = "stop",
        [CW_OP_BYE] = "bye",
        [CW_OP_PING] = "ping",
        [CW_OP_TRANSIT_ANCHOR] = "tie handle",
        [CW_OP_COPY] = "copy",
        [CW_OP_MOVER_NEXT] = "next copy",
        [CW_OP_MOVER_DONE] = "copy done",
        [CW_OP_LINK] = "route",
        [CW_OP_LINK_KEEP] = "keep route",
        [CW_OP_REMOTE] = "remote",
        [CW_OP_REMOTE_NEXT] = "next remote",
        [CW_OP_REMOTE_DONE] = "remote done",
        [CW_OP_CHANGES] = "changes",
        [CW_OP_REPLICA] = "replica",
        [CW_OP_MAKE] = "make memory",
        [CW_OP_HOLDERS_OF] = "holders",
        [CW_OP_ROOM] = "room",
        [CW_OP_DEED] = "put of a peer",
        [CW_OP_GROUP] = "group blocks",
        [CW_OP_PUT_TREE] = "put tree",
        [CW_OP_FIND_VERSION] = "find version",
        [CW_OP_WAIT_AFTER] = "wait version",
        [CW_OP_CLAIM] = "claim",
        [CW_OP_RELEASE] = "release",
        [CW_OP_NEXT_VERSION] = "next version",
        [CW_OP_TRANSIT_SHARE] = "send handle",
        [CW_OP_TRANSIT_OPENED] = "open handle",
        [CW_OP_TRANSITS] = "handles",
        [CW_OP_LIMIT_SET] = "set limit",
    };
    if (op < sizeof names / sizeof *names && names[op])
        return names[op];
    text[0] = '\0';
    if (op)
        snprintf(text, 16, "op %u", op);
    return text;
}
