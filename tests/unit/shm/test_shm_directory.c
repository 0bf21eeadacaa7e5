/*
 * The promises of shm/names/directory.h: what is put is found whole, misses are true, growth and
 * tombstones lose nothing. (What a damaged one does stands in test_shm_directory_damage.c.)
 */
#include "tests/unit/shm/directory_support.h"

static struct fixture f;

static void what_is_put_is_found_and_what_is_removed_is_not(void **state) {
    (void)state;
    bool replaced;
    fixture_init(&f, 100);
    expect_missing(&f, 1);
    assert_int_equal(put(&f, 1, 1, false, &replaced), 0);
    assert_false(replaced);
    expect_found(&f, 1, 1);
    expect_missing(&f, 2);
    assert_int_equal(atomic_load(&f.root.names), 1);
    assert_int_equal(take_away(&f, 1), 0);
    assert_int_equal(take_away(&f, 1), -ENOENT);
    expect_missing(&f, 1);
    assert_int_equal(atomic_load(&f.root.names), 0);
    assert_true(atomic_load(&f.root.changes) >= 2);
    fixture_deinit(&f);
}

static void a_taken_name_is_replaced_only_when_asked(void **state) {
    (void)state;
    bool replaced;
    fixture_init(&f, 1);
    assert_int_equal(put(&f, 1, 1, false, &replaced), 0);
    assert_int_equal(put(&f, 1, 2, false, &replaced), -EEXIST);
    expect_found(&f, 1, 1);
    assert_int_equal(put(&f, 1, 2, true, &replaced), 0); /* also where no further name may be */
    assert_true(replaced);
    expect_found(&f, 1, 2);
    assert_int_equal(atomic_load(&f.root.names), 1);
    fixture_deinit(&f);
}

static void each_put_has_an_id_that_rises(void **state) {
    (void)state;
    bool replaced;
    uint64_t last = 0;
    fixture_init(&f, 100);
    for (uint64_t i = 0; i < 50; i++) {
        struct cw_found found;
        assert_int_equal(put(&f, i % 5, i, true, &replaced), 0);
        assert_int_equal(find(&f, i % 5, &found), 0);
        assert_true(found.entry.id > last);
        last = found.entry.id;
    }
    fixture_deinit(&f);
}

static void the_largest_key_and_meta_fit(void **state) {
    (void)state;
    fixture_init(&f, 10);
    static char key[CW_KEY_MAX];
    static uint8_t meta[CW_META_MAX];
    static struct cw_found found;
    memset(key, 'k', sizeof key);
    memset(meta, 'm', sizeof meta);
    struct cw_entry entry = {.slab = 1}, old;
    bool replaced;
    assert_int_equal(cw_directory_put(f.writer, key, sizeof key, &entry, meta, sizeof meta, false,
                                      &replaced, &old),
                     0);
    assert_int_equal(cw_directory_find(&f.reader, key, sizeof key, &found), 0);
    assert_int_equal(found.entry.key_bytes, sizeof key);
    assert_int_equal(found.entry.meta_bytes, sizeof meta);
    assert_memory_equal(found.meta, meta, sizeof meta);
    assert_int_equal(cw_directory_find(&f.reader, key, sizeof key - 1, &found), -ENOENT);
    fixture_deinit(&f);
}

static void too_many_names_is_a_limit(void **state) {
    (void)state;
    bool replaced;
    fixture_init(&f, 10);
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(put(&f, i, 0, false, &replaced), 0);
    assert_int_equal(put(&f, 10, 0, false, &replaced), -EDQUOT);
    assert_non_null(strstr(cw_detail(), "max_names"));
    assert_int_equal(take_away(&f, 3), 0);
    assert_int_equal(put(&f, 10, 0, false, &replaced), 0);
    fixture_deinit(&f);
}

static void a_warm_lookup_asks_nobody(void **state) {
    (void)state;
    bool replaced;
    fixture_init(&f, 1000);
    assert_int_equal(put(&f, 1, 1, false, &replaced), 0);
    expect_found(&f, 1, 1);
    unsigned before = f.fetches;
    for (uint64_t i = 2; i < 100; i++) {
        assert_int_equal(put(&f, i, 1, false, &replaced), 0);
        expect_found(&f, i, 1);
        expect_missing(&f, i + 1);
    }
    assert_int_equal(f.fetches, before);
    fixture_deinit(&f);
}

static void what_is_mapped_asks_nobody_until_it_grows(void **state) {
    (void)state;
    bool replaced;
    fixture_init(&f, 10000);
    for (uint64_t i = 1; i < 5000; i++) /* another index, and more records */
        assert_int_equal(put(&f, i, 1, false, &replaced), 0);
    assert_false(cw_directory_mapped(&f.reader));
    assert_int_equal(cw_directory_map(&f.reader), 0);
    assert_true(cw_directory_mapped(&f.reader));
    unsigned before = f.fetches;
    for (uint64_t i = 1; i < 5000; i++)
        expect_found(&f, i, 1);
    expect_missing(&f, 5000);
    assert_int_equal(cw_directory_map(&f.reader), 0);
    assert_int_equal(f.fetches, before);
    for (uint64_t i = 5000; i < 10000; i++)
        assert_int_equal(put(&f, i, 1, false, &replaced), 0);
    assert_false(cw_directory_mapped(&f.reader));
    fixture_deinit(&f);
}

