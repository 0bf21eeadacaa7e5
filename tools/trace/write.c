/*
 * JSON of traces: see write.h. Events are written one by one, so that the memory is that of one.
 *
 * Times are microseconds since the first event; "origin_ns" says when that was by CLOCK_MONOTONIC.
 * A lane beyond the first is a thread of its own to the reader, with a number that no thread has.
 */
#include "tools/trace/write.h"

#include <jansson.h>
#include <string.h>

#include "shm/base/error.h"
#include "tools/output.h"
#include "tools/trace/describe.h"
#include "tools/trace/tracks.h"

#define TIDS     (1u << 22) /* thread ids are below, and pids */
#define COPY_PID (TIDS + 1) /* a process that there is not: it has the tracks of GPU copies */
#define WAYS_MAX 1024u      /* device numbers in a track's number */
#define FLAGS    (JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(16))

struct writer {
    FILE *file;
    int64_t origin_ns;
    bool failed, some;
};

/* Takes the event over. */
static void put(struct writer *writer, json_t *event) {
    CW_ASSERT(event);
    if (fputs(writer->some ? ",\n" : "\n", writer->file) < 0 ||
        json_dumpf(event, writer->file, FLAGS) < 0)
        writer->failed = true;
    writer->some = true;
    json_decref(event);
}

/* Numbers of the process and the thread as which the reader shows its track. */
static json_int_t pid_of(const struct traces *traces, const struct trace_event *event) {
    return tracks_is_gpu_copy(&event->record) ? COPY_PID : traces->processes[event->process].pid;
}

static json_int_t tid_of(const struct trace_event *event) {
    const struct cw_trace_record *record = &event->record;
    json_int_t first = record->tid;
    if (tracks_is_gpu_copy(record))
        first = 1 + (json_int_t)((uint32_t)(record->from + 1) % WAYS_MAX * WAYS_MAX +
                                 (uint32_t)(record->to + 1) % WAYS_MAX);
    return first + (json_int_t)event->lane * TIDS;
}

static double micros(const struct writer *writer, int64_t at_ns) {
    return (double)(at_ns - writer->origin_ns) / 1e3;
}

static void put_metadata(struct writer *writer, const char *what, json_int_t pid, json_int_t tid,
                         json_t *value, const char *key) {
    put(writer, json_pack("{s:s, s:s, s:I, s:I, s:{s:o}}", "ph", "M", "name", what, "pid", pid,
                          "tid", tid, "args", key, value));
}

static void put_processes(struct writer *writer, const struct traces *traces) {
    for (size_t i = 0; i < traces->process_count; i++) {
        const struct trace_process *process = &traces->processes[i];
        if (process->events)
            put_metadata(writer, "process_name", process->pid, process->pid,
                         output_json_text(*process->command ? process->command : "?"), "name");
    }
}

static void put_track(struct writer *writer, const struct traces *traces,
                      const struct trace_event *event) {
    char text[DESCRIBE_BYTES + 32];
    const struct cw_trace_record *record = &event->record;
    json_int_t pid = pid_of(traces, event), tid = tid_of(event);
    if (tracks_is_gpu_copy(record))
        describe_way(record, text);
    else if (record->tid == traces->processes[event->process].pid)
        snprintf(text, sizeof text, "main thread");
    else
        snprintf(text, sizeof text, "thread %u", record->tid);
    if (event->lane) {
        size_t length = strlen(text);
        snprintf(text + length, sizeof text - length, ", at the same time (%u)", event->lane);
    }
    if (tracks_is_gpu_copy(record))
        put_metadata(writer, "process_name", pid, tid, json_string("GPU copies"), "name");
    put_metadata(writer, "thread_name", pid, tid, json_string(text), "name");
}

static void put_event(struct writer *writer, const struct traces *traces,
                      const struct trace_event *event) {
    const struct trace_process *process = &traces->processes[event->process];
    char name[DESCRIBE_BYTES];
    json_int_t pid = pid_of(traces, event), tid = tid_of(event);
    double at = micros(writer, event->record.begun_ns);
    const char *category = describe_category(&event->record);
    put(writer, json_pack("{s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:o}", "ph", "X", "name",
                          describe_name(process, event, name), "cat", category, "pid", pid, "tid",
                          tid, "ts", at, "dur", (double)tracks_width_ns(&event->record) / 1e3,
                          "args", describe_args(process, event)));
    if (event->flow) {
        char phase[] = {event->flow_phase, 0};
        put(writer, json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:s}", "ph", phase, "name",
                              "task", "cat", "task", "id", (json_int_t)event->flow, "pid", pid,
                              "tid", tid, "ts", at, "bp", "e"));
    }
}

static json_t *processes_json(const struct traces *traces) {
    json_t *all = json_array();
    for (size_t i = 0; i < traces->process_count; i++) {
        const struct trace_process *process = &traces->processes[i];
        json_array_append_new(all, json_pack("{s:I, s:o, s:I, s:I, s:I, s:I}", "pid",
                                             (json_int_t)process->pid, "command",
                                             output_json_text(process->command), "events",
                                             (json_int_t)process->events, "overwritten",
                                             (json_int_t)(process->overwritten & INT64_MAX), "lost",
                                             (json_int_t)(process->lost & INT64_MAX), "broken",
                                             (json_int_t)process->broken));
    }
    return all;
}

bool traces_write(struct traces *traces, FILE *file) {
    struct writer writer = {.file = file, .origin_ns = traces->now_ns};
    tracks_join(traces);
    size_t left_out = tracks_assign(traces);
    tracks_link(traces);
    for (size_t i = 0; i < traces->count; i++)
        if (traces->events[i].record.begun_ns < writer.origin_ns)
            writer.origin_ns = traces->events[i].record.begun_ns;
    fputs("{\"displayTimeUnit\": \"ns\", \"traceEvents\": [", file);
    put_processes(&writer, traces);
    const struct trace_event *last = NULL;
    for (size_t i = 0; i < traces->count; i++) {
        const struct trace_event *event = &traces->events[i];
        if (event->lane == TRACKS_NO_LANE)
            continue;
        if (!last || pid_of(traces, last) != pid_of(traces, event) || tid_of(last) != tid_of(event))
            put_track(&writer, traces, event);
        last = event;
        put_event(&writer, traces, event);
    }
    json_t *other =
        json_pack("{s:s, s:I, s:I, s:I, s:o}", "source", "cableway trace", "origin_ns",
                  (json_int_t)writer.origin_ns, "now_ns", (json_int_t)traces->now_ns, "left_out",
                  (json_int_t)left_out, "processes", processes_json(traces));
    CW_ASSERT(other);
    fputs("\n], \"otherData\": ", file);
    if (json_dumpf(other, file, FLAGS) < 0)
        writer.failed = true;
    json_decref(other);
    fputs("}\n", file);
    return fflush(file) == 0 && !ferror(file) && !writer.failed;
}
