/*
 * Rings: records through a ring of 64 bytes, over the wrap-around with its padding.
 *
 * The producer starts 8 bytes before the end, so that its first record needs a padding; the fourth
 * one goes where the padding stood, and fits only if the producer sees what the consumer consumed.
 * Every word of the ring is declared plain as well: what is a header in one lap is payload in the
 * next.
 */
#include <string.h>

#include "scenarios.h"
#include "shm/base/error.h"
#include "shm/session/ring.h"

#define CAPACITY 64u
#define START    56u
#define RECORDS  4u
#define PEEKS    5u

static _Alignas(64) uint8_t memory[sizeof(struct cw_ring) + CAPACITY];
static struct cw_ring *const ring = (struct cw_ring *)(void *)memory;
static struct cw_ring_producer producer;
static struct cw_ring_consumer consumer;
static struct { uint8_t written, used, consumed; /* by calls that returned */ } ghost;

static uint64_t content(unsigned number) {
    return 0x1111111111111111ull * (number + 1);
}

static void init(void) {
    static const uint64_t nothing[2];
    uint32_t type, length;
    const void *payload;
    memset(memory, 0xee, sizeof memory); /* what an earlier use left */
    cw_ring_init(ring, CAPACITY);
    cw_ring_producer_init(&producer, ring, CAPACITY);
    cw_ring_consumer_init(&consumer, ring, CAPACITY);
    while (producer.tail < START) {
        if (cw_ring_write(&producer, 9, nothing, producer.tail == 0 ? 16 : 8) != 0 ||
            cw_ring_peek(&consumer, &type, &payload, &length) != 1)
            model_fail("the ring cannot be filled alone");
        cw_ring_consume(&consumer);
    }
    for (unsigned i = 0; i < CAPACITY; i += 8)
        model_plain(ring->records + i);
}

static void produce(void) {
    for (unsigned i = 0; i < RECORDS; i++) {
        void *place;
        int code = cw_ring_reserve(&producer, 8, &place);
        if (code) {
            MODEL_CHECK(code == -EAGAIN && i == RECORDS - 1);
            return;
        }
        model_plain_write(place, content(i));
        cw_ring_commit(&producer, i + 1, 8);
        ghost.written++;
    }
}

/* Looks once; what it finds must be whole and the next one. */
static bool use(struct cw_ring_consumer *side, unsigned number) {
    uint32_t type, length;
    const void *payload;
    int code = cw_ring_peek(side, &type, &payload, &length);
    MODEL_CHECK(code == 0 || code == 1);
    if (code == 0)
        return false;
    MODEL_CHECK(type == number + 1 && length == 8);
    MODEL_CHECK(model_plain_read(payload) == content(number));
    return true;
}

static void consume(void) {
    for (unsigned i = 0; i < PEEKS; i++) {
        if (!use(&consumer, ghost.used))
            continue;
        ghost.used++;
        cw_ring_consume(&consumer);
        ghost.consumed++;
    }
}

/* Whoever reads on finds the rest: nothing lost, nothing twice but what a dead consumer had not
 * given back. */
static void rest(void) {
    struct cw_ring_consumer next;
    cw_ring_consumer_init(&next, ring, CAPACITY);
    next.head = ring->head;
    unsigned number = ghost.consumed;
    /* A dead consumer may have stored its head without having returned from the call. */
    if (model_died(1) && ghost.used > ghost.consumed && next.head == consumer.head)
        number = ghost.used;
    while (use(&next, number)) {
        number++;
        cw_ring_consume(&next);
    }
    MODEL_CHECK(number >= ghost.written && number <= ghost.written + (unsigned)model_died(0));
}

#define RING(text, says, dies)                                                                     \
    {                                                                                              \
        .name = text, .promise = says, .init = init, .final = rest, .threads = {produce, consume}, \
        .killable = dies, .ghost = &ghost, .ghost_bytes = sizeof ghost                             \
    }

const struct model_scenario model_ring_scenarios[] = {
    RING("ring", "every record once, whole and in order, over the wrap-around", 0),
    RING("ring, producer dies", "the consumer sees a prefix of whole records", 1),
    RING("ring, consumer dies", "its successor goes on where it stopped", 2),
    {.name = NULL},
};
