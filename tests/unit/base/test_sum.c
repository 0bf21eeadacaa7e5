/*
 * The hash of what lies in leaves: the same in one go, in parts, and in any order.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdint.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ipc/base/sum.h"

#define BYTES (5 * CW_SUM_PIECE + 77)

static uint8_t bytes[BYTES];

static int fill(void **state) {
    (void)state;
    for (uint32_t i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)(i * 7 + (i >> 9));
    return 0;
}

static void it_is_the_sum_of_xxh3_by_piece(void **state) {
    static const uint64_t sizes[] = {
        1, 240, 241, CW_SUM_PIECE - 1, CW_SUM_PIECE, CW_SUM_PIECE + 1, 2 * CW_SUM_PIECE, BYTES};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t wanted = 0;
        for (uint64_t at = 0, piece = 0; at < sizes[i]; at += CW_SUM_PIECE, piece++)
            wanted += XXH3_64bits_withSeed(
                bytes + at, sizes[i] - at < CW_SUM_PIECE ? sizes[i] - at : CW_SUM_PIECE, piece);
        assert_true(cw_sum(bytes, sizes[i], 0) == wanted);
    }
    assert_true(cw_sum(bytes, 100, 0) == XXH3_64bits(bytes, 100));
    assert_true(cw_sum(NULL, 0, 0) == XXH3_64bits("", 0));
}

static void parts_in_any_order_are_the_whole(void **state) {
    (void)state;
    uint64_t total = cw_sum(bytes + 3 * CW_SUM_PIECE, BYTES - 3 * CW_SUM_PIECE, 3);
    total += cw_sum(bytes, CW_SUM_PIECE, 0);
    total += cw_sum(bytes + CW_SUM_PIECE, 2 * CW_SUM_PIECE, 1);
    assert_true(total == cw_sum(bytes, BYTES, 0));
}

static void bytes_in_another_place_are_found(void **state) {
    (void)state;
    uint64_t right = cw_sum(bytes, 2 * CW_SUM_PIECE, 0);
    uint64_t swapped =
        cw_sum(bytes + CW_SUM_PIECE, CW_SUM_PIECE, 0) + cw_sum(bytes, CW_SUM_PIECE, 1);
    assert_true(right != swapped);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_the_sum_of_xxh3_by_piece),
        cmocka_unit_test(parts_in_any_order_are_the_whole),
        cmocka_unit_test(bytes_in_another_place_are_found),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
