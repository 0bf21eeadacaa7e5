/*
 * The promises of shm/names/unnamed.h: what is put is found until it is erased or its place is
 * taken, whole or not at all, by whoever maps them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/names/unnamed.h"

#define RUN     7u
#define SESSION 42u
#define PUT_NS  1000 /* everything here */

static struct cw_segment segment;

static int setup(void **state) {
    (void)state;
    return cw_unnamed_new(RUN, SESSION, &segment);
}

static int teardown(void **state) {
    (void)state;
    cw_segment_close(&segment);
    return 0;
}

static bool put(const char *key, uint64_t gen, uint32_t meta_bytes) {
    static const uint8_t meta[CW_META_MAX] = {1, 2, 3};
    struct cw_entry entry = {.id = PUT_NS,
                             .slab = 3,
                             .gen = gen,
                             .size_bytes = 64,
                             .key_bytes = (uint16_t)strlen(key),
                             .meta_bytes = (uint16_t)meta_bytes};
    return cw_unnamed_put(&segment, &entry, key, meta);
}

/* Its generation, or a negative code. */
static int64_t find(const struct cw_segment *at, const char *key) {
    struct cw_found found;
    int code = cw_unnamed_find(at, key, strlen(key), PUT_NS, &found);
    return code ? code : (int64_t)found.entry.gen;
}

static void what_is_put_is_found_until_it_is_erased(void **state) {
    (void)state;
    struct cw_found found;
    assert_int_equal(find(&segment, "x"), -ENOENT);
    assert_true(put("x", 5, 3));
    assert_int_equal(cw_unnamed_find(&segment, "x", 1, PUT_NS, &found), 0);
    assert_int_equal(found.entry.gen, 5);
    assert_int_equal(found.entry.slab, 3);
    assert_memory_equal(found.meta, "\1\2\3", 3);
    assert_int_equal(find(&segment, "xy"), -ENOENT);
    assert_true(put("x", 6, 0));
    assert_int_equal(find(&segment, "x"), 6);
    cw_unnamed_erase(&segment, cw_unnamed_index("x", 1));
    assert_int_equal(find(&segment, "x"), -ENOENT);
}

static void a_later_key_takes_the_place_of_an_earlier_one(void **state) {
    (void)state;
    char other[32];
    assert_true(put("x", 5, 3));
    for (unsigned i = 0;; i++) {
        snprintf(other, sizeof other, "other %u", i);
        if (cw_unnamed_index(other, strlen(other)) == cw_unnamed_index("x", 1))
            break;
    }
    assert_int_equal(find(&segment, other), -ENOENT);
    assert_true(put(other, 9, 0));
    assert_int_equal(find(&segment, other), 9);
    assert_int_equal(find(&segment, "x"), -ENOENT);
}

static void what_does_not_fit_changes_nothing(void **state) {
    (void)state;
    assert_true(put("x", 5, 3));
    assert_false(put("x", 6, CW_UNNAMED_RECORD_BYTES));
    assert_int_equal(find(&segment, "x"), 5);
    uint32_t most = CW_UNNAMED_RECORD_BYTES - 8 - (uint32_t)sizeof(struct cw_entry) - 8;
    assert_false(put("x", 7, most + 1));
    assert_true(put("x", 8, most));
    assert_int_equal(find(&segment, "x"), 8);
}

static void a_writer_that_died_in_a_record_leaves_nothing_to_be_found(void **state) {
    (void)state;
    assert_true(put("x", 5, 3));
    struct cw_record *record =
        (struct cw_record *)((uint8_t *)segment.base +
                             (1 + cw_unnamed_index("x", 1)) * CW_UNNAMED_RECORD_BYTES);
    atomic_fetch_or(&record->seq, 1);
    assert_int_equal(find(&segment, "x"), -ENOENT);
    assert_true(put("x", 6, 3));
    assert_int_equal(find(&segment, "x"), 6);
}

static void what_nobody_named_for_long_counts_no_more(void **state) {
    (void)state;
    struct cw_found found;
    assert_true(put("x", 5, 3));
    assert_int_equal(cw_unnamed_find(&segment, "x", 1, PUT_NS + CW_UNNAMED_NS - 1, &found), 0);
    assert_int_equal(cw_unnamed_find(&segment, "x", 1, PUT_NS + CW_UNNAMED_NS, &found), -ENOENT);
}

static void others_map_it_to_read_and_of_this_run_alone(void **state) {
    (void)state;
    struct cw_segment mine;
    assert_true(put("x", 5, 3));
    assert_int_equal(cw_unnamed_open(dup(segment.fd), RUN, &mine), 0);
    assert_int_equal(cw_unnamed_session(&mine), SESSION);
    assert_int_equal(find(&mine, "x"), 5);
    assert_true(put("x", 6, 3));
    assert_int_equal(find(&mine, "x"), 6);
    assert_ptr_equal(mmap(NULL, CW_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd, 0),
                     MAP_FAILED);
    cw_segment_close(&mine);
    assert_int_equal(cw_unnamed_open(dup(segment.fd), RUN + 1, &mine), -EPROTO);
    int other = memfd_create("no board", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(cw_unnamed_open(other, RUN, &mine), -EPROTO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_put_is_found_until_it_is_erased, setup, teardown),
        cmocka_unit_test_setup_teardown(a_later_key_takes_the_place_of_an_earlier_one, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(what_does_not_fit_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_writer_that_died_in_a_record_leaves_nothing_to_be_found,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(what_nobody_named_for_long_counts_no_more, setup, teardown),
        cmocka_unit_test_setup_teardown(others_map_it_to_read_and_of_this_run_alone, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
