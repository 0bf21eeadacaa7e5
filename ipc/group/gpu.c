/*
 * Operations in which the memory of a member lies on a GPU, and cw_group_run(), which chooses the
 * way for all.
 *
 * A member whose memory lies on a GPU says so in its call (GROUP_GPU). All see it at the first
 * meeting, and go on here together, by one of two ways:
 *
 *   direct   Where all that contribute do so with arrays. What is only moved: each opens those that
 *            it needs, all meet and say whether they could, each copies what is meant for it by the
 *            fastest route that there is (cw_array_copy_many(): its own block beside those of
 *            others), waits until that is done, and all meet once more. Reductions of arrays on
 *            GPUs: gpu_reduce.c.
 *   detour   All else: what no kernel computes, private host memory beside GPUs, a GPU that another
 *            member does not see. Each member copies a piece to host memory (its detour array,
 *            which CUDA keeps in place), all do the operation on these as collective.c does, and
 *            the result is copied back.
 *
 * Elements are computed in the order of the ranks, with the same bits as in host memory but for
 * those of NaNs.
 *
 * What goes in the call (CW_GROUP_INLINE_MAX) takes the detour of its own member, and the others
 * need not know.
 *
 * Invariants
 * - Order. Before a member arrives its CPU has waited until all work in order (section.h) on its
 *   memory is done, for as long as the operation may take; before it returns, until its copies are
 *   done. Between the two only copies of this operation are at the memory, and each is a section:
 *   who is no member comes before or after it.
 * - No GPU waits for a member. A copy is submitted when its source is complete, so nothing on a GPU
 *   is left to become free when a member dies: only CPUs wait for members, at meetings (meet.c).
 *   Should somebody who is no member write an array meanwhile and die, poison ends that wait
 *   (section.h), and the copy fails.
 *
 * Owner: the thread that is in the operation. Deaths of a member
 *   before it arrived               missed at the first meeting
 *   before others opened its array  they find it gone, or miss it at the second meeting
 *   while others copy from it       their lease keeps the memory; they miss it at the last meeting
 *   in its own copy                 the same; its array is incomplete for all (ProducerDied)
 * Any failure after the first meeting breaks the group, as in host memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/array/array.h"
#include "ipc/client.h"
#include "ipc/group/collective.h"
#include "ipc/group/gpu.h"
#include "ipc/group/window.h"
#include "ipc/order/fence.h"
#include "shm/base/error.h"

#define DETOUR_BYTES (8ull << 20) /* of what is sent, and as many of what is received */
/* Who waits for a member that waits for its GPU looks on as that one does: CUDA's own wait is no
 * sleep either, and a wake-up takes as long as a copy of 16 MiB. */
#define GPU_SPIN_NS 5000000

static bool moves_only(enum group_operation kind) {
    return kind != GROUP_REDUCE && kind != GROUP_ALLREDUCE && kind != GROUP_REDUCE_SCATTER;
}

/* Blocks of what a member receives, whether this one does or not. */
static uint32_t blocks_received(const cw_group *group, const struct operation *op) {
    bool many =
        op->kind == GROUP_GATHER || op->kind == GROUP_ALLGATHER || op->kind == GROUP_ALLTOALL;
    return many ? group->size : 1;
}

static uint64_t offset_in(cw_group_memory memory) {
    return (uint64_t)((const uint8_t *)memory.data - memory.array->bytes);
}

/* ---- failures ---- */

/*
 * After the first meeting, of what copies and meetings say: as cw_group_failed(), for which a
 * meeting has broken the group already where a wait ended. A copy has not: an array whose producer
 * died may be that of a member who did, as one that is gone (-ESTALE) may be.
 */
static int failed(cw_group *group, int code) {
    char text[CW_DETAIL_MAX];
    if (code != -EOWNERDEAD && code != -ETIMEDOUT && code != -EINTR)
        return cw_group_failed(group, code);
    if (cw_group_broken(group, NULL))
        return code == -EOWNERDEAD ? cw_group_told(group) : code;
    if (code != -EOWNERDEAD) {
        cw_group_break_by(group, code == -EINTR ? CW_GROUP_INTERRUPTED : CW_GROUP_TIMED_OUT,
                          group->rank);
        return code;
    }
    snprintf(text, sizeof text, "%s", cw_detail());
    code = cw_group_failed(group, -ESTALE);
    return code == -EOWNERDEAD ? code : cw_fail(-EOWNERDEAD, "%s", text);
}

