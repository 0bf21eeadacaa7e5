/*
 * Work: the public calls by which a stream's work on arrays is put in order, each of which keeps
 * evictable arrays where they are. See section.h.
 *
 * No state of its own.
 */
#include <stdio.h>
#include <stdlib.h>

#include "ipc/order/completion.h"
#include "ipc/array/array.h"
#include "ipc/client.h"
#include "ipc/order/context_failure.h"
#include "ipc/order/section.h"
#include "ipc/order/unpinned.h"

/* ---- one array ---- */

/* An evictable array stays where it is until the end. */
static int begin(cw_array *array, void *stream, bool writing, int64_t timeout_ns) {
    int code = cw_array_pin(array);
    if (code)
        return code;
    code = cw_unpinned_begin(array, stream, writing, timeout_ns);
    if (code)
        cw_array_unpin(array);
    return code;
}

/* out: NULL where nobody will ask later. */
static int end(cw_array *array, void *stream, bool writing, bool whole, bool failed,
               cw_completion *out) {
    bool found;
    int code = cw_unpinned_end(array, stream, writing, whole, failed, out, &found);
    if (found)
        cw_array_unpin(array);
    return code;
}

int cw_array_reading_begin(cw_array *array, void *stream, int64_t timeout_ns) {
    return begin(array, stream, false, timeout_ns);
}

int cw_array_reading_end(cw_array *array, void *stream) {
    return end(array, stream, false, false, false, NULL);
}

int cw_array_reading_finish(cw_array *array, void *stream, cw_completion *out) {
    int code = cw_completion_clear(out);
    return code ? code : cw_completion_end(end(array, stream, false, false, false, out), out);
}

int cw_array_writing_begin(cw_array *array, void *stream, int64_t timeout_ns) {
    return begin(array, stream, true, timeout_ns);
}

int cw_array_writing_end(cw_array *array, void *stream, int whole) {
    return end(array, stream, true, whole, false, NULL);
}

int cw_array_writing_finish(cw_array *array, void *stream, int whole, cw_completion *out) {
    int code = cw_completion_clear(out);
    return code ? code : cw_completion_end(end(array, stream, true, whole, false, out), out);
}

int cw_array_writing_fail(cw_array *array, void *stream) {
    return end(array, stream, true, false, true, NULL);
}

/* ---- several ---- */

static int by_block(const void *a, const void *b) {
    const cw_use *x = a, *y = b;
    uint32_t of_x = x->array->slab->id, of_y = y->array->slab->id;
    if (of_x == of_y) {
        of_x = x->array->block;
        of_y = y->array->block;
    }
    return of_x < of_y ? -1 : of_x > of_y;
}

/* In the order of W1, each block once: who writes it and reads it, writes it. */
static uint32_t put_in_order(cw_use *uses, uint32_t count) {
    uint32_t kept = 0;
    for (uint32_t i = 1; i < count; i++)
        if (by_block(&uses[i - 1], &uses[i]) > 0) {
            qsort(uses, count, sizeof *uses, by_block);
            break;
        }
    for (uint32_t i = 0; i < count; i++) {
        cw_use *last = kept ? &uses[kept - 1] : NULL;
        if (last && by_block(last, &uses[i]) == 0) {
            last->writing |= uses[i].writing;
            last->whole |= uses[i].whole;
        } else
            uses[kept++] = uses[i];
    }
    return kept;
}

/* Those on GPUs, checked. */
static int collect(const cw_use *given, uint32_t count, cw_use *uses, uint32_t *kept) {
    *kept = 0;
    int code = cw_array_usable(given[0].array);
    if (code)
        return code;
    for (uint32_t i = 0; i < count; i++) {
        cw_array *array = given[i].array;
        if (!array)
            return cw_fail(-EINVAL, "an array is needed, NULL was given (number %u)", i);
        if (array->client != given[0].array->client)
            return cw_fail(-EINVAL, "arrays of one piece of work belong to one client; those of "
                                    "two were given");
        if (given[i].writing && array->readonly)
            return cw_fail(-EINVAL,
                           "the array was opened read-only (number %u), so it cannot be written: "
                           "open it without readonly (CW_READONLY), or write to a copy",
                           i);
        if (array->slab->device_kind == CW_DEVICE_CUDA)
            uses[(*kept)++] = (cw_use){.array = array,
                                       .writing = given[i].writing != 0,
                                       .whole = given[i].writing && given[i].whole};
    }
    *kept = put_in_order(uses, *kept);
    return 0;
}

/* Evictable arrays stay where they are. */
static int pin_all(const cw_use *uses, uint32_t count) {
    int code = 0;
    uint32_t pinned = 0;
    while (pinned < count && (code = cw_array_pin(uses[pinned].array)) == 0)
        pinned++;
    while (code && pinned > 0)
        cw_array_unpin(uses[--pinned].array);
    return code;
}

static void unpin_all(const cw_use *uses, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        cw_array_unpin(uses[i].array);
}