static void it_grows_to_100000_names_and_a_reader_of_the_first_hour_finds_all(void **state) {
    (void)state;
    const uint64_t names = 100000;
    bool replaced;
    uint8_t *seen = malloc(names);
    fixture_init(&f, names);
    for (uint64_t i = 0; i < names; i++) {
        assert_int_equal(put(&f, i, 1, false, &replaced), 0);
        if (i % 1000 == 0) { /* the same reader, through every growth */
            expect_found(&f, i, 1);
            expect_found(&f, i / 2, 1);
            expect_missing(&f, i + 1);
        }
    }
    for (uint64_t i = 0; i < names; i++)
        expect_found(&f, i, 1);
    assert_int_equal(walk(&f, seen, names), names);
    assert_true(atomic_load(&f.root.record_segments) > 5);
    for (uint64_t i = 0; i < names; i += 2)
        assert_int_equal(take_away(&f, i), 0);
    for (uint64_t i = 0; i < names; i += 97)
        i % 2 ? expect_found(&f, i, 1) : expect_missing(&f, i);
    assert_int_equal(walk(&f, seen, names), names / 2);
    free(seen);
    fixture_deinit(&f);
}

static void tombstones_and_freed_records_are_used_again(void **state) {
    (void)state;
    bool replaced;
    fixture_init(&f, 100);
    for (uint64_t i = 0; i < 200000; i++) {
        assert_int_equal(put(&f, i, i, false, &replaced), 0);
        if (i % 5000 == 0)
            expect_found(&f, i, i);
        assert_int_equal(take_away(&f, i), 0);
    }
    assert_int_equal(atomic_load(&f.root.index_slots), CW_INDEX_FIRST_SLOTS);
    assert_int_equal(atomic_load(&f.root.record_segments), 1);
    /* replaced for ever in changing sizes */
    for (uint64_t i = 0; i < 50000; i++)
        assert_int_equal(put(&f, i % 20, i, true, &replaced), 0);
    assert_true(atomic_load(&f.root.record_segments) <= 2);
    fixture_deinit(&f);
}

/* The next index is built with the puts from half on, so that none has to wait for all of it; what
 * is put, replaced and removed meanwhile is found after as before. */
static void an_index_is_built_anew_bit_by_bit(void **state) {
    (void)state;
    enum { NAMES = 9000 };
    static uint64_t versions[NAMES]; /* 0: not there */
    uint64_t indexes = 1, there = 0;
    struct chance chance = chance_init(2);
    bool replaced;
    memset(versions, 0, sizeof versions);
    fixture_init(&f, NAMES);
    for (uint64_t step = 1; step < 60000; step++) {
        bool grows = step < 2000; /* at first nothing goes */
        uint64_t most = step < 40000 ? step / 5 + 2000 : NAMES;
        uint64_t number = grows ? step : chance_below(&chance, most < NAMES ? most : NAMES);
        if (versions[number] && chance_below(&chance, 3) == 0) {
            assert_int_equal(take_away(&f, number), 0);
            versions[number] = 0;
            there--;
        } else {
            assert_int_equal(put(&f, number, step, true, &replaced), 0);
            assert_int_equal(replaced, versions[number] != 0);
            there += versions[number] == 0;
            versions[number] = step;
        }
        uint64_t slots = atomic_load(&f.root.index_slots);
        assert_true(there * 8 <= slots * 5); /* never nearly full: it was begun in time */
        if (atomic_load(&f.root.index_id) == indexes && step % 5000)
            continue;
        indexes = atomic_load(&f.root.index_id);
        for (uint64_t i = 0; i < NAMES; i++) {
            if (versions[i])
                expect_found(&f, i, versions[i]);
            else
                expect_missing(&f, i);
        }
    }
    assert_true(indexes > 5);
    fixture_deinit(&f);
}

static void a_walk_across_a_new_index_says_start_over(void **state) {
    (void)state;
    bool replaced;
    fixture_init(&f, 10000);
    for (uint64_t i = 0; i < 500; i++)
        assert_int_equal(put(&f, i, 1, false, &replaced), 0);
    uint64_t cursor = 0;
    struct cw_found found;
    assert_int_equal(cw_directory_next(&f.reader, &cursor, &found), 1);
    for (uint64_t i = 500; i < 2000; i++)
        assert_int_equal(put(&f, i, 1, false, &replaced), 0);
    assert_int_equal(cw_directory_next(&f.reader, &cursor, &found), -EAGAIN);
    static uint8_t seen[2000];
    assert_int_equal(walk(&f, seen, 2000), 2000);
    fixture_deinit(&f);
}

