/*
 * Trace rings: see trace_ring.h for the invariants and for what a death leaves.
 *
 * A mark is a number and a state. In a ring the number is that of the event's position, in other
 * places it counts the uses of the place: a reader that finds the same mark twice has read one use.
 * A name takes the place behind its event. Of a call under way the last state means that it rests.
 */
#include "shm/base/trace_ring.h"

#include <string.h>

enum state { EMPTY, BUSY, WHOLE, NAME, RESTS = NAME };

static uint64_t mark_of(uint64_t number, enum state state) {
    return number << 2 | state;
}

static enum state state_of(uint64_t mark) {
    return (enum state)(mark & 3);
}

uint64_t cw_trace_address(const char *path) {
    uint64_t hash = 0xcbf29ce484222325ull; /* FNV-1a */
    for (; *path; path++)
        hash = (hash ^ (uint8_t)*path) * 0x100000001b3ull;
    return hash;
}

/* ---- writing ---- */

static void lose(struct cw_trace *trace) {
    CW_ADD(Y9, &trace->lost, 1, relaxed); /* Y9: a figure */
}

/* Takes a place, which nobody else then writes. */
static bool claim(cw_a64 *place, uint64_t seen, uint64_t number) {
    /* Y3: acquire: what the one before wrote here (Y5) comes before what we write. */
    return CW_CAS(Y3, place, &seen, mark_of(number, BUSY), acquire);
}

static void fill(cw_a64 *place, uint32_t count, const uint64_t *words, uint64_t mark) {
    for (uint32_t i = 0; i < count; i++)
        /* Y4: release: who reads this then finds BUSY (Y3), or a later mark, in Y8. */
        CW_STORE(Y4, &place[i + 1], words[i], release);
    CW_STORE(Y5, place, mark, release); /* Y5: pairs with Y6, and with Y3 */
}

void cw_trace_name(struct cw_trace_record *record, const char *name, size_t bytes) {
    size_t skip = 0, keep = bytes;
    if (bytes > CW_TRACE_NAME_MAX) {
        keep = CW_TRACE_NAME_MAX - 3;
        while (keep && ((uint8_t)name[bytes - keep] & 0xc0) == 0x80) /* within a character */
            keep--;
        memcpy(record->name, "...", 3);
        skip = 3;
    }
    if (keep)
        memcpy(record->name + skip, name + bytes - keep, keep);
    record->name_bytes = (uint32_t)(skip + keep);
}

static void put_record(const struct cw_trace_record *record, uint64_t *words) {
    words[0] = (uint64_t)record->begun_ns;
    words[1] = (uint64_t)record->duration_ns;
    words[2] = record->kind | (uint64_t)record->flags << 8 | (uint64_t)record->op << 16 |
               (uint64_t)record->tid << 32;
    words[3] = record->subject;
    words[4] = record->number;
    words[5] = record->bytes;
    words[6] = record->name_bytes;
}

static bool write_event(struct cw_trace *trace, struct cw_trace_event *ring, uint64_t position,
                        enum state state, const uint64_t *words) {
    struct cw_trace_event *event = &ring[position % CW_TRACE_EVENTS];
    /* Y2: advice: Y3 looks again. */
    uint64_t seen = CW_LOAD(Y2, &event->mark, relaxed);
    /* A later number: we were overtaken by a whole lap. */
    if (state_of(seen) == BUSY || (state_of(seen) != EMPTY && seen >> 2 > position) ||
        !claim(&event->mark, seen, position)) {
        lose(trace);
        return false;
    }
    fill(&event->mark, CW_TRACE_WORDS - 1, words, mark_of(position, state));
    return true;
}

void cw_trace_add(struct cw_trace *trace, const struct cw_trace_record *record) {
    uint64_t words[CW_TRACE_WORDS - 1], name[CW_TRACE_WORDS - 1];
    unsigned ring = record->duration_ns >= CW_TRACE_LONG_NS;
    uint32_t places = record->name_bytes ? 2 : 1;
    /* Y1: numbers that nobody else has; the events order themselves. */
    uint64_t position = CW_ADD(Y1, &trace->next[ring], places, relaxed);
    put_record(record, words);
    if (places == 2) {
        memcpy(name, record->name, sizeof name);
        if (!write_event(trace, trace->events[ring], position + 1, NAME, name))
            words[6] = 0;
    }
    write_event(trace, trace->events[ring], position, WHOLE, words);
}

static void fill_named(struct cw_trace_named *place, uint64_t mark,
                       const struct cw_trace_record *record) {
    uint64_t words[CW_TRACE_LONG_WORDS - 1];
    uint32_t count = CW_TRACE_WORDS - 1;
    put_record(record, words);
    if (record->name_bytes) {
        memcpy(words + count, record->name, CW_TRACE_NAME_MAX);
        count = CW_TRACE_LONG_WORDS - 1;
    }
    fill(&place->mark, count, words, mark);
}

int cw_trace_begun(struct cw_trace *trace, const struct cw_trace_record *record) {
    /* First for an empty place, then for one whose call rests. */
    for (unsigned i = 0; i < 2 * CW_TRACE_UNDER_WAY; i++) {
        unsigned at = (record->tid + i) % CW_TRACE_UNDER_WAY; /* each thread at its own first */
        enum state wanted = i < CW_TRACE_UNDER_WAY ? EMPTY : RESTS;
        struct cw_trace_named *place = &trace->under_way[at];
        uint64_t seen = CW_LOAD(Y2, &place->mark, relaxed);
        if (state_of(seen) == wanted && claim(&place->mark, seen, (seen >> 2) + 1)) {
            fill_named(place, mark_of((seen >> 2) + 1, WHOLE), record);
            return (int)at;
        }
    }
    lose(trace);
    return -1;
}

