/*
 * Carving: an allocator over ranges of bytes, which it never touches.
 *
 * An arena is one slab's range of bytes; a carver is all arenas of one kind of memory. An arena is
 * divided into extents without gaps, in the order of their addresses. Each is free or carved.
 *
 * Invariants
 *   C1  The extents of an arena cover exactly [0, size_bytes); each length is a multiple of
 *       CW_CARVE_UNIT.
 *   C2  Two neighbours are never both free: they would have been joined.
 *   C3  A free extent is in the bin of its length, a carved one in none.
 *   C4  free_bytes is the sum of the free extents.
 *
 * Private to one process; the caller serialises. Nothing here is shared memory.
 */
#ifndef CW_IPC_MEMORY_EXTENT_H
#define CW_IPC_MEMORY_EXTENT_H

#include <stdbool.h>
#include <stdint.h>

#define CW_CARVE_UNIT 64u
#define CW_CARVE_BINS 192u
#define CW_CARVE_WALK 64u /* extents of one bin that a search looks at */

struct cw_client;

struct cw_extent {
    struct cw_arena *arena;
    struct cw_extent *before, *after; /* neighbours by address */
    struct cw_extent *prev, *next;    /* free: in its bin. Carved: free for the user's list */
    uint64_t offset_bytes, length_bytes;
    /* The user's: what hears that its bytes are free, and answers with the extent in which they
     * lie, whose lease the caller ends. Of a suballocation alone, which no arena has
     * (suballocation.c). */
    struct cw_extent *(*on_free)(struct cw_client *client, struct cw_extent *extent);
    uint64_t gen; /* the user's: generation and number of the block */
    uint32_t block;
    bool carved;
    bool clean;     /* never written since the arena was made: reads as zeros */
    bool published; /* the user's: another process may know of it */
    bool pending;   /* the user's: in the list of those that wait to come back */
    bool told;      /* the user's: the broker was told once that a lease on it ended */
    bool pool;      /* the user's: suballocations lie in it */
};

struct cw_arena {
    struct cw_carver *carver;
    void *user;
    struct cw_extent *first;
    uint64_t size_bytes, free_bytes;
    uint64_t least_bytes; /* serves only what is at least so large */
    bool full;            /* the user's: serves nothing (no block numbers left) */
};

struct cw_carver {
    struct cw_extent *bins[CW_CARVE_BINS];
    uint64_t filled[CW_CARVE_BINS / 64]; /* bit b: bins[b] is not empty */
};

/* One arena, one free extent. clean: its bytes are zeros. size_bytes: a multiple of CW_CARVE_UNIT.
 * Returns false without memory. */
bool cw_arena_init(struct cw_arena *arena, struct cw_carver *carver, void *user,
                   uint64_t size_bytes, bool clean);
/* Forgets the arena and all its extents, free or not. May be repeated. */
void cw_arena_deinit(struct cw_arena *arena);
/* Marks a range as carved that lies whole within one free extent. NULL if it does not, or without
 * memory. */
struct cw_extent *cw_arena_claim(struct cw_arena *arena, uint64_t offset_bytes,
                                 uint64_t length_bytes);

/* Carves size_bytes (> 0) at an offset that is a multiple of align_bytes (a power of two, at least
 * the unit). used: only of what was carved before, in part at least, so that pages are there. NULL:
 * no arena has room, or no memory. */
struct cw_extent *cw_carve_take(struct cw_carver *carver, uint64_t size_bytes, uint64_t align_bytes,
                                bool used);
/* Gives a carved extent back; the pointer ends. */
void cw_carve_give(struct cw_extent *extent);

#endif
