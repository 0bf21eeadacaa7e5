/*
 * Directory, the readers' side: see directory.h for the protocol.
 *
 * A reader belongs to one process and its caller serialises its use, but while a segment is
 * fetched: then another thread may use it, and what it has mapped is looked at anew. It writes
 * nothing shared. If the broker dies in the middle of a write, a reader meets an odd sequence for
 * ever: retries are bounded.
 */
#include "shm/names/directory.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "shm/base/error.h"

uint64_t cw_directory_hash(const char *key, size_t key_bytes) {
    uint64_t hash = XXH3_64bits(key, key_bytes);
    return hash ? hash : 1;
}

void cw_directory_reader_init(struct cw_directory_reader *r, struct cw_directory_root *root,
                              cw_directory_fetch *fetch, void *context) {
    *r = (struct cw_directory_reader){.root = root, .fetch = fetch, .context = context};
    r->index.fd = -1;
    for (unsigned i = 0; i < CW_RECORD_SEGMENTS; i++)
        r->records[i].fd = -1;
}

static bool is_index(const struct cw_segment *index) {
    uint64_t bytes = index->size_bytes - sizeof(struct cw_segment_header);
    return index->size_bytes >= CW_PAGE &&
           bytes / sizeof(struct cw_index_slot) >= CW_INDEX_FIRST_SLOTS;
}

void cw_directory_reader_give(struct cw_directory_reader *r, uint64_t index_id,
                              struct cw_segment *index, struct cw_segment *records) {
    r->records[0] = *records;
    if (!is_index(index)) {
        cw_segment_close(index);
        return;
    }
    r->index = *index;
    r->index_id = index_id;
}

void cw_directory_reader_deinit(struct cw_directory_reader *r) {
    cw_segment_close(&r->index);
    for (unsigned i = 0; i < CW_RECORD_SEGMENTS; i++)
        cw_segment_close(&r->records[i]);
    r->index_id = 0;
}

/* Maps the current index if it is not the one that we have. -EAGAIN: it changed while we asked. */
static int reader_index(struct cw_directory_reader *r) {
    /* D1: pairs with D1 in the writer, which names an index only once it is filled. */
    uint64_t id = CW_LOAD(D1, &r->root->index_id, acquire);
    if (id == r->index_id && r->index.base)
        return 0;
    struct cw_segment fresh = {.fd = -1};
    int code = r->fetch(r->context, CW_SEGMENT_INDEX, id, &fresh);
    if (code)
        return code == -ENOENT ? -EAGAIN : code;
    if (!is_index(&fresh)) {
        cw_segment_close(&fresh);
        return cw_fail(-EPROTO, "the broker handed out an index of %zu bytes", fresh.size_bytes);
    }
    if (id == r->index_id && r->index.base) { /* another thread was quicker */
        cw_segment_close(&fresh);
        return 0;
    }
    cw_segment_close(&r->index);
    r->index = fresh;
    r->index_id = id;
    return 0;
}

/* Maps a segment of records. -EAGAIN: it had to be fetched, or is not there any more. */
static int reader_records(struct cw_directory_reader *r, uint64_t segment) {
    struct cw_segment fresh = {.fd = -1};
    int code = r->fetch(r->context, CW_SEGMENT_RECORDS, segment, &fresh);
    if (code)
        return code == -ENOENT ? -EAGAIN : code;
    if (r->records[segment].base) /* another thread was quicker */
        cw_segment_close(&fresh);
    else
        r->records[segment] = fresh;
    return -EAGAIN;
}

/* The first segment of records that is not mapped; as many as there are: all are. */
static uint64_t first_unmapped(const struct cw_directory_reader *r) {
    /* D8: one that is new is found when a reference to it is. */
    uint64_t count = CW_LOAD(D8, &r->root->record_segments, relaxed), i = 0;
    count = count < CW_RECORD_SEGMENTS ? count : CW_RECORD_SEGMENTS;
    while (i < count && r->records[i].base)
        i++;
    return i < count ? i : CW_RECORD_SEGMENTS;
}

bool cw_directory_mapped(const struct cw_directory_reader *r) {
    return CW_LOAD(D1, &r->root->index_id, acquire) == r->index_id && r->index.base &&
           first_unmapped(r) == CW_RECORD_SEGMENTS;
}

