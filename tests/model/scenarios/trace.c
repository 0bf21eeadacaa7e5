/*
 * Trace rings: a reader has a whole event or none, whatever is written over it meanwhile, and of
 * two threads that come to one place one writes and the other gives its event up.
 */
#include <string.h>

#include "scenarios.h"
#include "small_trace.h"
#include "shm/base/trace_ring.h"

static struct cw_trace trace;

static void init(void) {
    memset(&trace, 0, sizeof trace);
}

static void add(uint64_t number) {
    const struct cw_trace_record record = {
        .kind = CW_TRACE_TASK, .tid = 1, .begun_ns = (int64_t)number, .bytes = number};
    cw_trace_add(&trace, &record);
}

static void writes_one(void) {
    add(5);
}

static void writes_another(void) {
    add(6);
}

static void writes_two(void) {
    add(5);
    add(6);
}

/* What is read at a position is one event. */
static bool read(uint64_t position, uint64_t *number) {
    struct cw_trace_record record;
    if (!cw_trace_read(&trace, 0, position, &record))
        return false;
    *number = record.bytes;
    MODEL_CHECK(record.kind == CW_TRACE_TASK && record.begun_ns == (int64_t)record.bytes);
    return true;
}

static void reads_first(void) {
    uint64_t number;
    if (read(0, &number))
        MODEL_CHECK(number == 5);
}

static void reads_second(void) {
    uint64_t number;
    if (read(1, &number))
        MODEL_CHECK(number == 6);
}

static void the_last_is_there(void) {
    uint64_t number = 0;
    MODEL_CHECK(read(1, &number) && number == 6 && atomic_load(&trace.lost) == 0);
}

/* Both, or the one that did not find its place taken. */
static void one_is_there(void) {
    uint64_t number = 0;
    bool found = read(0, &number) || read(1, &number);
    MODEL_CHECK(found && (number == 5 || number == 6) && atomic_load(&trace.lost) <= 1);
}

static void one_or_none_is_there(void) {
    uint64_t number = 0;
    if (read(0, &number) || read(1, &number))
        MODEL_CHECK(number == 5 || number == 6);
}

const struct model_scenario model_trace_scenarios[] = {
    {.name = "trace: read while the next is written",
     .promise = "an event is whole, or is not there",
     .init = init,
     .final = the_last_is_there,
     .threads = {writes_two, reads_first}},
    {.name = "trace: read as it is written",
     .promise = "an event is whole, or is not there",
     .init = init,
     .final = the_last_is_there,
     .threads = {writes_two, reads_second}},
    {.name = "trace: two write in one place",
     .promise = "one event is whole, the other is counted as lost, or was before it",
     .init = init,
     .final = one_is_there,
     .threads = {writes_one, writes_another}},
    {.name = "trace: a writer dies beside another",
     .promise = "an event is whole, or is not there",
     .init = init,
     .final = one_or_none_is_there,
     .threads = {writes_one, writes_another},
     .killable = 1},
    {.name = NULL},
};
