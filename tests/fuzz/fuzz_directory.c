/*
 * Fuzzes the directory's reader with damaged segments: words of root, index and records are written
 * over anywhere, as a broker that was killed, or one that is broken, could leave them. Look-ups and
 * walks end with a result, read nothing outside their segments and bound their retries.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/names/directory.h"
#include "shm/base/error.h"

#define NAMES 40

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct cw_directory_writer *writer;

static int fetch(void *context, uint32_t kind, uint64_t which, struct cw_segment *out) {
    const struct cw_segment *segment;
    (void)context;
    int code = cw_directory_segment(writer, kind, which, &segment);
    return code ? code
                : cw_segment_open(dup(segment->fd), segment->size_bytes, kind, false, 0, out);
}

static void put(uint64_t number) {
    char key[16];
    uint8_t meta[CW_META_MAX];
    struct cw_entry entry = {.slab = (uint32_t)number, .gen = number}, old;
    bool replaced;
    memset(meta, (int)number, sizeof meta);
    CW_ASSERT(cw_directory_put(writer, key, (size_t)sprintf(key, "k%d", (int)number), &entry, meta,
                               number * 37 % 900, true, &replaced, &old) == 0);
}

/* One word of some segment: segment, position and value come from 12 bytes of input. */
static void damage(struct cw_directory_root *root, const uint8_t *data) {
    const struct cw_segment *segment = NULL;
    uint32_t where;
    uint64_t value;
    memcpy(&where, data, 4);
    memcpy(&value, data + 4, 8);
    uint32_t kind = where >> 30, word = where & 0x3fffffff;
    cw_a64 *words = (cw_a64 *)(void *)root;
    uint64_t count = sizeof *root / 8, mask = kind == 3 ? UINT64_MAX : 0xffff;
    if (kind == 1 && cw_directory_segment(writer, CW_SEGMENT_INDEX, 1, &segment) != 0)
        return;
    if (kind >= 2 && cw_directory_segment(writer, CW_SEGMENT_RECORDS, 0, &segment) != 0)
        return;
    if (segment) {
        words = segment->base;
        /* Of the records mostly those that are there. */
        count = kind == 2 ? NAMES * CW_RECORD_UNIT * 3 / 8 : segment->size_bytes / 8;
    }
    atomic_store(&words[word % count], value & (where & 0x100 ? mask : UINT64_MAX));
}

static void read_all(struct cw_directory_root *root) {
    static struct cw_directory_reader reader;
    static struct cw_found found;
    char key[16];
    cw_directory_reader_init(&reader, root, fetch, NULL);
    for (int number = 0; number < NAMES + 2; number += 6) {
        size_t key_bytes = (size_t)sprintf(key, "k%d", number);
        int code = cw_directory_find(&reader, key, key_bytes, &found);
        CW_ASSERT(code <= 0);
        if (code == 0)
            CW_ASSERT(found.entry.key_bytes == key_bytes &&
                      memcmp(found.key, key, key_bytes) == 0 &&
                      found.entry.meta_bytes <= CW_META_MAX);
    }
    uint64_t cursor = 0;
    for (int i = 0; i < 20000 && cw_directory_next(&reader, &cursor, &found) == 1; i++)
        CW_ASSERT(found.entry.key_bytes <= CW_KEY_MAX && found.entry.meta_bytes <= CW_META_MAX);
    cw_directory_reader_deinit(&reader);
}

/* The segments as they were before any damage; built once. */
static struct {
    void *memory, *copy;
    size_t bytes;
} kept[3];

static void keep(int which, void *memory, size_t bytes) {
    kept[which].memory = memory;
    kept[which].bytes = bytes;
    kept[which].copy = malloc(bytes);
    CW_ASSERT(kept[which].copy);
    memcpy(kept[which].copy, memory, bytes);
}

static void build(struct cw_directory_root *root) {
    const struct cw_segment *segment;
    CW_ASSERT(cw_directory_writer_new(root, 1000, 7, &writer) == 0);
    for (uint64_t number = 0; number < NAMES; number++)
        put(number);
    keep(0, root, sizeof *root);
    CW_ASSERT(cw_directory_segment(writer, CW_SEGMENT_INDEX, 1, &segment) == 0);
    keep(1, segment->base, segment->size_bytes);
    CW_ASSERT(cw_directory_segment(writer, CW_SEGMENT_RECORDS, 0, &segment) == 0);
    keep(2, segment->base, segment->size_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    _Alignas(64) static struct cw_directory_root root;
    if (!writer)
        build(&root);
    for (int i = 0; i < 3; i++)
        memcpy(kept[i].memory, kept[i].copy, kept[i].bytes);
    for (size_t i = 0; i + 12 <= size && i < 12 * 64; i += 12)
        damage(&root, data + i);
    read_all(&root);
    return 0;
}
