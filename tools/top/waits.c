/*
 * Waits of clients: see waits.h. One thread. What a process wrote is copied and checked. A process
 * that ended leaves its trace mapped until its client has gone.
 */
#include "tools/top/waits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "shm/base/segment.h"
#include "shm/base/wait.h"
#include "tools/trace/files.h"

#define AGAIN_LOOKS 8u         /* a trace that was not there is looked for again after so many */
#define RESTS_NS    1000000000 /* a wait between two calls for longer has ended */

struct waits_process {
    uint32_t pid, session;
    uint64_t looked;           /* the look in which it was last asked for */
    uint64_t again;            /* the look in which its trace is looked for */
    struct cw_segment segment; /* base NULL: there is none */
};

static bool open_one(void *context, int fd) {
    struct waits_process *process = context;
    if (cw_segment_open(fd, sizeof(struct cw_trace), CW_SEGMENT_TRACE, false, 0,
                        &process->segment)) {
        process->segment.base = NULL;
        return true;
    }
    const volatile struct cw_trace *trace = process->segment.base;
    if (trace->version == CW_TRACE_VERSION && trace->pid == process->pid)
        return false;
    cw_segment_close(&process->segment); /* its parent's */
    process->segment.base = NULL;
    return true;
}

static struct waits_process *process_of(struct waits *waits, uint32_t pid, uint32_t session) {
    struct waits_process *process = NULL;
    for (size_t i = 0; i < waits->count && !process; i++)
        if (waits->all[i].session == session && waits->all[i].pid == pid)
            process = &waits->all[i];
    if (!process) {
        if (waits->count == waits->room) {
            waits->room = waits->room ? 2 * waits->room : 64;
            waits->all = realloc(waits->all, waits->room * sizeof *waits->all);
            CW_ASSERT(waits->all);
        }
        process = &waits->all[waits->count++];
        *process = (struct waits_process){.pid = pid, .session = session};
    }
    process->looked = waits->looks;
    if (!process->segment.base && waits->looks >= process->again) {
        process->again = waits->looks + AGAIN_LOOKS;
        files_of(pid, open_one, process);
    }
    return process;
}

/* What a call under way waits for. False: it is no wait, or the broker's tables tell of it. */
static bool describe(const struct cw_trace_record *record, char text[WAITS_TEXT]) {
    static const char *const kinds[CW_TRACE_KINDS] = {
        [CW_TRACE_IDLE] = "a task of pool",
        [CW_TRACE_ANSWERS] = "results of pool",
        [CW_TRACE_QUEUE_PUT] = "room in queue",
        [CW_TRACE_QUEUE_GET] = "an item of queue",
        [CW_TRACE_QUEUE_JOIN] = "all done of queue",
        [CW_TRACE_GROUP] = "group",
        [CW_TRACE_FENCE] = "GPU work",
    };
    const char *kind = kinds[record->kind];
    if (!kind)
        return false;
    if (record->kind == CW_TRACE_FENCE)
        snprintf(text, WAITS_TEXT, "%s", kind);
    else if (record->kind == CW_TRACE_GROUP)
        snprintf(text, WAITS_TEXT, "%s %.*s", kind, (int)record->name_bytes, record->name);
    else
        snprintf(text, WAITS_TEXT, "%s %llu", kind, (unsigned long long)record->subject);
    return true;
}

static bool is_before(const struct cw_trace_record *record, const struct cw_trace_record *other,
                      uint32_t pid) {
    if ((record->tid == pid) != (other->tid == pid))
        return record->tid == pid;
    return record->begun_ns < other->begun_ns;
}

bool waits_of(struct waits *waits, uint32_t pid, uint32_t session, char text[WAITS_TEXT]) {
    struct waits_process *process = process_of(waits, pid, session);
    struct cw_trace_record record, found = {.kind = CW_TRACE_NONE};
    int64_t now_ns = cw_now_ns();
    for (unsigned i = 0; process->segment.base && i < CW_TRACE_UNDER_WAY; i++) {
        if (!cw_trace_read_under_way(process->segment.base, i, &record) ||
            !files_can_be(&record, now_ns) || !describe(&record, text) ||
            (record.duration_ns && now_ns - record.begun_ns - record.duration_ns > RESTS_NS))
            continue;
        if ((found.kind == CW_TRACE_NONE || is_before(&record, &found, pid)) &&
            files_thread_lives(pid, record.tid))
            found = record;
    }
    return found.kind != CW_TRACE_NONE && describe(&found, text);
}

void waits_looked(struct waits *waits) {
    size_t kept = 0;
    for (size_t i = 0; i < waits->count; i++) {
        if (waits->all[i].looked == waits->looks)
            waits->all[kept++] = waits->all[i];
        else if (waits->all[i].segment.base)
            cw_segment_close(&waits->all[i].segment);
    }
    waits->count = kept;
    waits->looks++;
}

void waits_close(struct waits *waits) {
    waits->looks++;
    waits_looked(waits);
    free(waits->all);
    *waits = (struct waits){.count = 0};
}