/* Before it: a member that is gone breaks the group, since nobody can come to an operation to which
 * we have not come. 0, or -EOWNERDEAD with the sentence: it is broken. */
static int look_for_the_gone(cw_group *group) {
    for (uint32_t i = 0; i < group->size; i++) {
        struct group_member *member = &group->members[i];
        if (i == group->rank || cw_group_present(member))
            continue;
        bool left = cw_group_claim(member->slot) != member->claim;
        cw_group_break_by(group, left ? CW_GROUP_LEFT : CW_GROUP_DIED, i);
        break;
    }
    return cw_group_told(group);
}

/* ---- before the first meeting ---- */

/* The producer of an array died: if that was a member, the group is broken by it. */
static int incomplete(cw_group *group, int code) {
    char text[CW_DETAIL_MAX];
    snprintf(text, sizeof text, "%s", cw_detail());
    return look_for_the_gone(group) ? code : cw_fail(code, "%s", text);
}

/* Waits until all work on an array is done that was submitted before. reads: also what reads it.
 * What is received into has to be complete, too: a copy makes nothing whole (section.h). */
static int settle(cw_group *group, cw_array *array, bool reads) {
    bool waited = false;
    for (;;) {
        int64_t limit_ns = GROUP_LOOK_NS;
        int code = cw_group_may_wait(group, &limit_ns);
        if (code == -ETIMEDOUT) {
            cw_group_break_by(group, CW_GROUP_TIMED_OUT, group->rank);
            return cw_fail(code,
                           "%.3f s ran out in group \"%s\": the work on the GPU that rank %u gave "
                           "to the array before the operation is not done. The group is broken now",
                           (double)group->timeout_ns / 1e9, group->name, group->rank);
        }
        if (code == -EINTR)
            cw_group_break_by(group, CW_GROUP_INTERRUPTED, group->rank);
        if (code == 0 && waited)
            code = look_for_the_gone(group);
        if (code)
            return code;
        code = reads ? cw_array_settle(array, limit_ns) : 0;
        if (code == 0)
            code = cw_array_wait(array, limit_ns);
        if (code == -EOWNERDEAD)
            return incomplete(group, code);
        if (code != -ETIMEDOUT && code != -EINTR)
            return code;
        waited = true;
    }
}

static int settle_all(cw_group *group, const struct operation *op) {
    int code = 0;
    if (op->contributes && op->send_bytes && on_gpu(op->send))
        code = settle(group, op->send.array, false);
    if (code == 0 && op->consumes && op->receive_bytes && on_gpu(op->receive))
        code = settle(group, op->receive.array, true);
    return code;
}

/* The detour array: what is sent, then what is received. */
static int detour_make(cw_group *group) {
    return group->detour ? 0
                         : cw_window_bytes_new(group, 2 * DETOUR_BYTES, CW_FILLED, &group->detour);
}

static int check(const cw_group *group, cw_group_memory memory, uint64_t bytes, bool writable) {
    int code = cw_window_of(memory, bytes, writable);
    if (code >= 0 && bytes && memory.array && memory.array->client != group->client)
        return cw_fail(-EINVAL,
                       "the array belongs to another client than group \"%s\": open it "
                       "by the client that has joined",
                       group->name);
    return code;
}

bool cw_group_on_gpu(const struct operation *op) {
    return (op->contributes && op->send_bytes && on_gpu(op->send)) ||
           (op->consumes && op->receive_bytes && on_gpu(op->receive));
}

int cw_group_gpu_call(cw_group *group, const struct operation *op, struct group_call *call) {
    int code = op->consumes ? check(group, op->receive, op->receive_bytes, true) : 0;
    if (code >= 0)
        code = op->contributes ? check(group, op->send, op->send_bytes, false) : 0;
    if (code < 0)
        return code;
    const bool reduces = !moves_only(op->kind);
    const bool array =
        code > 0 && (reduces ? cw_gpu_may_reduce(group, op)
                             : op->kind != GROUP_ALLTOALL || !operation_overlaps(op));
    code = settle_all(group, op);
    if (code == 0 && array)
        code = cw_window_export(op->send, op->send_bytes, &call->handles[0]);
    if (code == 0 && array && op->kind == GROUP_ALLREDUCE)
        code = cw_window_export(op->receive, op->receive_bytes, &call->handles[1]);
    if (code == 0 && reduces && !array)
        code = detour_make(group);
    call->flags = array ? GROUP_GPU | GROUP_SEND_ARRAY : GROUP_GPU;
    if (array && reduces && operation_overlaps(op))
        call->flags |= GROUP_IN_PLACE;
    return code;
}

