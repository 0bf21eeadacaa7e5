/*
 * The promises of shm/session/ring.h: whole records in order, no repair after a death, no trust in
 * the other side.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "shm/base/error.h"
#include "shm/session/ring.h"
#include "tests/support.h"

struct pair {
    struct cw_ring *ring;
    struct cw_ring_producer producer;
    struct cw_ring_consumer consumer;
};

static void pair_init(struct pair *pair, uint64_t capacity_bytes) {
    size_t bytes = cw_ring_size(capacity_bytes);
    pair->ring = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(pair->ring);
    memset(pair->ring, 0xa5, bytes); /* used memory: init alone must make it an empty ring */
    cw_ring_init(pair->ring, capacity_bytes);
    cw_ring_producer_init(&pair->producer, pair->ring, capacity_bytes);
    cw_ring_consumer_init(&pair->consumer, pair->ring, capacity_bytes);
}

static void pair_deinit(struct pair *pair) {
    free(pair->ring);
}

static cw_a64 *word_at(struct pair *pair, uint64_t position) {
    return (cw_a64 *)(void *)(pair->ring->records +
                              (position & (pair->producer.capacity_bytes - 1)));
}

static void expect_record(struct pair *pair, uint32_t type, const void *payload, uint32_t length) {
    uint32_t seen_type, seen_length;
    const void *seen;
    assert_int_equal(cw_ring_peek(&pair->consumer, &seen_type, &seen, &seen_length), 1);
    assert_int_equal(seen_type, type);
    assert_int_equal(seen_length, length);
    if (length)
        assert_memory_equal(seen, payload, length);
}

static void expect_empty(struct pair *pair) {
    uint32_t type, length;
    const void *payload;
    assert_int_equal(cw_ring_peek(&pair->consumer, &type, &payload, &length), 0);
    assert_false(cw_ring_has_record(&pair->consumer));
}

static void expect_broken(struct pair *pair) {
    uint32_t type, length;
    const void *payload;
    assert_int_equal(cw_ring_peek(&pair->consumer, &type, &payload, &length), -EPROTO);
    assert_true(strlen(cw_detail()) > 0);
}

static void used_memory_becomes_an_empty_ring(void **state) {
    (void)state;
    struct pair pair;
    pair_init(&pair, 4096);
    expect_empty(&pair);
    assert_true(cw_ring_has_room(&pair.producer, cw_ring_max_payload(4096)));
    pair_deinit(&pair);
}

static void records_come_in_order_with_type_and_length(void **state) {
    (void)state;
    struct pair pair;
    pair_init(&pair, 4096);
    char text[32];
    for (uint32_t i = 0; i < 32; i++) {
        memset(text, (int)('a' + i % 26), sizeof text);
        assert_int_equal(cw_ring_write(&pair.producer, i, text, i), 0);
    }
    for (uint32_t i = 0; i < 32; i++) {
        memset(text, (int)('a' + i % 26), sizeof text);
        expect_record(&pair, i, text, i);
        cw_ring_consume(&pair.consumer);
    }
    expect_empty(&pair);
    pair_deinit(&pair);
}