int cw_directory_map(struct cw_directory_reader *r) {
    uint64_t segment;
    int code = reader_index(r);
    while (code == 0 && (segment = first_unmapped(r)) < CW_RECORD_SEGMENTS) {
        code = reader_records(r, segment);
        if (code == -EAGAIN && r->records[segment].base)
            code = 0;
    }
    return code == -EAGAIN ? 0 : code; /* it moved on: who looks finds out */
}

/* Slots of an index segment: the largest power of two that fits. */
static uint64_t index_slots(const struct cw_segment *index) {
    uint64_t room =
        (index->size_bytes - sizeof(struct cw_segment_header)) / sizeof(struct cw_index_slot);
    return 1ull << (63 - __builtin_clzll(room));
}

static struct cw_index_slot *index_slot(const struct cw_segment *index, uint64_t number) {
    return (struct cw_index_slot *)((uint8_t *)index->base + sizeof(struct cw_segment_header)) +
           number;
}

/* The record behind a reference, mapped; -EPROTO if it cannot be one. -EAGAIN also when it had to
 * be fetched: the index may be another by now. */
static int reader_record(struct cw_directory_reader *r, uint64_t ref, struct cw_record **record,
                         uint64_t *room_bytes) {
    uint64_t segment = (ref - 2) >> 32, unit = (uint32_t)(ref - 2);
    if (segment >= CW_RECORD_SEGMENTS)
        return cw_fail(-EPROTO, "the directory refers to record segment %llu",
                       (unsigned long long)segment);
    if (!r->records[segment].base)
        return reader_records(r, segment);
    uint64_t offset = unit * CW_RECORD_UNIT, size = r->records[segment].size_bytes;
    if (unit == 0 || offset >= size)
        return cw_fail(-EPROTO, "the directory refers to unit %llu of record segment %llu",
                       (unsigned long long)unit, (unsigned long long)segment);
    *record = (struct cw_record *)((uint8_t *)r->records[segment].base + offset);
    *room_bytes = size - offset < CW_RECORD_MAX ? size - offset : CW_RECORD_MAX;
    return 0;
}

static void copy_words(uint64_t *to, cw_a64 *from, uint64_t count) {
    /* D5: pairs with D6 in the writer: who sees a word of a later record also sees its odd
     * sequence. */
    for (uint64_t i = 0; i < count; i++)
        to[i] = CW_LOAD(D5, &from[i], acquire);
}

int cw_record_copy(struct cw_record *record, uint64_t room_bytes, struct cw_found *out) {
    /* D3: pairs with D6: a record's words are at least as new as its sequence. */
    uint64_t before = CW_LOAD(D3, &record->seq, acquire);
    if (before & 1)
        return -EAGAIN;
    const uint64_t fixed = sizeof(struct cw_entry) / 8;
    copy_words((uint64_t *)(void *)&out->entry, record->body, fixed);
    uint64_t key = ((uint64_t)out->entry.key_bytes + 7) / 8,
             meta = ((uint64_t)out->entry.meta_bytes + 7) / 8;
    bool whole = out->entry.key_bytes <= CW_KEY_MAX && out->entry.meta_bytes <= CW_META_MAX &&
                 8 * (1 + fixed + key + meta) <= room_bytes;
    if (whole) {
        copy_words((uint64_t *)(void *)out->key, record->body + fixed, key);
        copy_words((uint64_t *)(void *)out->meta, record->body + fixed + key, meta);
    }
    /* D4: pairs with the odd sequence that D6 orders before each word: unchanged means untorn. */
    if (CW_LOAD(D4, &record->seq, acquire) != before)
        return -EAGAIN;
    if (!whole)
        return cw_fail(-EPROTO, "a record of the directory is damaged");
    return out->entry.key_bytes ? 0 : -ENOENT;
}

