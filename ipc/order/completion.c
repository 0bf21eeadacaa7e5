/*
 * Completions: see completion.h.
 *
 * No state of its own.
 */
#include "ipc/order/completion.h"

#include <string.h>

#include "ipc/order/context_failure.h"
#include "shm/base/error.h"
#include "ipc/request/socket.h"
#include "ipc/client.h"

struct noted {         /* the words of a cw_completion */
    uint64_t instance; /* of the broker; 0: nothing was to be done, or (code) it never ended */
    cw_stamp own;
    int32_t code; /* what the end came to */
    int32_t gpu;
    uint64_t count;
    cw_stamp waited[CW_DEPENDENCIES_MAX];
};
_Static_assert(sizeof(struct noted) <= sizeof(cw_completion), "room");

void cw_completion_note(const cw_client *client, const struct cw_stream *stream, cw_stamp stamp,
                        int code, cw_completion *out) {
    struct noted noted = {
        .instance = client->instance, .own = stamp, .code = code, .gpu = stream->gpu->ordinal};
    for (uint32_t i = 0; i < stream->dependency_count; i++)
        if (!stream->dependencies[i].only_read)
            noted.waited[noted.count++] = stream->dependencies[i].stamp;
    memcpy(out, &noted, sizeof noted);
}

int cw_completion_clear(cw_completion *out) {
    if (!out)
        return cw_fail(-EINVAL, "a place for the completion is needed, NULL was given");
    memset(out, 0, sizeof *out);
    return 0;
}

int cw_completion_end(int code, cw_completion *out) {
    struct noted noted;
    memcpy(&noted, out, sizeof noted);
    if (code && !noted.instance) { /* it did not come to an end of its own */
        noted.code = code;
        memcpy(out, &noted, sizeof noted);
    }
    if (code == 0 && noted.code)
        return cw_fail(noted.code, "a part of the array was written, and the rest is incomplete: "
                                   "the process that wrote it last died before its work was "
                                   "complete, or its GPU failed; write all of it, and say so "
                                   "(whole)");
    return code;
}

static int incomplete(void) {
    return cw_fail(-EOWNERDEAD, "the work is done, but on incomplete data: a process died before "
                                "its work on an array was complete, or its GPU failed, and this "
                                "work came after it; throw the result away, and repeat it when the "
                                "array was written anew");
}

/* Its own context failed, or its stream refused the value. */
static int lost(const struct noted *noted) {
    const struct cw_gpu *gpu = noted->gpu < 0 ? NULL : cw_gpu_started(noted->gpu);
    int code = gpu ? cw_gpu_check(gpu) : 0;
    if (code)
        return code;
    return cw_fail(noted->code && noted->code != -EOWNERDEAD ? noted->code : -ENODEV,
                   "the work will never be complete: its end was not submitted to the stream, or "
                   "the stream's context is gone; begin it anew");
}

/* Did all of it pass? Who asks is told; so no other call on that stream need say it. The lock is
 * held. */
static bool passed(cw_client *client, struct cw_fences *fences, const struct noted *noted) {
    bool all = true;
    for (uint64_t i = 0; i < noted->count; i++) {
        /* A value that is not reached here, and not dead either, is garbage of its process. */
        if (cw_stamp_look(client, fences, noted->waited[i]) > 0)
            continue;
        all = false;
        for (struct cw_stream *stream = fences->streams; stream; stream = stream->next)
            if (cw_stream_owns(stream, cw_stamp_fence(noted->own)))
                cw_stream_forget(stream, noted->waited[i]);
    }
    return all;
}

int cw_completion_wait(cw_client *client, const cw_completion *completion, int64_t timeout_ns) {
    struct cw_fences *fences;
    struct noted noted;
    if (!client || !completion)
        return cw_fail(-EINVAL, "a client and a completion are needed, NULL was given");
    if (cw_client_forked(client))
        return cw_client_usable(client);
    memcpy(&noted, completion, sizeof noted);
    if (!noted.instance)
        return noted.code ? lost(&noted) : 0;
    if (noted.instance != client->instance || noted.count > CW_DEPENDENCIES_MAX)
        return cw_fail(
            -EINVAL,
            "the completion belongs to another client: wait with the client of the arrays");
    int code = cw_fences_of(client, &fences);
    int64_t before = cw_socket_limit(timeout_ns ? timeout_ns : -1);
    if (code == 0)
        code = cw_stamp_wait(client, noted.own, timeout_ns);
    if (code == -EOWNERDEAD)
        code = lost(&noted);
    else if (code == 0) {
        pthread_mutex_lock(&fences->lock);
        bool all = passed(client, fences, &noted);
        pthread_mutex_unlock(&fences->lock);
        code = all && noted.code == 0 ? 0 : incomplete();
    }
    cw_socket_unlimit(before);
    return cw_context_failure_serve(code);
}
