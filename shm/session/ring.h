/*
 * Ring: records of variable length from one producer to one consumer.
 *
 * Invariants
 *   I1  The header word at the producer's position is 0 at every moment: before it publishes a
 *       record the producer writes 0 where the NEXT header will be. So the consumer needs no tail
 *       index: a header that is not 0 is a whole record. One cache line carries index and data.
 *   I2  A record is published by one store of its header (R1). A producer that dies before it
 *       leaves nothing; one that dies after it leaves a whole record. Nothing ever needs a repair.
 *   I3  Unread records and the zero word behind them never exceed the capacity.
 *   I4  Positions only rise (64 bit); the offset is position & (capacity - 1). Records do not wrap:
 *       a padding record fills the end.
 *   I5  Each side keeps its own position in private memory. What it reads of the other side it
 *   checks.
 *
 * Header word: bits 0..31 the payload's length in bytes + 1 (so that an empty record is not 0),
 * bits 32..63 the type, chosen by the user; type CW_RING_PADDING is the ring's own.
 * Records are 8-byte aligned.
 *
 * Either side may die at any moment. The consumer's head is stored after the record was used (R3).
 * If the consumer dies in between, its successor (if any) sees that record again.
 *
 * Sleeping is up to the caller (wait.h): a side that finds nothing publishes that it sleeps, looks
 * once more, and sleeps; the other side publishes its effect and then looks whether anyone sleeps.
 */
#ifndef CW_SHM_SESSION_RING_H
#define CW_SHM_SESSION_RING_H

#include <stddef.h>
#include "shm/base/atomic.h"
#include "shm/base/wait.h"

#define CW_RING_PADDING   0xffffffffu
#define CW_RING_MIN_BYTES 4096u
#define CW_RING_MAX_BYTES (1u << 30)

struct cw_ring {                /* in shared memory; 256 bytes, then capacity bytes of records */
    _Alignas(64) cw_a64 head;   /* consumer: everything before it is consumed */
    struct cw_sleeper consumer; /* the consumer's core and sleep word */
    _Alignas(64) struct cw_sleeper producer; /* the producer's, when it waits for space */
    uint64_t capacity_bytes;                 /* set once; each side keeps its own copy */
    _Alignas(64) uint8_t spare[128]; /* keeps the records off the lines above (adjacent prefetch) */
    _Alignas(64) uint8_t records[];
};
_Static_assert(sizeof(struct cw_ring) == 256, "layout");

struct cw_ring_producer { /* private to the producing process */
    struct cw_ring *ring;
    uint64_t capacity_bytes;
    uint64_t tail; /* where the next header goes */
    uint64_t head; /* the consumer's head as last seen */
};

struct cw_ring_consumer { /* private to the consuming process */
    struct cw_ring *ring;
    uint64_t capacity_bytes;
    uint64_t head;    /* where the next header is read */
    uint64_t advance; /* length of the record given out by the last peek, 0 if none */
};

/* Bytes of shared memory that a ring of capacity_bytes (a power of two) needs. */
size_t cw_ring_size(uint64_t capacity_bytes);
/* Formats zeroed or used memory as an empty ring. Before anyone else sees it. */
void cw_ring_init(struct cw_ring *ring, uint64_t capacity_bytes);
/* The largest payload that a ring of this capacity ever takes: a quarter of it. */
uint32_t cw_ring_max_payload(uint64_t capacity_bytes);

/* Attaches one side. capacity_bytes comes from what the user agreed on, not from shared memory. */
void cw_ring_producer_init(struct cw_ring_producer *p, struct cw_ring *ring,
                           uint64_t capacity_bytes);
void cw_ring_consumer_init(struct cw_ring_consumer *c, struct cw_ring *ring,
                           uint64_t capacity_bytes);

/*
 * Reserves room for a payload; *payload is where to write it. Nothing is visible until commit; a
 * second reserve without commit forgets the first. Never blocks.
 * Returns 0, -EAGAIN (no room now), -EMSGSIZE (never fits), -EPROTO (the consumer's head is a lie).
 */
int cw_ring_reserve(struct cw_ring_producer *p, uint32_t length_bytes, void **payload);
/* Publishes what was reserved. seq_cst: the caller may then look whether the consumer sleeps. */
void cw_ring_commit(struct cw_ring_producer *p, uint32_t type, uint32_t length_bytes);
/* reserve, copy, commit. */
int cw_ring_write(struct cw_ring_producer *p, uint32_t type, const void *payload,
                  uint32_t length_bytes);
/* Is there room for this payload? Looks at the consumer's head (seq_cst), so it may stand between
 * publishing that the producer sleeps and sleeping. */
bool cw_ring_has_room(struct cw_ring_producer *p, uint32_t length_bytes);

/*
 * The next record, in place: valid until cw_ring_consume(). The bytes are shared: a consumer that
 * does not trust the producer copies them first. Never blocks.
 * Returns 1 (a record), 0 (none), -EPROTO (the header cannot be: the producer is broken or
 * hostile).
 */
int cw_ring_peek(struct cw_ring_consumer *c, uint32_t *type, const void **payload,
                 uint32_t *length_bytes);
/* The same of a copy of the consumer's struct, which goes on by one record each time: what stands
 * in the ring to be read. Nothing is given back. The first one is the first that was not consumed.
 */
int cw_ring_look_on(struct cw_ring_consumer *copy, uint32_t *type, const void **payload,
                    uint32_t *length_bytes);
/* Gives the peeked record's space back. seq_cst: the caller may then look whether the producer
 * sleeps. */
void cw_ring_consume(struct cw_ring_consumer *c);
/* Is a record there? seq_cst, so it may stand between publishing that we sleep and sleeping. */
bool cw_ring_has_record(struct cw_ring_consumer *c);

#endif
