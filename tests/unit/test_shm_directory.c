/*
 * The promises of shm/directory.h: what is put is found whole, misses are true, growth and
 * tombstones lose nothing, and a dead or damaged writer hangs nobody.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>

#include "shm/directory.h"
#include "shm/error.h"
#include "tests/support.h"

struct fixture {
    _Alignas(64) struct cw_directory_root root;
    struct cw_directory_writer *writer;
    struct cw_directory_reader reader;
    unsigned fetches;
    int fetch_code; /* what fetch answers instead, where not 0 */
};

static int fetch(void *context, uint32_t kind, uint64_t which, struct cw_segment *out) {
    struct fixture *f = context;
    const struct cw_segment *segment;
    f->fetches++;
    int code =
        f->fetch_code ? f->fetch_code : cw_directory_segment(f->writer, kind, which, &segment);
    if (code)
        return code;
    return cw_segment_open(dup(segment->fd), segment->size_bytes, kind, false, 0, out);
}

static void fixture_init(struct fixture *f, uint64_t names_max) {
    memset(f, 0, sizeof *f);
    assert_int_equal(cw_directory_writer_new(&f->root, names_max, 99, &f->writer), 0);
    cw_directory_reader_init(&f->reader, &f->root, fetch, f);
}

static void fixture_deinit(struct fixture *f) {
    cw_directory_reader_deinit(&f->reader);
    cw_directory_reader_deinit(&f->reader); /* teardown can be repeated */
    cw_directory_writer_free(f->writer);
}

static size_t key_of(char *key, uint64_t number) {
    return (size_t)sprintf(key, "ns%cname/%llu", 0, (unsigned long long)number);
}

/* A record whose parts all follow from (number, version), so that a torn copy shows. */
static size_t meta_of(uint8_t *meta, uint64_t number, uint64_t version) {
    size_t bytes = (size_t)((number * 7 + version * 13) % 600);
    if (number % 97 == 0)
        bytes = CW_META_MAX - 200 + version % 200;
    memset(meta, (int)(number + version), bytes);
    return bytes;
}

static struct cw_entry entry_of(uint64_t number, uint64_t version) {
    return (struct cw_entry){.slab = (uint32_t)number,
                             .block = (uint32_t)version,
                             .gen = number * 3 + version,
                             .size_bytes = number ^ version,
                             .owner_pid = 17,
                             .flags = version % 2 ? CW_ENTRY_KEEP : 0};
}

static int put(struct fixture *f, uint64_t number, uint64_t version, bool replace, bool *replaced) {
    char key[CW_KEY_MAX];
    uint8_t meta[CW_META_MAX];
    size_t key_bytes = key_of(key, number), meta_bytes = meta_of(meta, number, version);
    struct cw_entry entry = entry_of(number, version), old;
    int code = cw_directory_put(f->writer, key, key_bytes, &entry, meta, meta_bytes, replace,
                                replaced, &old);
    if (code == -EEXIST || (code == 0 && *replaced))
        assert_int_equal(old.slab, number);
    return code;
}

static int take_away(struct fixture *f, uint64_t number) {
    char key[CW_KEY_MAX];
    struct cw_entry old;
    int code = cw_directory_remove(f->writer, key, key_of(key, number), &old);
    if (code == 0)
        assert_int_equal(old.slab, number);
    return code;
}

static void expect_whole(const struct cw_found *found, uint64_t number, uint64_t version) {
    char key[CW_KEY_MAX];
    uint8_t meta[CW_META_MAX];
    size_t key_bytes = key_of(key, number), meta_bytes = meta_of(meta, number, version);
    struct cw_entry entry = entry_of(number, version);
    entry.id = found->entry.id;
    entry.key_bytes = (uint16_t)key_bytes;
    entry.meta_bytes = (uint16_t)meta_bytes;
    assert_memory_equal(&found->entry, &entry, sizeof entry);
    assert_memory_equal(found->key, key, key_bytes);
    if (meta_bytes)
        assert_memory_equal(found->meta, meta, meta_bytes);
}

static int find(struct fixture *f, uint64_t number, struct cw_found *found) {
    char key[CW_KEY_MAX];
    return cw_directory_find(&f->reader, key, key_of(key, number), found);
}

static void expect_found(struct fixture *f, uint64_t number, uint64_t version) {
    struct cw_found found;
    assert_int_equal(find(f, number, &found), 0);
    expect_whole(&found, number, version);
}

static void expect_missing(struct fixture *f, uint64_t number) {
    struct cw_found found;
    assert_int_equal(find(f, number, &found), -ENOENT);
}

/* Walks all; returns how many, each of which must be whole and come once (seen: a flag a number).
 */
static uint64_t walk(struct fixture *f, uint8_t *seen, uint64_t numbers) {
    uint64_t cursor = 0, count = 0;
    struct cw_found found;
    int code;
    memset(seen, 0, numbers);
    while ((code = cw_directory_next(&f->reader, &cursor, &found)) == 1) {
        assert_true(found.entry.slab < numbers);
        assert_int_equal(seen[found.entry.slab]++, 0);
        expect_whole(&found, found.entry.slab, found.entry.block);
        count++;
    }
    assert_int_equal(code, 0);
    return count;
}

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
    int64_t begin = test_now_ns();
    assert_int_equal(find(&f, 1, &found), -ECONNRESET);
    assert_true(strlen(cw_detail()) > 0);
    uint64_t cursor = 0;
    int code;
    while ((code = cw_directory_next(&f.reader, &cursor, &found)) == 1)
        ;
    assert_int_equal(code, -ECONNRESET);
    assert_true(test_now_ns() - begin < 1000000000);
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
        cmocka_unit_test(it_grows_to_100000_names_and_a_reader_of_the_first_hour_finds_all),
        cmocka_unit_test(tombstones_and_freed_records_are_used_again),
        cmocka_unit_test(a_walk_across_a_new_index_says_start_over),
        cmocka_unit_test(a_sweep_asks_once_for_each),
        cmocka_unit_test(a_writer_that_died_in_a_record_costs_a_bounded_time_and_is_named),
        cmocka_unit_test(a_reference_to_an_erased_record_is_no_miss),
        cmocka_unit_test(a_slot_whose_record_became_another_keys_is_no_miss),
        cmocka_unit_test(references_that_cannot_be_are_refused),
        cmocka_unit_test(records_that_cannot_be_are_refused),
        cmocka_unit_test(what_fetch_says_is_passed_on),
        cmocka_unit_test(the_writer_hands_out_what_exists_alone),
        cmocka_unit_test(random_sequences_behave_as_a_map),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