static void a_record_is_invisible_until_commit(void **state) {
    (void)state;
    struct pair pair;
    pair_init(&pair, 4096);
    void *payload;
    assert_int_equal(cw_ring_reserve(&pair.producer, 8, &payload), 0);
    memset(payload, 0xff, 8);
    expect_empty(&pair);
    cw_ring_commit(&pair.producer, 7, 8);
    assert_true(cw_ring_has_record(&pair.consumer));
    expect_record(&pair, 7, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    pair_deinit(&pair);
}

static void a_second_reserve_forgets_the_first(void **state) {
    (void)state;
    struct pair pair;
    pair_init(&pair, 4096);
    void *first, *second;
    assert_int_equal(cw_ring_reserve(&pair.producer, 100, &first), 0);
    memset(first, 0xff, 100);
    assert_int_equal(cw_ring_reserve(&pair.producer, 4, &second), 0);
    assert_ptr_equal(first, second);
    memcpy(second, "abcd", 4);
    cw_ring_commit(&pair.producer, 1, 4);
    expect_record(&pair, 1, "abcd", 4);
    cw_ring_consume(&pair.consumer);
    expect_empty(&pair);
    pair_deinit(&pair);
}

static void a_record_above_a_quarter_never_fits(void **state) {
    (void)state;
    struct pair pair;
    pair_init(&pair, 4096);
    static const char zeros[4096];
    assert_int_equal(cw_ring_max_payload(4096), 1024);
    assert_int_equal(cw_ring_write(&pair.producer, 1, zeros, 1025), -EMSGSIZE);
    assert_int_equal(cw_ring_write(&pair.producer, 1, zeros, UINT32_MAX), -EMSGSIZE);
    expect_empty(&pair);
    assert_int_equal(cw_ring_write(&pair.producer, 1, zeros, 1024), 0);
    expect_record(&pair, 1, zeros, 1024);
    pair_deinit(&pair);
}

static void a_full_ring_refuses_and_loses_nothing(void **state) {
    (void)state;
    struct pair pair;
    pair_init(&pair, 4096);
    uint64_t written = 0, read = 0;
    int code;
    while ((code = cw_ring_write(&pair.producer, 1, &written, sizeof written)) == 0)
        written++;
    assert_int_equal(code, -EAGAIN);
    assert_false(cw_ring_has_room(&pair.producer, sizeof written));
    /* 16 bytes a record, and 8 for the zero word behind the last */
    assert_int_equal(written, (4096 - 8) / 16);
    for (; read < written; read++) {
        expect_record(&pair, 1, &read, sizeof read);
        cw_ring_consume(&pair.consumer);
    }
    expect_empty(&pair);
    assert_true(cw_ring_has_room(&pair.producer, 1024));
    pair_deinit(&pair);
}

static void a_record_that_was_not_consumed_is_seen_again_by_a_successor(void **state) {
    (void)state;
    struct pair pair;
    pair_init(&pair, 4096);
    assert_int_equal(cw_ring_write(&pair.producer, 1, "first", 5), 0);
    assert_int_equal(cw_ring_write(&pair.producer, 2, "second", 6), 0);
    expect_record(&pair, 1, "first", 5);
    expect_record(&pair, 1, "first", 5); /* peeking does not consume */
    struct cw_ring_consumer successor;
    cw_ring_consumer_init(&successor, pair.ring, 4096);
    successor.head = atomic_load(&pair.ring->head);
    pair.consumer = successor;
    expect_record(&pair, 1, "first", 5);
    cw_ring_consume(&pair.consumer);
    expect_record(&pair, 2, "second", 6);
    pair_deinit(&pair);
}

static void the_next_header_is_zero_at_every_moment(void **state) {
    (void)state;
    struct pair pair;
    pair_init(&pair, 256);
    struct chance chance = chance_init(1);
    memset(pair.ring->records + 8, 0xff, 248);
    for (int i = 0; i < 10000; i++) {
        char payload[64];
        uint32_t length = (uint32_t)chance_below(&chance, 65);
        memset(payload, 0xff, sizeof payload);
        if (cw_ring_write(&pair.producer, 0xfffffffeu, payload, length) == 0) {
            assert_int_equal(atomic_load(word_at(&pair, pair.producer.tail)), 0);
        } else {
            assert_int_equal(atomic_load(word_at(&pair, pair.producer.tail)), 0);
            uint32_t type, seen;
            const void *at;
            while (cw_ring_peek(&pair.consumer, &type, &at, &seen) == 1)
                cw_ring_consume(&pair.consumer);
        }
    }
    pair_deinit(&pair);
}

static void a_consumer_that_lies_about_its_head_is_found_out(void **state) {
    (void)state;
    struct pair pair;
    pair_init(&pair, 4096);
    char payload[1000];
    memset(payload, 1, sizeof payload);
    int written = 0;
    while (cw_ring_write(&pair.producer, 1, payload, sizeof payload) == 0)
        written++;
    assert_int_equal(written, 4);
    const uint64_t tail = pair.producer.tail;
    const uint64_t lies[] = {tail + 8, tail + 4096, UINT64_MAX, tail - 4104, 3};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        pair.producer.head = 0;
        atomic_store(&pair.ring->head, lies[i]);
        assert_int_equal(cw_ring_write(&pair.producer, 1, payload, sizeof payload), -EPROTO);
        /* who waits for room is not left to sleep on a lie */
        assert_true(cw_ring_has_room(&pair.producer, sizeof payload));
    }
    pair_deinit(&pair);
}