/* ---- direct ---- */

struct pull { /* what is copied to this member */
    cw_array *views[CW_GROUP_RANKS_MAX];
    cw_pair pairs[CW_GROUP_RANKS_MAX];
    uint32_t count;
};

static int open_arrays(cw_group *group, const struct operation *op, struct pull *pull) {
    int code = 0;
    for (uint32_t i = 0; op->consumes && i < group->size && code == 0; i++)
        if (i != group->rank && contributor(op, i))
            code = cw_window_open(group, i, 0, op->block_bytes * op->blocks, &pull->views[i]);
    return code;
}

int cw_gpu_agree(cw_group *group, const struct operation *op, uint64_t flags, uint64_t *any) {
    group_next_call(group)->flags = flags;
    cw_group_arrive(group, group_what(op->kind, op->dtype, op->reduction, op->root, 0x900000),
                    op->count);
    group->spin_ns = group->crowded ? 0 : GPU_SPIN_NS;
    int code = cw_group_await(group);
    group->spin_ns = 0;
    *any = 0;
    for (uint32_t i = 0; i < group->size; i++)
        *any |= *(const volatile uint64_t *)&group_call_of(group, i)->flags;
    return code;
}

/* Block number `from` of what a member contributes comes to block number `to` of what we receive.
 */
static int pull_block(cw_group *group, const struct operation *op, struct pull *pull, uint32_t rank,
                      uint32_t from, uint32_t to) {
    const bool own = rank == group->rank;
    cw_array *source = own ? op->send.array : pull->views[rank];
    uint64_t at = (own ? offset_in(op->send) : 0) + from * op->block_bytes;
    uint8_t *target = (uint8_t *)op->receive.data + to * op->block_bytes;
    if (own && target == (const uint8_t *)op->send.data + from * op->block_bytes)
        return 0; /* it is where it belongs */
    if (!op->receive.array)
        return cw_array_read(source, at, target, op->block_bytes);
    pull->pairs[pull->count++] =
        (cw_pair){.target = op->receive.array,
                  .target_bytes = offset_in(op->receive) + to * op->block_bytes,
                  .source = source,
                  .source_bytes = at,
                  .size_bytes = op->block_bytes};
    return 0;
}

static int pull_all(cw_group *group, const struct operation *op, struct pull *pull) {
    uint32_t block = op->blocks > 1 ? group->rank : 0;
    int code = 0;
    if (!op->consumes)
        return 0;
    if (op->kind == GROUP_BCAST || op->kind == GROUP_SCATTER)
        code = pull_block(group, op, pull, op->root, block, 0);
    else
        for (uint32_t i = 0; i < group->size && code == 0; i++)
            code = pull_block(group, op, pull, i, block, i);
    return code ? code : cw_array_copy_many(pull->pairs, pull->count, NULL);
}

/* *done: it was; else nothing was, and all know that. */
static int run_direct(cw_group *group, const struct operation *op, bool *done) {
    struct pull *pull = calloc(1, sizeof *pull);
    uint64_t any = 0;
    if (!pull)
        return cw_fail(-EDQUOT, "no memory for an operation of %u members", group->size);
    int code = open_arrays(group, op, pull);
    if (code == 0 || code == -ENODEV) /* this process does not see the GPU of another one */
        code = cw_gpu_agree(group, op, code == 0 ? 0 : GROUP_CANNOT, &any);
    *done = code == 0 && !(any & GROUP_CANNOT);
    if (*done) {
        code = pull_all(group, op, pull);
        if (code == 0)
            code = cw_gpu_agree(group, op, 0, &any);
    }
    for (uint32_t i = 0; i < group->size; i++)
        cw_array_close(pull->views[i]);
    free(pull);
    return code;
}

/* ---- by the detour ---- */

/* A piece of each block between an operation's memory and the detour array, at_bytes in the blocks
 * and from detour_bytes on. */
