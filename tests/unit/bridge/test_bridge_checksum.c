/*
 * Sums: pieces in any order, once or more often, by one thread or several, give the same; another
 * byte, another place, or another length give another.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "broker/bridge/wire/checksum.c"

#define XXH_INLINE_ALL
#include <string.h>
#include <xxhash.h>

#define PIECE CWB_SUM_PIECE
#define SIZE  (8u << 20 | 5) /* the last piece is a short one */
#define COUNT (SIZE / PIECE + 1)

static uint8_t *made(void) {
    uint8_t *bytes = malloc(SIZE);
    assert_non_null(bytes);
    for (uint32_t i = 0; i < SIZE; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 24);
    return bytes;
}

/* As docs/PROTOCOL.md has it. */
static uint64_t right(const uint8_t *bytes, uint64_t size_bytes) {
    uint64_t total = 0;
    for (uint64_t at = 0; at < size_bytes; at += PIECE)
        total += XXH3_64bits_withSeed(bytes + at, size_bytes - at < PIECE ? size_bytes - at : PIECE,
                                      at / PIECE);
    return total;
}

static uint64_t length_of(uint64_t piece) {
    return piece == COUNT - 1 ? SIZE % PIECE : PIECE;
}

static void in_order(void **state) {
    (void)state;
    uint8_t *bytes = made();
    struct cwb_sum *sum = cwb_sum_new(bytes, SIZE, SIZE);
    for (uint64_t piece = 0; piece < COUNT; piece++) {
        assert_int_equal(cwb_sum_prefix(sum), piece * PIECE);
        assert_int_equal(cwb_sum_add(sum, piece * PIECE, length_of(piece)), piece == COUNT - 1);
    }
    assert_int_equal(cwb_sum_prefix(sum), SIZE);
    assert_int_equal(cwb_sum_left(sum), 0);
    assert_int_equal(cwb_sum_digest(sum), right(bytes, SIZE));
    cwb_sum_free(sum);
    free(bytes);
}

static void backwards_and_twice(void **state) {
    (void)state;
    uint8_t *bytes = made();
    struct cwb_sum *sum = cwb_sum_new(bytes, SIZE, SIZE);
    for (uint64_t piece = COUNT; piece-- > 0;) {
        assert_int_equal(cwb_sum_prefix(sum), 0);
        assert_int_equal(cwb_sum_add(sum, piece * PIECE, length_of(piece)), piece == 0);
        assert_false(cwb_sum_add(sum, piece * PIECE, length_of(piece))); /* it is told once */
    }
    assert_int_equal(cwb_sum_prefix(sum), SIZE);
    assert_int_equal(cwb_sum_digest(sum), right(bytes, SIZE));
    cwb_sum_free(sum);
    free(bytes);
}

static void parts_of_pieces_do_not_count(void **state) {
    (void)state;
    uint8_t *bytes = made();
    struct cwb_sum *sum = cwb_sum_new(bytes, SIZE, SIZE);
    cwb_sum_add(sum, 0, PIECE - 1);
    cwb_sum_add(sum, 1, PIECE - 1);
    assert_int_equal(cwb_sum_prefix(sum), 0);
    cwb_sum_add(sum, 0, PIECE + 1);
    assert_int_equal(cwb_sum_prefix(sum), PIECE);
    assert_false(cwb_sum_add(sum, 3 * PIECE, 40 * PIECE)); /* a gap before it */
    assert_int_equal(cwb_sum_prefix(sum), PIECE);
    assert_int_equal(cwb_sum_left(sum), (COUNT - 41) * PIECE);
    assert_false(cwb_sum_rest(sum, 3 * PIECE)); /* the gap, */
    assert_int_equal(cwb_sum_left(sum), (COUNT - 44) * PIECE);
    assert_true(cwb_sum_rest(sum, UINT64_MAX)); /* and what follows */
    assert_int_equal(cwb_sum_prefix(sum), SIZE);
    assert_int_equal(cwb_sum_digest(sum), right(bytes, SIZE));
    cwb_sum_free(sum);
    free(bytes);
}

/* The last piece is a short one: so many bytes are all pieces that they reach. */
static void as_many_bytes_as_there_are_is_all(void **state) {
    (void)state;
    uint8_t *bytes = made();
    struct cwb_sum *sum = cwb_sum_new(bytes, SIZE, SIZE);
    assert_false(cwb_sum_rest(sum, 0));
    assert_int_equal(cwb_sum_prefix(sum), 0);
    assert_true(cwb_sum_rest(sum, SIZE));
    assert_int_equal(cwb_sum_digest(sum), right(bytes, SIZE));
    cwb_sum_free(sum);
    free(bytes);
}