/* One probe of the index as it stands. 0, -ENOENT, -EAGAIN (something moved), or an error. */
static int probe(struct cw_directory_reader *r, const char *key, size_t key_bytes, uint64_t hash,
                 struct cw_found *out) {
    int code = reader_index(r);
    if (code)
        return code;
    uint64_t slots = index_slots(&r->index);
    for (uint64_t n = 0; n < slots; n++) {
        struct cw_index_slot *slot = index_slot(&r->index, (hash + n) & (slots - 1));
        /* D2: pairs with D2 in the writer: the hash and the record are there before the reference.
         */
        uint64_t ref = CW_LOAD(D2, &slot->ref, acquire);
        if (ref == 0)
            break;
        if (ref == CW_REF_TOMB || CW_LOAD(D7, &slot->hash, relaxed) != hash)
            continue;
        struct cw_record *record;
        uint64_t room_bytes;
        code = reader_record(r, ref, &record, &room_bytes);
        if (code)
            return code;
        code = cw_record_copy(record, room_bytes, out);
        if (code == 0 && out->entry.key_bytes == key_bytes && memcmp(out->key, key, key_bytes) == 0)
            return 0;
        if (code == 0 && cw_directory_hash(out->key, out->entry.key_bytes) == hash)
            continue; /* two keys share all 64 bits of the hash */
        /* A slot names whole records of its own hash alone: it moved on under us. That it names the
         * same reference again proves nothing, since records are used again at once. */
        return code == 0 || code == -ENOENT ? -EAGAIN : code;
    }
    /* A miss counts only in the current index. */
    return CW_LOAD(D1, &r->root->index_id, acquire) == r->index_id ? -ENOENT : -EAGAIN;
}

int cw_directory_find(struct cw_directory_reader *r, const char *key, size_t key_bytes,
                      struct cw_found *out) {
    uint64_t hash = cw_directory_hash(key, key_bytes);
    for (unsigned retry = 0; retry < CW_DIRECTORY_RETRIES; retry++) {
        int code = probe(r, key, key_bytes, hash, out);
        if (code != -EAGAIN)
            return code;
        CW_PAUSE();
    }
    return cw_fail(-ECONNRESET,
                   "the directory did not come to rest in %u tries: the broker died in the "
                   "middle of a change",
                   CW_DIRECTORY_RETRIES);
}

int cw_directory_next(struct cw_directory_reader *r, uint64_t *cursor, struct cw_found *out) {
    if (*cursor == 0) {
        int code = -EAGAIN;
        for (unsigned retry = 0; code == -EAGAIN && retry < CW_DIRECTORY_RETRIES; retry++)
            code = reader_index(r);
        if (code)
            return code == -EAGAIN ? -ECONNRESET : code;
        *cursor = r->index_id << 32;
    }
    if (*cursor >> 32 != (uint32_t)CW_LOAD(D1, &r->root->index_id, acquire) ||
        *cursor >> 32 != (uint32_t)r->index_id)
        return -EAGAIN;
    for (unsigned retry = 0; (uint32_t)*cursor < index_slots(&r->index);) {
        struct cw_index_slot *slot = index_slot(&r->index, (uint32_t)*cursor);
        uint64_t ref = CW_LOAD(D2, &slot->ref, acquire), room_bytes;
        struct cw_record *record;
        int code = -ENOENT;
        if (ref > CW_REF_TOMB) {
            code = reader_record(r, ref, &record, &room_bytes);
            if (code == 0)
                code = cw_record_copy(record, room_bytes, out);
            /* As in probe: an erased record, or one of another slot's key, means that the slot
             * moved on under us; the name in it may stand all the time. */
            if (code == -ENOENT ||
                (code == 0 && cw_directory_hash(out->key, out->entry.key_bytes) !=
                                  CW_LOAD(D7, &slot->hash, relaxed)))
                code = -EAGAIN;
        }
        if (code == -EAGAIN && retry++ < CW_DIRECTORY_RETRIES) {
            /* An index that is no longer the current one stays as it was: no use to look again. */
            if (CW_LOAD(D1, &r->root->index_id, acquire) != r->index_id ||
                *cursor >> 32 != (uint32_t)r->index_id)
                return -EAGAIN;
            CW_PAUSE();
            continue;
        }
        if (code != 0 && code != -ENOENT)
            return code == -EAGAIN
                       ? cw_fail(-ECONNRESET, "a record of the directory stays half written: the "
                                              "broker died in the middle of a change")
                       : code;
        ++*cursor;
        retry = 0;
        if (code == 0)
            return 1;
    }
    return 0;
}
