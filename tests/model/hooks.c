/*
 * What the code under test calls instead of the machine: atomic operations, the futex system call,
 * the clock, errors and assertions; and what scenarios call.
 *
 * While no thread of the scenario runs (init, final) everything acts on real memory at once.
 */
#include <linux/futex.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#include "threads.h"
#include "shm/base/atomic.h"
#include "shm/base/error.h"
#include "shm/base/task.h"
#include "shm/base/wait.h"

struct model_label model_labels[MODEL_LABELS];
unsigned model_label_count;
static unsigned scenario_number;
static const struct model_label *weak_label;
static enum model_weak weak_how;

void model_labels_set(unsigned number, const struct model_label *label, enum model_weak weak) {
    scenario_number = number;
    weak_label = label;
    weak_how = weak;
}

/* ---- what shm/ calls ---- */

static int weakened(const char *label, enum model_access access, int order) {
    unsigned i = 0;
    while (i < model_label_count &&
           (model_labels[i].access != access || model_labels[i].order != order ||
            (model_labels[i].name != label && strcmp(model_labels[i].name, label) != 0)))
        i++;
    if (i == MODEL_LABELS)
        abort();
    if (i == model_label_count)
        model_labels[model_label_count++] = (struct model_label){label, access, order, {0}};
    model_labels[i].scenarios[scenario_number] = true;
    if (weak_label != &model_labels[i])
        return order;
    switch (weak_how) {
    case MODEL_NOT_SEQ_CST:
        return access == MODEL_LOAD    ? CW_MO_acquire
               : access == MODEL_STORE ? CW_MO_release
                                       : CW_MO_acq_rel;
    case MODEL_NOT_ACQUIRE:
        return access == MODEL_LOAD ? CW_MO_relaxed : CW_MO_release;
    case MODEL_NOT_RELEASE:
        return access == MODEL_STORE ? CW_MO_relaxed : CW_MO_acquire;
    case MODEL_AS_IS:
    default:
        return order;
    }
}

static uint64_t operate(const char *label, const volatile void *ptr, unsigned size_bytes,
                        struct memory_op op) {
    enum model_access access = op.kind == MEMORY_LOAD    ? MODEL_LOAD
                               : op.kind == MEMORY_STORE ? MODEL_STORE
                                                         : MODEL_RMW;
    op.order = weakened(label, access, op.order);
    op.word = memory_word(ptr, size_bytes);
    model_current->op = op;
    model_current->label = label;
    return model_step(STEP_MEMORY);
}

static uint64_t real_load(const volatile void *ptr, unsigned size_bytes) {
    return size_bytes == 4 ? *(const volatile uint32_t *)ptr : *(const volatile uint64_t *)ptr;
}

static uint64_t real_store(volatile void *ptr, unsigned size_bytes, uint64_t value) {
    uint64_t old = real_load(ptr, size_bytes);
    if (size_bytes == 4)
        *(volatile uint32_t *)ptr = (uint32_t)value;
    else
        *(volatile uint64_t *)ptr = value;
    return old;
}

uint64_t cw_model_load(const char *label, const volatile void *ptr, unsigned size_bytes,
                       enum cw_model_order order) {
    if (!model_current)
        return real_load(ptr, size_bytes);
    return operate(label, ptr, size_bytes, (struct memory_op){MEMORY_LOAD, 0, order, 0, 0});
}

void cw_model_store(const char *label, volatile void *ptr, unsigned size_bytes, uint64_t val,
                    enum cw_model_order order) {
    if (!model_current)
        real_store(ptr, size_bytes, val);
    else
        operate(label, ptr, size_bytes, (struct memory_op){MEMORY_STORE, 0, order, val, 0});
}

uint64_t cw_model_xchg(const char *label, volatile void *ptr, unsigned size_bytes, uint64_t val,
                       enum cw_model_order order) {
    if (!model_current)
        return real_store(ptr, size_bytes, val);
    return operate(label, ptr, size_bytes, (struct memory_op){MEMORY_XCHG, 0, order, val, 0});
}

uint64_t cw_model_add(const char *label, volatile void *ptr, unsigned size_bytes, uint64_t val,
                      enum cw_model_order order) {
    if (!model_current)
        return real_store(ptr, size_bytes, real_load(ptr, size_bytes) + val);
    return operate(label, ptr, size_bytes, (struct memory_op){MEMORY_ADD, 0, order, val, 0});
}