static void a_producer_that_writes_headers_that_cannot_be_is_found_out(void **state) {
    (void)state;
    const uint64_t padding = (uint64_t)CW_RING_PADDING << 32;
    const uint64_t lies[] = {
        1ull << 32,                /* length word 0 with a type */
        1026,                      /* one more than a quarter */
        UINT32_MAX,                /* length 2^32 - 2 */
        UINT64_MAX,                /* padding of 2^32 - 2 */
        padding | 1,               /* padding that does not end at the end */
        padding | (4096 + 1),      /* padding beyond it */
        padding | (4096 - 16 + 1), /* padding 8 bytes short */
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct pair pair;
        pair_init(&pair, 4096);
        atomic_store(word_at(&pair, 0), lies[i]);
        expect_broken(&pair);
        expect_broken(&pair);
        pair_deinit(&pair);
    }
    /* a record that would run over the end */
    struct pair pair;
    pair_init(&pair, 4096);
    pair.consumer.head = 4096 - 64;
    atomic_store(word_at(&pair, 4096 - 64), (5ull << 32) | (57 + 1));
    expect_broken(&pair);
    /* padding behind padding */
    pair.consumer.head = 4096 - 8;
    atomic_store(word_at(&pair, 4096 - 8), padding | 1);
    atomic_store(word_at(&pair, 0), padding | (4096 - 8 + 1));
    expect_broken(&pair);
    pair_deinit(&pair);
}

static void random_garbage_never_leads_out_of_the_ring(void **state) {
    (void)state;
    struct chance chance = chance_init(2);
    struct pair pair;
    pair_init(&pair, 1024);
    for (int round = 0; round < 20000; round++) {
        for (int i = 0; i < 128; i++) {
            uint64_t word = chance_next(&chance);
            unsigned shape = (unsigned)chance_below(&chance, 4);
            atomic_store(word_at(&pair, (uint64_t)i * 8),
                         shape == 0   ? word
                         : shape == 1 ? word & 0xffff000000ffu
                         : shape == 2 ? 0
                                      : (uint64_t)CW_RING_PADDING << 32 | (word & 1023));
        }
        cw_ring_consumer_init(&pair.consumer, pair.ring, 1024);
        pair.consumer.head = chance_below(&chance, 1024) & ~7ull;
        for (int i = 0; i < 300; i++) {
            uint32_t type, length;
            const void *payload;
            if (cw_ring_peek(&pair.consumer, &type, &payload, &length) != 1)
                break;
            const uint8_t *begin = payload;
            assert_true(begin >= pair.ring->records + 8);
            assert_true(begin + length <= pair.ring->records + 1024);
            cw_ring_consume(&pair.consumer);
        }
    }
    pair_deinit(&pair);
}

/* The model: a queue of (type, length, first byte), and the room computed from positions alone. */
struct model {
    struct {
        uint32_t type, length;
        uint8_t byte;
        uint64_t end;
    } queue[4096];
    uint64_t first, last, head, tail;
};

