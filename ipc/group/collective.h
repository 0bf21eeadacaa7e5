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

/* Do what this member contributes and what it receives overlap? */
static inline bool operation_overlaps(const struct operation *op) {
    const uint8_t *send = op->send.data, *receive = op->receive.data;
    return op->contributes && op->consumes && send < receive + op->receive_bytes &&
           receive < send + op->send_bytes;
}

/* ---- gpu.c ---- */

/* Begins it, runs it and ends it. Blocks. What the calls of cableway.h return. */
int cw_group_run(cw_group *group, const struct operation *op);
/* Does this member's memory lie on a GPU? */
bool cw_group_on_gpu(const struct operation *op);
/* Fills the call of such a member, when all work on its memory is done. Blocks. What fails here
 * fails before anybody is met. */
int cw_group_gpu_call(cw_group *group, const struct operation *op, struct group_call *call);
/* Closes the memory of the detour. */
void cw_group_detour_close(cw_group *group);

/* ---- collective.c ---- */

struct group_met {
    bool gpu;    /* the memory of a member lies on a GPU: all have met, and nothing was done */
    bool arrays; /* then: all that contribute do so with arrays */
};
/* Runs it in host memory, between begin and end. Blocks. */
int cw_collective_run(cw_group *group, const struct operation *op, struct group_met *met);

#endif
