/*
 * Order: who uses a block's memory on GPUs, and how far. One struct for each block of a GPU slab,
 * behind the block table's entries, in host memory that every process with the slab open can write.
 *
 * A *stamp* is one word that names a fence and a value of it: "until fence F has reached V". One
 * word, so that a stamp is stored by one store or one CAS, and no death leaves half of one. Stamp 0
 * is nothing. Values of a fence only rise and fences are never used again, so equal stamps mean the
 * same work: a CAS on one cannot be fooled.
 *
 * The record
 *   turn    the writer between its begin and its end on the CPU: the stamp that its end will
 *           publish, so that everyone who meets it can see whether its process is dead; 0: nobody.
 *           Only its holder writes `write` and `waited`. The turn covers the submitting of the
 *           work, not the work itself.
 *   write   the stamp of the last write: later work on the block waits for it.
 *   writes  how many writes have ended. Stamps go when their process is dead; by this count a
 *           reader that reads in pieces knows whether anybody wrote meanwhile.
 *   waited  the stamps for which that write had to wait and which had not passed when it was
 *           submitted. Poison (a write ran on incomplete data) passes through here: if one of
 *           their processes died, this write did. A write that does not cover the whole array
 *           adds the stamps of the write before it: so they are handed on until they have passed.
 *           A write that covers the whole array does not depend on them.
 *   reads   stamps of reads under way. A fence is here at most once, with its latest value.
 *   marks   CW_ORDER_POISONED: a writer learned before its end that it computed with incomplete
 *           data, or wrote a part of an array that was so. Cleared by the next write that covers
 *           the whole array.
 *
 * Reading a block (its process, any thread):
 *   1 store a read stamp (G1 seq_cst; own fence, the value that the end will be)
 *   2 load turn (G2 seq_cst): somebody is writing: take the stamp back, wait for the turn, again
 *   3 load write and waited: the stream waits for these, then the user's work is submitted
 *   4 at the end: the fence's enqueued word, the stream's write of the value; the stamp stays until
 *     its value is reached, and then any reader that needs its place takes it by CAS
 * Writing a block:
 *   1 take the turn by CAS (G3 seq_cst); of a dead process the broker clears it
 *   2 load write and all reads (G4 seq_cst): the stream waits for these. One of them may be that of
 *     a reader that meets this turn, takes its stamp back and waits for the turn: to wait
 *     for its value would be to wait in a circle. So the place is read again until the value is
 *     submitted; the stamp that it has then counts
 *   3 at the end: enqueued word, stream's write of the value, then waited and write (release), then
 *     the turn goes back (G5 release)
 * So a reader and a writer that meet: one of them sees the other (store, then look, on both sides).
 *
 * No place among `reads`: the reader takes that of one that has passed, by CAS, and waits on the
 * CPU until there is one.
 *
 * Deaths: a reader's stamps stay; its fence is poisoned, and poison ends every wait. A writer
 * inside its turn: nothing was published, but it may have submitted work: readers who meet the turn
 * are told, writers wait. After `write`: the fence says whether it was reached. When nothing of the
 * dead can land any more the broker takes its stamps out (cw_order_bury): a write that was not
 * reached becomes CW_STAMP_DEAD, which tells readers the same. The broker: the words stay as they
 * are, processes go on with what they have mapped. Reuse: an owner carves the block anew only when
 * `write` and all `reads` have passed, or nothing of their dead processes can land any more,
 * whatever became of the leases (cw_order_passed).
 */
#ifndef CW_SHM_BLOCKS_ORDER_H
#define CW_SHM_BLOCKS_ORDER_H

#include "shm/base/atomic.h"
#include "shm/blocks/block.h"
#include "shm/blocks/fence.h"

typedef uint64_t cw_stamp; /* fence << CW_STAMP_VALUE_BITS | value; 0: nothing */
#define CW_STAMP_VALUE_BITS 36
#define CW_STAMP_VALUE_MAX                                                                         \
    ((1ull << CW_STAMP_VALUE_BITS) - 1) /* then the stream takes a new one                         \
                                         */
#define CW_STAMP_FENCE_MAX ((1u << 28) - 1)
#define CW_STAMP_DEAD      1ull /* of fence 0, which nobody has: never reached, its process is dead */

