/*
 * Directory: keys to records, written by the broker alone, read by every client without a lock.
 *
 * Three kinds of segments, all read-only to clients (future-write seal): the root (struct
 * cw_directory_root, inside the monitor page), one index, and record segments. index    open
 * addressing with linear probing; a slot is two words: the key's hash (never 0) and a reference.
 * Reference 0 is empty (end of the probe), CW_REF_TOMB is a tombstone (go on). records  units of
 * 256 bytes; a record takes 1 to 16 consecutive units and never moves. Its seq word is odd while
 * the broker writes it (seqlock); a freed record has state 0. Growing: more records add a segment;
 * an index too full (or too full of tombstones) is built anew in a new segment, and the root names
 * that. The old index stays as it is for who still reads it.
 *
 * Reading: index id from the root (D1), probe, reference (D2), record under its seq (D3, D4): copy
 * it out word by word, check the seq again, compare the key in the copy. A miss counts only if the
 * root still names the index that was probed; else again. Retries are bounded by
 * CW_DIRECTORY_RETRIES, then -ECONNRESET: a broker that died in the middle of a write must not hang
 * its readers.
 *
 * What is read is the broker's and trusted to be in form, but a reader still bounds every offset:
 * the broker may have been killed at any point.
 */
#ifndef CW_SHM_NAMES_DIRECTORY_H
#define CW_SHM_NAMES_DIRECTORY_H

#include <stddef.h>
#include "shm/base/atomic.h"
#include "shm/base/segment.h"

#define CW_KEY_MAX            288u /* namespace (64) + '\0' + name (200), rounded up */
#define CW_META_MAX           3584u
#define CW_RECORD_UNIT        256u
#define CW_RECORD_MAX         4096u /* 16 units */
#define CW_RECORD_SEGMENTS    64u   /* segment i holds CW_RECORD_FIRST_UNITS << min(i, 11) units */
#define CW_RECORD_FIRST_UNITS 1024u
#define CW_INDEX_FIRST_SLOTS  1024u
#define CW_REF_TOMB           1ull
#define CW_DIRECTORY_RETRIES  100000u

struct cw_directory_root {  /* shared, inside the root segment; broker writes */
    cw_a64 index_id;        /* which index is the current one; 1, 2, ... (D1) */
    cw_a64 index_slots;     /* its size, a power of two; stored before index_id */
    cw_a64 record_segments; /* how many record segments exist */
    cw_a64 names;           /* records in use */
    cw_a64 changes;         /* rises with each put and remove */
};

struct cw_index_slot {
    cw_a64 hash;
    cw_a64 ref; /* 0 empty, 1 tombstone, else 2 + (segment << 32 | unit) */
};

struct cw_record { /* shared; broker writes. The body is read and written as relaxed 64-bit words.
                    */
    cw_a64 seq;    /* odd: being written */
    cw_a64 body[]; /* struct cw_entry, then key, then meta */
};

enum cw_entry_flags {
    CW_ENTRY_KEEP = 1,
    CW_ENTRY_REMOTE_READ = 2, /* peers of the bridge may read it */
    CW_ENTRY_REPLICA = 4,     /* the bridge's copy of another node's array: goes with the bridge */
    CW_ENTRY_TREE = 8,        /* the index of a tree (ipc/tree/index.h), and no array */
    CW_ENTRY_WEAK = 16,       /* goes when nobody has the array open any more */
    CW_ENTRY_TIED = 32,       /* the name ends with the process that put it */
};

struct cw_entry { /* the fixed part of a record's body; plain memory, a private copy or built by the
                     broker */
    uint64_t id;  /* rises with each put: which put this is */
    uint32_t slab, block; /* where the array lies */
    uint64_t gen;
    uint64_t offset_bytes; /* of the array within its block */
    uint64_t size_bytes;
    uint64_t created_ns; /* CLOCK_REALTIME */
    uint32_t owner_pid;  /* who put it */
    uint32_t owner_session;
    uint32_t flags; /* enum cw_entry_flags */
    uint16_t key_bytes;
    uint16_t meta_bytes;
};
_Static_assert(sizeof(struct cw_entry) == 64, "layout");

struct cw_found { /* a reader's private copy of one record */
    struct cw_entry entry;
    char key[CW_KEY_MAX];
    uint8_t meta[CW_META_MAX];
};

/* How a reader gets segments that it has not mapped yet: returns 0 and the mapping, or a negative
 * code. May block (a request to the broker). kind is CW_SEGMENT_INDEX (which: index id) or _RECORDS
 * (which: number). */
