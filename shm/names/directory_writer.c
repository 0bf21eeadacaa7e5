/*
 * Directory, the broker's side: see directory.h for the protocol.
 *
 * One thread of the broker owns the writer. Readers look at every moment, so each change ends in
 * one store of one reference: a record is written whole before a slot names it, and its units are
 * used again only under an odd sequence. An index that grows full is built anew beside the current
 * one, some slots with each put, so that no turn of the broker has all to do; what changes
 * meanwhile in slots that were moved already is changed in both. Readers learn of the new one when
 * it is whole. The broker's death leaves the directory as it was after the last whole store;
 * readers of a half-written record give up after bounded retries.
 */
#include "shm/names/directory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"

#define UNITS_MAX (CW_RECORD_MAX / CW_RECORD_UNIT)
#define MOVE_EACH 16u /* slots with each put: all are moved before a sixteenth more is used */

struct free_list { /* records of one size, given back */
    uint64_t *refs;
    size_t count, room;
};

struct cw_directory_writer {
    struct cw_directory_root *root;
    uint64_t names_max, instance;
    uint64_t names, put_id;
    struct cw_segment index;
    uint64_t slots, used;    /* used: live and tombstones */
    struct cw_segment fresh; /* the index that is being built; base NULL: none is */
    uint64_t fresh_slots, fresh_used;
    uint64_t moved; /* slots of the current index before this one stand in the fresh one, too */
    struct cw_segment records[CW_RECORD_SEGMENTS];
    unsigned record_segments;
    uint64_t next_unit, end_unit; /* never used units of the last record segment */
    struct free_list free_lists[UNITS_MAX + 1];
};

static struct cw_index_slot *slot_at(const struct cw_segment *index, uint64_t number) {
    return (struct cw_index_slot *)((uint8_t *)index->base + sizeof(struct cw_segment_header)) +
           number;
}

static struct cw_record *record_at(struct cw_directory_writer *w, uint64_t ref) {
    return (struct cw_record *)((uint8_t *)w->records[(ref - 2) >> 32].base +
                                (uint64_t)(uint32_t)(ref - 2) * CW_RECORD_UNIT);
}

/* Our own records: nobody else writes them, so plain words are enough. */
static struct cw_entry record_entry(struct cw_directory_writer *w, uint64_t ref) {
    struct cw_entry entry;
    memcpy(&entry, (const void *)record_at(w, ref)->body, sizeof entry);
    return entry;
}

static const char *record_key(struct cw_directory_writer *w, uint64_t ref) {
    return (const char *)record_at(w, ref)->body + sizeof(struct cw_entry);
}

static uint64_t units_for(uint64_t key_bytes, uint64_t meta_bytes) {
    uint64_t bytes = sizeof(struct cw_record) + sizeof(struct cw_entry) +
                     ((key_bytes + 7) & ~7ull) + ((meta_bytes + 7) & ~7ull);
    return (bytes + CW_RECORD_UNIT - 1) / CW_RECORD_UNIT;
}

static int free_list_push(struct free_list *list, uint64_t ref) {
    if (list->count == list->room) {
        size_t room = list->room ? list->room * 2 : 64;
        uint64_t *refs = realloc(list->refs, room * sizeof *refs);
        if (!refs)
            return cw_fail(-EDQUOT, "no memory for the directory's list of free records");
        list->refs = refs;
        list->room = room;
    }
    list->refs[list->count++] = ref;
    return 0;
}

/* Gives units back. For want of memory they stay unused until the broker ends: a loss, not a fault.
 */
static void units_free(struct cw_directory_writer *w, uint64_t ref, uint64_t units) {
    if (units)
        (void)free_list_push(&w->free_lists[units], ref);
}

static int records_grow(struct cw_directory_writer *w) {
    if (w->record_segments == CW_RECORD_SEGMENTS)
        return cw_fail(-EDQUOT, "the directory's %u record segments are full", CW_RECORD_SEGMENTS);
    unsigned number = w->record_segments;
    uint64_t units = (uint64_t)CW_RECORD_FIRST_UNITS << (number < 11 ? number : 11);
    char label[32]; /* by which a monitor finds the segment in /proc without asking */
    snprintf(label, sizeof label, "records-%u", number);
    int code = cw_segment_create(label, units * CW_RECORD_UNIT, CW_SEGMENT_RECORDS, w->instance,
                                 CW_SEGMENT_READERS_ONLY, &w->records[number]);
    if (code)
        return code;
    while (w->next_unit <
           w->end_unit) { /* what is left of the last segment serves smaller records */
        uint64_t left = w->end_unit - w->next_unit;
        uint64_t piece = left < UNITS_MAX ? left : UNITS_MAX;
        units_free(w, 2 + ((uint64_t)(number - 1) << 32 | w->next_unit), piece);
        w->next_unit += piece;
    }
    w->record_segments++;
    w->next_unit = 1; /* unit 0 holds the segment's header */
    w->end_unit = units;
    CW_STORE(D8, &w->root->record_segments, w->record_segments, release);
    return 0;
}

