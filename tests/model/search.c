/*
 * The search: runs a scenario again and again from the beginning, each time with another sequence
 * of choices, until every state that can be reached was reached.
 *
 * A thread of the scenario is a coroutine. It stops before each operation and says which one; a
 * step is the choice of a thread and of one way in which its operation can act (or of its death).
 * Then the thread runs on to its next operation. A state is the memory with its history, all that
 * the threads have read since they began (which fixes where they are), the kernel's objects and the
 * ghost; a state seen before is not followed again. The hash has 64 bits: with some million states
 * the chance that two share one is below one in a million.
 *
 * swapcontext costs a system call; a context is made once a thread, after that _setjmp and _longjmp
 * switch.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "threads.h"

#define STACK_BYTES (64u << 10)
#define DEPTH_MAX   600u

struct thread model_threads[MODEL_THREADS];
struct thread *model_current;
static jmp_buf search_here;
static const struct model_scenario *scenario;
static unsigned events[MODEL_EVENTS];
static unsigned asleep_on[MODEL_THREADS]; /* word + 1, for threads that sleep on a futex */
static bool failed, any_died;
static char reason[256];

static struct choice { uint16_t index, count; } path[DEPTH_MAX];
static unsigned path_length;
static struct trace_step {
    int8_t thread;
    const char *what, *label;
    unsigned word;
    uint64_t argument, result;
} trace[DEPTH_MAX];
static unsigned trace_length;

/* ---- states seen ---- */

static uint64_t *seen;
static uint64_t seen_size, seen_count;

static bool seen_before(uint64_t hash) {
    hash += hash == 0;
    if (2 * seen_count >= seen_size) {
        uint64_t old_size = seen_size, *old = seen;
        seen_size = old_size ? 4 * old_size : 1 << 12;
        seen = calloc(seen_size, sizeof *seen);
        if (!seen)
            abort();
        for (uint64_t i = 0; i < old_size; i++) {
            uint64_t at = old[i] & (seen_size - 1);
            while (old[i] && seen[at])
                at = (at + 1) & (seen_size - 1);
            if (old[i])
                seen[at] = old[i];
        }
        free(old);
    }
    uint64_t at = hash & (seen_size - 1);
    while (seen[at] && seen[at] != hash)
        at = (at + 1) & (seen_size - 1);
    if (seen[at])
        return true;
    seen[at] = hash;
    seen_count++;
    return false;
}

static void seen_clear(void) {
    free(seen);
    seen = NULL;
    seen_size = seen_count = 0;
}

/* ---- coroutines ---- */

static void to_search(void) {
    if (_setjmp(model_current->here) == 0)
        _longjmp(search_here, 1);
}

static void thread_main(void) {
    struct thread *self = model_current;
    _setjmp(self->base); /* a thread that is to begin again jumps here */
    self = model_current;
    scenario->threads[self - model_threads]();
    self->state = THREAD_ENDED;
    _longjmp(search_here, 1);
}

/* Runs a thread to its next operation. */
static void resume(struct thread *thread, bool begin) {
    model_current = thread;
    if (_setjmp(search_here) == 0) {
        if (!begin)
            _longjmp(thread->here, 1);
        if (thread->stack)
            _longjmp(thread->base, 1);
        thread->stack = malloc(STACK_BYTES);
        if (!thread->stack || getcontext(&thread->context) != 0)
            abort();
        thread->context.uc_stack.ss_sp = thread->stack;
        thread->context.uc_stack.ss_size = STACK_BYTES;
        thread->context.uc_link = NULL;
        makecontext(&thread->context, thread_main, 0);
        setcontext(&thread->context);
    }
    model_current = NULL;
}

void model_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    failed = true;
    _longjmp(search_here, 1);
}

uint64_t model_step(enum step_kind kind) {
    model_current->step = kind;
    to_search();
    return model_current->result;
}

/* ---- steps ---- */

static unsigned ready(const struct thread *thread) {
    unsigned bits = 0;
    for (unsigned e = 0; e < MODEL_EVENTS; e++)
        bits |= (thread->events >> e & 1) && events[e] ? 1u << e : 0;
    for (unsigned t = 0; t < MODEL_THREADS; t++)
        if ((thread->threads >> t & 1) && model_threads[t].state >= THREAD_ENDED)
            bits |= MODEL_ENDED(t);
    return bits;
}