void cw_trace_ended(struct cw_trace *trace, int place) {
    if (place < 0 || place >= (int)CW_TRACE_UNDER_WAY)
        return;
    cw_a64 *mark = &trace->under_way[place].mark;
    uint64_t seen = CW_LOAD(Y2, mark, relaxed); /* our own */
    CW_STORE(Y5, mark, mark_of(seen >> 2, EMPTY), release);
}

uint64_t cw_trace_rests(struct cw_trace *trace, int place, const struct cw_trace_record *record) {
    if (place < 0 || place >= (int)CW_TRACE_UNDER_WAY)
        return 0;
    struct cw_trace_named *named = &trace->under_way[place];
    uint64_t seen = CW_LOAD(Y2, &named->mark, relaxed), mark = mark_of((seen >> 2) + 1, RESTS);
    if (!claim(&named->mark, seen, (seen >> 2) + 1)) /* only if somebody damaged it */
        return 0;
    fill_named(named, mark, record);
    return mark;
}

int cw_trace_resumed(struct cw_trace *trace, int place, uint64_t mark,
                     const struct cw_trace_record *record) {
    if (place < 0 || place >= (int)CW_TRACE_UNDER_WAY)
        return -1;
    struct cw_trace_named *named = &trace->under_way[place];
    if (!claim(&named->mark, mark, (mark >> 2) + 1))
        return -1;
    if (record)
        fill_named(named, mark_of((mark >> 2) + 1, WHOLE), record);
    else
        cw_trace_ended(trace, place);
    return place;
}

void cw_trace_function(struct cw_trace *trace, uint64_t function, const char *name,
                       size_t name_bytes) {
    struct cw_trace_record record = {.kind = CW_TRACE_NONE, .function = function};
    struct cw_trace_named *place = &trace->functions[function % CW_TRACE_FUNCTIONS];
    cw_trace_name(&record, name, name_bytes);
    uint64_t seen = CW_LOAD(Y2, &place->mark, relaxed);
    if (state_of(seen) == BUSY || !claim(&place->mark, seen, (seen >> 2) + 1))
        lose(trace);
    else
        fill_named(place, mark_of((seen >> 2) + 1, WHOLE), &record);
}

/* ---- reading ---- */

/* Copies a place if its mark is this one before and after; mark 0: any that is whole, or rests. */
static bool copy(cw_a64 *place, uint32_t count, uint64_t mark, uint64_t *words) {
    uint64_t seen = CW_LOAD(Y6, place, acquire); /* Y6: pairs with Y5: the words */
    if (mark ? seen != mark : state_of(seen) != WHOLE && state_of(seen) != RESTS)
        return false;
    for (uint32_t i = 0; i < count; i++)
        words[i] = CW_LOAD(Y7, &place[i + 1], acquire); /* Y7: pairs with Y4 */
    return CW_LOAD(Y8, place, relaxed) == seen;         /* Y8: after Y7 */
}

static void get_record(const uint64_t *words, struct cw_trace_record *out) {
    *out = (struct cw_trace_record){.begun_ns = (int64_t)words[0],
                                    .duration_ns = (int64_t)words[1],
                                    .kind = (uint8_t)words[2],
                                    .flags = (uint8_t)(words[2] >> 8),
                                    .op = (uint16_t)(words[2] >> 16),
                                    .tid = (uint32_t)(words[2] >> 32),
                                    .subject = words[3],
                                    .number = words[4],
                                    .bytes = words[5]};
    out->name_bytes =
        words[6] <= CW_TRACE_NAME_MAX ? (uint32_t)words[6] : CW_TRACE_NAME_MAX; /* theirs */
}

uint64_t cw_trace_count(struct cw_trace *trace, unsigned ring) {
    return CW_LOAD(Y2, &trace->next[ring], relaxed); /* a figure: each place is looked at */
}

bool cw_trace_read(struct cw_trace *trace, unsigned ring, uint64_t position,
                   struct cw_trace_record *out) {
    uint64_t words[CW_TRACE_WORDS - 1];
    struct cw_trace_event *events = trace->events[ring];
    if (!copy(&events[position % CW_TRACE_EVENTS].mark, CW_TRACE_WORDS - 1,
              mark_of(position, WHOLE), words))
        return false;
    get_record(words, out);
    if (out->name_bytes == 0)
        return true;
    if (copy(&events[(position + 1) % CW_TRACE_EVENTS].mark, CW_TRACE_WORDS - 1,
             mark_of(position + 1, NAME), words))
        memcpy(out->name, words, sizeof out->name);
    else
        out->name_bytes = 0;
    return true;
}

static bool read_named(struct cw_trace_named *place, struct cw_trace_record *out) {
    uint64_t words[CW_TRACE_LONG_WORDS - 1];
    if (!copy(&place->mark, CW_TRACE_LONG_WORDS - 1, 0, words))
        return false;
    get_record(words, out);
    memcpy(out->name, words + CW_TRACE_WORDS - 1, sizeof out->name);
    return true;
}

bool cw_trace_read_under_way(struct cw_trace *trace, unsigned place, struct cw_trace_record *out) {
    return read_named(&trace->under_way[place], out);
}

bool cw_trace_read_function(struct cw_trace *trace, unsigned place, struct cw_trace_record *out) {
    return read_named(&trace->functions[place], out);
}
