/*
 * Unnamed replicas: see unnamed.h. The bridge's loop is its one writer.
 */
#include "shm/names/unnamed.h"

#include <errno.h>
#include <string.h>

#include "shm/base/error.h"

#define UNNAMED_BYTES ((1u + CW_UNNAMED_RECORDS) * CW_UNNAMED_RECORD_BYTES)
#define FIND_TRIES    8u

struct head { /* before the records */
    struct cw_segment_header header;
    uint64_t session;         /* stored before anybody else has the segment */
    struct cw_sleeper bridge; /* its core alone */
};
_Static_assert(sizeof(struct head) <= CW_UNNAMED_RECORD_BYTES, "layout");

static struct cw_record *record_at(const struct cw_segment *segment, uint32_t index) {
    return (struct cw_record *)((uint8_t *)segment->base +
                                (size_t)(1 + index) * CW_UNNAMED_RECORD_BYTES);
}

int cw_unnamed_new(uint64_t instance, uint64_t session, struct cw_segment *out) {
    int code = cw_segment_create("board", UNNAMED_BYTES, CW_SEGMENT_UNNAMED, instance,
                                 CW_SEGMENT_READERS_ONLY, out);
    if (code == 0)
        ((struct head *)out->base)->session = session;
    return code;
}

int cw_unnamed_open(int fd, uint64_t instance, struct cw_segment *out) {
    uint64_t size_bytes = (UNNAMED_BYTES + CW_PAGE - 1) / CW_PAGE * CW_PAGE;
    int code = cw_segment_open(fd, size_bytes, CW_SEGMENT_UNNAMED, false, 0, out);
    if (code)
        return code;
    cw_segment_close_fd(out);
    if (((const struct cw_segment_header *)out->base)->instance == instance)
        return 0;
    cw_segment_close(out);
    return cw_fail(-EPROTO, "a board of another run of the broker was handed out");
}

uint64_t cw_unnamed_session(const struct cw_segment *segment) {
    return ((const struct head *)segment->base)->session;
}

struct cw_sleeper *cw_unnamed_bridge(const struct cw_segment *segment) {
    return &((struct head *)segment->base)->bridge;
}

uint32_t cw_unnamed_index(const char *key, size_t key_bytes) {
    return (uint32_t)(cw_directory_hash(key, key_bytes) % CW_UNNAMED_RECORDS);
}

bool cw_unnamed_put(struct cw_segment *segment, const struct cw_entry *entry, const char *key,
                    const void *meta) {
    size_t words =
        1 + sizeof *entry / 8 + (entry->key_bytes + 7u) / 8 + (entry->meta_bytes + 7u) / 8;
    if (8 * words > CW_UNNAMED_RECORD_BYTES)
        return false;
    cw_record_write(record_at(segment, cw_unnamed_index(key, entry->key_bytes)), entry, key, meta);
    return true;
}

void cw_unnamed_erase(struct cw_segment *segment, uint32_t index) {
    static const struct cw_entry none;
    cw_record_write(record_at(segment, index), &none, NULL, NULL);
}

int cw_unnamed_find(const struct cw_segment *segment, const char *key, size_t key_bytes,
                    int64_t now_ns, struct cw_found *out) {
    struct cw_record *record = record_at(segment, cw_unnamed_index(key, key_bytes));
    int code = -EAGAIN;
    for (unsigned tries = 0; code == -EAGAIN && tries < FIND_TRIES; tries++)
        code = cw_record_copy(record, CW_UNNAMED_RECORD_BYTES, out);
    bool same =
        code == 0 && out->entry.key_bytes == key_bytes && memcmp(out->key, key, key_bytes) == 0;
    bool counts = (int64_t)((uint64_t)now_ns - out->entry.id) < CW_UNNAMED_NS;
    return same && counts ? 0 : -ENOENT;
}
