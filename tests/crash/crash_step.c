/*
 * Killed at every instruction, over shared memory alone: SIGKILL after 0, 1, 2, ... instructions of
 * writing and reading a ring and of taking, rescuing, dropping and carving, until the operation
 * ends. Exhaustive. After each kill the other side looks: the ring holds a whole prefix and takes
 * on; the lease stands in the table or does not, and nothing else changed; the broker gets the
 * block back. (crash_step_client does the same to a client of a running broker.)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <sys/mman.h>

#include "shm/blocks/block.h"
#include "shm/session/lease.h"
#include "shm/session/ring.h"
#include "tests/crash/support/every.h"
#include "tests/crash/support/step.h"
#include "tests/support.h"

#define CAPACITY 256u
#define GEN      5u
#define LIVE     CW_BLOCK_LIVE
#define WANTED   (CW_BLOCK_LIVE | CW_BLOCK_WANTED)
#define RETIRING CW_BLOCK_RETIRING

struct shared {
    struct cw_lease_table leases;
    _Alignas(64) struct cw_block block;
    _Alignas(64) uint8_t ring[sizeof(struct cw_ring) + CAPACITY];
    uint64_t before[CW_LEASE_TABLE_SLOTS];
};

static struct shared *shared;
static struct cw_ring *ring;
static struct cw_ring_producer producer; /* as they stood when the child was forked */
static struct cw_ring_consumer consumer;
static uint32_t length; /* of the record that is written */
static char payload[64];

/* ---- rings ---- */

static void expect(uint32_t type, uint32_t bytes) {
    uint32_t seen_type, seen_bytes;
    const void *seen;
    assert_int_equal(cw_ring_peek(&consumer, &seen_type, &seen, &seen_bytes), 1);
    assert_int_equal(seen_type, type);
    assert_int_equal(seen_bytes, bytes);
    if (bytes)
        assert_memory_equal(seen, payload, bytes);
    cw_ring_consume(&consumer);
}

static bool expect_or_end(uint32_t type, uint32_t bytes) {
    if (!cw_ring_has_record(&consumer))
        return false;
    uint32_t seen_type, seen_bytes;
    const void *seen;
    int code = cw_ring_peek(&consumer, &seen_type, &seen, &seen_bytes);
    assert_true(code >= 0); /* padding alone counts as nothing */
    if (code)
        expect(type, bytes);
    return code;
}

static void ring_fresh(uint32_t bytes) {
    memset(shared->ring, 0xff, sizeof shared->ring); /* old records everywhere */
    ring = (struct cw_ring *)(void *)shared->ring;
    cw_ring_init(ring, CAPACITY);
    cw_ring_producer_init(&producer, ring, CAPACITY);
    cw_ring_consumer_init(&consumer, ring, CAPACITY);
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (char)(i * 7 + 1);
    length = bytes;
}

static void ring_with_one_record(void) {
    ring_fresh(37);
    assert_int_equal(cw_ring_write(&producer, 1, payload, 8), 0);
}

/* The next record needs padding, and room that the producer does not know of yet. */
static void ring_at_its_end(void) {
    ring_fresh(48);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(cw_ring_write(&producer, 7, payload, 48), 0);
        if (i < 3)
            expect(7, 48);
    }
    assert_int_equal(producer.tail, 224);
}

static void ring_at_its_end_with_room_known(void) {
    ring_at_its_end();
    producer.head = consumer.head;
}

static void ring_whose_consumer_sleeps(void) {
    ring_with_one_record();
    cw_sleeper_announce(&ring->consumer);
}

static void write_record(void) {
    cw_ring_write(&producer, 2, payload, length);
}

static void write_empty_record(void) {
    length = 0;
    cw_ring_write(&producer, 2, NULL, 0);
}

static void write_two_records_and_wake(void) {
    cw_ring_write(&producer, 2, payload, length);
    cw_ring_write(&producer, 3, payload, 1);
    cw_sleeper_wake(&ring->consumer);
}

static void a_whole_prefix(void) {
    if (producer.tail > 128)
        expect(7, 48);
    else
        expect(1, 8);
    if (expect_or_end(2, length) && expect_or_end(3, 1))
        assert_false(expect_or_end(4, 0));
    assert_false(cw_ring_has_record(&consumer));
}

static void a_whole_prefix_without_payload(void) {
    length = 0;
    a_whole_prefix();
}

static void ring_with_two_records(void) {
    ring_fresh(37);
    assert_int_equal(cw_ring_write(&producer, 1, payload, 8), 0);
    assert_int_equal(cw_ring_write(&producer, 2, payload, 20), 0);
    cw_sleeper_announce(&ring->producer);
}

static void read_record(void) {
    uint32_t type, bytes;
    const void *at;
    if (cw_ring_peek(&consumer, &type, &at, &bytes) == 1) {
        memcpy(payload, at, bytes);
        cw_ring_consume(&consumer);
        cw_sleeper_wake(&ring->producer);
    }
}

/* A successor of the consumer sees the record again or the next one, and the producer goes on. */
static void nothing_skipped(void) {
    consumer.head = atomic_load(&ring->head);
    assert_true(consumer.head == 0 || consumer.head == 16);
    if (consumer.head == 0)
        expect(1, 8);
    expect(2, 20);
    assert_false(cw_ring_has_record(&consumer));
    assert_int_equal(cw_ring_write(&producer, 3, payload, 48), 0);
    expect(3, 48);
}

/* ---- leases and blocks ---- */

