/*
 * The mappings of a slab in this process, for all of its clients: at most two, a writable and a
 * read-only one.
 *
 * Invariant: all arrays on one block lie in the same of the two mappings, whichever client opened
 * them. So a byte of an array has one address in this process, and code that compares addresses
 * (NumPy, memmove) sees whether two arrays overlap.
 *
 * The first array on a block decides: in the read-only mapping if it is read-only, where a write is
 * a SIGSEGV. A read-only array beside a writable one is read-only by its flag alone, also after the
 * writable one is closed: its address stays, and its pages may belong to a small neighbour, or to
 * an allocator that writes there and has lent the block. If a writable array comes beside read-only
 * ones, the pages of its block are made writable where they are (raised), until no array in that
 * mapping is open for writing.
 *
 * Owner: one lock for all, taken last. A forked child has the mappings and the counts of its
 * parent, and adds to them what it opens itself. If the process dies, nothing is left.
 */
#ifndef CW_IPC_MEMORY_MAPPING_H
#define CW_IPC_MEMORY_MAPPING_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/memory/backend.h"

struct cw_range { /* of a block, in its slab */
    uint64_t begin_bytes, length_bytes;
};

struct cw_seen { /* arrays on one block, of all clients */
    uint32_t readers, writers;
    bool in_ro; /* where they lie, if there are any */
};

struct cw_mappings {
    uint64_t instance; /* the run of the broker */
    uint32_t slab;
    uint32_t references; /* by the slabs of clients */
    uint32_t capacity;   /* blocks */
    uint32_t raised;     /* blocks in ro that are written there */
    struct cw_mapping rw, ro;
    struct cw_mappings *next; /* in its bucket */
    struct cw_seen blocks[];
};

/* Those of a slab, made empty when there are none; one more reference. -EDQUOT. */
int cw_mappings_hold(uint64_t instance, uint32_t slab, uint32_t capacity, struct cw_mappings **out);
/* One reference less; the last one unmaps. */
void cw_mappings_release(struct cw_mappings *mappings, const struct cw_backend *backend);
/* Makes that mapping if it does not exist yet. */
int cw_mappings_map(struct cw_mappings *mappings, const struct cw_backend *backend, int fd,
                    uint64_t size_bytes, uint32_t slab_flags, bool in_ro);
/* The same of a slab that nobody in this process has seen before: it is mapped writable already. */
void cw_mappings_give(struct cw_mappings *mappings, const struct cw_mapping *rw);
/* The address where that mapping begins; NULL: there is none. */
void *cw_mappings_base(struct cw_mappings *mappings, bool in_ro);
/* Whether an array on a block would lie in the read-only one now. */
bool cw_mappings_choose(struct cw_mappings *mappings, uint32_t block, bool readonly);
/* An array is opened: the mapping that it lies in. -EAGAIN: that one is to be mapped first, and
 * asked again; -EDQUOT: its pages cannot be made writable. */
int cw_mappings_enter(struct cw_mappings *mappings, uint32_t block, const struct cw_range *range,
                      bool readonly, struct cw_mapping **out);
/* It is closed. */
void cw_mappings_leave(struct cw_mappings *mappings, uint32_t block, bool readonly);

/* Around fork(), after all other locks. */
void cw_mappings_lock(void);
void cw_mappings_unlock(void);

#endif