static unsigned sleepers_on(unsigned word) {
    unsigned count = 0;
    for (unsigned t = 0; t < MODEL_THREADS; t++)
        count += model_threads[t].state == THREAD_ASLEEP && asleep_on[t] == word + 1;
    return count;
}

static unsigned alternatives(unsigned t) {
    const struct thread *thread = &model_threads[t];
    if (thread->state != THREAD_READY)
        return 0;
    if (thread->step == STEP_MEMORY)
        return memory_alternatives(t, &thread->op);
    return thread->step != STEP_WAIT || ready(thread);
}

/* Wakes everybody who sleeps on the word, as wait.c asks for. */
static uint64_t futex_wake(unsigned word) {
    uint64_t woken = sleepers_on(word);
    for (unsigned t = 0; t < MODEL_THREADS; t++) {
        if (model_threads[t].state != THREAD_ASLEEP || asleep_on[t] != word + 1)
            continue;
        model_threads[t].state = THREAD_READY;
        model_threads[t].step = STEP_POINT;
        asleep_on[t] = 0;
    }
    return woken;
}

static void act(unsigned t, unsigned alternative) {
    struct thread *thread = &model_threads[t];
    thread->result = 0;
    switch (thread->step) {
    case STEP_MEMORY:
        thread->result = memory_act(t, &thread->op, alternative, &thread->stored);
        /* A store reads nothing. What it replaces is not the thread's to know. */
        if (thread->op.kind == MEMORY_STORE)
            thread->result = 0;
        break;
    case STEP_FUTEX_WAIT:
        /* The kernel looks at the word under the lock that a wake takes too: the latest value. What
         * it read for a thread is no news to that thread. */
        memory_catch_up(t, thread->op.word);
        if (memory_latest(thread->op.word) != thread->op.expected) {
            thread->result = (uint64_t)-1;
            break;
        }
        thread->state = THREAD_ASLEEP;
        asleep_on[t] = thread->op.word + 1;
        return;
    case STEP_FUTEX_WAKE:
        thread->result = futex_wake(thread->op.word);
        break;
    case STEP_SIGNAL:
        for (unsigned e = 0; e < MODEL_EVENTS; e++)
            events[e] |= thread->events >> e & 1;
        break;
    case STEP_WAIT:
        thread->result = ready(thread);
        for (unsigned e = 0; e < MODEL_EVENTS; e++)
            if (thread->events >> e & 1)
                events[e] = 0;
        for (unsigned other = 0; other < MODEL_THREADS; other++)
            if (thread->result & MODEL_ENDED(other))
                memory_join(t, other);
        break;
    case STEP_POINT:
    default:
        break;
    }
    thread->history = memory_mix(thread->history, thread->result << 1 | thread->stored);
    resume(thread, false);
}

static void die(unsigned t) {
    model_threads[t].state = THREAD_DIED;
    asleep_on[t] = 0;
    any_died = true;
}

static bool can_die(unsigned t) {
    return !any_died && (scenario->killable >> t & 1) && model_threads[t].state < THREAD_ENDED;
}

static unsigned count_choices(void) {
    unsigned count = 0;
    for (unsigned t = 0; t < MODEL_THREADS; t++)
        count += alternatives(t);
    for (unsigned t = 0; count && t < MODEL_THREADS; t++)
        count += can_die(t);
    return count;
}

/* Nobody can go on, and somebody has died: the time of those runs out who sleep with a limit. Where
 * nobody died all wake-ups must come by themselves, as if there were no limits. */
static bool time_passes(void) {
    bool passed = false;
    for (unsigned t = 0; any_died && t < MODEL_THREADS; t++) {
        if (model_threads[t].state != THREAD_ASLEEP || !model_threads[t].timed)
            continue;
        model_threads[t].state = THREAD_READY;
        model_threads[t].step = STEP_POINT;
        asleep_on[t] = 0;
        passed = true;
    }
    return passed;
}

static void trace_add(unsigned t, const char *what) {
    const struct thread *thread = &model_threads[t];
    static const char *const kinds[] = {"load", "store", "xchg", "add", "cas"};
    struct trace_step *entry = &trace[trace_length++];
    *entry = (struct trace_step){.thread = (int8_t)t, .what = what, .label = thread->label};
    if (!what && thread->step == STEP_MEMORY) {
        entry->what = kinds[thread->op.kind];
        entry->word = thread->op.word;
        entry->argument = thread->op.value;
    }
}

