/*
 * Collective operations on elements in host memory; those with memory on GPUs go on in gpu.c.
 *
 * One way for all. A member that contributes says in its call where its elements are: in the call
 * itself (at most CW_GROUP_INLINE_MAX bytes), in an array that the others open, or in its staging
 * memory, a piece at a time. All meet; then each reads what is meant for it, from wherever it is,
 * in the order of the ranks. Where arrays were read in place all meet once more, so that nobody
 * changes what others still read.
 *
 *   in the call       meet, read; a few bytes lie beside the word of the arrival
 *   arrays alone      meet, open, read, meet
 *   staging memory    for each piece: copy it there, meet, read; arrays beside it: as above; where
 *                     not all are known to have a member's memory open: meet at the end, too, since
 *                     it may leave then
 *   Allreduce of arrays into arrays: meet, open; each computes a slice and stores it for all; meet
 *
 * What each way needs is decided by what all members know after the first meeting: their sizes,
 * which the mark of the meeting compares, and the flags of all calls. So all go through the same
 * meetings.
 *
 * A vector is what one member contributes: one block for all, or a block for each member
 * (Scatter, Reduce_scatter, Alltoall).
 *
 * Deaths: who dies before it arrived is missed at that meeting, and all get GroupBroken; who dies
 * after it, while others read what it contributed: those who have opened it go on to the next
 * meeting, the others find it gone (window.h); both are told that it died. Half a slice that a dead
 * member stored is seen by nobody who got 0.
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/array/array.h"
#include "ipc/client.h"
#include "ipc/group/collective.h"
#include "ipc/group/reduce.h"
#include "ipc/group/window.h"
#include "shm/base/error.h"

#define PAST_CACHES (4u << 20) /* results from so many bytes on are stored past the caches */
#define SLICE_ALIGN 64u

/* What was opened, or is known of the members, after the first meeting. Only what the group has
 * members of is written and read. */
struct group_views {
    cw_array *send[CW_GROUP_RANKS_MAX], *receive[CW_GROUP_RANKS_MAX];
    cw_handle stage[CW_GROUP_RANKS_MAX];
    uint8_t half[CW_GROUP_RANKS_MAX];
    uint64_t flags[CW_GROUP_RANKS_MAX];
};

static uint64_t what_of(const struct operation *op, uint32_t step) {
    return group_what(op->kind, op->dtype, op->reduction, op->root, step & 0xffffff);
}

static const void *part(const struct group_sources *sources, uint32_t rank, uint32_t block) {
    return sources->vector[rank] + block * sources->stride[rank];
}

static void put_piece(uint8_t *target, const void *source, uint64_t bytes) {
    if (target != source)
        memmove(target, source, bytes);
}

/* Reads what is meant for this member: bytes of each block, which lie at_bytes in it. */
static void consume(cw_group *group, const struct operation *op,
                    const struct group_sources *sources, uint64_t at_bytes, uint64_t bytes) {
    uint8_t *target = (uint8_t *)op->receive.data + at_bytes;
    const void *parts[CW_GROUP_RANKS_MAX];
    uint32_t block = op->blocks > 1 ? group->rank : 0;
    if (!op->consumes || !bytes)
        return;
    switch (op->kind) {
    case GROUP_BCAST:
    case GROUP_SCATTER:
        put_piece(target, part(sources, op->root, block), bytes);
        return;
    case GROUP_GATHER:
    case GROUP_ALLGATHER:
    case GROUP_ALLTOALL:
        for (uint32_t i = 0; i < group->size; i++)
            put_piece(target + i * op->block_bytes, part(sources, i, block), bytes);
        return;
    default:
        for (uint32_t i = 0; i < group->size; i++)
            parts[i] = part(sources, i, block);
        cw_reduce(op->dtype, op->reduction, (void *[]){target}, 1, parts, group->size,
                  bytes / op->itemsize, false);
    }
}

/* ---- in the call ---- */

