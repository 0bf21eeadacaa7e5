/*
 * Blocks: what a slab is carved into, and how a block's memory comes back.
 *
 * A slab is a data fd and a block table (a segment). The table is written by the slab's owner (its
 * maker, or who adopted it), by takers of leases (rescue only) and by the broker (retirement).
 * Nobody's data decides what the broker's own memory does: it copies a word, checks it, uses the
 * copy.
 *
 * Block word: bits 0..1 state, bit 2 WANTED, bits 8..63 generation. The generation rises by one
 * when the block is freed; a handle names slab, block and generation, and is stale when it moved.
 *
 *        carve (owner)                   retire (broker)
 *   FREE ------------> LIVE [+WANTED] ------------------> RETIRING --commit (broker)--> FREE, gen+1
 *    ^                   |  ^                                |
 *    |  free_local       |  +-------- rescue (a taker) ------+
 *    +-------------------+            restore (broker)
 *     (owner; never published)
 *
 * WANTED: the broker holds no reference to the block (no name, no transit, no fork): whoever drops
 * a lease on it must tell the broker, which then looks whether it was the last one.
 *
 * Taking a lease (any process): store the lease slot (L1 seq_cst), then load the word (B1 seq_cst):
 *     generation moved or FREE  -> clear the slot: stale
 *     RETIRING                  -> CAS to LIVE|WANTED (B2): who wins the word decides; load again
 *     LIVE                      -> the lease stands
 * Retiring (broker): see WANTED set and no reference; scan all lease tables; if nobody holds it,
 * store RETIRING (B3 seq_cst CAS from LIVE), scan again (L2 seq_cst loads), and if still nobody
 * holds it, CAS RETIRING -> FREE|gen+1 (B4), else restore. Two scans, because a lease may move from
 * a table not yet scanned to one already scanned; after B3 no lease can be taken unseen. Dropping
 * (any process): clear the slot (L3 seq_cst), then load the word (B5 seq_cst): WANTED -> tell the
 * broker. Setting WANTED (broker): set it (B6 seq_cst), then scan (L2).
 *
 * Deaths: owner in the middle of a carve: entry and word are published by one store of the word
 * (B7), so the block is LIVE or never was. A taker: its slots die with its table. The broker: all
 * is over; a word left RETIRING can still be rescued by takers, and by a restarted broker.
 *
 * A whole slab. What its owner keeps free for its next arrays the broker may take back when another
 * is about to be refused, also while the owner does nothing at all. The table's word `withdrawn`
 * decides, as a block's word does:
 *
 *   OPEN --withdraw (broker)--> WITHDRAWING --commit (broker)--> WITHDRAWN (for ever)
 *    ^                               |
 *    +--- keep (owner), restore (broker)
 *
 * Invariant: a slab that is WITHDRAWN has no block but FREE ones, and none is carved in it again.
 * The owner alone makes a FREE block LIVE. It stores its slot (L1), then loads the word (B15): OPEN
 * -> it carves; WITHDRAWING -> CAS to OPEN (B16), who wins decides; WITHDRAWN -> it clears the slot
 * and forgets the slab. The broker stores WITHDRAWING (B17), reads the owner's slots (L2) and then
 * all words: nothing names the slab, all are FREE -> CAS to WITHDRAWN (B18), else restore (B19).
 * The slots come first: whoever carved, passed the block on and let go again has left it LIVE, and
 * only the broker frees it from there. After that the broker makes the data's pages free, whoever
 * still has them mapped. Deaths: the owner, at any moment: its slot, or the LIVE word, stands until
 * the broker has seen the end of its session; the slab is then an orphan like others. The broker,
 * while WITHDRAWING: the owner keeps it. After WITHDRAWN: the memory is gone with it, as it would
 * have been.
 */
#ifndef CW_SHM_BLOCKS_BLOCK_H
#define CW_SHM_BLOCKS_BLOCK_H

#include "shm/base/atomic.h"
#include "shm/base/segment.h"

enum cw_block_state { CW_BLOCK_FREE = 0, CW_BLOCK_LIVE = 1, CW_BLOCK_RETIRING = 2 };
#define CW_BLOCK_STATE_MASK 3ull
#define CW_BLOCK_WANTED     4ull /* suspected to be free: who drops it tells the broker */
#define CW_BLOCK_GEN_SHIFT  8
#define CW_BLOCK_GEN_MAX    ((1ull << 56) - 1)
#define CW_BLOCKS_MAX       (1u << 20)

enum cw_table_state { CW_TABLE_OPEN = 0, CW_TABLE_WITHDRAWING = 1, CW_TABLE_WITHDRAWN = 2 };

