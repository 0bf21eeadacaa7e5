/*
 * Sums: pieces in any order give the hash of all; one that comes late holds its thread up for a few
 * of those behind it alone.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "broker/bridge/sum.c"

#define PIECE CWB_SUM_PIECE
#define SIZE  (64u << 20 | 5) /* the last piece is a short one */

static uint8_t *made(void) {
    uint8_t *bytes = malloc(SIZE);
    assert_non_null(bytes);
    for (uint32_t i = 0; i < SIZE; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 24);
    return bytes;
}

static void add(struct cwb_sum *sum, uint64_t from, uint64_t end) {
    for (; from < end; from += PIECE)
        cwb_sum_add(sum, from, end - from < PIECE ? (uint32_t)(end - from) : PIECE);
}

static void pieces_in_order(void **state) {
    (void)state;
    uint8_t *bytes = made();
    struct cwb_sum *sum = cwb_sum_new(bytes, SIZE, SIZE);
    add(sum, 0, SIZE);
    assert_int_equal(cwb_sum_prefix(sum), SIZE);
    assert_int_equal(cwb_sum_digest(sum), XXH3_64bits(bytes, SIZE));
    cwb_sum_free(sum);
    free(bytes);
}

static void the_first_comes_last(void **state) {
    (void)state;
    uint8_t *bytes = made();
    struct cwb_sum *sum = cwb_sum_new(bytes, SIZE, SIZE);
    add(sum, PIECE, SIZE);
    assert_int_equal(cwb_sum_prefix(sum), 0);
    add(sum, 0, PIECE);
    assert_true(cwb_sum_prefix(sum) >= PIECE && cwb_sum_prefix(sum) <= 2 * TURN_BYTES);
    cwb_sum_rest(sum);
    assert_int_equal(cwb_sum_digest(sum), XXH3_64bits(bytes, SIZE));
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
    cwb_sum_free(sum);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_in_order),
        cmocka_unit_test(the_first_comes_last),
        cmocka_unit_test(parts_of_pieces_do_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