static int run_inline(cw_group *group, const struct operation *op) {
    struct group_sources *sources = &group->sources;
    const uint64_t bytes = op->block_bytes * op->blocks; /* the same for all: the mark has it */
    if (op->contributes && op->send_bytes)
        memcpy(group_next_bytes(group, bytes), op->send.data, op->send_bytes);
    cw_group_arrive(group, what_of(op, 0), op->count);
    int code = cw_group_await(group);
    if (code)
        return code;
    for (uint32_t i = 0; i < group->size; i++) {
        sources->vector[i] = group_bytes_of(group, i, bytes);
        sources->stride[i] = op->block_bytes;
    }
    consume(group, op, sources, 0, op->block_bytes);
    return 0;
}

/* ---- in arrays and staging memory ---- */

/* May others read in place what this member writes results over? Where each reads its own alone, or
 * another part than is written, they may. */
static bool safe_in_place(enum group_operation kind) {
    return kind == GROUP_BCAST || kind == GROUP_ALLGATHER || kind == GROUP_GATHER ||
           kind == GROUP_REDUCE || kind == GROUP_SCATTER;
}

/* Fills our call. Whatever fails here fails before anybody is met. */
static int call_make(cw_group *group, const struct operation *op) {
    struct group_call *call = group_next_call(group);
    uint64_t flags = 0;
    int code = 0;
    if (cw_group_on_gpu(op))
        return cw_group_gpu_call(group, op, call);
    if (op->contributes) {
        code = cw_window_of(op->send, op->send_bytes, false);
        if (code < 0)
            return code;
        flags = code ? GROUP_SEND_ARRAY : 0;
        if (operation_overlaps(op) && !safe_in_place(op->kind))
            flags |= GROUP_IN_PLACE;
    }
    if (op->consumes) {
        code = cw_window_of(op->receive, op->receive_bytes, true);
        if (code < 0)
            return code;
        flags |= code ? GROUP_RECEIVE_ARRAY : 0;
    }
    if (op->kind != GROUP_ALLREDUCE && flags & GROUP_IN_PLACE)
        flags &= ~(uint64_t)GROUP_SEND_ARRAY;
    code = flags & GROUP_SEND_ARRAY ? cw_window_export(op->send, op->send_bytes, &call->handles[0])
           : op->contributes        ? cw_stage_make(group, &call->handles[0])
                                    : 0;
    if (code == 0 && op->kind == GROUP_ALLREDUCE && flags & GROUP_RECEIVE_ARRAY)
        code = cw_window_export(op->receive, op->receive_bytes, &call->handles[1]);
    /* An Allreduce in place may turn out to go by the staging memory. */
    if (code == 0 && op->kind == GROUP_ALLREDUCE && flags & GROUP_SEND_ARRAY) {
        cw_handle unused;
        code = cw_stage_make(group, &unused);
    }
    if (op->contributes && !(flags & GROUP_SEND_ARRAY) && !group->stage_known)
        flags |= GROUP_NEW_STAGE;
    call->flags = flags;
    call->extra = group->stage_half;
    return code;
}

/* Bytes of each block that fit into half of the staging memory at once. */
static uint64_t piece_bytes(const struct operation *op) {
    uint64_t bytes = STAGE_BYTES / op->blocks / op->itemsize * op->itemsize;
    return bytes < op->block_bytes ? bytes : op->block_bytes;
}

/* Copies a piece of each block of ours into the half that is next. */
static void stage_piece(cw_group *group, const struct operation *op, uint64_t at_bytes,
                        uint64_t bytes) {
    uint8_t *half = cw_stage_own(group);
    for (uint32_t i = 0; i < op->blocks; i++)
        memcpy(half + i * bytes, (const uint8_t *)op->send.data + i * op->block_bytes + at_bytes,
               bytes);
    group->stage_half ^= 1;
}

static void views_close(cw_group *group, struct group_views *views) {
    for (uint32_t i = 0; i < group->size; i++) {
        cw_array_close(views->send[i]);
        cw_array_close(views->receive[i]);
    }
}

/* Copies what the members said, since their calls are written anew. */
static void views_note(cw_group *group, struct group_views *views) {
    for (uint32_t i = 0; i < group->size; i++) {
        const volatile struct group_call *call = group_call_of(group, i);
        views->flags[i] = call->flags;
        views->half[i] = call->extra & 1;
        views->stage[i] = call->handles[0];
        views->send[i] = views->receive[i] = NULL;
    }
}

