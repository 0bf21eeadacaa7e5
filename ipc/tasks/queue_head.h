/*
 * The head of a queue's array, before its first ring: see queue_rings.h. Who looks at queues from
 * outside (tools/watch) reads this, too.
 */
#ifndef CW_IPC_TASKS_QUEUE_HEAD_H
#define CW_IPC_TASKS_QUEUE_HEAD_H

#include <stdint.h>

#include "ipc/cableway.h"
#include "shm/tasks/queue.h"

#define QUEUE_MAGIC 0x6377717565303032ull /* "cwque002" */
#define RINGS       64u                   /* that an item and the last one put can lie apart */

struct ring_place { /* 64 bytes, shared; written by the writer before it goes there */
    cw_handle handle;
    cw_a64 token; /* of its transit; 0: ended, or none */
    uint64_t reserved;
};

struct head { /* shared */
    uint64_t magic;
    uint64_t world; /* cw_task_world() of the maker */
    uint64_t id;    /* for traces: a number that no other queue has */
    uint64_t reserved[5];
    struct cw_queue_core core;
    struct ring_place rings[RINGS]; /* by the ring's number, modulo */
};
#define HEAD_BYTES 8192u
_Static_assert(sizeof(struct ring_place) == 64 && sizeof(struct head) <= HEAD_BYTES, "layout");

#endif
