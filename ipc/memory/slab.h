/*
 * Slabs that this client has open: their tables and their memory. The caller holds client->lock
 * unless the comment says otherwise.
 */
#ifndef CW_IPC_MEMORY_SLAB_H
#define CW_IPC_MEMORY_SLAB_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/device.h"
#include "ipc/cableway.h"
#include "ipc/memory/backend.h"
#include "ipc/memory/extent.h"
#include "ipc/memory/mapping.h"
#include "ipc/wire.h"
#include "shm/base/segment.h"
#include "shm/blocks/block.h"

#define CW_IDLE_SLABS_MAX 256u /* mappings kept of slabs in which nothing is held */

struct cw_heap;
struct cw_deferred;

/* What this process holds of one block. */
struct cw_local {
    uint32_t count;           /* arrays on it; while > 0 the slot holds the lease */
    uint32_t slot;            /* table * CW_LEASE_TABLE_SLOTS + index */
    struct cw_extent *extent; /* in our own slabs: where it lies */
};

struct cw_slab {
    uint32_t id;
    uint32_t capacity; /* blocks */
    uint64_t size_bytes;
    uint32_t flags; /* enum cw_slab_flags */
    uint32_t device_kind;
    uint8_t device_uuid[CW_UUID_BYTES];
    const struct cw_backend *backend;
    int device; /* by this process's numbers; -1: not looked for yet, or masked out */
    char device_name[16];
    struct cw_segment table_segment;
    struct cw_block_table *table;
    struct cw_mapping rw;         /* of a GPU; base NULL: not mapped */
    struct cw_mappings *mappings; /* of host memory, shared with this process's other clients */
    struct cw_local *locals;      /* capacity of them */
    int own_file;                 /* for parts that are copy-on-write (cow.h); -1: not here */
    uint32_t held;                /* blocks with a lease of ours */
    struct cw_slab *hash_next;
    struct cw_slab *idle_prev, *idle_next;
    bool idle;
    /* own slabs */
    struct cw_heap *heap;
    bool own, carved;              /* carved: arena is in use */
    bool cached;                   /* entirely free, counted in cached_bytes */
    struct cw_deferred *last_word; /* room to say SLAB_CLOSE, also when there is no memory left */
    struct cw_arena arena;
    uint32_t blocks_used; /* numbers from here on were never given out */
    uint32_t blocks_free; /* numbers in the stack below */
    uint32_t *blocks;
    struct cw_slab *own_next;
    /* imported memory of this process's own (import.c) */
    uint64_t allocation;    /* the driver's number of the allocation, never used again; 0: none */
    uint64_t imported_last; /* when it was imported from last, by a counter; 0: not kept */
    bool gone;              /* its allocation is gone: nothing is suballocated from it any more */
};

#define CW_SLAB_BUCKETS 1024u

struct cw_slabs {
    struct cw_slab *buckets[CW_SLAB_BUCKETS];
    struct cw_slab *idle_first, *idle_last; /* least recently used first */
    uint32_t idle_count;
    struct cw_slab *own;
    uint64_t closed_seen;     /* session->closed_slabs as last looked at */
    uint64_t own_closed_seen; /* the same, for slabs of ours (slab_cache.c) */
    uint32_t closing;  /* own ones given up since somebody waited for their memory (slab_cache.c) */
    int64_t closed_ns; /* when the last of these was given up; 0: none */
    uint64_t closing_from; /* how many descriptors the broker had closed before the first */
};

/* The slab, with its table mapped: from the cache, or from the broker, and room for a lease. The
 * lock is given up where the broker is asked, here and in the next three. -ESTALE: it is gone. */
int cw_slab_get(cw_client *client, uint32_t id, struct cw_slab **out);
/* The same for an array with these flags. CW_READONLY: memory of a GPU that this process has not
 * mapped yet is mapped so that it cannot be written; CW_UNMAPPED: it is not mapped. */
int cw_slab_get_for(cw_client *client, uint32_t id, uint32_t flags, struct cw_slab **out);
/* Finds out which device of this process it lies on. -ENODEV: on none. */
int cw_slab_locate(struct cw_slab *slab);
/* Maps the data if they are not; in_ro: in the read-only mapping, where there are two. Where there
 * is one, it is as the first one wanted it, and writable from the first on who did not say in_ro.
 */
int cw_slab_map(cw_client *client, struct cw_slab *slab, bool in_ro);
/* The address where the data begin in that mapping; NULL: there is none. */
void *cw_slab_base(struct cw_slab *slab, bool in_ro);
/* Hands a new slab to the broker; a signal may end that. data and table stay the caller's on
 * failure; on success both are taken over, and the slab is own. capacity: of the table. */
int cw_slab_add(cw_client *client, struct cw_heap *heap, const struct cw_slab_info *info,
                int data_fd, struct cw_segment *table, struct cw_slab **out);
/* The slab's file, which the caller closes. Asks the broker. */
int cw_slab_file(cw_client *client, struct cw_slab *slab, int *fd);
/* Maps a part of it copy-on-write; both in whole pages. */
int cw_slab_map_cow(cw_client *client, struct cw_slab *slab, uint64_t begin_bytes,
                    uint64_t size_bytes, struct cw_mapping *out);
/* Unmaps idle slabs that their owners gave up: memory of a GPU is free only then. Returns how many.
 * The caller does NOT hold client->lock. */
uint32_t cw_slabs_sweep(cw_client *client);
/* Puts an idle slab where it may be unmapped, and takes it back out. */
void cw_slab_rest(cw_client *client, struct cw_slab *slab);
void cw_slab_wake(cw_client *client, struct cw_slab *slab);
/* Forgets a slab, of which nothing is held: unmaps all of it. */
void cw_slab_free(cw_client *client, struct cw_slab *slab);
void cw_slabs_deinit(cw_client *client);

#endif
