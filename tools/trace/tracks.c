/*
 * Tracks: see tracks.h. One thread, on private copies.
 */
#include "tools/trace/tracks.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/wire.h"
#include "shm/base/error.h"

#define GPU_TRACK (1ull << 63)

bool tracks_is_gpu_copy(const struct cw_trace_record *record) {
    return record->kind == CW_TRACE_COPY && (record->from >= 0 || record->to >= 0);
}

int64_t tracks_width_ns(const struct cw_trace_record *record) {
    bool moment = record->kind == CW_TRACE_SUBMIT || record->kind == CW_TRACE_RESULT ||
                  record->kind == CW_TRACE_WAKE;
    return moment && record->duration_ns < TRACKS_MOMENT_NS ? TRACKS_MOMENT_NS
                                                            : record->duration_ns;
}

uint64_t tracks_key(const struct trace_event *event) {
    const struct cw_trace_record *record = &event->record;
    if (tracks_is_gpu_copy(record))
        return GPU_TRACK | (uint64_t)(uint16_t)record->from << 16 | (uint16_t)record->to;
    return (uint64_t)event->process << 32 | record->tid;
}

static int compare(uint64_t a, uint64_t b) {
    return (a > b) - (a < b);
}

/* By track, then by begin; of those that begin together the longest first: it holds the others. */
static int by_track(const void *a, const void *b) {
    const struct trace_event *first = a, *second = b;
    int order = compare(tracks_key(first), tracks_key(second));
    if (order == 0)
        order = compare((uint64_t)first->record.begun_ns, (uint64_t)second->record.begun_ns);
    if (order == 0)
        order = compare((uint64_t)tracks_width_ns(&second->record),
                        (uint64_t)tracks_width_ns(&first->record));
    return order ? order : compare(first->record.kind, second->record.kind);
}

static void sort(struct traces *traces, int order(const void *, const void *)) {
    if (traces->count)
        qsort(traces->events, traces->count, sizeof *traces->events, order);
}

/* ---- waits of several calls ---- */

static bool waits(const struct cw_trace_record *record) {
    return record->kind == CW_TRACE_QUEUE_PUT || record->kind == CW_TRACE_QUEUE_GET ||
           record->kind == CW_TRACE_QUEUE_JOIN || record->kind == CW_TRACE_IDLE ||
           record->kind == CW_TRACE_ANSWERS || record->kind == CW_TRACE_HELPER ||
           record->kind == CW_TRACE_FENCE ||
           (record->kind == CW_TRACE_REQUEST &&
            (record->op == CW_OP_WAIT || record->op == CW_OP_WAIT_AFTER ||
             record->op == CW_OP_CLAIM || record->op == CW_OP_REMOTE));
}

static bool goes_on(const struct trace_event *before, const struct trace_event *event) {
    const struct cw_trace_record *first = &before->record, *second = &event->record;
    return tracks_key(before) == tracks_key(event) && first->flags & CW_TRACE_FAILED &&
           first->kind == second->kind && first->op == second->op &&
           first->subject == second->subject && first->name_bytes == second->name_bytes &&
           memcmp(first->name, second->name, first->name_bytes) == 0 &&
           second->begun_ns - (first->begun_ns + first->duration_ns) < TRACKS_GAP_NS;
}

void tracks_join(struct traces *traces) {
    struct trace_event *last = NULL; /* that waits */
    size_t count = 0;
    sort(traces, by_track);
    for (size_t i = 0; i < traces->count; i++) {
        struct trace_event *event = &traces->events[i];
        bool wait = waits(&event->record);
        if (wait && last && goes_on(last, event)) {
            int64_t end_ns = event->record.begun_ns + event->record.duration_ns;
            if (end_ns - last->record.begun_ns > last->record.duration_ns)
                last->record.duration_ns = end_ns - last->record.begun_ns;
            last->record.flags = event->record.flags;
            last->under_way = event->under_way;
            last->calls++;
            continue;
        }
        traces->events[count] = *event;
        if (wait)
            last = &traces->events[count];
        count++;
    }
    traces->count = count;
}

