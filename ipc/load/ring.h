/*
 * A ring of pinned host memory, through which pieces of a file go to GPUs. See ring.c.
 */
#ifndef CW_IPC_LOAD_RING_H
#define CW_IPC_LOAD_RING_H

#include <stdbool.h>
#include <stdint.h>

#define CW_RING_GPUS_MAX 64u

struct cw_ring;
struct cw_ring_slot;

/* For so many threads, to these GPUs of this process, each of which is a *lane*. 0, -ENODEV,
 * -EDQUOT. */
int cw_ring_open(const int *gpus, unsigned count, unsigned threads, struct cw_ring **out);
/* Waits for what was sent. NULL is allowed. */
void cw_ring_close(struct cw_ring *ring);
/* A slot that nobody uses, once what was sent from it last has left it. One thread has one at a
 * time. Blocks. 0, or what the driver says. */
int cw_ring_take(struct cw_ring *ring, struct cw_ring_slot **out);
/* Its CW_READ_BUFFER_BYTES, aligned as CW_READ_ALIGN. */
uint8_t *cw_ring_bytes(struct cw_ring_slot *slot);
/* Pins a slot that has been filled, if it is not pinned: its pages are there now. */
void cw_ring_pin(struct cw_ring *ring, struct cw_ring_slot *slot);
/* Sends bytes of a slot to memory of a lane's GPU; they stay as they are until it is taken again.
 */
int cw_ring_send(struct cw_ring *ring, struct cw_ring_slot *slot, unsigned lane, void *target,
                 const void *bytes, uint64_t size_bytes);
/* Behind what a slot sent to a lane: the same bytes from that lane's GPU to another memory that it
 * reaches. */
int cw_ring_spread(struct cw_ring *ring, const struct cw_ring_slot *slot, unsigned lane,
                   void *target, const void *source, uint64_t size_bytes);
void cw_ring_give(struct cw_ring *ring, struct cw_ring_slot *slot);
/* Waits until all that was sent and spread has arrived. */
int cw_ring_settle(struct cw_ring *ring);

#endif
