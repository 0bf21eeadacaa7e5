/*
 * The layout of a pool's memory, and the contents of a cell. Private to pool.c (the parent's end),
 * which explains them, pool_memory.c (which is the same one's) and worker.c (a worker's end).
 */
#ifndef CW_IPC_TASKS_POOL_PARTS_H
#define CW_IPC_TASKS_POOL_PARTS_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/cableway.h"
#include "shm/tasks/dispatch.h"

#define POOL_MAGIC 0x6377706f6f6c3034ull /* "cwpool04" */
/* Beside each other the data of cells would fall into the same lines of a cache. */
#define DATA_STRIDE (CW_POOL_DATA_MAX + 64u)

struct head { /* 64 bytes, shared; all but the figures is written once */
    uint64_t magic;
    uint32_t workers, cells, groups, reserved0;
    cw_a64 lost;     /* the parent's: tasks that went with their worker, */
    cw_a64 repeated; /* and of these those that were run again */
    uint64_t id; /* for traces: a number that no other pool has; the memory's inode if it can be */
    uint64_t reserved1[2];
};

struct cell_meta { /* struct cw_cell's meta */
    uint32_t kind, size_bytes;
    uint64_t function;
    uint32_t slot, function_bytes;
    uint64_t reserved[3];
};
_Static_assert(sizeof(struct head) == 64 && offsetof(struct cell_meta, function) == 8 &&
                   CW_POOL_GROUPS_MAX == CW_DISPATCH_GROUPS_MAX &&
                   sizeof(struct cell_meta) == sizeof(((struct cw_cell *)0)->meta),
               "layout");

#define META_BYTES offsetof(struct cell_meta, reserved)

enum figure {
    FIGURE_TASKS,
    FIGURE_BUSY_NS,
    FIGURE_BYTES_IN,
    FIGURE_BYTES_OUT,
    FIGURE_FAILED, /* of the tasks */
    FIGURE_CALLS,
    FIGURES
};

struct parts { /* where all of it lies */
    struct head *head;
    struct cw_dispatch_view view;
    uint8_t *cell_data, *worker_data, *functions;
};
struct cw_pool { /* the parent's end */
    struct cw_dispatch_parent parent;
    struct parts parts;
    uint64_t id;    /* the head's */
    bool *is_noted; /* of each cell whose task was submitted: so will its result be */
    uint32_t
        *group_of; /* of each worker that was assigned to one and is not buried, its group + 1 */
};

static inline cw_a64 *meta_of(const struct parts *parts, uint32_t cell) {
    return parts->view.cells[cell].meta;
}

static inline void *data_of(const struct parts *parts, uint32_t cell) {
    return parts->cell_data + (uint64_t)cell * DATA_STRIDE;
}

/* Lays the parts out over base (NULL: only to count). Returns the bytes of all. */
uint64_t cw_pool_lay_out(uint8_t *base, uint32_t workers, uint32_t cells, uint32_t groups,
                         struct parts *out);
/* Is this memory large enough for such a pool? -EINVAL. */
int cw_pool_check_memory(const void *memory, uint64_t memory_bytes, uint32_t workers,
                         uint32_t cells, uint32_t groups);
/* Are the sizes and the slot in range that the caller has set? -EINVAL. */
int cw_pool_check_task(const cw_task *task);
/* What stands in a cell, copied and checked. */
void cw_pool_read_task(const struct parts *parts, uint32_t cell, uint64_t place, cw_task *out);

#endif
