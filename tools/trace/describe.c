/*
 * Words for events: see describe.h. Names come from other processes and are made safe here.
 */
#include "tools/trace/describe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/group/page.h"
#include "tools/output.h"
#include "tools/watch/requests.h"

static const struct {
    const char *category, *name;
} kinds[CW_TRACE_KINDS] = {
    [CW_TRACE_REQUEST] = {"request", "request"},
    [CW_TRACE_GET] = {"get", "get"},
    [CW_TRACE_WAIT] = {"wait", "wait"},
    [CW_TRACE_WAKE] = {"wake", "wake others"},
    [CW_TRACE_TASK] = {"task", "task"},
    [CW_TRACE_SUBMIT] = {"task", "submit"},
    [CW_TRACE_RESULT] = {"task", "result"},
    [CW_TRACE_IDLE] = {"wait", "wait for a task"},
    [CW_TRACE_ANSWERS] = {"wait", "wait for results"},
    [CW_TRACE_HELPER] = {"wait", "helper sleeps"},
    [CW_TRACE_QUEUE_PUT] = {"queue", "queue is full: put waits"},
    [CW_TRACE_QUEUE_GET] = {"queue", "queue is empty: get waits"},
    [CW_TRACE_QUEUE_JOIN] = {"queue", "join waits"},
    [CW_TRACE_COPY] = {"copy", "copy"},
    [CW_TRACE_GROUP] = {"group", "group"},
    [CW_TRACE_FENCE] = {"wait", "wait for GPU work"},
};

static void add_word(char *text, const char *word) {
    size_t length = strlen(text);
    char *safe = output_safe(word);
    snprintf(text + length, DESCRIBE_BYTES - length, "%s%s", length ? " " : "", safe);
    free(safe);
}

static void add_name(char *text, const struct cw_trace_record *record) {
    char name[CW_TRACE_NAME_MAX + 1];
    memcpy(name, record->name, record->name_bytes);
    name[record->name_bytes] = 0;
    if (*name)
        add_word(text, name);
}

static const char *group_word(uint16_t op) {
    static const char *const names[] = {
        [GROUP_BARRIER] = "barrier",       [GROUP_BCAST] = "bcast",
        [GROUP_SCATTER] = "scatter",       [GROUP_GATHER] = "gather",
        [GROUP_ALLGATHER] = "allgather",   [GROUP_REDUCE] = "reduce",
        [GROUP_ALLREDUCE] = "allreduce",   [GROUP_REDUCE_SCATTER] = "reduce_scatter",
        [GROUP_ALLTOALL] = "alltoall",     [GROUP_EXCHANGE] = "exchange",
        [GROUP_TRACE_JOIN] = "join group", [GROUP_TRACE_RECEIVE] = "receive",
        [GROUP_TRACE_SEND] = "send",
    };
    return op < sizeof names / sizeof *names && names[op] ? names[op] : "group";
}

static const char *function_of(const struct trace_process *process, uint64_t number) {
    for (unsigned i = 0; i < process->function_count; i++)
        if (process->functions[i].number == number && *process->functions[i].name)
            return process->functions[i].name;
    return NULL;
}

static void add_device(char *text, int32_t gpu) {
    char device[24] = "cpu";
    if (gpu >= 0)
        snprintf(device, sizeof device, "cuda:%d", gpu);
    add_word(text, device);
}

char *describe_way(const struct cw_trace_record *record, char *text) {
    *text = 0;
    add_device(text, record->from);
    add_word(text, "to");
    add_device(text, record->to);
    return text;
}

char *describe_name(const struct trace_process *process, const struct trace_event *event,
                    char *text) {
    const struct cw_trace_record *record = &event->record;
    const char *word = kinds[record->kind].name;
    char op[32], way[DESCRIBE_BYTES];
    if (record->kind == CW_TRACE_REQUEST)
        word = requests_text(record->op, op);
    else if (record->kind == CW_TRACE_TASK && function_of(process, record->function))
        word = function_of(process, record->function);
    else if (record->kind == CW_TRACE_GROUP)
        word = group_word(record->op);
    *text = 0;
    add_word(text, *word ? word : "request");
    if (record->kind == CW_TRACE_COPY)
        add_word(text, describe_way(record, way));
    add_name(text, record);
    return text;
}

const char *describe_category(const struct cw_trace_record *record) {
    return kinds[record->kind].category;
}

/* A pool's or queue's number, as top and metrics have it, as text: JSON's numbers hold 53 bits. */
static json_t *decimal(uint64_t number) {
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)number);
    return json_string(text);
}

static void add_flags(json_t *args, const struct trace_event *event) {
    static const struct {
        unsigned flag;
        const char *name;
    } flags[] = {
        {CW_TRACE_FAILED, "failed"},           {CW_TRACE_SUBMITTED, "submitted_only"},
        {CW_TRACE_BY_MOVER, "by_mover"},       {CW_TRACE_STAGED, "through_host_memory"},
        {CW_TRACE_INTERRUPTED, "interrupted"},
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (event->record.flags & flags[i].flag)
            json_object_set_new(args, flags[i].name, json_true());
    if (event->calls > 1)
        json_object_set_new(args, "calls", json_integer(event->calls));
    if (event->under_way)
        json_object_set_new(args, "under_way", json_true());
}

json_t *describe_args(const struct trace_process *process, const struct trace_event *event) {
    const struct cw_trace_record *record = &event->record;
    json_t *args = json_object();
    switch ((enum cw_trace_kind)record->kind) {
    case CW_TRACE_TASK:
    case CW_TRACE_SUBMIT:
    case CW_TRACE_RESULT:
        json_object_set_new(args, "pool", decimal(record->subject));
        json_object_set_new(args, "task", json_integer((json_int_t)(record->number & INT64_MAX)));
        break;
    case CW_TRACE_IDLE:
    case CW_TRACE_ANSWERS:
    case CW_TRACE_HELPER:
        json_object_set_new(args, "pool", decimal(record->subject));
        break;
    case CW_TRACE_QUEUE_PUT:
    case CW_TRACE_QUEUE_GET:
    case CW_TRACE_QUEUE_JOIN:
        json_object_set_new(args, "queue", decimal(record->subject));
        break;
    case CW_TRACE_COPY:
        json_object_set_new(args, "pid", json_integer(process->pid));
        break;
    case CW_TRACE_NONE:
    case CW_TRACE_REQUEST:
    case CW_TRACE_GET:
    case CW_TRACE_WAIT:
    case CW_TRACE_WAKE:
    case CW_TRACE_GROUP:
    case CW_TRACE_FENCE:
    case CW_TRACE_KINDS:
    default:
        break;
    }
    if (record->kind != CW_TRACE_TASK && record->bytes)
        json_object_set_new(args, "bytes", json_integer((json_int_t)(record->bytes & INT64_MAX)));
    if ((record->kind == CW_TRACE_REQUEST || record->kind == CW_TRACE_WAKE) && record->number)
        json_object_set_new(args, "not_shown_before",
                            json_integer((json_int_t)(record->number & INT64_MAX)));
    add_flags(args, event);
    return args;
}
