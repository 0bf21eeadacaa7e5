/*
 * The promises of shm/names/directory.h where the writer died in the middle of a change, or left
 * what cannot be: bounded retries, an error, and nothing read outside.
 */
#include "tests/unit/shm/directory_support.h"

static struct fixture f;

/* The first record ever lies in unit 1 of record segment 0, in the writer's own mapping. */
static struct cw_record *first_record(void) {
    const struct cw_segment *segment;
    assert_int_equal(cw_directory_segment(f.writer, CW_SEGMENT_RECORDS, 0, &segment), 0);
    return (struct cw_record *)((uint8_t *)segment->base + CW_RECORD_UNIT);
}

static struct cw_index_slot *slot_of(uint64_t number) {
    const struct cw_segment *segment;
    uint64_t id = atomic_load(&f.root.index_id), slots = atomic_load(&f.root.index_slots);
    assert_int_equal(cw_directory_segment(f.writer, CW_SEGMENT_INDEX, id, &segment), 0);
    char key[CW_KEY_MAX];
    uint64_t hash = cw_directory_hash(key, key_of(key, number));
    return (struct cw_index_slot *)((uint8_t *)segment->base + sizeof(struct cw_segment_header)) +
           (hash & (slots - 1));
}

static void a_writer_that_died_in_a_record_costs_a_bounded_time_and_is_named(void **state) {
    (void)state;
    bool replaced;
    fixture_init(&f, 10);
    assert_int_equal(put(&f, 1, 1, false, &replaced), 0);
    assert_int_equal(put(&f, 2, 1, false, &replaced), 0);
    atomic_fetch_or(&first_record()->seq, 1);
    struct cw_found found;
    assert_int_equal(find(&f, 1, &found), -ECONNRESET);
    assert_true(strlen(cw_detail()) > 0);
    uint64_t cursor = 0;
    int code;
    while ((code = cw_directory_next(&f.reader, &cursor, &found)) == 1)
        ;
    assert_int_equal(code, -ECONNRESET);
    expect_found(&f, 2, 1); /* what is whole stays readable */
    fixture_deinit(&f);
}

static void a_reference_to_an_erased_record_is_no_miss(void **state) {
    (void)state;
    bool replaced;
    fixture_init(&f, 10);
    assert_int_equal(put(&f, 1, 1, false, &replaced), 0);
    /* As a reader sees it whose look at the slot is older than its look at the record. */
    atomic_store(&first_record()->body[sizeof(struct cw_entry) / 8 - 1], 0);
    struct cw_found found;
    assert_int_equal(find(&f, 1, &found), -ECONNRESET);
    fixture_deinit(&f);
}

static void a_slot_whose_record_became_another_keys_is_no_miss(void **state) {
    (void)state;
    bool replaced;
    fixture_init(&f, 10);
    assert_int_equal(put(&f, 1, 1, false, &replaced), 0);
    assert_int_equal(put(&f, 2, 1, false, &replaced), 0);
    atomic_store(&slot_of(1)->ref, atomic_load(&slot_of(2)->ref));
    struct cw_found found;
    assert_int_equal(find(&f, 1, &found), -ECONNRESET);
    fixture_deinit(&f);
}

static void references_that_cannot_be_are_refused(void **state) {
    (void)state;
    bool replaced;
    fixture_init(&f, 10);
    assert_int_equal(put(&f, 1, 1, false, &replaced), 0);
    struct cw_index_slot *slot = slot_of(1);
    const uint64_t lies[] = {
        2,                                            /* unit 0 is the header */
        2 + CW_RECORD_FIRST_UNITS,                    /* behind the end */
        2 + 0xffffffffull,                            /* far behind it */
        2 + ((uint64_t)CW_RECORD_SEGMENTS << 32 | 1), /* no such segment can be */
        UINT64_MAX,
    };
    struct cw_found found;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        atomic_store(&slot->ref, lies[i]);
        assert_int_equal(find(&f, 1, &found), -EPROTO);
    }
    /* a segment that could be and is not: the broker is asked, and no answer is a miss */
    atomic_store(&slot->ref, 2 + ((uint64_t)5 << 32 | 1));
    assert_int_equal(find(&f, 1, &found), -ECONNRESET);
    fixture_deinit(&f);
}

static void records_that_cannot_be_are_refused(void **state) {
    (void)state;
    bool replaced;
    fixture_init(&f, 10);
    assert_int_equal(put(&f, 1, 1, false, &replaced), 0);
    struct cw_record *record = first_record();
    cw_a64 *sizes = &record->body[sizeof(struct cw_entry) / 8 - 1];
    const uint64_t right = atomic_load(sizes);
    struct cw_found found;
    atomic_store(sizes, (right & 0xffffffff) | (uint64_t)(CW_KEY_MAX + 1) << 32);
    assert_int_equal(find(&f, 1, &found), -EPROTO);
    atomic_store(sizes, (right & 0xffffffffffff) | (uint64_t)(CW_META_MAX + 1) << 48);
    assert_int_equal(find(&f, 1, &found), -EPROTO);
    uint64_t cursor = 0;
    assert_int_equal(cw_directory_next(&f.reader, &cursor, &found), -EPROTO);
    atomic_store(sizes, right);
    expect_found(&f, 1, 1);
    fixture_deinit(&f);
}

static void what_fetch_says_is_passed_on(void **state) {
    (void)state;
    bool replaced;
    fixture_init(&f, 10);
    assert_int_equal(put(&f, 1, 1, false, &replaced), 0);
    struct cw_found found;
    uint64_t cursor = 0;
    f.fetch_code = -EDQUOT;
    assert_int_equal(find(&f, 1, &found), -EDQUOT);
    assert_int_equal(cw_directory_next(&f.reader, &cursor, &found), -EDQUOT);
    f.fetch_code = -ENOENT; /* an index that is never there */
    assert_int_equal(find(&f, 1, &found), -ECONNRESET);
    f.fetch_code = 0;
    expect_found(&f, 1, 1);
    fixture_deinit(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_writer_that_died_in_a_record_costs_a_bounded_time_and_is_named),
        cmocka_unit_test(a_reference_to_an_erased_record_is_no_miss),
        cmocka_unit_test(a_slot_whose_record_became_another_keys_is_no_miss),
        cmocka_unit_test(references_that_cannot_be_are_refused),
        cmocka_unit_test(records_that_cannot_be_are_refused),
        cmocka_unit_test(what_fetch_says_is_passed_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