struct cw_block { /* 64 bytes, shared */
    cw_a64 word;
    cw_a64 offset_bytes; /* within the slab's data */
    cw_a64 length_bytes;
    cw_a64 frozen;   /* generation + 1 that nobody may write to any more; else not that */
    cw_a64 outdated; /* generation + 1 that its remote name does not mean any more; else not that */
    cw_a64 queue;    /* generation + 1 that is a Queue's array, for who looks from outside */
    cw_a64 reserved[2]; /* who uses it on GPUs stands in order.h */
};
_Static_assert(sizeof(struct cw_block) == 64, "layout");

struct cw_block_table { /* a CW_SEGMENT_BLOCKS segment */
    struct cw_segment_header header;
    uint32_t capacity; /* entries; set once, checked against the segment's size by importers */
    uint32_t reserved0;
    uint64_t slab_bytes; /* size of the data, as the maker declared it */
    cw_a32 closed;    /* broker: 1 when the slab was given up: unmap when nothing of it is held */
    cw_a32 withdrawn; /* enum cw_table_state: who decides over a slab with nothing in it */
    /* broker, for who looks from outside (tools/watch), which checks nothing by it: */
    cw_a32 slab;        /* its number; 0: the broker does not have it yet */
    cw_a32 owner;       /* the session whose it is; 0: an orphan */
    cw_a32 device_kind; /* enum cw_device_kind */
    uint32_t reserved1;
    cw_a64 device_uuid[2]; /* as bytes; zero for the host */
    cw_a64 data;           /* the inode of a host slab's data; else 0 */
    cw_a64 orphan_ns;      /* CLOCK_MONOTONIC when its owner went; 0: it has one */
    cw_a64 reserved2[7];
    struct cw_block blocks[];
};
_Static_assert(sizeof(struct cw_block_table) == 192, "layout");

static inline uint64_t cw_block_gen(uint64_t word) {
    return word >> CW_BLOCK_GEN_SHIFT;
}
static inline enum cw_block_state cw_block_state(uint64_t word) {
    return (enum cw_block_state)(word & CW_BLOCK_STATE_MASK);
}

/* Bytes of a table segment with this many entries. */
uint64_t cw_block_table_bytes(uint32_t capacity);

/* Owner: publishes a carved block (B7). The entry must be FREE. Returns its generation. */
uint64_t cw_block_carve(struct cw_block *block, uint64_t offset_bytes, uint64_t length_bytes);
/* The maker, before others know of this generation: whoever opens it has it read-only. */
void cw_block_freeze(struct cw_block *block, uint64_t gen);
/* Was it? After the word was seen (B1). */
bool cw_block_frozen(struct cw_block *block, uint64_t gen);
/* Its holder: generation gen is the array of a Queue. Watchers find it so; nothing else depends on
 * it. */
void cw_block_mark_queue(struct cw_block *block, uint64_t gen);
/*
 * The bridge, of a replica: its remote name does not mean it any more, wherever the name is still
 * found. Before anything newer can be found at any place, so that who has that finds this one
 * outdated (B20 on both sides).
 */
void cw_block_outdate(struct cw_block *block, uint64_t gen);
/* Was it? A reader of a remote name, after it has copied the record that names the block. */
bool cw_block_outdated(struct cw_block *block, uint64_t gen);
/* Owner: frees a block that no other process ever learned of. */
void cw_block_free_local(struct cw_block *block);

/* Taker, after its slot is stored: does the lease on generation gen stand? Rescues a retiring
 * block. Returns 0 or -ESTALE. Never blocks. */
int cw_block_check(struct cw_block *block, uint64_t gen);
/* Dropper, after its slot is cleared: must the broker be told? */
bool cw_block_drop_tells(struct cw_block *block);

/* Broker. want: sets WANTED on a LIVE block of generation gen. unwant: clears it (a new reference).
 * retire: LIVE|WANTED -> RETIRING. commit: RETIRING -> FREE, gen+1. restore: RETIRING ->
 * LIVE|WANTED. Each returns false when the word is otherwise (somebody else won, or the table is
 * damaged). */
bool cw_block_want(struct cw_block *block, uint64_t gen);
bool cw_block_unwant(struct cw_block *block, uint64_t gen);
bool cw_block_retire(struct cw_block *block, uint64_t gen);
bool cw_block_commit(struct cw_block *block, uint64_t gen);
bool cw_block_restore(struct cw_block *block, uint64_t gen);

/* Owner, after its slot on the block that it is about to carve is stored. False: the broker has
 * taken the slab back; nothing may be carved. Never blocks. */
bool cw_table_keep(struct cw_block_table *table);
/* Has it? Owner: to forget the slab. */
bool cw_table_withdrawn(struct cw_block_table *table);
/* Broker. withdraw: before it looks whether anything of the slab is held or carved. commit: nothing
 * was; restore: something was. withdraw and commit return false when the word is otherwise (the
 * owner won, or the table is damaged). reset: for a new owner, before it knows the slab. */
bool cw_table_withdraw(struct cw_block_table *table);
bool cw_table_commit(struct cw_block_table *table);
void cw_table_restore(struct cw_block_table *table);
void cw_table_reset(struct cw_block_table *table);

#endif
