/*
 * The rings of a queue: the memory in which its items lie one after the other, and which grows. The
 * form of an item, and the turns of its ends, are in queue.c. Private to both.
 *
 *   queue's array:  struct head | first ring
 *   further rings:  an array each, twice as large as the one before, named in head->rings
 *
 * Each end's position is part of its mark in shm/tasks/queue.h: the ring's number in the high bits,
 * the bytes since its beginning in the low bits. When an item does not fit, the writer makes a
 * larger ring, leaves a note (JUMP) in the old one and goes on in the new one; readers follow when
 * they meet the note.
 *
 * Who keeps the memory. A further ring has a transit at the broker, tied to the queue's array: it
 * stays until readers have passed it, or the queue is gone, whichever process dies. And each
 * process keeps the rings that it has opened until readers have passed them. After the broker's end
 * nothing can be opened any more, but a process can take the items in rings that it has open. So
 * the writer that makes a ring keeps it for the readers of its own process, and a reader that sees
 * that writers have gone on to another ring opens that ring at once, while it can. A ring that a
 * process did not open in time is out of its reach for good (-ESTALE); another process may still
 * empty it.
 *
 * queue->rings has the rings that this process has open, by number, modulo, under client->lock.
 * Each end also keeps the ring that it was in last, so that nothing that others write into the
 * queue can close a ring that the holder of a turn is in: `users` counts this, under the same lock.
 */
#ifndef CW_IPC_TASKS_QUEUE_RINGS_H
#define CW_IPC_TASKS_QUEUE_RINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/array/array.h"
#include "ipc/client.h"
#include "ipc/tasks/queue_head.h"

#define FIRST_BYTES    (32u << 10)
#define RING_MAX_BYTES (64ull << 20)
#define OFFSET_BITS    40u /* of a position: the ring's number stands above */
#define OFFSET_MASK    ((1ull << OFFSET_BITS) - 1)
#define RECORD_ALIGN   32u

enum record_kind { RECORD_ITEM = 1, RECORD_JUMP = 2 };

struct record { /* RECORD_ALIGN bytes, so that it never wraps; its handles and its data follow */
    uint32_t kind;
    uint32_t size_bytes;
    uint32_t handles;
    uint32_t reserved;
    uint64_t charge_bytes;
    uint64_t number; /* of the item */
};

_Static_assert(sizeof(struct record) == RECORD_ALIGN, "layout");

struct ring { /* of this process; all but users stays as it is */
    uint64_t number;
    uint8_t *bytes;
    uint64_t size_bytes;
    cw_array *array; /* NULL: the first ring, which is in the queue's array */
    uint32_t users;  /* of queue->rings and the two ends; client->lock */
};

struct cw_queue {
    cw_client *client;
    cw_array *array; /* borrowed */
    struct head *head;
    struct ring *rings[RINGS];        /* that this process has opened, or made */
    struct ring *put_ring, *get_ring; /* where each end was last, of who has its turn */
    uint64_t
        readers_at; /* a position that the readers have reached; of who has the writers' turn */
};

static inline uint64_t ring_of(uint64_t position) {
    return position >> OFFSET_BITS;
}

static inline uint64_t moved(uint64_t position, uint64_t bytes) {
    return (position & ~OFFSET_MASK) | ((position + bytes) & OFFSET_MASK);
}

/* Both wrap around at the ring's end. */
void cw_ring_in(const struct ring *ring, uint64_t position, const void *from, uint64_t bytes);
void cw_ring_out(const struct ring *ring, uint64_t position, void *to, uint64_t bytes);

/* Plain bytes: a new array, and what a handle names. As cw_array_new() and cw_array_open(). */
int cw_bytes_new(cw_client *client, uint64_t bytes, cw_array **out);
int cw_bytes_open(cw_client *client, cw_handle handle, cw_array **out);

/*
 * Makes *ring, which is put_ring or get_ring of the turn's holder, the one with this number. It may
 * ask the broker. -ESTALE: it is out of this process's reach, since the broker ended before the
 * process opened it. -EPROTO: the queue names no ring. -ECONNRESET and others as cw_array_open().
 */
int cw_ring_find(cw_queue *queue, struct ring **ring, uint64_t number);
/*
 * Makes the ring after the writers', and leaves the note. *position: where it begins. readers: the
 * ring in which they are. The caller has the writers' turn.
 */
int cw_ring_grow(cw_queue *queue, uint64_t bytes, uint64_t readers, uint64_t *position);
/*
 * The ring before this one was left behind by the readers: nobody needs it. The caller has their
 * turn.
 */
void cw_ring_forget(cw_queue *queue, uint64_t current);
/* Closes the rings that readers have passed. */
void cw_rings_pass(cw_queue *queue);
/*
 * Opens the ring in which writers are and those before it that this process has not opened, and
 * closes those that readers have passed. For a reader that has given back its turn: it may ask the
 * broker. What cannot be opened now is asked for again when a reader comes there, and told then.
 */
void cw_rings_follow(cw_queue *queue);
/* Closes all. Nobody may be using the queue. */
void cw_rings_close(cw_queue *queue);

/* Transits of what a queue keeps: tied to it, so that they end with it; and ended. 0: none. */
void cw_queue_anchor(cw_queue *queue, uint64_t token);
void cw_queue_end_transit(cw_queue *queue, uint64_t token);
/*
 * Has the broker ended that kept what goes with the items? No answer of it is waited for. Whoever
 * it dropped, or who closed its own connection, is told that it has not.
 */
bool cw_queue_keeper_dead(const cw_queue *queue);

#endif