static inline cw_stamp cw_stamp_make(uint32_t fence, uint64_t value) {
    return (uint64_t)fence << CW_STAMP_VALUE_BITS | value;
}
static inline uint32_t cw_stamp_fence(cw_stamp stamp) {
    return (uint32_t)(stamp >> CW_STAMP_VALUE_BITS);
}
static inline uint64_t cw_stamp_value(cw_stamp stamp) {
    return stamp & CW_STAMP_VALUE_MAX;
}

#define CW_ORDER_READS    6u
#define CW_ORDER_WAITED   6u /* a write that waits for more waits for the rest on the CPU */
#define CW_ORDER_POISONED 1ull

struct cw_order {                   /* 128 bytes, shared */
    cw_a64 turn;                    /* cw_stamp of the writing that is inside, 0 nobody */
    cw_a64 write;                   /* cw_stamp */
    cw_a64 marks;                   /* CW_ORDER_... */
    cw_a64 writes;                  /* how many have ended; never set back */
    cw_a64 waited[CW_ORDER_WAITED]; /* cw_stamps */
    cw_a64 reads[CW_ORDER_READS];   /* cw_stamps */
};
_Static_assert(sizeof(struct cw_order) == 128, "layout");

/* The orders of a GPU slab's table stand behind its blocks. Host slabs have none. */
static inline struct cw_order *cw_order_of(struct cw_block_table *table, uint32_t block) {
    return (struct cw_order *)(table->blocks + table->capacity) + block;
}
/* Bytes of a GPU slab's table: blocks and orders. */
static inline uint64_t cw_order_table_bytes(uint32_t capacity) {
    return cw_block_table_bytes(capacity) + (uint64_t)capacity * sizeof(struct cw_order);
}

/* A private copy of a record, or of what of it was asked for. */
struct cw_order_seen {
    uint64_t turn, marks;
    cw_stamp write, waited[CW_ORDER_WAITED], reads[CW_ORDER_READS];
};

/* Owner: empties the record of a FREE block that is about to be carved. */
void cw_order_clear(struct cw_order *order);
/* Owner, of a block that came back: did no stream ever use it? Then it may be carved at once. */
bool cw_order_unused(struct cw_order *order);

/* Reader: notes a read (G1). *before is what stood at *place: 0, or this fence's earlier stamp.
 * False: no place is free. */
bool cw_order_read_note(struct cw_order *order, cw_stamp stamp, unsigned *place, cw_stamp *before);
/* The same at a place whose stamp has passed, or that stamp now implies. False: it changed. */
bool cw_order_read_replace(struct cw_order *order, unsigned place, cw_stamp passed, cw_stamp stamp);
/* Takes a stamp back that leads to no work. */
void cw_order_read_undo(struct cw_order *order, unsigned place, cw_stamp stamp, cw_stamp before);
/* Whose turn it is to write (G2); after cw_order_read_note(). */
uint64_t cw_order_turn(struct cw_order *order);
/* Copies the record; after the turn was taken, or was seen to be nobody's. */
void cw_order_see(struct cw_order *order, struct cw_order_seen *out);
/* The stamp of one read as it stands now (G4). */
cw_stamp cw_order_read_at(struct cw_order *order, unsigned place);
/* How many writes have ended (G9); after the turn was seen to be nobody's. */
uint64_t cw_order_writes(struct cw_order *order);

/* Writer: takes the turn (G3). False: *holder has it. */
bool cw_order_turn_take(struct cw_order *order, uint64_t who, uint64_t *holder);
/* Writer, with the turn: what was written, and what it had to wait for. */
void cw_order_written(struct cw_order *order, cw_stamp stamp, const cw_stamp *waited,
                      unsigned waited_count, uint64_t marks);
/* Writer: gives the turn back, and publishes what cw_order_written() stored (G5). */
void cw_order_turn_give(struct cw_order *order);

/* Broker: takes out the fences of the dead, of whom nothing can land any more. died(context,
 * stamp): its fence is one of these: 0 no, 1 yes and the value was reached, -1 yes and it was not.
 * A write that was not reached, or that waited for one, becomes CW_STAMP_DEAD. */
void cw_order_bury(struct cw_order *order, int (*died)(void *context, cw_stamp stamp),
                   void *context);

#endif