static void take_choice(unsigned index) {
    for (unsigned t = 0; t < MODEL_THREADS; t++) {
        unsigned count = alternatives(t);
        if (index < count) {
            trace_add(t, NULL);
            unsigned entry = trace_length - 1;
            act(t, index);
            trace[entry].result = model_threads[t].result;
            return;
        }
        index -= count;
    }
    for (unsigned t = 0; t < MODEL_THREADS; t++) {
        if (can_die(t) && index-- == 0) {
            trace_add(t, "DIES before");
            die(t);
            return;
        }
    }
    abort();
}

/* A failure in the memory itself (a race) comes back here. */
static void take_choice_guarded(unsigned index) {
    if (_setjmp(search_here) == 0)
        take_choice(index);
}

static uint64_t state_hash(void) {
    uint64_t hash = any_died, running = 0;
    for (unsigned t = 0; t < MODEL_THREADS; t++) {
        running |= (uint64_t)(model_threads[t].state < THREAD_ENDED) << t;
        hash = memory_mix(hash, (uint64_t)model_threads[t].state << 8 | asleep_on[t]);
        hash = memory_mix(hash, model_threads[t].history);
    }
    for (unsigned e = 0; e < MODEL_EVENTS; e++)
        hash = memory_mix(hash, events[e]);
    const uint8_t *ghost = scenario->ghost;
    for (size_t i = 0; i < scenario->ghost_bytes; i++)
        hash = memory_mix(hash, ghost[i]);
    return memory_hash(hash, (unsigned)running);
}

static void begin(void) {
    failed = any_died = false;
    trace_length = 0;
    memset(events, 0, sizeof events);
    memset(asleep_on, 0, sizeof asleep_on);
    if (scenario->ghost)
        memset(scenario->ghost, 0, scenario->ghost_bytes);
    scenario->init();
    memory_reset();
    for (unsigned t = 0; t < MODEL_THREADS; t++) {
        model_threads[t].history = model_threads[t].now_ns = model_threads[t].result = 0;
        model_threads[t].stored = false;
        model_threads[t].state = scenario->threads[t] ? THREAD_READY : THREAD_ENDED;
        if (scenario->threads[t])
            resume(&model_threads[t], true);
    }
}

static void finish(void) {
    bool asleep = false;
    for (unsigned t = 0; t < MODEL_THREADS; t++)
        asleep |= model_threads[t].state < THREAD_ENDED;
    if (asleep && !(scenario->stuck && scenario->stuck())) {
        snprintf(reason, sizeof reason, "stuck: a thread sleeps and nobody will wake it");
        failed = true;
    } else if (scenario->final && _setjmp(search_here) == 0) {
        scenario->final();
    }
}

/* One execution along path; beyond it the first choice each time, until a state that was seen. */
static void execute(struct model_result *result) {
    unsigned known = path_length, depth = 0;
    begin();
    for (; !failed; depth++) {
        if (depth >= known && seen_before(state_hash()))
            break;
        unsigned count = count_choices();
        if (count == 0 && time_passes())
            count = count_choices();
        if (count == 0) {
            finish();
            result->ends++;
            break;
        }
        if (depth == DEPTH_MAX) {
            snprintf(reason, sizeof reason, "an execution of more than %u steps", DEPTH_MAX);
            failed = true;
            break;
        }
        if (depth == path_length)
            path[path_length++] = (struct choice){0, (uint16_t)count};
        take_choice_guarded(path[depth].index);
    }
    result->executions++;
    if (result->depth < depth)
        result->depth = depth;
}

void model_explore(const struct model_scenario *which, unsigned number,
                   const struct model_label *label, enum model_weak weak,
                   struct model_result *result) {
    scenario = which;
    model_labels_set(number, label, weak);
    path_length = 0;
    memset(result, 0, sizeof *result);
    seen_clear();
    memory_forget();
    do {
        execute(result);
        while (path_length && path[path_length - 1].index + 1 == path[path_length - 1].count)
            path_length--;
        if (path_length)
            path[path_length - 1].index++;
    } while (path_length && !failed);
    result->failed = failed;
    result->states = seen_count;
    if (failed)
        memcpy(result->reason, reason, sizeof reason);
    seen_clear();
}

void model_print_trace(FILE *out) {
    for (unsigned i = 0; i < trace_length; i++)
        fprintf(out, "    %3u  thread %d  %-11s %-10s word %-2u %llx -> %llx\n", i, trace[i].thread,
                trace[i].what ? trace[i].what : "", trace[i].label ? trace[i].label : "",
                trace[i].word, (unsigned long long)trace[i].argument,
                (unsigned long long)trace[i].result);
}
