/*
 * One collective operation on elements, as collective.c runs it.
 */
#ifndef CW_IPC_GROUP_COLLECTIVE_H
#define CW_IPC_GROUP_COLLECTIVE_H

#include "ipc/group/page.h"

struct operation { /* all of it checked */
    enum group_operation kind;
    uint32_t dtype, reduction, root;
    uint64_t count, block_bytes;
    uint32_t itemsize;
    uint32_t blocks; /* of a vector */
    cw_group_memory send, receive;
    uint64_t send_bytes, receive_bytes; /* of this member; 0: it does not */
    bool contributes, consumes;
};

/* Does that rank contribute a vector? */
static inline bool contributor(const struct operation *op, uint32_t rank) {
    return (op->kind != GROUP_BCAST && op->kind != GROUP_SCATTER) || rank == op->root;
}

/* Begins it, runs it and ends it. Blocks. What the calls of cableway.h return. */
int cw_group_run(cw_group *group, const struct operation *op);

#endif