static void a_ring(void **state) {
    (void)state;
    enum { RING = 4 * PIECE };
    uint8_t *bytes = made(), *ring = malloc(RING);
    struct cwb_sum *sum = cwb_sum_new(ring, SIZE, RING);
    for (uint64_t piece = 0; piece < COUNT; piece++) {
        memcpy(ring + piece % 4 * PIECE, bytes + piece * PIECE, length_of(piece));
        cwb_sum_add(sum, piece * PIECE, length_of(piece));
    }
    assert_int_equal(cwb_sum_digest(sum), right(bytes, SIZE));
    cwb_sum_free(sum);
    free(ring);
    free(bytes);
}

/* As of an upload whose chunks lie in staging buffers (staging.h). */
static void bytes_that_lie_elsewhere(void **state) {
    (void)state;
    uint8_t *bytes = made();
    struct cwb_sum *sum = cwb_sum_new(NULL, SIZE, SIZE);
    cwb_sum_add_at(sum, 7, 3 * PIECE, bytes + 7); /* the two whole pieces in it */
    assert_int_equal(cwb_sum_left(sum), (COUNT - 2) * PIECE);
    cwb_sum_add_at(sum, 0, PIECE, bytes);
    assert_int_equal(cwb_sum_prefix(sum), 3 * PIECE);
    assert_true(cwb_sum_add_at(sum, PIECE, SIZE - PIECE, bytes + PIECE));
    assert_int_equal(cwb_sum_digest(sum), right(bytes, SIZE));
    cwb_sum_free(sum);
    free(bytes);
}

static uint64_t of_all(const uint8_t *bytes, uint64_t size_bytes) {
    struct cwb_sum *sum = cwb_sum_new(bytes, size_bytes, size_bytes);
    assert_true(cwb_sum_rest(sum, UINT64_MAX));
    uint64_t total = cwb_sum_digest(sum);
    cwb_sum_free(sum);
    return total;
}

static void what_is_wrong_is_seen(void **state) {
    (void)state;
    uint8_t *bytes = made();
    uint64_t all = right(bytes, SIZE);
    bytes[5 * PIECE + 7] ^= 1;
    assert_int_not_equal(of_all(bytes, SIZE), all);
    bytes[5 * PIECE + 7] ^= 1;
    assert_int_not_equal(of_all(bytes, SIZE - 1), all);
    uint8_t kept[PIECE];
    memcpy(kept, bytes, PIECE); /* two pieces at each other's place */
    memcpy(bytes, bytes + PIECE, PIECE);
    memcpy(bytes + PIECE, kept, PIECE);
    assert_int_not_equal(of_all(bytes, SIZE), all);
    memcpy(bytes, kept, PIECE); /* one twice, the other not at all */
    assert_int_not_equal(of_all(bytes, SIZE), all);
    memset(bytes, 0, SIZE); /* nothing came; all pieces are alike, but for their places */
    uint64_t nothing = of_all(bytes, SIZE);
    assert_int_not_equal(nothing, all);
    assert_int_not_equal(of_all(bytes, SIZE - SIZE % PIECE), nothing);
    assert_int_not_equal(cw_hash(bytes, PIECE, 1), cw_hash(bytes, PIECE, 2));
    free(bytes);
}

static void *every_other(void *context) {
    struct cwb_sum *sum = context;
    for (uint64_t piece = 1; piece < COUNT; piece += 2)
        cwb_sum_add(sum, piece * PIECE, length_of(piece));
    return NULL;
}

static void by_two_threads(void **state) {
    (void)state;
    uint8_t *bytes = made();
    struct cwb_sum *sum = cwb_sum_new(bytes, SIZE, SIZE);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, every_other, sum), 0);
    for (uint64_t piece = 0; piece < COUNT; piece += 2)
        cwb_sum_add(sum, piece * PIECE, length_of(piece));
    (void)cwb_sum_rest(sum, UINT64_MAX); /* what the other brings at the same time, too */
    assert_int_equal(cwb_sum_digest(sum), right(bytes, SIZE));
    pthread_join(thread, NULL);
    cwb_sum_free(sum);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_order),
        cmocka_unit_test(backwards_and_twice),
        cmocka_unit_test(by_two_threads),
        cmocka_unit_test(parts_of_pieces_do_not_count),
        cmocka_unit_test(as_many_bytes_as_there_are_is_all),
        cmocka_unit_test(a_ring),
        cmocka_unit_test(bytes_that_lie_elsewhere),
        cmocka_unit_test(what_is_wrong_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
