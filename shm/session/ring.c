/*
 * The ring: see ring.h for its invariants I1 to I5.
 *
 * The producer's struct and the consumer's struct are private to one process and one thread at a
 * time; the ring itself is shared. No death needs a repair: a record is there once its header is,
 * and space is free once the head moved.
 */
#include "shm/session/ring.h"

#include <string.h>

#include "shm/base/error.h"

#define HEADER_BYTES 8u

static uint64_t record_bytes(uint32_t length_bytes) {
    return HEADER_BYTES + (((uint64_t)length_bytes + 7) & ~7ull);
}

static cw_a64 *header_at(struct cw_ring *ring, uint64_t capacity_bytes, uint64_t position) {
    return (cw_a64 *)(void *)(ring->records + (position & (capacity_bytes - 1)));
}

static uint64_t header_word(uint32_t type, uint32_t length_bytes) {
    return (uint64_t)type << 32 | ((uint64_t)length_bytes + 1);
}

size_t cw_ring_size(uint64_t capacity_bytes) {
    return sizeof(struct cw_ring) + capacity_bytes;
}

uint32_t cw_ring_max_payload(uint64_t capacity_bytes) {
    return (uint32_t)(capacity_bytes / 4);
}

static void assert_capacity(uint64_t capacity_bytes) {
    CW_ASSERT(capacity_bytes >= 64 && capacity_bytes <= CW_RING_MAX_BYTES);
    CW_ASSERT((capacity_bytes & (capacity_bytes - 1)) == 0);
}

void cw_ring_init(struct cw_ring *ring, uint64_t capacity_bytes) {
    assert_capacity(capacity_bytes);
    /* Nobody else sees the ring yet: what hands it over orders these stores. */
    CW_STORE(R0, &ring->head, 0, relaxed);
    CW_STORE(R0, &ring->consumer.asleep, 0, relaxed);
    CW_STORE(R0, &ring->consumer.core, 0, relaxed);
    CW_STORE(R0, &ring->producer.asleep, 0, relaxed);
    CW_STORE(R0, &ring->producer.core, 0, relaxed);
    ring->capacity_bytes = capacity_bytes;
    CW_STORE(R0, header_at(ring, capacity_bytes, 0), 0, relaxed);
}

void cw_ring_producer_init(struct cw_ring_producer *p, struct cw_ring *ring,
                           uint64_t capacity_bytes) {
    assert_capacity(capacity_bytes);
    *p = (struct cw_ring_producer){.ring = ring, .capacity_bytes = capacity_bytes};
}

void cw_ring_consumer_init(struct cw_ring_consumer *c, struct cw_ring *ring,
                           uint64_t capacity_bytes) {
    assert_capacity(capacity_bytes);
    *c = (struct cw_ring_consumer){.ring = ring, .capacity_bytes = capacity_bytes};
}

/* Bytes that must be free for this record: padding to the end, the record, the zero word behind it
 * (I3). */
static uint64_t room_needed(const struct cw_ring_producer *p, uint64_t record, uint64_t *padding) {
    uint64_t to_end = p->capacity_bytes - (p->tail & (p->capacity_bytes - 1));
    *padding = record > to_end ? to_end : 0;
    return *padding + record + HEADER_BYTES;
}

/* Does it fit behind the head that we know? A head that lies ahead of the tail or too far behind is
 * a lie. */
static int fits(const struct cw_ring_producer *p, uint64_t needed) {
    uint64_t used = p->tail - p->head;
    if (used > p->capacity_bytes || (p->head & 7))
        return cw_fail(-EPROTO, "ring: the consumer claims position %llu, the producer is at %llu",
                       (unsigned long long)p->head, (unsigned long long)p->tail);
    return used + needed <= p->capacity_bytes ? 0 : -EAGAIN;
}

int cw_ring_reserve(struct cw_ring_producer *p, uint32_t length_bytes, void **payload) {
    if (length_bytes > cw_ring_max_payload(p->capacity_bytes))
        return cw_fail(-EMSGSIZE,
                       "a record of %u bytes was to be written, this ring takes at most %u",
                       length_bytes, cw_ring_max_payload(p->capacity_bytes));
    uint64_t padding, needed = room_needed(p, record_bytes(length_bytes), &padding);
    if (fits(p, needed) != 0) {
        /* R6: pairs with R3: the consumer's reads of the old record come before our writes over it.
         */
        p->head = CW_LOAD(R6, &p->ring->head, acquire);
        int code = fits(p, needed);
        if (code)
            return code;
    }
    if (padding) {
        /* R0: the next header, still invisible, is 0 before the padding before it appears (I1). */
        CW_STORE(R0, header_at(p->ring, p->capacity_bytes, p->tail + padding), 0, relaxed);
        /* R7: after the zero behind it; pairs with R2. seq_cst as R1, and for the same reason: it
         * is the padding's header at which a consumer that goes to sleep looks last (R4). */
        CW_STORE(R7, header_at(p->ring, p->capacity_bytes, p->tail),
                 header_word(CW_RING_PADDING, (uint32_t)(padding - HEADER_BYTES)), seq_cst);
        p->tail += padding;
    }
    *payload = (uint8_t *)header_at(p->ring, p->capacity_bytes, p->tail) + HEADER_BYTES;
    return 0;
}

