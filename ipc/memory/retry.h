/*
 * Allocation retry: the steps that are tried before an allocation fails. Without client->lock.
 */
#ifndef CW_IPC_MEMORY_RETRY_H
#define CW_IPC_MEMORY_RETRY_H

#include <stdint.h>

#include "ipc/memory/allocator.h"

/* Would the broker refuse a slab of host memory, with so many blocks, for a limit? Asked before the
 * memory is made, where that is much. 0, -EDQUOT with its sentence, or what ended the question. */
int cw_retry_check(cw_client *client, const struct cw_heap *heap, uint64_t slab_bytes,
                   uint32_t blocks);
/* Has the broker look at all that this process has let go of. 1: something of the heap came
 * back; 0; -EINTR. */
int cw_retry_ask(cw_client *client, struct cw_heap *heap);
/* After a limit was reached: gives up cached slabs. -EAGAIN: something came free; else -EDQUOT or
 * -EINTR. */
int cw_retry_make_room(cw_client *client, struct cw_heap *heap);
/* The last step before -EDQUOT in host memory: the broker takes back what other clients keep free.
 * -EAGAIN: something came free; -EDQUOT with the sentence that stands; -EINTR. Waits for what is on
 * its way, 1 s at most. */
int cw_retry_ask_others(cw_client *client, uint64_t size_bytes);
/* Waits until something of the heap comes back: 1. 0: nothing is on its way, or the time is over.
 * -EINTR: a signal came.
 * *until_ns: 0 at first, then when that is. Blocks 200 ms at most, over all calls. */
int cw_retry_wait(cw_client *client, struct cw_heap *heap, int64_t *until_ns);
/* -EDQUOT with a sentence, and whether anything was waited for. */
int cw_retry_failed(const struct cw_heap *heap, int64_t until_ns, const char *sentence);

#endif
