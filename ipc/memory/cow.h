/*
 * Copy-on-write mappings (CW_PRIVATE) and the spare ones; and parts of a slab's mapping that are
 * copy-on-write for a while (CW_OWN_PAGES).
 */
#ifndef CW_IPC_MEMORY_COW_H
#define CW_IPC_MEMORY_COW_H

#include <stdint.h>

#include "ipc/cableway.h"
#include "ipc/memory/mapping.h"
#include "ipc/memory/slab.h"

#define CW_SPARES_MAX    16u /* kept copy-on-write mappings without a written page */
#define CW_COW_FILES_MAX 32u /* descriptors that a client keeps for copy-on-write mappings */

/* A copy-on-write mapping without an array. */
struct cw_spare {
    const struct cw_slab *slab;
    uint64_t begin_bytes; /* in the slab */
    struct cw_mapping mapping;
};

struct cw_spares { /* least recently used first */
    struct cw_spare rows[CW_SPARES_MAX];
    uint32_t count;
    /* Descriptors of slabs of which there were such mappings last, so that the next one asks
     * nobody; slab NULL: none. */
    struct cw_cow_file {
        const struct cw_slab *slab;
        int fd;
    } files[CW_COW_FILES_MAX];
    uint32_t next_file; /* which one another slab takes */
};

/* The slab's descriptor, which stays ours; -1: none is kept. The caller holds the lock, as below.
 */
int cw_cow_file(cw_client *client, const struct cw_slab *slab);
/* Takes fd over: it is kept, or closed if one is. */
void cw_cow_keep_file(cw_client *client, const struct cw_slab *slab, int fd);

/* A copy-on-write mapping of the pages that hold a range of a slab, spare or new. The caller holds
 * the lock. -EINVAL: not in host memory. */
int cw_cow_take(cw_client *client, struct cw_slab *slab, uint64_t begin_bytes, uint64_t size_bytes,
                struct cw_mapping *out);
/* Ends the copy-on-write mapping of an array, if it has one (base): it is spare, or gone. Without
 * the lock; the array's lease stands. begin_bytes: in the slab. */
void cw_cow_give(cw_client *client, const struct cw_slab *slab, uint64_t begin_bytes,
                 struct cw_mapping *mapping);
/* Has the slab's file here as long as the slab is, for the next two, which ask nobody. The caller
 * holds the lock. */
int cw_part_prepare(cw_client *client, struct cw_slab *slab);
/* Whole pages of the slab's mapping, at address, become copy-on-write (CW_OWN_PAGES), and the
 * slab's again. Without the lock; an array's lease on all that lies there stands. */
int cw_part_begin(const struct cw_slab *slab, uint64_t begin_bytes, uint64_t size_bytes,
                  void *address);
int cw_part_end(const struct cw_slab *slab, uint64_t begin_bytes, uint64_t size_bytes,
                void *address);
/* Ends the slab's spare mappings, before it is freed. The caller holds the lock. */
void cw_cow_forget(cw_client *client, const struct cw_slab *slab);

#endif
