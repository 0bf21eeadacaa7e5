/*
 * Dependencies: what streams of this process were made to wait for; see stream.h, and fence.h for
 * the rules.
 *
 * Invariant: a stamp among a stream's dependencies was submitted by its own process before the wait
 * was given to the driver, so that every wait of ours ends: by the value, or by poison. At most
 * CW_STREAM_WAITS_MAX streams have any. If this process dies its waits die with its context.
 * State of the process: how many of its streams wait on the GPU; all else is a client's.
 */
#include "ipc/client.h"
#include "ipc/order/stream.h"

/* Streams of this process that have a wait on the GPU, in whichever client. */
static pthread_mutex_t waiting_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned waiting_streams;

static void set_waits(struct cw_stream *stream, bool waits) {
    if (stream->waits == waits)
        return;
    pthread_mutex_lock(&waiting_lock);
    waiting_streams += waits ? 1 : -1u;
    pthread_mutex_unlock(&waiting_lock);
    stream->waits = waits;
}

void cw_stream_stop_waiting(struct cw_stream *stream) {
    stream->dependency_count = 0;
    set_waits(stream, false);
}

void cw_stream_note_death(struct cw_stream *stream) {
    stream->died = true;
    for (struct cw_section *at = stream->sections; at; at = at->next)
        at->incomplete = at->incomplete || at->open;
}

void cw_stream_forget(struct cw_stream *stream, cw_stamp stamp) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < stream->dependency_count; i++)
        if (stream->dependencies[i].stamp != stamp)
            stream->dependencies[kept++] = stream->dependencies[i];
    stream->dependency_count = kept;
    if (kept == 0)
        set_waits(stream, false);
}

void cw_stream_prune(cw_client *client, struct cw_fences *fences, struct cw_stream *stream) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < stream->dependency_count; i++) {
        int state = cw_stamp_look(client, fences, stream->dependencies[i].stamp);
        if (state < 0 && !stream->dependencies[i].only_read)
            cw_stream_note_death(stream);
        else if (state == 0)
            stream->dependencies[kept++] = stream->dependencies[i];
    }
    stream->dependency_count = kept;
    if (kept == 0)
        set_waits(stream, false);
}

int cw_stream_tell(cw_client *client, struct cw_fences *fences, struct cw_stream *stream,
                   struct cw_section *section) {
    cw_stream_prune(client, fences, stream);
    bool told = stream->died || (section && section->incomplete);
    stream->died = false;
    if (!told)
        return 0;
    return cw_fail(
        -EOWNERDEAD,
        "a process died before its work on an array was complete, or its GPU failed, and the "
        "stream %p had waited for it: discard what was computed there since, and repeat it",
        stream->handle);
}

static bool may_wait(cw_client *client, struct cw_fences *fences, struct cw_stream *stream) {
    if (stream->waits)
        return true;
    for (struct cw_stream *other = fences->streams; other; other = other->next)
        if (other->waits)
            cw_stream_prune(client, fences, other);
    pthread_mutex_lock(&waiting_lock);
    bool room = waiting_streams < CW_STREAM_WAITS_MAX;
    waiting_streams += room;
    pthread_mutex_unlock(&waiting_lock);
    stream->waits = room;
    return room;
}

bool cw_stream_is_shared(const struct cw_stream *stream) {
    const struct cw_gpu *gpu = stream->gpu;
    return stream->handle == gpu->copies || stream->handle == gpu->departures;
}

/* Is that stamp's section open on a stream of ours, by another thread? Its work is still to come.
 */
static bool is_to_come(struct cw_fences *fences, const struct cw_stream *stream, cw_stamp stamp) {
    const struct cw_section *section =
        cw_stream_is_shared(stream) ? cw_section_of(fences, cw_stamp_fence(stamp)) : NULL;
    return section && section->thread != cw_this_thread() && cw_section_stamp(section) == stamp;
}

bool cw_stream_owns(const struct cw_stream *stream, uint32_t fence) {
    for (const struct cw_section *at = stream->sections; at; at = at->next)
        if (at->number == fence)
            return true;
    return false;
}

int cw_stream_check_own_wait(struct cw_fences *fences, cw_stamp stamp) {
    const struct cw_section *section = cw_section_of(fences, cw_stamp_fence(stamp));
    if (!section || section->thread != cw_this_thread() || cw_section_stamp(section) != stamp)
        return 0;
    bool writing = false;
    for (uint32_t i = 0; i < section->held_count; i++)
        writing = writing || section->held[i].writing;
    return cw_fail(-EINVAL,
                   "this thread is %s the array on the stream %p, and would wait for itself: end "
                   "that first, or use the same stream",
                   writing ? "writing" : "reading", section->stream->handle);
}

/* The place of a fence's stamp among others; count when it has none. */
static uint32_t find_fence(const struct cw_dependency *all, uint32_t count, cw_stamp stamp) {
    uint32_t i = 0;
    while (i < count && cw_stamp_fence(all[i].stamp) != cw_stamp_fence(stamp))
        i++;
    return i;
}

/* Notes it, unless it is implied by what stands there. False: there is no room. */
static bool note(struct cw_stream *stream, struct cw_waits *waits, struct cw_dependency given) {
    uint32_t known = find_fence(stream->dependencies, stream->dependency_count, given.stamp);
    if (known < stream->dependency_count && stream->dependencies[known].stamp >= given.stamp) {
        stream->dependencies[known].only_read &= given.only_read;
        return true;
    }
    uint32_t at = find_fence(waits->all, waits->count, given.stamp);
    if (at == waits->count) {
        if (stream->dependency_count + waits->count >= CW_DEPENDENCIES_MAX)
            return false;
        waits->all[waits->count++] = given;
        return true;
    }
    if (waits->all[at].stamp < given.stamp)
        waits->all[at].stamp = given.stamp;
    waits->all[at].only_read &= given.only_read;
    return true;
}

