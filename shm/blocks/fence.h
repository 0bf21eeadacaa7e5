/*
 * Fence: a 64-bit word in shared memory that puts the work of one stream of one process before that
 * of others. CPUs write it and wait for it in host memory; streams of a GPU do both by the driver
 * (ipc/order/fence.h).
 *
 * Rules: one writer; values begin at 1 and only rise; a fence is never used again. The writer also
 * publishes the highest value that it has enqueued; a process that waits for more than that waits
 * on the CPU. Poison: when the writer is dead the broker notes the last completed value, then
 * stores CW_FENCE_POISON, and stores it again until no late write can land. Completed work stays
 * good.
 */
#ifndef CW_SHM_BLOCKS_FENCE_H
#define CW_SHM_BLOCKS_FENCE_H

#include "shm/base/atomic.h"
#include "shm/base/wait.h"

#define CW_FENCE_POISON    (1ull << 63)
#define CW_FENCES_PER_PAGE 64u        /* a page: a segment's header, and fences from CW_PAGE on */
#define CW_POISON_NS       1000000000 /* poison is repeated for so long after the writer's end */

struct cw_fence {     /* 64 bytes, shared */
    cw_a64 value;     /* completed up to here, or >= CW_FENCE_POISON */
    cw_a64 enqueued;  /* submitted up to here */
    cw_a64 completed; /* 0; or CW_FENCE_POISON + the last completed value: its writer is dead */
    struct cw_bell waiters; /* where those sleep that wait on the CPU */
    cw_a64 final;           /* 1: the writer is dead, and nothing of it can land any more */
    uint64_t reserved[2];
};
_Static_assert(sizeof(struct cw_fence) == 64, "layout");

void cw_fence_init(struct cw_fence *fence);
/* Writer: announces work up to value (F1). value must rise. On a GPU after it was submitted, so
 * that a stream that waits for it waits for something. */
void cw_fence_enqueue(struct cw_fence *fence, uint64_t value);
/* Writer: completes value (F2) and wakes CPU waiters. */
void cw_fence_complete(struct cw_fence *fence, uint64_t value);
/* Is value reached? 1 yes, 0 not yet, -EOWNERDEAD: the writer died before it. Never blocks. */
int cw_fence_poll(struct cw_fence *fence, uint64_t value);
/* Was the work up to value submitted? Never blocks. */
bool cw_fence_submitted(struct cw_fence *fence, uint64_t value);
/* Waits on the CPU; timeout_ns < 0: for ever. 0, -EOWNERDEAD, -ETIMEDOUT, -EINTR. Blocks. */
int cw_fence_wait(struct cw_fence *fence, uint64_t value, int64_t timeout_ns);
/* Broker: marks the fence of a dead writer. Repeated, it stores the poison over what has landed
 * since, and does nothing where nothing has. Returns the last completed value, which the first call
 * notes: a value that lands later counts as not reached, since the poison may have released who
 * waited for it. */
uint64_t cw_fence_poison(struct cw_fence *fence);
/* Broker: nothing that the dead writer had submitted can land any more (F8). */
void cw_fence_finish(struct cw_fence *fence);
bool cw_fence_is_final(struct cw_fence *fence);

#endif