/* A reference to so many units: one given back, else never used ones, else a piece of a larger one.
 */
static int units_take(struct cw_directory_writer *w, uint64_t units, uint64_t *ref) {
    struct free_list *exact = &w->free_lists[units];
    if (exact->count) {
        *ref = exact->refs[--exact->count];
        return 0;
    }
    for (uint64_t larger = units + 1; larger <= UNITS_MAX; larger++) {
        struct free_list *list = &w->free_lists[larger];
        if (list->count) {
            *ref = list->refs[--list->count];
            units_free(w, *ref + units, larger - units);
            return 0;
        }
    }
    if (w->next_unit + units > w->end_unit) {
        int code = records_grow(w);
        if (code)
            return code;
    }
    *ref = 2 + ((uint64_t)(w->record_segments - 1) << 32 | w->next_unit);
    w->next_unit += units;
    return 0;
}

static void store_words(cw_a64 *to, const void *from, size_t bytes) {
    for (size_t done = 0; done < bytes; done += 8) {
        uint64_t word = 0;
        memcpy(&word, (const char *)from + done, bytes - done < 8 ? bytes - done : 8);
        /* D6: release, so that who sees this word also sees the odd sequence before it; pairs with
         * D5. */
        CW_STORE(D6, &to[done / 8], word, release);
    }
}

void cw_record_write(struct cw_record *record, const struct cw_entry *entry, const char *key,
                     const void *meta) {
    uint64_t seq = CW_LOAD(D6, &record->seq, relaxed) | 1;
    CW_STORE(D6, &record->seq, seq, release);
    cw_a64 *body = record->body;
    store_words(body, entry, sizeof *entry);
    body += sizeof *entry / 8;
    store_words(body, key, entry->key_bytes);
    body += ((size_t)entry->key_bytes + 7) / 8;
    store_words(body, meta, entry->meta_bytes);
    /* D6: the even sequence comes after every word; pairs with D3. */
    CW_STORE(D6, &record->seq, seq + 1, release);
}

static void record_erase(struct cw_record *record) {
    static const struct cw_entry none;
    cw_record_write(record, &none, NULL, NULL);
}

static uint64_t record_units(struct cw_directory_writer *w, uint64_t ref) {
    struct cw_entry entry = record_entry(w, ref);
    return units_for(entry.key_bytes, entry.meta_bytes);
}

/* The slot of a key, or NULL; *place is where it may be put. */
static struct cw_index_slot *slot_find(struct cw_directory_writer *w, const char *key,
                                       size_t key_bytes, uint64_t hash,
                                       struct cw_index_slot **place) {
    *place = NULL;
    for (uint64_t n = 0; n < w->slots; n++) {
        struct cw_index_slot *slot = slot_at(&w->index, (hash + n) & (w->slots - 1));
        uint64_t ref = CW_LOAD(D2, &slot->ref, relaxed);
        if (ref <= CW_REF_TOMB) {
            if (!*place)
                *place = slot;
            if (ref == 0)
                return NULL;
            continue;
        }
        if (CW_LOAD(D7, &slot->hash, relaxed) == hash &&
            record_entry(w, ref).key_bytes == key_bytes &&
            memcmp(record_key(w, ref), key, key_bytes) == 0)
            return slot;
    }
    return NULL;
}

static void slot_set(struct cw_index_slot *slot, uint64_t hash, uint64_t ref) {
    CW_STORE(D7, &slot->hash, hash, relaxed);
    /* D2: publishes hash and record; pairs with D2 in readers. */
    CW_STORE(D2, &slot->ref, ref, release);
}

static int index_create(struct cw_directory_writer *w, uint64_t slots, struct cw_segment *out) {
    char label[32];
    snprintf(label, sizeof label, "index-%llu",
             (unsigned long long)CW_LOAD(D1, &w->root->index_id, relaxed) + 1);
    return cw_segment_create(
        label, sizeof(struct cw_segment_header) + slots * sizeof(struct cw_index_slot),
        CW_SEGMENT_INDEX, w->instance, CW_SEGMENT_READERS_ONLY, out);
}

static void index_publish(struct cw_directory_writer *w, struct cw_segment *index, uint64_t slots,
                          uint64_t used) {
    cw_segment_close(&w->index); /* readers keep their own mappings of it */
    w->index = *index;
    w->slots = slots;
    w->used = used;
    CW_STORE(D8, &w->root->index_slots, slots, relaxed);
    /* D1: names the index only now that it is filled; pairs with D1 in readers. */
    CW_STORE(D1, &w->root->index_id, CW_LOAD(D1, &w->root->index_id, relaxed) + 1, release);
}

