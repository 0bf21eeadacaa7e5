/*
 * Reductions that GPUs compute: Reduce, Allreduce and Reduce_scatter of arrays on GPUs that reach
 * each other, by the kernels of ipc/cuda/kernel.h. Results have the bits of those in host memory,
 * but for those of NaNs.
 *
 * After the first meeting (gpu.c) each member opens what the others send, and all meet and say
 * whether they could. Then:
 *
 *   Reduce, Reduce_scatter   who receives runs one kernel over its elements of all members; meet
 *   Allreduce, one step      of two members, or of few bytes, out of place: each does that for all
 *                            elements; meet
 *   one step of two members, of many bytes from another GPU: copy engines bring them, and the
 * kernel runs over what is there (compute_pieces) Allreduce, two steps     each computes its slice;
 * meet; each pulls the others' slices, by copy engines; meet. In place too: whoever writes a slice
 * of what it sends is the only one who reads that
 *
 * Invariants
 * - Order: as in gpu.c. A kernel is a section, reading what is sent and writing what is received.
 *   What another member sends in place is read without one, since its own kernel writes there at
 *   that time, if another slice: two sections would run one behind the other. So while members are
 *   in an Allreduce in place, nobody else may write its array. The same holds for what is pulled.
 * - No section is open while a member waits for another one: members' memory may be one array.
 * - The load of a kernel waits for streams that wait for a value (kernel.h), perhaps for one that a
 *   member writes behind this operation. So kernels are loaded when a group is joined, for all GPUs
 *   that the process uses by then, and else before the first meeting, when nobody is met yet.
 * - A kernel is submitted to a stream of ours and its end awaited by the CPU, before the meeting
 *   after it. No kernel waits for anybody.
 *
 * Deaths: as in gpu.c. Half a slice of a dead member is seen by nobody who got 0, since all wait
 * for it at the meeting behind the kernels.
 */
#include <stdlib.h>

#include "ipc/array/array.h"
#include "ipc/array/copy_bytes.h"
#include "ipc/client.h"
#include "ipc/cuda/backend.h"
#include "ipc/group/gpu.h"
#include "ipc/group/reduce.h"
#include "ipc/group/window.h"
#include "ipc/memory/slab.h"
#include "ipc/order/section.h"
#include "shm/base/error.h"

#define ONE_STEP_BYTES (256u << 10) /* more is faster by slices */
#define SLICE_ALIGN    256u
/* What comes by copy engines, piece by piece: below so many bytes their starts take longer. */
#define PIECES_BYTES      (256ull << 20)
#define PIECE_BYTES_LEAST (32ull << 20)
#define PIECES            16u

struct reduction {
    cw_group *group;
    const struct operation *op;
    struct cw_kernel kernel;
    struct cw_gpu *gpu; /* of what this member receives; NULL: nothing */
    bool in_one_step;
    bool in_place[CW_KERNEL_PARTS_MAX];
    cw_array *send[CW_KERNEL_PARTS_MAX], *receive[CW_KERNEL_PARTS_MAX]; /* the others' */
    uint32_t pinned; /* of what it uses, in the order of used() */
};

static bool any_in_place(const struct reduction *r) {
    for (uint32_t i = 0; i < r->group->size; i++)
        if (r->in_place[i])
            return true;
    return false;
}

/* Bytes from which on this member's elements lie in what each sends. */
static uint64_t own_block(const cw_group *group, const struct operation *op) {
    return op->blocks > 1 ? group->rank * op->block_bytes : 0;
}

bool cw_gpu_may_reduce(const cw_group *group, const struct operation *op) {
    const struct cw_kernel kernel = cw_reduce_kernel(op->dtype, op->reduction);
    const uintptr_t mask = cw_kernel_size(kernel.element) - 1;
    struct cw_gpu *gpu;
    if (kernel.element == CW_KERNEL_NONE || group->size > CW_KERNEL_PARTS_MAX ||
        !on_gpu(op->send) || ((uintptr_t)op->send.data & mask))
        return false;
    if (!op->consumes)
        return true;
    if (!on_gpu(op->receive) || ((uintptr_t)op->receive.data & mask) ||
        cw_window_of(op->receive, op->receive_bytes, true) <= 0)
        return false;
    if (operation_overlaps(op) &&
        op->receive.data != (const uint8_t *)op->send.data + own_block(group, op))
        return false;
    return cw_gpu_get(cw_array_gpu(op->receive.array), &gpu) == 0 && cw_kernels_load(gpu) == 0;
}

