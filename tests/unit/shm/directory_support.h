/*
 * A directory for tests: a writer, a reader, and records whose parts all follow from a number and a
 * version.
 */
#ifndef CW_TESTS_UNIT_DIRECTORY_SUPPORT_H
#define CW_TESTS_UNIT_DIRECTORY_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>

#include "shm/names/directory.h"
#include "shm/base/error.h"
#include "tests/support.h"

struct fixture {
    _Alignas(64) struct cw_directory_root root;
    struct cw_directory_writer *writer;
    struct cw_directory_reader reader;
    unsigned fetches;
    int fetch_code; /* what fetch answers instead, where not 0 */
};

static inline int fetch(void *context, uint32_t kind, uint64_t which, struct cw_segment *out) {
    struct fixture *f = context;
    const struct cw_segment *segment;
    f->fetches++;
    int code =
        f->fetch_code ? f->fetch_code : cw_directory_segment(f->writer, kind, which, &segment);
    if (code)
        return code;
    return cw_segment_open(dup(segment->fd), segment->size_bytes, kind, false, 0, out);
}

static inline void fixture_init(struct fixture *f, uint64_t names_max) {
    memset(f, 0, sizeof *f);
    assert_int_equal(cw_directory_writer_new(&f->root, names_max, 99, &f->writer), 0);
    cw_directory_reader_init(&f->reader, &f->root, fetch, f);
}

static inline void fixture_deinit(struct fixture *f) {
    cw_directory_reader_deinit(&f->reader);
    cw_directory_reader_deinit(&f->reader); /* teardown can be repeated */
    cw_directory_writer_free(f->writer);
}

static inline size_t key_of(char *key, uint64_t number) {
    return (size_t)sprintf(key, "ns%cname/%llu", 0, (unsigned long long)number);
}

/* A record whose parts all follow from (number, version), so that a torn copy shows. */
static inline size_t meta_of(uint8_t *meta, uint64_t number, uint64_t version) {
    size_t bytes = (size_t)((number * 7 + version * 13) % 600);
    if (number % 97 == 0)
        bytes = CW_META_MAX - 200 + version % 200;
    memset(meta, (int)(number + version), bytes);
    return bytes;
}

static inline struct cw_entry entry_of(uint64_t number, uint64_t version) {
    return (struct cw_entry){.slab = (uint32_t)number,
                             .block = (uint32_t)version,
                             .gen = number * 3 + version,
                             .size_bytes = number ^ version,
                             .owner_pid = 17,
                             .flags = version % 2 ? CW_ENTRY_KEEP : 0};
}

static inline int put(struct fixture *f, uint64_t number, uint64_t version, bool replace,
                      bool *replaced) {
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

static inline int take_away(struct fixture *f, uint64_t number) {
    char key[CW_KEY_MAX];
    struct cw_entry old;
    int code = cw_directory_remove(f->writer, key, key_of(key, number), &old);
    if (code == 0)
        assert_int_equal(old.slab, number);
    return code;
}

static inline void expect_whole(const struct cw_found *found, uint64_t number, uint64_t version) {
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

static inline int find(struct fixture *f, uint64_t number, struct cw_found *found) {
    char key[CW_KEY_MAX];
    return cw_directory_find(&f->reader, key, key_of(key, number), found);
}

static inline void expect_found(struct fixture *f, uint64_t number, uint64_t version) {
    struct cw_found found;
    assert_int_equal(find(f, number, &found), 0);
    expect_whole(&found, number, version);
}

static inline void expect_missing(struct fixture *f, uint64_t number) {
    struct cw_found found;
    assert_int_equal(find(f, number, &found), -ENOENT);
}

/* Walks all; returns how many, each of which must be whole and come once (seen: a flag a number).
 */
static inline uint64_t walk(struct fixture *f, uint8_t *seen, uint64_t numbers) {
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

#endif
