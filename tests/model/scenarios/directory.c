/*
 * Directory: a reader finds what stands, whole, while the broker replaces, removes and grows.
 *
 * Every field of a record follows from its version, so that a torn copy shows. The index has four
 * slots, and a reader tries once or twice (small_directory.h): each try begins anew, so that more
 * would show nothing new. A reader that gives up has nothing to check.
 */
#include <stdlib.h>
#include <string.h>

#include "scenarios.h"
#include "shm/base/error.h"
#include "small_directory.h"

#define INDEXES 3u

static struct cw_directory_root root;
static struct cw_directory_writer *writer;
static struct cw_directory_reader reader;
static _Alignas(64) uint8_t indexes[INDEXES][512];
static _Alignas(64) uint8_t records[CW_RECORD_FIRST_UNITS * CW_RECORD_UNIT];
static unsigned indexes_made;
unsigned model_directory_retries;
static struct { uint8_t put; /* version that a returned put made */ } ghost;

/* ---- segments without files ---- */

int cw_segment_create(const char *label, uint64_t size_bytes, uint32_t kind, uint64_t instance,
                      unsigned flags, struct cw_segment *out) {
    (void)label, (void)instance, (void)flags;
    *out = (struct cw_segment){.fd = -1, .base = records, .size_bytes = size_bytes};
    if (kind == CW_SEGMENT_INDEX) {
        if (indexes_made == INDEXES || size_bytes > sizeof indexes[0])
            abort();
        out->base = indexes[indexes_made++];
    }
    return 0;
}

void cw_segment_close(struct cw_segment *segment) {
    segment->base = NULL;
}

static int fetch(void *context, uint32_t kind, uint64_t which, struct cw_segment *out) {
    (void)context;
    if (kind == CW_SEGMENT_RECORDS)
        *out = (struct cw_segment){.fd = -1, .base = records, .size_bytes = sizeof records};
    else
        *out = (struct cw_segment){.fd = -1,
                                   .base = indexes[which - 1],
                                   .size_bytes = sizeof(struct cw_segment_header) +
                                                 (CW_INDEX_FIRST_SLOTS << (which - 1)) *
                                                     sizeof(struct cw_index_slot)};
    return 0;
}

/* ---- what the threads do ---- */

static const char key_1[8] = "first", key_2[8] = "second", key_3[8] = "third";

static void put(const char *key, uint64_t version) {
    struct cw_entry entry = {.slab = (uint32_t)version,
                             .block = (uint32_t)version,
                             .gen = version,
                             .offset_bytes = version,
                             .size_bytes = version,
                             .created_ns = version,
                             .owner_pid = (uint32_t)version,
                             .owner_session = (uint32_t)version},
                    old;
    bool replaced;
    if (cw_directory_put(writer, key, 8, &entry, &version, sizeof version, true, &replaced, &old) !=
        0)
        model_fail("a put failed");
}

static void init(void) {
    cw_directory_writer_free(writer);
    memset(&root, 0, sizeof root);
    memset(indexes, 0, sizeof indexes);
    memset(records, 0, 8 * CW_RECORD_UNIT); /* more are not used */
    indexes_made = 0;
    model_directory_retries = 1;
    if (cw_directory_writer_new(&root, 8, 1, &writer) != 0)
        abort();
    cw_directory_reader_init(&reader, &root, fetch, NULL);
    /* Mapped before: after a fetch a reader looks anew, and would see by chance what it must see by
     * order. */
    (void)fetch(NULL, CW_SEGMENT_RECORDS, 0, &reader.records[0]);
    put(key_1, 1);
}

static void init_full(void) {
    init();
    put(key_2, 1);
    model_directory_retries = 2;
}

/* Looks a key up: its version, or 0 if it is not there, -1 if the reader gave up. */
static int find(const char *key) {
    struct cw_found found;
    int code = cw_directory_find(&reader, key, 8, &found);
    MODEL_CHECK(code == 0 || code == -ENOENT || code == -ECONNRESET);
    if (code)
        return code == -ENOENT ? 0 : -1;
    uint64_t meta, version = found.entry.gen;
    memcpy(&meta, found.meta, sizeof meta);
    const struct cw_entry *e = &found.entry;
    MODEL_CHECK(e->slab == version && e->block == version && e->offset_bytes == version &&
                e->size_bytes == version && e->created_ns == version && e->owner_pid == version &&
                e->owner_session == version && meta == version);
    MODEL_CHECK(e->key_bytes == 8 && e->meta_bytes == 8 && memcmp(found.key, key, 8) == 0);
    return (int)version;
}

static void broker_replaces(void) {
    put(key_1, 2); /* and erases version 1 */
}

static void broker_removes_and_reuses(void) {
    struct cw_entry old;
    MODEL_CHECK(cw_directory_remove(writer, key_1, 8, &old) == 0 && old.gen == 1);
    put(key_2, 2); /* where the first one was */
}

static void broker_grows(void) {
    put(key_3, 2);
}

static void broker_puts_another(void) {
    put(key_2, 2);
}

static void reader_finds(void) {
    int version = find(key_1);
    MODEL_CHECK(version != 0); /* never a moment without */
}

static void reader_may_find(void) {
    int version = find(key_1);
    MODEL_CHECK(version <= 1);
}

static void reader_finds_two(void) {
    MODEL_CHECK(find(key_1) != 0);
    int version = find(key_3);
    MODEL_CHECK(version == -1 || version == 0 || version == 2);
}

static void reader_looks_for_new(void) {
    int version = find(key_2);
    MODEL_CHECK(version == -1 || version == 0 || version == 2);
}

#define DIRECTORY(text, says, start, dies, ...)                                                    \
    {                                                                                              \
        .name = text, .promise = says, .init = start, .threads = {__VA_ARGS__}, .killable = dies,  \
        .ghost = &ghost, .ghost_bytes = sizeof ghost                                               \
    }

const struct model_scenario model_directory_scenarios[] = {
    DIRECTORY("directory, put", "a new record is seen whole or not at all", init, 0,
              broker_puts_another, reader_looks_for_new),
    DIRECTORY("directory, replaced", "found at every moment, and whole", init, 0, broker_replaces,
              reader_finds),
    DIRECTORY("directory, removed and reused", "whole or not there, never another's", init, 0,
              broker_removes_and_reuses, reader_may_find),
    DIRECTORY("directory, grown", "found in the old index or in the new", init_full, 0,
              broker_grows, reader_finds_two),
    DIRECTORY("directory, broker dies", "whole, or the reader gives up", init, 1, broker_replaces,
              reader_finds),
    {.name = NULL},
};