/* ---- an index that is being built ---- */

static void fresh_add(struct cw_directory_writer *w, uint64_t hash, uint64_t ref) {
    uint64_t n = hash & (w->fresh_slots - 1);
    while (CW_LOAD(D2, &slot_at(&w->fresh, n)->ref, relaxed) > CW_REF_TOMB)
        n = (n + 1) & (w->fresh_slots - 1);
    w->fresh_used += CW_LOAD(D2, &slot_at(&w->fresh, n)->ref, relaxed) == 0;
    slot_set(slot_at(&w->fresh, n), hash, ref);
}

/* What a slot of the current index had is something else now: after the slot, before the record of
 * old_ref is given back. old_ref 0: it was free; ref CW_REF_TOMB: it is. */
static void fresh_follow(struct cw_directory_writer *w, const struct cw_index_slot *slot,
                         uint64_t hash, uint64_t old_ref, uint64_t ref) {
    if (!w->fresh.base || slot >= slot_at(&w->index, w->moved))
        return;
    if (!old_ref) {
        fresh_add(w, hash, ref);
        return;
    }
    uint64_t n = hash & (w->fresh_slots - 1);
    while (CW_LOAD(D2, &slot_at(&w->fresh, n)->ref, relaxed) != old_ref)
        n = (n + 1) & (w->fresh_slots - 1);
    slot_set(slot_at(&w->fresh, n), hash, ref);
}

/* Without tombstones, and with room for what is put while it is built. */
static int fresh_begin(struct cw_directory_writer *w) {
    uint64_t slots = w->slots;
    while ((w->names + w->slots / 8) * 2 > slots)
        slots *= 2;
    int code = index_create(w, slots, &w->fresh);
    if (code)
        return code;
    w->fresh_slots = slots;
    w->fresh_used = w->moved = 0;
    return 0;
}

/* Moves some slots; after the last one the fresh index is the current one. */
static void fresh_move(struct cw_directory_writer *w, uint64_t some) {
    uint64_t until = w->slots - w->moved < some ? w->slots : w->moved + some;
    for (; w->moved < until; w->moved++) {
        const struct cw_index_slot *slot = slot_at(&w->index, w->moved);
        uint64_t ref = CW_LOAD(D2, &slot->ref, relaxed);
        if (ref > CW_REF_TOMB)
            fresh_add(w, CW_LOAD(D7, &slot->hash, relaxed), ref);
    }
    if (w->moved < w->slots)
        return;
    index_publish(w, &w->fresh, w->fresh_slots, w->fresh_used);
    w->fresh = (struct cw_segment){.fd = -1};
}

/* Keeps at least 30 % of the slots empty, so that probes end soon: from half on the next index is
 * built. For want of memory that begins later, and at last all is moved at once. */
static int index_make_room(struct cw_directory_writer *w) {
    bool full = (w->used + 1) * 10 > w->slots * 7;
    int code = 0;
    if (!w->fresh.base && (w->used + 1) * 2 > w->slots)
        code = fresh_begin(w);
    if (w->fresh.base)
        fresh_move(w, full ? w->slots : MOVE_EACH);
    return full ? code : 0;
}

int cw_directory_writer_new(struct cw_directory_root *root, uint64_t names_max, uint64_t instance,
                            struct cw_directory_writer **out) {
    struct cw_directory_writer *w = calloc(1, sizeof *w);
    if (!w)
        return cw_fail(-EDQUOT, "no memory for the directory");
    w->root = root;
    w->names_max = names_max;
    w->instance = instance;
    w->index.fd = w->fresh.fd = -1;
    for (unsigned i = 0; i < CW_RECORD_SEGMENTS; i++)
        w->records[i].fd = -1;
    struct cw_segment first;
    int code = index_create(w, CW_INDEX_FIRST_SLOTS, &first);
    if (code == 0) {
        index_publish(w, &first, CW_INDEX_FIRST_SLOTS, 0);
        code = records_grow(w);
    }
    if (code) {
        cw_directory_writer_free(w);
        return code;
    }
    *out = w;
    return 0;
}

void cw_directory_writer_free(struct cw_directory_writer *w) {
    if (!w)
        return;
    cw_segment_close(&w->index);
    cw_segment_close(&w->fresh);
    for (unsigned i = 0; i < CW_RECORD_SEGMENTS; i++)
        cw_segment_close(&w->records[i]);
    for (unsigned i = 0; i <= UNITS_MAX; i++)
        free(w->free_lists[i].refs);
    free(w);
}

static void count_change(struct cw_directory_writer *w) {
    CW_STORE(D8, &w->root->names, w->names, relaxed);
    CW_ADD(D8, &w->root->changes, 1, release);
}