typedef int cw_directory_fetch(void *context, uint32_t kind, uint64_t which,
                               struct cw_segment *out);

struct cw_directory_reader { /* private to one process; the caller serialises its use */
    struct cw_directory_root *root;
    cw_directory_fetch *fetch;
    void *context;
    uint64_t index_id;
    struct cw_segment index;
    struct cw_segment records[CW_RECORD_SEGMENTS];
};

uint64_t cw_directory_hash(const char *key, size_t key_bytes); /* XXH3 64; never 0 */

void cw_directory_reader_init(struct cw_directory_reader *r, struct cw_directory_root *root,
                              cw_directory_fetch *fetch, void *context);
/* Gives it an index and the first segment of records, mapped, which it takes over: as if it had
 * fetched them. An index that is none is closed. */
void cw_directory_reader_give(struct cw_directory_reader *r, uint64_t index_id,
                              struct cw_segment *index, struct cw_segment *records);
void cw_directory_reader_deinit(struct cw_directory_reader *r);
/* Looks a key up. Asks nobody when its segments are mapped. *out is undefined unless 0 is returned.
 * Returns 0, -ENOENT, -ECONNRESET (retries ran out), or what fetch returned. */
int cw_directory_find(struct cw_directory_reader *r, const char *key, size_t key_bytes,
                      struct cw_found *out);
/* Is all mapped that there is now? Asks nobody. */
bool cw_directory_mapped(const struct cw_directory_reader *r);
/* Maps what is not: what is looked for afterwards asks nobody until the directory has grown. 0, or
 * what fetch returned. */
int cw_directory_map(struct cw_directory_reader *r);
/* Walks all records: *cursor starts at 0 and is advanced. Returns 1 (a record), 0 (the end),
 * -EAGAIN (the index was built anew meanwhile: start over with cursor 0), or another negative code.
 * Records put or removed meanwhile may or may not appear; one that stands throughout appears once.
 */
int cw_directory_next(struct cw_directory_reader *r, uint64_t *cursor, struct cw_found *out);

/* ---- records, also of the form's other user (unnamed.h) ---- */
/* Copies a record whole. 0, -EAGAIN (being written, or reused: look again), -ENOENT (no record
 * there), -EPROTO. */
int cw_record_copy(struct cw_record *record, uint64_t room_bytes, struct cw_found *out);
/* Writes a record whole, under an odd sequence: readers that still hold an old reference see that.
 */
void cw_record_write(struct cw_record *record, const struct cw_entry *entry, const char *key,
                     const void *meta);

/* ---- the broker's side ---- */
struct cw_directory_writer; /* private to the broker */
/* Makes the first index and record segment. names_max bounds the records. instance marks segments.
 */
int cw_directory_writer_new(struct cw_directory_root *root, uint64_t names_max, uint64_t instance,
                            struct cw_directory_writer **out);
void cw_directory_writer_free(struct cw_directory_writer *w);
/*
 * Puts entry under key; entry->key_bytes and meta_bytes are set from the arguments, id by the
 * writer. With an old record under that key: *replaced = true and *old its fixed part; readers see
 * the old or the new one, whole, and never a moment without. Returns 0, -EEXIST (taken, and replace
 * is false; *old is set), -EDQUOT (names_max, or memory).
 */
int cw_directory_put(struct cw_directory_writer *w, const char *key, size_t key_bytes,
                     const struct cw_entry *entry, const void *meta, size_t meta_bytes,
                     bool replace, bool *replaced, struct cw_entry *old);
/* Returns 0 and the removed record's fixed part, or -ENOENT. */
int cw_directory_remove(struct cw_directory_writer *w, const char *key, size_t key_bytes,
                        struct cw_entry *old);
/* Looks up in the broker's own process. Returns 0 or -ENOENT. */
int cw_directory_lookup(struct cw_directory_writer *w, const char *key, size_t key_bytes,
                        struct cw_entry *out);
/* Removes every record for which drop() returns true; calls it once for each. */
void cw_directory_sweep(struct cw_directory_writer *w,
                        bool (*drop)(void *context, const struct cw_entry *entry), void *context);
/* What a new reader needs first: the index as it stands, and the first segment of records. */
void cw_directory_first(struct cw_directory_writer *w, uint64_t *index_id,
                        const struct cw_segment **index, const struct cw_segment **records);
/* The segment to hand to a reader; its fd stays the writer's. Returns -ENOENT when there is none
 * such. */
int cw_directory_segment(struct cw_directory_writer *w, uint32_t kind, uint64_t which,
                         const struct cw_segment **out);

#endif