static void block_is(uint64_t bits) {
    memset(&shared->leases, 0, sizeof shared->leases);
    cw_lease_take(&shared->leases, 9, 3, 4); /* another lease, which must stay */
    atomic_store(&shared->block.word, (uint64_t)GEN << CW_BLOCK_GEN_SHIFT | bits);
    atomic_store(&shared->block.offset_bytes, 1);
    atomic_store(&shared->block.length_bytes, 1);
    memcpy(shared->before, shared->leases.slots, sizeof shared->before);
}

static void block_is_live(void) {
    block_is(LIVE);
}
static void block_is_wanted(void) {
    block_is(WANTED);
}
static void block_is_retiring(void) {
    block_is(RETIRING);
}
static void block_is_free(void) {
    block_is(CW_BLOCK_FREE);
}

static void take_and_drop(void) {
    cw_lease_take(&shared->leases, 17, 7, 11);
    if (cw_block_check(&shared->block, GEN) == 0)
        *(volatile char *)payload = 1; /* uses it */
    cw_lease_drop(&shared->leases, 17);
    (void)cw_block_drop_tells(&shared->block);
}

static void take_and_move(void) {
    cw_lease_take(&shared->leases, 17, 7, 11);
    if (cw_block_check(&shared->block, GEN) == 0) {
        cw_lease_take(&shared->leases, 17, 7, 11);
        cw_lease_drop(&shared->leases, 17);
    }
}

static uint64_t bits_now(void) {
    uint64_t word = atomic_load(&shared->block.word);
    assert_int_equal(cw_block_gen(word), GEN);
    return word & 0xff;
}

/* The lease is absent or present, and nothing else in the table moved. */
static void absent_or_present(void) {
    uint64_t slot = cw_lease_read(&shared->leases, 17);
    assert_true(slot == 0 || slot == cw_lease_slot(7, 11));
    atomic_store(&shared->leases.slots[17], 0); /* death empties it */
    assert_memory_equal(shared->before, shared->leases.slots, sizeof shared->before);
}

/* The broker, once the table is empty: the block comes back. */
static void comes_back(void) {
    absent_or_present();
    if (bits_now() == RETIRING)
        assert_true(cw_block_restore(&shared->block, GEN));
    assert_true(cw_block_want(&shared->block, GEN));
    assert_true(cw_block_retire(&shared->block, GEN));
    assert_true(cw_block_commit(&shared->block, GEN));
}

static void live_comes_back(void) {
    assert_int_equal(bits_now(), LIVE);
    comes_back();
}
static void wanted_comes_back(void) {
    assert_int_equal(bits_now(), WANTED);
    comes_back();
}
static void rescued_or_not_it_comes_back(void) {
    uint64_t bits = bits_now();
    assert_true(bits == RETIRING || bits == WANTED);
    comes_back();
}
static void nothing_happened(void) {
    assert_int_equal(bits_now(), CW_BLOCK_FREE);
    absent_or_present();
}

static void carve(void) {
    cw_block_carve(&shared->block, 4096, 8192);
}

static void carved_whole_or_never(void) {
    uint64_t bits = bits_now();
    absent_or_present();
    assert_true(bits == LIVE || bits == CW_BLOCK_FREE);
    if (bits == LIVE) {
        assert_int_equal(atomic_load(&shared->block.offset_bytes), 4096);
        assert_int_equal(atomic_load(&shared->block.length_bytes), 8192);
    }
}

static void free_locally(void) {
    cw_block_free_local(&shared->block);
}

static void freed_or_not(void) {
    uint64_t word = atomic_load(&shared->block.word);
    assert_true(word == ((uint64_t)GEN << CW_BLOCK_GEN_SHIFT | LIVE) ||
                word == (uint64_t)(GEN + 1) << CW_BLOCK_GEN_SHIFT);
}

#define TEST(name, prepare, run, check) EVERY_TEST(name, prepare, NULL, run, check, 5)

int main(void) {
    step_pin();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    const struct CMUnitTest tests[] = {
        TEST(ring_write_leaves_a_whole_prefix, ring_with_one_record, write_record, a_whole_prefix),
        TEST(ring_write_of_nothing_leaves_a_whole_prefix, ring_with_one_record, write_empty_record,
             a_whole_prefix_without_payload),
        TEST(ring_write_with_padding_leaves_a_whole_prefix, ring_at_its_end, write_record,
             a_whole_prefix),
        TEST(ring_write_with_padding_and_room_known_leaves_a_whole_prefix,
             ring_at_its_end_with_room_known, write_record, a_whole_prefix),
        TEST(ring_writes_and_wake_leave_a_whole_prefix, ring_whose_consumer_sleeps,
             write_two_records_and_wake, a_whole_prefix),
        TEST(ring_read_skips_nothing, ring_with_two_records, read_record, nothing_skipped),
        TEST(lease_on_a_live_block, block_is_live, take_and_drop, live_comes_back),
        TEST(lease_on_a_wanted_block, block_is_wanted, take_and_drop, wanted_comes_back),
        TEST(lease_on_a_retiring_block, block_is_retiring, take_and_drop,
             rescued_or_not_it_comes_back),
        TEST(lease_on_a_free_block, block_is_free, take_and_drop, nothing_happened),
        TEST(lease_taken_twice, block_is_live, take_and_move, live_comes_back),
        TEST(carving, block_is_free, carve, carved_whole_or_never),
        TEST(freeing_locally, block_is_live, free_locally, freed_or_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