static int begin_work(const cw_use *given, uint32_t count, void *stream, int64_t timeout_ns,
                      cw_work **out) {
    cw_use few[8], *uses = few;
    struct cw_fences *fences;
    struct cw_section *section = NULL;
    uint32_t kept;
    if (count > sizeof few / sizeof *few && !(uses = malloc(count * sizeof *uses)))
        return cw_fail(-EDQUOT, "no memory for the books of %u arrays", count);
    int code = collect(given, count, uses, &kept);
    if (code == 0 && kept) {
        cw_client *client = uses[0].array->client;
        code = cw_fences_of(client, &fences);
        if (code == 0)
            code = cw_section_begin(client, fences, uses, kept, true, stream, timeout_ns, &section);
    }
    if (code == 0 && kept)
        (void)pin_all(uses, kept); /* once each, until the end: they are here, so it cannot fail */
    if (uses != few)
        free(uses);
    if (code == 0)
        *out = section;
    return cw_context_failure_serve(code);
}

int cw_work_begin(const cw_use *given, uint32_t count, void *stream, int64_t timeout_ns,
                  cw_work **out) {
    if (!out || (count && !given))
        return cw_fail(-EINVAL, "arrays and a place for the work are needed, NULL was given");
    *out = NULL;
    if (count > CW_USES_MAX)
        return cw_fail(-EINVAL, "%u arrays for one piece of work, %u are the most", count,
                       CW_USES_MAX);
    if (count == 0)
        return 0;
    int code = pin_all(given, count);
    if (code)
        return code;
    code = begin_work(given, count, stream, timeout_ns, out);
    unpin_all(given, count);
    return code;
}

/* The evictable ones of a piece of work, to be unpinned when its lock is not held. The lock is
 * held. */
static cw_use *pinned_of(const cw_work *work, uint32_t *count) {
    cw_use *uses = NULL;
    *count = 0;
    for (uint32_t i = 0; i < work->held_count; i++) {
        if (!work->held[i].array->evict && !work->held[i].array->fixed)
            continue;
        if (!uses)
            uses = malloc(work->held_count * sizeof *uses);
        if (!uses)
            return NULL; /* they stay where they are */
        uses[(*count)++] = (cw_use){.array = (cw_array *)(uintptr_t)work->held[i].array};
    }
    return uses;
}

static int end_work(cw_work *work, bool failed, cw_completion *out) {
    if (!work)
        return 0;
    cw_client *client = work->held->array->client;
    struct cw_fences *fences;
    int code = cw_client_usable(client);
    if (code == 0)
        code = cw_fences_of(client, &fences);
    if (code)
        return code;
    uint32_t pinned;
    pthread_mutex_lock(&fences->lock);
    cw_use *uses = pinned_of(work, &pinned);
    code = work->open ? cw_section_end(client, fences, work, failed, out)
                      : cw_gpu_check(work->stream->gpu);
    pthread_mutex_unlock(&fences->lock);
    unpin_all(uses, pinned);
    free(uses);
    return cw_context_failure_serve(code);
}

int cw_work_end(cw_work *work) {
    return end_work(work, false, NULL);
}

int cw_work_finish(cw_work *work, cw_completion *out) {
    int code = cw_completion_clear(out);
    return code ? code : cw_completion_end(end_work(work, false, out), out);
}

int cw_work_fail(cw_work *work, int code) {
    char text[CW_DETAIL_MAX];
    snprintf(text, sizeof text, "%s", cw_detail());
    end_work(work, true, NULL);
    return cw_fail(code, "%s", text);
}

/* Did this thread begin anything there? */
static bool used_here(const struct cw_stream *stream) {
    for (const struct cw_section *at = stream->sections; at; at = at->next)
        if (at->thread == cw_this_thread())
            return true;
    return false;
}

int cw_work_check(cw_client *client) {
    if (!client || cw_client_forked(client))
        return cw_client_usable(client);
    pthread_mutex_lock(&client->lock);
    struct cw_fences *fences = client->fences; /* once made it stays */
    pthread_mutex_unlock(&client->lock);
    int code = 0;
    if (!fences)
        return 0;
    pthread_mutex_lock(&fences->lock);
    for (struct cw_stream *stream = fences->streams; stream; stream = stream->next) {
        int told = used_here(stream) ? cw_stream_tell(client, fences, stream, NULL) : 0;
        code = code ? code : told;
    }
    pthread_mutex_unlock(&fences->lock);
    return cw_context_failure_serve(code);
}

/* ---- on the CPU ---- */

static int await(cw_array *array, bool uses, int64_t timeout_ns) {
    int code = cw_array_pin(array);
    if (code)
        return code;
    code = cw_unpinned_await(array, uses, timeout_ns);
    cw_array_unpin(array);
    return code;
}

int cw_array_wait(cw_array *array, int64_t timeout_ns) {
    return await(array, false, timeout_ns);
}

int cw_array_settle(cw_array *array, int64_t timeout_ns) {
    return await(array, true, timeout_ns);
}