/* ---- what the others have ---- */

static int open_all(struct reduction *r) {
    cw_group *group = r->group;
    const struct operation *op = r->op;
    int code = op->consumes ? cw_gpu_get(cw_array_gpu(op->receive.array), &r->gpu) : 0;
    for (uint32_t i = 0; i < group->size; i++)
        r->in_place[i] =
            *(const volatile uint64_t *)&group_call_of(group, i)->flags & GROUP_IN_PLACE;
    r->in_one_step = op->kind != GROUP_ALLREDUCE ||
                     (!any_in_place(r) && (group->size <= 2 || op->block_bytes <= ONE_STEP_BYTES));
    for (uint32_t i = 0; op->consumes && i < group->size && code == 0; i++) {
        if (i == group->rank)
            continue;
        code = cw_window_open(group, i, 0, op->block_bytes * op->blocks, &r->send[i]);
        if (code == 0 && !r->in_one_step)
            code = cw_window_open(group, i, 1, op->block_bytes, &r->receive[i]);
    }
    return code;
}

/* Keeps an array where it is until it is let go; NULL: there is none. */
static int hold(cw_array *array) {
    return array ? cw_array_pin(array) : 0;
}

static void let_go(cw_array *array) {
    if (array)
        cw_array_unpin(array);
}

static cw_array *used(const struct reduction *r, uint32_t n) {
    if (n < 2)
        return n ? r->op->receive.array : r->op->send.array;
    return n % 2 ? r->receive[n / 2 - 1] : r->send[n / 2 - 1];
}

/* All that kernels and copies of ours use stays where it is. */
static int hold_all(struct reduction *r) {
    int code = 0;
    while (r->op->consumes && r->pinned < 2 * r->group->size + 2 &&
           (code = hold(used(r, r->pinned))) == 0)
        r->pinned++;
    return code;
}

static void close_all(struct reduction *r) {
    while (r->pinned)
        let_go(used(r, --r->pinned));
    for (uint32_t i = 0; i < r->group->size; i++) {
        cw_array_close(r->send[i]);
        cw_array_close(r->receive[i]);
    }
}

/* Memory on GPUs that ours reaches: 0, -ENODEV. */
static int reach(const struct reduction *r, cw_array *array) {
    if (!array)
        return 0;
    if (array->home_slab->device_kind != CW_DEVICE_CUDA)
        return cw_fail(-ENODEV, "an array of group \"%s\" lies in host memory", r->group->name);
    if ((uintptr_t)array->bytes & (cw_kernel_size(r->kernel.element) - 1))
        return cw_fail(-ENODEV, "an array of group \"%s\" is not aligned", r->group->name);
    return cw_cuda_admit(r->gpu, cw_array_gpu_mapping(array));
}

static int reach_all(const struct reduction *r) {
    int code = 0;
    for (uint32_t n = 0; r->op->consumes && n < 2 * r->group->size + 2 && code == 0; n++)
        code = reach(r, used(r, n));
    return code;
}

/* Does this member receive over what another one sends? By slices it may. */
static bool aliased(const struct reduction *r) {
    const uint8_t *receive = r->op->receive.data;
    for (uint32_t i = 0; i < r->group->size; i++)
        if (r->send[i] && r->send[i]->bytes < receive + r->op->receive_bytes &&
            receive < r->send[i]->bytes + r->op->send_bytes)
            return true;
    return false;
}

/* ---- sections ---- */

