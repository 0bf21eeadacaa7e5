/*
 * What a member says that it calls, as words for people. Pure functions.
 */
#include <stdio.h>

#include "ipc/group/page.h"
#include "ipc/group/reduce.h"

static const char *operation_name(uint64_t what) {
    static const char *const names[GROUP_OPERATIONS] = {
        [GROUP_BARRIER] = "Barrier",
        [GROUP_BCAST] = "Bcast",
        [GROUP_SCATTER] = "Scatter",
        [GROUP_GATHER] = "Gather",
        [GROUP_ALLGATHER] = "Allgather",
        [GROUP_REDUCE] = "Reduce",
        [GROUP_ALLREDUCE] = "Allreduce",
        [GROUP_REDUCE_SCATTER] = "Reduce_scatter",
        [GROUP_ALLTOALL] = "Alltoall",
        [GROUP_EXCHANGE] = "an operation on objects",
        [GROUP_DECLINED] = "one that it cannot take part in",
    };
    static const char *const labels[] = {"bcast",  "scatter",   "gather",         "allgather",
                                         "reduce", "allreduce", "reduce_scatter", "alltoall",
                                         "empty",  "nccl"};
    uint64_t operation = what & 0xff, label = what >> 16 & 0xff;
    if (operation == GROUP_EXCHANGE && label < sizeof labels / sizeof *labels)
        return labels[label];
    const char *name = operation < GROUP_OPERATIONS ? names[operation] : NULL;
    return name ? name : "no operation";
}

void cw_group_describe(uint64_t what, uint64_t count, char *text, size_t room) {
    uint32_t dtype = (uint32_t)(what >> 8) & 0xff, reduction = (uint32_t)(what >> 16) & 0xff;
    uint32_t root = (uint32_t)(what >> 24) & 0xffff;
    int used = snprintf(text, room, "%s", operation_name(what));
    if ((what & 0xff) == GROUP_EXCHANGE && dtype && used > 0 && (size_t)used < room) {
        const char *name = cw_reduce_name(dtype); /* the op of objects */
        used += snprintf(text + used, room - (size_t)used, ", %s", *name ? name : "a function");
        dtype = 0;
    }
    if (dtype && used > 0 && (size_t)used < room)
        used += snprintf(text + used, room - (size_t)used, " of %llu %s%s%s",
                         (unsigned long long)count, cw_reduce_dtype_name(dtype),
                         reduction ? ", " : "", reduction ? cw_reduce_name(reduction) : "");
    if (what && root != GROUP_NO_ROOT && used > 0 && (size_t)used < room)
        snprintf(text + used, room - (size_t)used, ", root %u", root);
}
