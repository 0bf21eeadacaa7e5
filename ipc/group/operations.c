/*
 * The operations of cableway.h: what each says of its memory, and the checks of all of them. What
 * fails here fails before anybody is met.
 */
#include "ipc/group/collective.h"
#include "ipc/group/reduce.h"
#include "shm/base/error.h"

#define BYTES_DTYPE 0xffu /* elements that are only moved, of a dtype without a number */

static int check_memory(const struct operation *op, bool contributes, bool consumes) {
    uint64_t total;
    if (op->block_bytes && ((contributes && !op->send.data) || (consumes && !op->receive.data)))
        return cw_needs("memory for the elements");
    if (__builtin_mul_overflow(op->block_bytes, CW_GROUP_RANKS_MAX, &total) || total > INT64_MAX)
        return cw_fail(-EINVAL, "%llu elements for each member are more than memory holds",
                       (unsigned long long)op->count);
    return 0;
}

/* Fills in what follows from the kind, and runs it. */
static int operate(cw_group *group, enum group_operation kind, cw_group_memory send,
                   cw_group_memory receive, uint64_t count, const char *dtype, uint32_t reduction,
                   uint32_t root) {
    struct operation op = {.kind = kind,
                           .root = root,
                           .reduction = reduction,
                           .count = count,
                           .send = send,
                           .receive = receive};
    if (!group || !dtype)
        return cw_needs("a group and a dtype");
    int code = cw_dtype_size(dtype, &op.itemsize);
    op.dtype = code ? 0 : cw_reduce_dtype(dtype);
    if (code == 0 &&
        (kind == GROUP_REDUCE || kind == GROUP_ALLREDUCE || kind == GROUP_REDUCE_SCATTER))
        code = cw_reduce_check(op.dtype, reduction);
    if (code == 0 && root != GROUP_NO_ROOT && root >= group->size)
        code = cw_fail(-EINVAL, "root %u: group \"%s\" has ranks 0 to %u", root, group->name,
                       group->size - 1);
    if (code)
        return code;
    if (__builtin_mul_overflow(count, op.itemsize, &op.block_bytes))
        return cw_fail(-EINVAL, "%llu elements are more than memory holds",
                       (unsigned long long)count);
    if (op.dtype == 0) {
        op.dtype = BYTES_DTYPE;
        op.count = op.block_bytes;
        op.itemsize = 1;
    }
    const bool rooted = root != GROUP_NO_ROOT;
    const bool gathers = kind == GROUP_GATHER || kind == GROUP_REDUCE;
    op.blocks = kind == GROUP_SCATTER || kind == GROUP_REDUCE_SCATTER || kind == GROUP_ALLTOALL
                    ? group->size
                    : 1;
    op.contributes = contributor(&op, group->rank);
    op.consumes =
        !rooted || (gathers ? root == group->rank : kind != GROUP_BCAST || root != group->rank);
    code = check_memory(&op, op.contributes, op.consumes);
    if (code)
        return code;
    const bool many = kind == GROUP_GATHER || kind == GROUP_ALLGATHER || kind == GROUP_ALLTOALL;
    op.send_bytes = op.contributes ? op.block_bytes * op.blocks : 0;
    op.receive_bytes = op.consumes ? op.block_bytes * (many ? group->size : 1) : 0;
    return cw_group_run(group, &op);
}

int cw_group_bcast(cw_group *group, cw_group_memory data, uint64_t count, const char *dtype,
                   uint32_t root) {
    return operate(group, GROUP_BCAST, data, data, count, dtype, 0, root);
}

int cw_group_scatter(cw_group *group, cw_group_memory send, cw_group_memory receive, uint64_t count,
                     const char *dtype, uint32_t root) {
    return operate(group, GROUP_SCATTER, send, receive, count, dtype, 0, root);
}

int cw_group_gather(cw_group *group, cw_group_memory send, cw_group_memory receive, uint64_t count,
                    const char *dtype, uint32_t root) {
    return operate(group, GROUP_GATHER, send, receive, count, dtype, 0, root);
}

int cw_group_allgather(cw_group *group, cw_group_memory send, cw_group_memory receive,
                       uint64_t count, const char *dtype) {
    return operate(group, GROUP_ALLGATHER, send, receive, count, dtype, 0, GROUP_NO_ROOT);
}

int cw_group_reduce(cw_group *group, cw_group_memory send, cw_group_memory receive, uint64_t count,
                    const char *dtype, cw_reduction reduction, uint32_t root) {
    return operate(group, GROUP_REDUCE, send, receive, count, dtype, reduction, root);
}

int cw_group_allreduce(cw_group *group, cw_group_memory send, cw_group_memory receive,
                       uint64_t count, const char *dtype, cw_reduction reduction) {
    return operate(group, GROUP_ALLREDUCE, send, receive, count, dtype, reduction, GROUP_NO_ROOT);
}

int cw_group_reduce_scatter(cw_group *group, cw_group_memory send, cw_group_memory receive,
                            uint64_t count, const char *dtype, cw_reduction reduction) {
    return operate(group, GROUP_REDUCE_SCATTER, send, receive, count, dtype, reduction,
                   GROUP_NO_ROOT);
}

int cw_group_alltoall(cw_group *group, cw_group_memory send, cw_group_memory receive,
                      uint64_t count, const char *dtype) {
    return operate(group, GROUP_ALLTOALL, send, receive, count, dtype, 0, GROUP_NO_ROOT);
}