/* Writing what this member receives; reading: and what is sent. */
static int begin(const struct reduction *r, bool reading, cw_work **work) {
    cw_use uses[CW_KERNEL_PARTS_MAX + 1] = {{.array = r->op->receive.array, .writing = 1}};
    uint32_t count = 1;
    for (uint32_t i = 0; reading && i < r->group->size; i++) {
        if (i == r->group->rank)
            uses[count++].array = r->op->send.array;
        else if (!r->in_place[i])
            uses[count++].array = r->send[i];
    }
    return cw_work_begin(uses, count, r->gpu->copies, -1, work);
}

static int end(const struct reduction *r, cw_work *work, int code) {
    code = code ? cw_work_fail(work, code) : cw_work_end(work);
    int waited = cw_stream_wait(r->gpu->ordinal, r->gpu->copies, 0);
    return code ? code : waited;
}

static void count_bytes(const struct reduction *r, const cw_array *from, uint64_t bytes) {
    const bool same = from->home_slab->device == r->gpu->ordinal;
    cw_copy_count(r->group->client, same ? CW_ROUTE_SAME : CW_ROUTE_PEER, bytes);
}

/* ---- steps ---- */

/* Of two members, on two GPUs: so many bytes pay to come by copy engines. */
static bool by_pieces(const struct reduction *r, uint64_t bytes) {
    if (r->group->size != 2 || bytes < PIECES_BYTES || any_in_place(r))
        return false;
    const cw_array *other = r->send[1 - r->group->rank];
    return other && other->home_slab->device != r->gpu->ordinal;
}

/* A copy engine carries more over a link than a kernel that reads there: 387 GB/s each way at once
 * between two H200, 362 the kernel. So what the other one sends comes piece by piece to where the
 * result goes, and a kernel on a part of the GPU takes our own to each that is there. */
static int compute_pieces(const struct reduction *r, const void *const from[2], uint8_t *target,
                          uint64_t bytes) {
    const struct cw_cuda *cuda = r->gpu->cuda;
    CUstream link = r->gpu->copies, computing = r->gpu->departures;
    const uint32_t other = 1 - r->group->rank;
    const uint64_t even = bytes / PIECES / SLICE_ALIGN * SLICE_ALIGN;
    const uint64_t width = even > PIECE_BYTES_LEAST ? even : PIECE_BYTES_LEAST;
    CUevent event;
    int code = cw_gpu_enter(r->gpu);
    if (code)
        return code;
    CUresult result = cuda->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    const bool made = result == CUDA_SUCCESS;
    for (uint64_t at = 0; at < bytes && code == 0 && result == CUDA_SUCCESS; at += width) {
        const uint64_t piece = bytes - at < width ? bytes - at : width;
        const void *parts[2] = {(const uint8_t *)from[0] + at, (const uint8_t *)from[1] + at};
        result = cuda->cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)target + at,
                                         (CUdeviceptr)(uintptr_t)parts[other], piece, link);
        if (result == CUDA_SUCCESS)
            result = cuda->cuEventRecord(event, link);
        if (result == CUDA_SUCCESS)
            result = cuda->cuStreamWaitEvent(computing, event, 0);
        parts[other] = target + at;
        if (result == CUDA_SUCCESS)
            code = cw_kernel_reduce(r->gpu, computing, r->kernel, true, target + at, parts, 2,
                                    piece / cw_kernel_size(r->kernel.element));
    }
    if (made) { /* the first stream goes on behind the second one, whatever happened */
        if (cuda->cuEventRecord(event, computing) != CUDA_SUCCESS ||
            cuda->cuStreamWaitEvent(link, event, 0) != CUDA_SUCCESS)
            cuda->cuStreamSynchronize(computing);
        cuda->cuEventDestroy(event);
    }
    cw_gpu_leave(r->gpu);
    if (code == 0 && result != CUDA_SUCCESS)
        code = cw_cuda_error(cuda, result, "copying what is reduced to cuda:%d", r->gpu->ordinal);
    return code;
}