static bool model_fits(const struct model *model, uint64_t capacity, uint32_t length,
                       uint64_t *begin) {
    uint64_t record = 8 + (length + 7ull) / 8 * 8, offset = model->tail % capacity;
    *begin = offset + record > capacity ? model->tail + capacity - offset : model->tail;
    return *begin + record + 8 - model->head <= capacity;
}

static void random_sequences_behave_as_a_queue(void **state) {
    (void)state;
    static struct model model;
    struct chance chance = chance_init(3);
    for (int round = 0; round < 60; round++) {
        uint64_t capacity = 64ull << chance_below(&chance, 8);
        struct pair pair;
        pair_init(&pair, capacity);
        memset(&model, 0, sizeof model);
        for (int step = 0; step < 5000; step++) {
            uint8_t payload[2048];
            if (chance_below(&chance, 100) < 52) {
                uint32_t length = (uint32_t)chance_below(&chance, capacity / 4 + 1);
                if (chance_below(&chance, 2))
                    length %= 16;
                uint8_t byte = (uint8_t)chance_next(&chance);
                memset(payload, byte, length);
                uint64_t begin;
                bool fits = model_fits(&model, capacity, length, &begin);
                uint32_t type = (uint32_t)chance_next(&chance) & 0x7fffffffu;
                assert_int_equal(cw_ring_has_room(&pair.producer, length), fits);
                assert_int_equal(cw_ring_write(&pair.producer, type, payload, length),
                                 fits ? 0 : -EAGAIN);
                if (fits) {
                    model.tail = begin + 8 + (length + 7ull) / 8 * 8;
                    uint64_t at = model.last++ % 4096;
                    model.queue[at].type = type;
                    model.queue[at].length = length;
                    model.queue[at].byte = byte;
                    model.queue[at].end = model.tail;
                }
            } else if (model.first < model.last) {
                uint64_t at = model.first++ % 4096;
                memset(payload, model.queue[at].byte, model.queue[at].length);
                expect_record(&pair, model.queue[at].type, payload, model.queue[at].length);
                cw_ring_consume(&pair.consumer);
                model.head = model.queue[at].end;
                assert_int_equal(atomic_load(&pair.ring->head), model.head);
            } else {
                expect_empty(&pair);
            }
        }
        pair_deinit(&pair);
    }
}

static int format_with_a_bad_capacity(void *context) {
    static _Alignas(64) uint8_t memory[8192];
    fclose(stderr);
    cw_ring_init((struct cw_ring *)(void *)memory, *(uint64_t *)context);
    return 0;
}

static void a_capacity_that_is_no_power_of_two_is_our_own_fault(void **state) {
    (void)state;
    uint64_t bad[] = {0, 32, 4095, 3u << 10, (uint64_t)CW_RING_MAX_BYTES * 2};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(in_child(format_with_a_bad_capacity, &bad[i]), 128 + 6 /* SIGABRT */);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(used_memory_becomes_an_empty_ring),
        cmocka_unit_test(records_come_in_order_with_type_and_length),
        cmocka_unit_test(a_record_is_invisible_until_commit),
        cmocka_unit_test(a_second_reserve_forgets_the_first),
        cmocka_unit_test(a_record_above_a_quarter_never_fits),
        cmocka_unit_test(a_full_ring_refuses_and_loses_nothing),
        cmocka_unit_test(a_record_that_was_not_consumed_is_seen_again_by_a_successor),
        cmocka_unit_test(the_next_header_is_zero_at_every_moment),
        cmocka_unit_test(a_consumer_that_lies_about_its_head_is_found_out),
        cmocka_unit_test(a_producer_that_writes_headers_that_cannot_be_is_found_out),
        cmocka_unit_test(random_garbage_never_leads_out_of_the_ring),
        cmocka_unit_test(random_sequences_behave_as_a_queue),
        cmocka_unit_test(a_capacity_that_is_no_power_of_two_is_our_own_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