static int open_arrays(cw_group *group, const struct operation *op, struct group_views *views,
                       bool receive) {
    int code = 0;
    for (uint32_t i = 0; i < group->size && code == 0; i++) {
        if (i == group->rank)
            continue;
        uint64_t send_bytes = op->block_bytes * op->blocks;
        if (contributor(op, i) && views->flags[i] & GROUP_SEND_ARRAY)
            code = cw_window_open(group, i, 0, send_bytes, &views->send[i]);
        if (code == 0 && receive)
            code = cw_window_open(group, i, 1, op->block_bytes, &views->receive[i]);
    }
    return code;
}

/* Where piece number n of each block is. */
static int find_piece(cw_group *group, const struct operation *op, struct group_views *views,
                      uint64_t at_bytes, uint64_t bytes, struct group_sources *sources) {
    int code = 0;
    for (uint32_t i = 0; i < group->size && code == 0; i++) {
        if (!contributor(op, i))
            continue;
        sources->stride[i] = op->block_bytes;
        if (i == group->rank)
            sources->vector[i] = (const uint8_t *)op->send.data + at_bytes;
        else if (views->send[i])
            sources->vector[i] = (const uint8_t *)cw_array_data(views->send[i]) + at_bytes;
        else if (op->consumes) {
            sources->vector[i] = cw_stage_of(group, i, &views->stage[i], views->half[i], &code);
            sources->stride[i] = bytes;
        }
        views->half[i] ^= 1;
    }
    return code;
}

static int meet(cw_group *group, const struct operation *op, uint32_t *step) {
    cw_group_arrive(group, what_of(op, ++*step), op->count);
    return cw_group_await(group);
}

/* Do all others read what a member contributes to it? */
static bool read_by_all(enum group_operation kind) {
    return kind != GROUP_GATHER && kind != GROUP_REDUCE;
}

/* Piece after piece; the first one was met for already. staged: somebody's goes by staging memory;
 * read: somebody's array is read in place, or staging memory may not be open at all yet, whose
 * member may leave as soon as it is through. */
static int run_pieces(cw_group *group, const struct operation *op, struct group_views *views,
                      bool staged, bool own_staged, bool read) {
    struct group_sources *sources = &group->sources;
    uint64_t step_bytes = staged ? piece_bytes(op) : op->block_bytes;
    uint32_t step = 0;
    int code = 0;
    for (uint64_t at = 0; at < op->block_bytes && code == 0; at += step_bytes) {
        uint64_t bytes = op->block_bytes - at < step_bytes ? op->block_bytes - at : step_bytes;
        if (at) {
            if (own_staged)
                stage_piece(group, op, at, bytes);
            code = meet(group, op, &step);
        }
        if (code == 0)
            code = find_piece(group, op, views, at, bytes, sources);
        if (code == 0)
            consume(group, op, sources, at, bytes);
    }
    if (code == 0 && read)
        code = meet(group, op, &step);
    if (code == 0 && own_staged && read_by_all(op->kind))
        group->stage_known = true;
    return code;
}

static int fill_targets(cw_group *group, const struct operation *op, struct group_views *views,
                        uint64_t at_bytes, void **targets) {
    int count = 0;
    for (uint32_t i = 0; i < group->size; i++) {
        uint8_t *target = i == group->rank ? op->receive.data : cw_array_data(views->receive[i]);
        bool known = false;
        for (int n = 0; n < count && !known; n++)
            known = targets[n] == target + at_bytes; /* one array for all */
        if (!known)
            targets[count++] = target + at_bytes;
    }
    return count;
}

/* Each member computes a slice and stores it for all. */
static int run_slices(cw_group *group, const struct operation *op, struct group_views *views) {
    const void *from[CW_GROUP_RANKS_MAX];
    void *targets[CW_GROUP_RANKS_MAX];
    struct group_sources *sources = &group->sources;
    uint64_t width = op->block_bytes / group->size / SLICE_ALIGN * SLICE_ALIGN;
    uint64_t begin = width * group->rank;
    uint64_t end = group->rank + 1 == group->size ? op->block_bytes : begin + width;
    uint32_t step = 0;
    int code = find_piece(group, op, views, begin, end - begin, sources);
    if (code)
        return code;
    for (uint32_t i = 0; i < group->size; i++)
        from[i] = part(sources, i, 0);
    int count = fill_targets(group, op, views, begin, targets);
    cw_reduce(op->dtype, op->reduction, targets, (uint32_t)count, from, group->size,
              (end - begin) / op->itemsize, op->block_bytes >= PAST_CACHES);
    return meet(group, op, &step);
}

