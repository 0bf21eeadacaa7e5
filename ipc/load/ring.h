/*
 * A ring of pinned host memory, through which pieces of a file go to a GPU. See ring.c.
 */
#ifndef CW_IPC_LOAD_RING_H
#define CW_IPC_LOAD_RING_H

#include <stdint.h>

struct cw_ring;
struct cw_ring_slot;

/* For so many threads, to that GPU of this process. 0, -ENODEV, -EDQUOT. */
int cw_ring_open(int gpu, unsigned threads, struct cw_ring **out);
/* Waits for what was sent. NULL is allowed. */
void cw_ring_close(struct cw_ring *ring);
/* A slot of CW_READ_PIECE_BYTES that nobody uses, once what was sent from it last has arrived. One
 * thread has one at a time. Blocks. 0, or what the driver says. */
int cw_ring_take(struct cw_ring *ring, struct cw_ring_slot **out);
uint8_t *cw_ring_bytes(struct cw_ring_slot *slot);
/* Sends bytes of a slot; they stay as they are until the slot is taken again. */
int cw_ring_send(struct cw_ring *ring, struct cw_ring_slot *slot, void *target, const void *bytes,
                 uint64_t size_bytes);
void cw_ring_give(struct cw_ring *ring, struct cw_ring_slot *slot);
/* Waits until all that was sent has arrived. */
int cw_ring_settle(struct cw_ring *ring);

#endif
