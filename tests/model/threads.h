/*
 * The threads of a scenario as the search sees them: shared by search.c, which chooses, and
 * hooks.c, through which the code under test stops before each of its operations.
 */
#ifndef CW_TESTS_MODEL_THREADS_H
#define CW_TESTS_MODEL_THREADS_H

#include <setjmp.h>
#include <ucontext.h>

#include "memory.h"

enum step_kind {
    STEP_MEMORY,
    STEP_POINT,
    STEP_FUTEX_WAIT,
    STEP_FUTEX_WAKE,
    STEP_SIGNAL,
    STEP_WAIT
};
enum thread_state { THREAD_READY, THREAD_ASLEEP, THREAD_ENDED, THREAD_DIED };

struct thread {
    enum thread_state state;
    enum step_kind step;
    struct memory_op op;
    const char *label;
    unsigned events, threads; /* what STEP_SIGNAL and STEP_WAIT name */
    uint64_t result;
    bool stored;
    bool timed;       /* a futex wait that ends by itself */
    uint64_t history; /* hash of all results so far */
    uint64_t now_ns;  /* its clock, which jumps */
    jmp_buf here, base;
    ucontext_t context;
    void *stack;
};

extern struct thread model_threads[MODEL_THREADS];
extern struct thread *model_current; /* NULL: init, final or the search itself runs */

/* Stops the current thread before a step of this kind; returns its result once it was taken. */
uint64_t model_step(enum step_kind kind);

/* What is explored now: which labels to note, which one to weaken. */
void model_labels_set(unsigned number, const struct model_label *weak_label, enum model_weak weak);

#endif