/* Waits on the CPU, without the lock. */
static int await_stamp(cw_client *client, struct cw_fences *fences, cw_stamp stamp,
                       struct cw_deadline *deadline) {
    pthread_mutex_unlock(&fences->lock);
    int code = cw_stamp_await(client, stamp, deadline);
    pthread_mutex_lock(&fences->lock);
    return code;
}

int cw_stream_need(cw_client *client, struct cw_fences *fences, struct cw_stream *stream,
                   struct cw_waits *waits, cw_stamp stamp, struct cw_order *read_of, unsigned place,
                   struct cw_deadline *deadline) {
    for (;;) {
        struct cw_page_of_fences *page;
        struct cw_fence *fence;
        if (!stamp ||
            (cw_stream_owns(stream, cw_stamp_fence(stamp)) && !is_to_come(fences, stream, stamp)))
            return 0;
        int code = cw_stamp_look(client, fences, stamp);
        if (code)
            return code > 0 ? 0 : code;
        /* First: what was submitted before it changed is seen to be submitted. */
        bool taken_back = read_of && cw_order_read_at(read_of, place) != stamp;
        code = cw_fence_find(client, fences, stamp, &page, &fence);
        if (code == 0 && cw_fence_submitted(fence, cw_stamp_value(stamp)))
            break;
        if (taken_back)
            return CW_TAKEN_BACK;
        code = cw_stream_check_own_wait(fences, stamp);
        if (code)
            return code;
        pthread_mutex_unlock(&fences->lock);
        code = cw_deadline_nap(client, deadline, "the submitting of work on the array");
        pthread_mutex_lock(&fences->lock);
        if (code)
            return code;
    }
    if (!waits->decided) {
        waits->decided = true;
        waits->by_gpu = !cw_stream_is_default(stream) && stream->gpu->stream_ops &&
                        may_wait(client, fences, stream);
    }
    if (waits->by_gpu &&
        note(stream, waits, (struct cw_dependency){.stamp = stamp, .only_read = read_of != NULL}))
        return 0;
    return await_stamp(client, fences, stamp, deadline);
}

/* One call of the driver for all of them. */
static int submit(cw_client *client, struct cw_fences *fences, struct cw_stream *stream,
                  const struct cw_waits *waits) {
    CUstreamBatchMemOpParams ops[CW_DEPENDENCIES_MAX];
    const struct cw_cuda *cuda = stream->gpu->cuda;
    bool pushed;
    int code = cw_stream_enter(stream, &pushed);
    if (code)
        return code;
    for (uint32_t i = 0; i < waits->count && code == 0; i++) {
        struct cw_page_of_fences *page;
        struct cw_fence *fence;
        CUdeviceptr address = 0;
        code = cw_fence_find(client, fences, waits->all[i].stamp, &page, &fence);
        if (code == 0)
            code = cw_fence_address(cuda, page, fence, &address);
        ops[i] =
            (CUstreamBatchMemOpParams){.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64,
                                                     .address = address,
                                                     .value64 = cw_stamp_value(waits->all[i].stamp),
                                                     .flags = CU_STREAM_WAIT_VALUE_GEQ}};
    }
    CUresult result = CUDA_SUCCESS;
    if (code == 0 && waits->count == 1)
        result = cuda->cuStreamWaitValue64(stream->handle, ops[0].waitValue.address,
                                           ops[0].waitValue.value64, CU_STREAM_WAIT_VALUE_GEQ);
    else if (code == 0)
        result = cuda->cuStreamBatchMemOp(stream->handle, waits->count, ops, 0);
    cw_stream_leave(stream, pushed);
    return result == CUDA_SUCCESS ? code : cw_stream_failed(stream, result, "submitting a wait to");
}

/* They are the stream's dependencies now. */
static void remember(struct cw_stream *stream, const struct cw_waits *waits) {
    for (uint32_t i = 0; i < waits->count; i++) {
        const struct cw_dependency *given = &waits->all[i];
        uint32_t at = find_fence(stream->dependencies, stream->dependency_count, given->stamp);
        CW_ASSERT(at < CW_DEPENDENCIES_MAX);
        bool only_read = given->only_read &&
                         (at == stream->dependency_count || stream->dependencies[at].only_read);
        stream->dependency_count += at == stream->dependency_count;
        stream->dependencies[at] = *given;
        stream->dependencies[at].only_read = only_read;
    }
}

int cw_stream_submit_waits(cw_client *client, struct cw_fences *fences, struct cw_stream *stream,
                           struct cw_waits *waits, struct cw_deadline *deadline) {
    int code = 0;
    if (waits->count == 0)
        return 0;
    /* Another thread's begin on this stream may have had its dependencies pass meanwhile, or have
     * filled them. */
    if (may_wait(client, fences, stream) &&
        stream->dependency_count + waits->count <= CW_DEPENDENCIES_MAX) {
        code = submit(client, fences, stream, waits);
        if (code == 0)
            remember(stream, waits);
        return code;
    }
    for (uint32_t i = 0; i < waits->count && code == 0; i++) {
        code = await_stamp(client, fences, waits->all[i].stamp, deadline);
        if (code != -EOWNERDEAD)
            continue;
        code = 0; /* as if it had died behind a wait on the GPU */
        if (!waits->all[i].only_read)
            cw_stream_note_death(stream);
    }
    return code;
}
