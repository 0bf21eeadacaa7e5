/*
 * Waiting on the CPU for all that this process does on some GPUs, before memory is taken from under
 * it.
 */
#ifndef CW_IPC_ORDER_DRAIN_H
#define CW_IPC_ORDER_DRAIN_H

#include <stdint.h>

#include "ipc/cableway.h"

/* gpus: bit i: GPU i. stream: one of the caller's, asked first whether it is being captured; NULL:
 * none. -EINVAL: it is, or another stream that we know; nothing was waited for, and the capture
 * goes on. Blocks. Without a lock. */
int cw_drain(cw_client *client, uint64_t gpus, void *stream);

#endif