void cw_ring_commit(struct cw_ring_producer *p, uint32_t type, uint32_t length_bytes) {
    uint64_t size = record_bytes(length_bytes);
    CW_ASSERT(type != CW_RING_PADDING);
    /* R0: the next header is 0 before this record appears (I1); R1 orders it. */
    CW_STORE(R0, header_at(p->ring, p->capacity_bytes, p->tail + size), 0, relaxed);
    /* R1: publishes payload and zero word; pairs with R2 in cw_ring_peek, else the reader may see
     * an old payload. seq_cst for W2, the look at the consumer's sleep word that follows; pairs
     * with R4. */
    CW_STORE(R1, header_at(p->ring, p->capacity_bytes, p->tail), header_word(type, length_bytes),
             seq_cst);
    p->tail += size;
}

int cw_ring_write(struct cw_ring_producer *p, uint32_t type, const void *payload,
                  uint32_t length_bytes) {
    void *place;
    int code = cw_ring_reserve(p, length_bytes, &place);
    if (code)
        return code;
    if (length_bytes)
        memcpy(place, payload, length_bytes);
    cw_ring_commit(p, type, length_bytes);
    return 0;
}

bool cw_ring_has_room(struct cw_ring_producer *p, uint32_t length_bytes) {
    uint64_t padding, needed = room_needed(p, record_bytes(length_bytes), &padding);
    /* R5: after we announced that we sleep (W1); pairs with R3, else the consumer's look at our
     * sleep word and our look at its head miss each other. */
    p->head = CW_LOAD(R5, &p->ring->head, seq_cst);
    return fits(p, needed) != -EAGAIN; /* a lie counts as room: the write then reports it */
}

/* Splits a header word; false if it cannot be. */
static bool header_parse(const struct cw_ring_consumer *c, uint64_t word, uint32_t *type,
                         uint32_t *length_bytes) {
    uint32_t low = (uint32_t)word;
    uint64_t to_end = c->capacity_bytes - (c->head & (c->capacity_bytes - 1));
    if (low == 0)
        return false;
    *length_bytes = low - 1;
    *type = (uint32_t)(word >> 32);
    if (*type == CW_RING_PADDING)
        return record_bytes(*length_bytes) == to_end;
    return *length_bytes <= cw_ring_max_payload(c->capacity_bytes) &&
           record_bytes(*length_bytes) <= to_end;
}

static void go_on(struct cw_ring_consumer *c) {
    c->head += c->advance;
    c->advance = 0;
}

/* gives_back: the space of a padding that is passed. */
static int peek(struct cw_ring_consumer *c, uint32_t *type, const void **payload,
                uint32_t *length_bytes, bool gives_back) {
    /* At most one padding lies before a record: two turns are enough, more would be a hostile
     * producer. */
    for (int turn = 0; turn < 2; turn++) {
        cw_a64 *header = header_at(c->ring, c->capacity_bytes, c->head);
        /* R2: pairs with R1: what lies behind a header that we see is whole. */
        uint64_t word = CW_LOAD(R2, header, acquire);
        if (word == 0)
            return 0;
        if (!header_parse(c, word, type, length_bytes))
            break;
        c->advance = record_bytes(*length_bytes);
        if (*type != CW_RING_PADDING) {
            *payload = (const uint8_t *)header + HEADER_BYTES;
            return 1;
        }
        if (gives_back)
            cw_ring_consume(c);
        else
            go_on(c);
    }
    return cw_fail(-EPROTO, "ring: no record can begin at position %llu as the producer wrote it",
                   (unsigned long long)c->head);
}

int cw_ring_peek(struct cw_ring_consumer *c, uint32_t *type, const void **payload,
                 uint32_t *length_bytes) {
    return peek(c, type, payload, length_bytes, true);
}

int cw_ring_look_on(struct cw_ring_consumer *copy, uint32_t *type, const void **payload,
                    uint32_t *length_bytes) {
    go_on(copy);
    return peek(copy, type, payload, length_bytes, false);
}

void cw_ring_consume(struct cw_ring_consumer *c) {
    go_on(c);
    /* R3: our reads come before the producer's next writes there; pairs with R6. seq_cst for the
     * look at the producer's sleep word that follows (W2); pairs with R5. */
    CW_STORE(R3, &c->ring->head, c->head, seq_cst);
}

bool cw_ring_has_record(struct cw_ring_consumer *c) {
    /* R4: after we announced that we sleep (W1); pairs with R1, else the producer's look at our
     * sleep word and our look at its header miss each other. */
    return CW_LOAD(R4, header_at(c->ring, c->capacity_bytes, c->head), seq_cst) != 0;
}