static bool drop_odd(void *context, const struct cw_entry *entry) {
    uint8_t *calls = context;
    calls[entry->slab]++;
    return entry->slab % 2;
}

static void a_sweep_asks_once_for_each(void **state) {
    (void)state;
    bool replaced;
    static uint8_t calls[700];
    memset(calls, 0, sizeof calls);
    fixture_init(&f, 1000);
    for (uint64_t i = 0; i < 700; i++)
        assert_int_equal(put(&f, i, 1, false, &replaced), 0);
    cw_directory_sweep(f.writer, drop_odd, calls);
    for (uint64_t i = 0; i < 700; i++) {
        assert_int_equal(calls[i], 1);
        i % 2 ? expect_missing(&f, i) : expect_found(&f, i, 1);
    }
    assert_int_equal(atomic_load(&f.root.names), 350);
    fixture_deinit(&f);
}

static void the_writer_hands_out_what_exists_alone(void **state) {
    (void)state;
    fixture_init(&f, 10);
    const struct cw_segment *segment;
    uint64_t id = atomic_load(&f.root.index_id);
    assert_int_equal(cw_directory_segment(f.writer, CW_SEGMENT_INDEX, id, &segment), 0);
    assert_int_equal(((struct cw_segment_header *)segment->base)->instance, 99);
    assert_int_equal(cw_directory_segment(f.writer, CW_SEGMENT_INDEX, id + 1, &segment), -ENOENT);
    assert_int_equal(cw_directory_segment(f.writer, CW_SEGMENT_RECORDS, 1, &segment), -ENOENT);
    assert_int_equal(cw_directory_segment(f.writer, CW_SEGMENT_RECORDS, UINT64_MAX, &segment),
                     -ENOENT);
    assert_int_equal(cw_directory_segment(f.writer, CW_SEGMENT_ROOT, 0, &segment), -ENOENT);
    fixture_deinit(&f);
}

#define MODEL_NAMES 400

static void random_sequences_behave_as_a_map(void **state) {
    (void)state;
    struct chance chance = chance_init(1);
    static uint64_t version[MODEL_NAMES]; /* 0: not there */
    static uint8_t seen[MODEL_NAMES];
    memset(version, 0, sizeof version);
    const uint64_t names_max = MODEL_NAMES * 3 / 4;
    uint64_t names = 0;
    fixture_init(&f, names_max);
    for (uint64_t step = 1; step <= 200000; step++) {
        uint64_t number = chance_below(&chance, MODEL_NAMES);
        uint64_t was = version[number];
        bool replaced = false, replace = chance_below(&chance, 2);
        char key[CW_KEY_MAX];
        struct cw_entry entry;
        switch (chance_below(&chance, 5)) {
        case 0:
        case 1: {
            int right = was && !replace ? -EEXIST : !was && names == names_max ? -EDQUOT : 0;
            assert_int_equal(put(&f, number, step, replace, &replaced), right);
            if (right == 0) {
                assert_int_equal(replaced, was != 0);
                version[number] = step;
                names += was == 0;
            }
            break;
        }
        case 2:
            assert_int_equal(take_away(&f, number), was ? 0 : -ENOENT);
            names -= was != 0;
            version[number] = 0;
            break;
        case 3:
            was ? expect_found(&f, number, was) : expect_missing(&f, number);
            break;
        default:
            assert_int_equal(cw_directory_lookup(f.writer, key, key_of(key, number), &entry),
                             was ? 0 : -ENOENT);
            if (was)
                assert_int_equal(entry.block, (uint32_t)was);
        }
        if (step % 4096 == 0)
            assert_int_equal(walk(&f, seen, MODEL_NAMES), names);
        assert_int_equal(atomic_load(&f.root.names), names);
    }
    fixture_deinit(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_put_is_found_and_what_is_removed_is_not),
        cmocka_unit_test(a_taken_name_is_replaced_only_when_asked),
        cmocka_unit_test(each_put_has_an_id_that_rises),
        cmocka_unit_test(the_largest_key_and_meta_fit),
        cmocka_unit_test(too_many_names_is_a_limit),
        cmocka_unit_test(a_warm_lookup_asks_nobody),
        cmocka_unit_test(what_is_mapped_asks_nobody_until_it_grows),
        cmocka_unit_test(it_grows_to_100000_names_and_a_reader_of_the_first_hour_finds_all),
        cmocka_unit_test(tombstones_and_freed_records_are_used_again),
        cmocka_unit_test(an_index_is_built_anew_bit_by_bit),
        cmocka_unit_test(a_walk_across_a_new_index_says_start_over),
        cmocka_unit_test(a_sweep_asks_once_for_each),
        cmocka_unit_test(the_writer_hands_out_what_exists_alone),
        cmocka_unit_test(random_sequences_behave_as_a_map),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
