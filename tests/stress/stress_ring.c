/*
 * Ring and waiting under threads: a producer and a consumer over one small ring, both of which
 * sleep. Every record arrives once, whole and in order; nobody sleeps through a wake-up (the
 * runner's time limit would show it). Clean under ThreadSanitizer.
 */
#include <pthread.h>

#include "shm/base/error.h"
#include "shm/session/ring.h"
#include "tests/support.h"

#define CAPACITY 4096u

static struct cw_ring *ring;
static uint64_t records;

/* Words of record n: a length and a content that follow from n. */
static uint32_t words_of(uint64_t n) {
    return (uint32_t)(n * 2654435761u >> 7) % (n % 64 == 0 ? 120 : 8);
}

static void pause_sometimes(struct chance *chance) {
    uint64_t pick = chance_below(chance, 4096);
    if (pick == 0)
        usleep(100);
    else if (pick < 64)
        for (volatile unsigned i = 0; i < pick * 30; i++)
            ;
}

static void *produce(void *unused) {
    (void)unused;
    struct cw_ring_producer producer;
    struct chance chance = chance_init(1);
    cw_ring_producer_init(&producer, ring, CAPACITY);
    for (uint64_t n = 0; n < records; n++) {
        uint32_t words = words_of(n);
        void *payload;
        int code;
        while ((code = cw_ring_reserve(&producer, words * 8, &payload)) == -EAGAIN) {
            cw_sleeper_announce(&ring->producer);
            if (!cw_ring_has_room(&producer, words * 8))
                cw_sleeper_sleep(&ring->producer, -1);
            cw_sleeper_cancel(&ring->producer);
        }
        CW_ASSERT(code == 0);
        for (uint32_t i = 0; i < words; i++)
            ((uint64_t *)payload)[i] = n * 31 + i;
        cw_ring_commit(&producer, (uint32_t)n & 0xffff, words * 8);
        cw_sleeper_wake(&ring->consumer);
        pause_sometimes(&chance);
    }
    return NULL;
}

static void consume(void) {
    struct cw_ring_consumer consumer;
    struct chance chance = chance_init(2);
    cw_ring_consumer_init(&consumer, ring, CAPACITY);
    for (uint64_t n = 0; n < records; n++) {
        uint32_t type, length;
        const void *payload;
        int code;
        while ((code = cw_ring_peek(&consumer, &type, &payload, &length)) == 0) {
            cw_sleeper_announce(&ring->consumer);
            if (!cw_ring_has_record(&consumer))
                cw_sleeper_sleep(&ring->consumer, -1);
            cw_sleeper_cancel(&ring->consumer);
        }
        CW_ASSERT(code == 1 && type == ((uint32_t)n & 0xffff) && length == words_of(n) * 8);
        for (uint32_t i = 0; i < length / 8; i++)
            CW_ASSERT(((const uint64_t *)payload)[i] == n * 31 + i);
        cw_ring_consume(&consumer);
        cw_sleeper_wake(&ring->producer);
        pause_sometimes(&chance);
    }
}

int main(void) {
    chance_seed(); /* before there are threads */
    records = test_rounds(2000000);
    ring = aligned_alloc(64, cw_ring_size(CAPACITY));
    for (int round = 0; round < 3; round++) {
        cw_ring_init(ring, CAPACITY);
        pthread_t thread;
        CW_ASSERT(pthread_create(&thread, NULL, produce, NULL) == 0);
        consume();
        pthread_join(thread, NULL);
    }
    free(ring);
    printf("stress_ring: 3 times %llu records, none lost, torn or out of order\n",
           (unsigned long long)records);
    return 0;
}