/* Of the elements that this member receives, those from at_bytes on. */
static int compute(const struct reduction *r, uint64_t at_bytes, uint64_t bytes) {
    const struct operation *op = r->op;
    const uint64_t at = own_block(r->group, op) + at_bytes;
    uint8_t *target = (uint8_t *)op->receive.data + at_bytes;
    const void *from[CW_KERNEL_PARTS_MAX];
    cw_work *work;
    int code = begin(r, true, &work);
    if (code)
        return code;
    for (uint32_t i = 0; i < r->group->size; i++)
        from[i] = (r->send[i] ? r->send[i]->bytes : (const uint8_t *)op->send.data) + at;
    code = by_pieces(r, bytes)
               ? compute_pieces(r, from, target, bytes)
               : cw_kernel_reduce(r->gpu, r->gpu->copies, r->kernel, false, target, from,
                                  r->group->size, bytes / cw_kernel_size(r->kernel.element));
    code = end(r, work, code);
    for (uint32_t i = 0; i < r->group->size && code == 0; i++)
        if (r->send[i])
            count_bytes(r, r->send[i], bytes);
    return code;
}

static uint64_t slice_begin(const struct reduction *r, uint32_t rank) {
    const uint64_t all = r->op->block_bytes, width = all / r->group->size / SLICE_ALIGN;
    return rank == r->group->size ? all : rank * width * SLICE_ALIGN;
}

static CUresult pull_slices(const struct reduction *r) {
    const struct cw_cuda *cuda = r->gpu->cuda;
    uint8_t *own = r->op->receive.data;
    CUresult result = CUDA_SUCCESS;
    for (uint32_t n = 1; n < r->group->size && result == CUDA_SUCCESS; n++) {
        uint32_t i = (r->group->rank + n) % r->group->size; /* each begins with another one */
        uint64_t at = slice_begin(r, i), bytes = slice_begin(r, i + 1) - at;
        if (r->receive[i]->bytes == own || bytes == 0)
            continue; /* one array for all */
        result = cuda->cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)own + at,
                                         (CUdeviceptr)(uintptr_t)r->receive[i]->bytes + at, bytes,
                                         r->gpu->copies);
        if (result == CUDA_SUCCESS)
            count_bytes(r, r->receive[i], bytes);
    }
    return result;
}

static int pull(const struct reduction *r) {
    cw_work *work;
    int code = begin(r, false, &work);
    if (code)
        return code;
    code = cw_gpu_enter(r->gpu);
    if (code == 0) {
        CUresult result = pull_slices(r);
        cw_gpu_leave(r->gpu);
        if (result != CUDA_SUCCESS)
            code =
                cw_cuda_error(r->gpu->cuda, result, "copying slices to cuda:%d", r->gpu->ordinal);
    }
    return end(r, work, code);
}

static int run(const struct reduction *r) {
    const struct operation *op = r->op;
    uint64_t begin_bytes = 0, end_bytes = op->block_bytes, any;
    if (!r->in_one_step) {
        begin_bytes = slice_begin(r, r->group->rank);
        end_bytes = slice_begin(r, r->group->rank + 1);
    }
    int code = r->gpu ? compute(r, begin_bytes, end_bytes - begin_bytes) : 0;
    if (code == 0)
        code = cw_gpu_agree(r->group, op, 0, &any);
    if (code || r->in_one_step || !r->gpu)
        return code;
    code = pull(r);
    return code ? code : cw_gpu_agree(r->group, op, 0, &any);
}

int cw_gpu_reduce_all(cw_group *group, const struct operation *op, bool *done) {
    struct reduction *r = calloc(1, sizeof *r);
    uint64_t any = 0;
    if (!r)
        return cw_fail(-EDQUOT, "no memory for an operation of %u members", group->size);
    r->group = group;
    r->op = op;
    r->kernel = cw_reduce_kernel(op->dtype, op->reduction);
    int code = open_all(r);
    if (code == 0)
        code = hold_all(r);
    if (code == 0)
        code = reach_all(r);
    /* A GPU that is not seen, or not reached; and what would be read is written meanwhile. */
    bool cannot = code == -ENODEV || (code == 0 && r->in_one_step && aliased(r));
    if (code == 0 || cannot)
        code = cw_gpu_agree(group, op, cannot ? GROUP_CANNOT : 0, &any);
    *done = code == 0 && !(any & GROUP_CANNOT);
    if (*done)
        code = run(r);
    close_all(r);
    free(r);
    return code;
}