/* What all members know: does every one have that flag? Those that contribute, for what is sent. */
static bool all_have(const cw_group *group, const struct operation *op,
                     const struct group_views *views, uint64_t flag) {
    for (uint32_t i = 0; i < group->size; i++)
        if (!(views->flags[i] & flag) && (flag != GROUP_SEND_ARRAY || contributor(op, i)))
            return false;
    return true;
}

static bool anybody_has(const cw_group *group, const struct group_views *views, uint64_t flag) {
    for (uint32_t i = 0; i < group->size; i++)
        if (views->flags[i] & flag)
            return true;
    return false;
}

/*
 * An Allreduce of arrays, but not into arrays: who receives in place, or all, go by staging memory,
 * from the first piece on, which nobody has put there yet.
 */
static int restage(cw_group *group, const struct operation *op, struct group_views *views) {
    uint32_t step = 0x800000;
    const bool own = !(views->flags[group->rank] & GROUP_SEND_ARRAY);
    struct group_call *call = group_next_call(group);
    int code = cw_stage_make(group, &call->handles[0]);
    if (code)
        return code;
    if (!own)
        stage_piece(group, op, 0, piece_bytes(op));
    call->extra = group->stage_half ^ 1;
    call->flags = group->stage_known ? 0 : GROUP_NEW_STAGE;
    code = meet(group, op, &step);
    if (code == 0)
        views_note(group, views);
    return code;
}

/* After the first meeting. */
static int run_met(cw_group *group, const struct operation *op, struct group_views *views) {
    const bool allreduce = op->kind == GROUP_ALLREDUCE;
    bool all_arrays = all_have(group, op, views, GROUP_SEND_ARRAY);
    bool slices = allreduce && all_arrays && all_have(group, op, views, GROUP_RECEIVE_ARRAY);
    if (allreduce && !slices && anybody_has(group, views, GROUP_IN_PLACE) &&
        anybody_has(group, views, GROUP_SEND_ARRAY)) {
        int code = restage(group, op, views);
        return code ? code
                    : run_pieces(group, op, views, true, true,
                                 anybody_has(group, views, GROUP_NEW_STAGE));
    }
    int code = op->consumes ? open_arrays(group, op, views, slices) : 0;
    if (code)
        return code;
    if (slices)
        return run_slices(group, op, views);
    return run_pieces(group, op, views, !all_arrays,
                      op->contributes && !(views->flags[group->rank] & GROUP_SEND_ARRAY),
                      anybody_has(group, views, GROUP_SEND_ARRAY | GROUP_NEW_STAGE));
}

static int run_large(cw_group *group, const struct operation *op, struct group_met *met) {
    struct group_views *views = group->views;
    if (!views) /* one for all operations: it is some pages */
        views = group->views = malloc(sizeof *views);
    if (!views)
        return cw_fail(-EDQUOT, "no memory for an operation of %u members", group->size);
    int code = cw_group_refused(group, call_make(group, op));
    if (code)
        return code;
    if (op->contributes && !(group_next_call(group)->flags & (GROUP_SEND_ARRAY | GROUP_GPU)))
        stage_piece(group, op, 0, piece_bytes(op));
    cw_group_arrive(group, what_of(op, 0), op->count);
    code = cw_group_await(group);
    if (code == 0) {
        views_note(group, views);
        met->gpu = anybody_has(group, views, GROUP_GPU);
        met->arrays = all_have(group, op, views, GROUP_SEND_ARRAY);
        if (!met->gpu)
            code = cw_group_failed(group, run_met(group, op, views));
        views_close(group, views);
    }
    return code;
}

int cw_collective_run(cw_group *group, const struct operation *op, struct group_met *met) {
    met->gpu = met->arrays = false;
    return op->block_bytes * op->blocks <= CW_GROUP_INLINE_MAX ? run_inline(group, op)
                                                               : run_large(group, op, met);
}