bool cw_model_cas(const char *label, volatile void *ptr, unsigned size_bytes, void *expected,
                  uint64_t val, enum cw_model_order order) {
    uint64_t old, wanted = real_load(expected, size_bytes);
    bool stored;
    if (model_current) {
        old =
            operate(label, ptr, size_bytes, (struct memory_op){MEMORY_CAS, 0, order, val, wanted});
        stored = model_current->stored;
    } else {
        old = real_load(ptr, size_bytes);
        stored = old == wanted;
        if (stored)
            real_store(ptr, size_bytes, val);
    }
    if (!stored)
        real_store(expected, size_bytes, old);
    return stored;
}

void cw_model_pause(void) {}

/* Names a futex call of wait.c; the Makefile renames syscall to this. */
long cw_model_syscall(long number, ...);
long cw_model_syscall(long number, ...) {
    va_list arguments;
    if (number != SYS_futex || !model_current)
        abort();
    va_start(arguments, number);
    void *word = va_arg(arguments, void *);
    int operation = va_arg(arguments, int);
    model_current->op.expected = va_arg(arguments, uint32_t);
    const struct timespec *limit = va_arg(arguments, void *);
    model_current->timed = limit && limit->tv_sec < CW_FAR_S; /* a far one is none */
    va_end(arguments);
    model_current->op.word = memory_word(word, 4);
    model_current->label = (operation & FUTEX_CMD_MASK) == FUTEX_WAIT ? "futex wait" : "futex wake";
    errno = EAGAIN; /* of a wait that finds another value; the only failure here */
    return (long)model_step((operation & FUTEX_CMD_MASK) == FUTEX_WAIT ? STEP_FUTEX_WAIT
                                                                       : STEP_FUTEX_WAKE);
}

/* A clock that leaps a second a look: nobody spins. */
int cw_model_clock_gettime(clockid_t clock, struct timespec *out);
int cw_model_clock_gettime(clockid_t clock, struct timespec *out) {
    (void)clock;
    *out = (struct timespec){.tv_sec = model_current ? (time_t)++model_current->now_ns : 0};
    return 0;
}

/* Everybody runs on one core, so that nobody spins for another. */
int cw_model_getcpu(void);
int cw_model_getcpu(void) {
    return 0;
}

int cw_fail_detail(int code, const char *format, ...) {
    (void)format;
    return code;
}

const char *cw_detail(void) {
    return "";
}

void cw_assert_failed(const char *expression, const char *file, int line) {
    model_fail("%s:%d: assertion: %s", file, line, expression);
}

/* A task is a thread of the scenario. Its death comes through the kernel. */
uint64_t cw_task_self(void) {
    return model_current ? (uint64_t)(model_current - model_threads) + 1 : MODEL_THREADS + 1;
}

bool cw_task_runs(uint64_t task) {
    unsigned thread = (unsigned)task - 1;
    if (thread >= MODEL_THREADS)
        model_fail("a turn names task %u", thread + 1);
    if (!model_died(thread)) {
        model_point();
        return true;
    }
    model_wait(0, 1u << thread);
    return false;
}

bool cw_task_ready(uint64_t task) {
    (void)task;
    return true; /* nobody is stopped here */
}

/* ---- what scenarios call ---- */

void model_point(void) {
    model_current->label = "";
    model_step(STEP_POINT);
}

void model_plain(const volatile void *word) {
    memory_declare_plain(word);
}

uint64_t model_plain_read(const volatile void *word) {
    if (!model_current)
        return real_load(word, 8);
    uint64_t value = memory_plain_read((unsigned)(model_current - model_threads), word);
    model_current->history = memory_mix(model_current->history, value);
    return value;
}

void model_plain_write(volatile void *word, uint64_t value) {
    if (model_current)
        memory_plain_write((unsigned)(model_current - model_threads), word, value);
    else
        real_store(word, 8, value);
}

void model_signal(unsigned event) {
    model_current->events = 1u << event;
    model_current->label = "signal";
    model_step(STEP_SIGNAL);
}

unsigned model_wait(unsigned event_mask, unsigned thread_mask) {
    model_current->events = event_mask;
    model_current->threads = thread_mask;
    model_current->label = "wait";
    return (unsigned)model_step(STEP_WAIT);
}

bool model_died(unsigned thread) {
    return model_threads[thread].state == THREAD_DIED;
}