/* Ends an old record, once no slot names it. */
static void record_release(struct cw_directory_writer *w, uint64_t ref) {
    uint64_t units = record_units(w, ref);
    record_erase(record_at(w, ref));
    units_free(w, ref, units);
}

int cw_directory_put(struct cw_directory_writer *w, const char *key, size_t key_bytes,
                     const struct cw_entry *entry, const void *meta, size_t meta_bytes,
                     bool replace, bool *replaced, struct cw_entry *old) {
    CW_ASSERT(key_bytes > 0 && key_bytes <= CW_KEY_MAX && meta_bytes <= CW_META_MAX);
    uint64_t hash = cw_directory_hash(key, key_bytes);
    int code = index_make_room(w);
    if (code)
        return code;
    struct cw_index_slot *place, *slot = slot_find(w, key, key_bytes, hash, &place);
    uint64_t old_ref = slot ? CW_LOAD(D2, &slot->ref, relaxed) : 0;
    if (slot) {
        *old = record_entry(w, old_ref);
        if (!replace)
            return -EEXIST;
    } else if (w->names >= w->names_max) {
        return cw_fail(-EDQUOT, "the directory holds %llu names, max_names allows no more",
                       (unsigned long long)w->names);
    }
    uint64_t ref;
    code = units_take(w, units_for(key_bytes, meta_bytes), &ref);
    if (code)
        return code;
    struct cw_entry fresh = *entry;
    fresh.key_bytes = (uint16_t)key_bytes;
    fresh.meta_bytes = (uint16_t)meta_bytes;
    fresh.id = ++w->put_id;
    cw_record_write(record_at(w, ref), &fresh, key, meta);
    *replaced = slot != NULL;
    if (slot) {
        slot_set(slot, hash, ref);
        fresh_follow(w, slot, hash, old_ref, ref);
        record_release(w, old_ref);
    } else {
        w->used += CW_LOAD(D2, &place->ref, relaxed) == 0;
        w->names++;
        slot_set(place, hash, ref);
        fresh_follow(w, place, hash, 0, ref);
    }
    count_change(w);
    return 0;
}

static void slot_remove(struct cw_directory_writer *w, struct cw_index_slot *slot) {
    uint64_t ref = CW_LOAD(D2, &slot->ref, relaxed);
    uint64_t hash = CW_LOAD(D7, &slot->hash, relaxed);
    CW_STORE(D2, &slot->ref, CW_REF_TOMB, release);
    fresh_follow(w, slot, hash, ref, CW_REF_TOMB);
    record_release(w, ref);
    w->names--;
    count_change(w);
}

int cw_directory_remove(struct cw_directory_writer *w, const char *key, size_t key_bytes,
                        struct cw_entry *old) {
    struct cw_index_slot *place,
        *slot = slot_find(w, key, key_bytes, cw_directory_hash(key, key_bytes), &place);
    if (!slot)
        return -ENOENT;
    *old = record_entry(w, CW_LOAD(D2, &slot->ref, relaxed));
    slot_remove(w, slot);
    return 0;
}

int cw_directory_lookup(struct cw_directory_writer *w, const char *key, size_t key_bytes,
                        struct cw_entry *out) {
    struct cw_index_slot *place,
        *slot = slot_find(w, key, key_bytes, cw_directory_hash(key, key_bytes), &place);
    if (!slot)
        return -ENOENT;
    *out = record_entry(w, CW_LOAD(D2, &slot->ref, relaxed));
    return 0;
}

void cw_directory_sweep(struct cw_directory_writer *w,
                        bool (*drop)(void *context, const struct cw_entry *entry), void *context) {
    for (uint64_t i = 0; i < w->slots; i++) {
        struct cw_index_slot *slot = slot_at(&w->index, i);
        uint64_t ref = CW_LOAD(D2, &slot->ref, relaxed);
        if (ref <= CW_REF_TOMB)
            continue;
        struct cw_entry entry = record_entry(w, ref);
        if (drop(context, &entry))
            slot_remove(w, slot);
    }
}

void cw_directory_first(struct cw_directory_writer *w, uint64_t *index_id,
                        const struct cw_segment **index, const struct cw_segment **records) {
    *index_id = CW_LOAD(D1, &w->root->index_id, relaxed);
    *index = &w->index;
    *records = &w->records[0];
}

int cw_directory_segment(struct cw_directory_writer *w, uint32_t kind, uint64_t which,
                         const struct cw_segment **out) {
    if (kind == CW_SEGMENT_INDEX && which == CW_LOAD(D1, &w->root->index_id, relaxed))
        *out = &w->index;
    else if (kind == CW_SEGMENT_RECORDS && which < w->record_segments)
        *out = &w->records[which];
    else
        return -ENOENT;
    return 0;
}