/* ---- lanes ---- */

static int by_lane(const void *a, const void *b) {
    const struct trace_event *first = a, *second = b;
    int order = compare(tracks_key(first), tracks_key(second));
    if (order == 0)
        order = compare(first->lane, second->lane);
    return order ? order : by_track(a, b);
}

struct lane { /* the ends of the events that it is in, the outermost first */
    int64_t ends_ns[TRACKS_NEST_MAX];
    unsigned depth;
};

/* Does it lie within what the lane is in, or behind it? Then it is added. */
static bool fits(struct lane *lane, int64_t begun_ns, int64_t end_ns) {
    while (lane->depth && lane->ends_ns[lane->depth - 1] <= begun_ns)
        lane->depth--;
    if (lane->depth == TRACKS_NEST_MAX || (lane->depth && lane->ends_ns[lane->depth - 1] < end_ns))
        return false;
    lane->ends_ns[lane->depth++] = end_ns;
    return true;
}

size_t tracks_assign(struct traces *traces) {
    struct lane *lanes = calloc(TRACKS_LANES_MAX, sizeof *lanes);
    size_t left_out = 0;
    unsigned used = 0;
    CW_ASSERT(lanes);
    sort(traces, by_track);
    for (size_t i = 0; i < traces->count; i++) {
        struct trace_event *event = &traces->events[i];
        if (i == 0 || tracks_key(event) != tracks_key(event - 1)) {
            for (unsigned l = 0; l < used; l++)
                lanes[l].depth = 0;
            used = 1;
        }
        int64_t begun_ns = event->record.begun_ns,
                end_ns = begun_ns + tracks_width_ns(&event->record);
        unsigned lane = 0;
        while (lane < TRACKS_LANES_MAX && !fits(&lanes[lane], begun_ns, end_ns))
            lane++;
        if (lane >= used && lane < TRACKS_LANES_MAX)
            used = lane + 1;
        event->lane = lane < TRACKS_LANES_MAX ? lane : TRACKS_NO_LANE;
        left_out += lane == TRACKS_LANES_MAX;
    }
    free(lanes);
    sort(traces, by_lane);
    return left_out;
}

/* ---- tasks across processes ---- */

static bool is_of_task(const struct cw_trace_record *record) {
    return record->kind == CW_TRACE_SUBMIT || record->kind == CW_TRACE_TASK ||
           record->kind == CW_TRACE_RESULT;
}

static int by_task(const void *a, const void *b) {
    const struct trace_event *const *first = a, *const *second = b;
    int order = compare((*first)->record.subject, (*second)->record.subject);
    return order ? order : compare((*first)->record.number, (*second)->record.number);
}

static unsigned rank(uint8_t kind) {
    return kind == CW_TRACE_SUBMIT ? 0 : kind == CW_TRACE_TASK ? 1 : 2;
}

static int by_task_and_rank(const void *a, const void *b) {
    const struct trace_event *const *first = a, *const *second = b;
    int order = by_task(a, b);
    return order ? order : compare(rank((*first)->record.kind), rank((*second)->record.kind));
}

void tracks_link(struct traces *traces) {
    struct trace_event **tasks = calloc(traces->count + 1, sizeof(struct trace_event *));
    size_t count = 0;
    uint64_t flow = 0;
    CW_ASSERT(tasks);
    for (size_t i = 0; i < traces->count; i++)
        if (is_of_task(&traces->events[i].record) && traces->events[i].lane != TRACKS_NO_LANE)
            tasks[count++] = &traces->events[i];
    if (count)
        qsort(tasks, count, sizeof(struct trace_event *), by_task_and_rank);
    for (size_t begin = 0, end; begin < count; begin = end) {
        end = begin + 1;
        while (end < count && by_task(&tasks[begin], &tasks[end]) == 0)
            end++;
        if (end - begin == 1)
            continue;
        flow++;
        for (size_t i = begin; i < end; i++) {
            tasks[i]->flow = flow;
            tasks[i]->flow_phase = i == begin ? 's' : i + 1 == end ? 'f' : 't';
        }
    }
    free(tasks);
}