static int carry(cw_group *group, cw_group_memory memory, const struct operation *op,
                 uint32_t blocks, uint64_t at_bytes, uint64_t bytes, uint64_t detour_bytes,
                 bool back) {
    cw_pair pairs[CW_GROUP_RANKS_MAX];
    uint8_t *detour = (uint8_t *)cw_array_data(group->detour) + detour_bytes;
    for (uint32_t i = 0; i < blocks; i++) {
        uint64_t at = i * op->block_bytes + at_bytes;
        cw_pair *pair = &pairs[i];
        if (!on_gpu(memory)) {
            uint8_t *own = (uint8_t *)memory.data + at;
            memcpy(back ? own : detour + i * bytes, back ? detour + i * bytes : own, bytes);
            continue;
        }
        *pair = (cw_pair){memory.array, offset_in(memory) + at, group->detour,
                          detour_bytes + i * bytes, bytes};
        if (!back)
            *pair = (cw_pair){pair->source, pair->source_bytes, pair->target, pair->target_bytes,
                              bytes};
    }
    return on_gpu(memory) ? cw_array_copy_many(pairs, blocks, NULL) : 0;
}

/* The operation on a piece of each block, in the detour array. *met: all have. */
static int run_piece(cw_group *group, const struct operation *op, uint64_t at_bytes, uint64_t bytes,
                     bool *met) {
    const bool in_place = op->kind == GROUP_REDUCE || op->kind == GROUP_ALLREDUCE;
    uint64_t received = in_place ? 0 : DETOUR_BYTES;
    uint8_t *detour = cw_array_data(group->detour);
    uint32_t blocks = blocks_received(group, op);
    struct operation piece = *op;
    struct group_met unused = {.gpu = false};
    piece.count = bytes / op->itemsize;
    piece.block_bytes = bytes;
    piece.send = (cw_group_memory){detour, group->detour};
    piece.receive = (cw_group_memory){detour + received, group->detour};
    piece.send_bytes = op->contributes ? bytes * op->blocks : 0;
    piece.receive_bytes = op->consumes ? bytes * blocks : 0;
    int code =
        op->contributes ? carry(group, op->send, op, op->blocks, at_bytes, bytes, 0, false) : 0;
    if (code == 0)
        code = cw_collective_run(group, &piece, &unused);
    if (code)
        return code;
    *met = true;
    return op->consumes ? carry(group, op->receive, op, blocks, at_bytes, bytes, received, true)
                        : 0;
}

/* After the first meeting: piece after piece, of the same sizes on all members. */
static int run_detour(cw_group *group, const struct operation *op) {
    uint32_t blocks = blocks_received(group, op);
    uint64_t most = DETOUR_BYTES / (blocks > op->blocks ? blocks : op->blocks);
    uint64_t step = most / op->itemsize * op->itemsize;
    bool met = true;
    int code = detour_make(group);
    for (uint64_t at = 0; at < op->block_bytes && code == 0; at += step)
        code = run_piece(group, op, at, op->block_bytes - at < step ? op->block_bytes - at : step,
                         &met);
    return code;
}

/* What goes in the call: nobody else need know where it lies. */
static int run_small(cw_group *group, const struct operation *op) {
    bool met = false;
    int code = op->consumes ? check(group, op->receive, op->receive_bytes, true) : 0;
    if (code >= 0)
        code = op->contributes ? check(group, op->send, op->send_bytes, false) : 0;
    if (code >= 0)
        code = settle_all(group, op);
    if (code == 0)
        code = detour_make(group);
    if (code == 0)
        code = run_piece(group, op, 0, op->block_bytes, &met);
    return met ? failed(group, code) : cw_group_refused(group, code);
}

void cw_group_detour_close(cw_group *group) {
    cw_array_close(group->detour);
    group->detour = NULL;
}

/* ---- all ---- */

static int run(cw_group *group, const struct operation *op) {
    struct group_met met = {.gpu = false};
    bool done = false;
    if (op->block_bytes * op->blocks <= CW_GROUP_INLINE_MAX && cw_group_on_gpu(op))
        return run_small(group, op);
    int code = cw_collective_run(group, op, &met);
    if (code || !met.gpu)
        return code;
    if (met.arrays)
        code = moves_only(op->kind) ? run_direct(group, op, &done)
                                    : cw_gpu_reduce_all(group, op, &done);
    if (code == 0 && !done)
        code = run_detour(group, op);
    return failed(group, code);
}

int cw_group_run(cw_group *group, const struct operation *op) {
    struct cw_trace_span span;
    int code = cw_group_begin(group);
    if (code)
        return code;
    cw_group_span(&span, group, op->kind);
    code = run(group, op);
    cw_trace_leave(&span, code < 0);
    return cw_group_end(group, code);
}
