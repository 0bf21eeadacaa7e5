/*
 * Model: an exhaustive scheduler for the real source of shm/, under the memory model of the
 * language.
 *
 * The source of shm/ is compiled with CW_MODEL, so that every atomic operation comes here. A
 * scenario is a few threads (each stands for a process) that call the real functions; the search
 * runs every interleaving of their operations, every value that each load may return, every place
 * in a word's order of changes that a store may take, and, where the scenario says so, the death of
 * a thread between any two operations. docs/MEMORY-MODEL.md tells the memory model and why it is
 * this one.
 *
 * A scenario's threads must be deterministic but for what they read through these functions: their
 * state is known by the values that they read. What they share besides goes into the ghost.
 */
#ifndef CW_TESTS_MODEL_H
#define CW_TESTS_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define MODEL_THREADS 4u
#define MODEL_EVENTS  4u

struct model_scenario {
    const char *name;
    const char *promise; /* what holds in every execution */
    /* Makes the initial state; runs alone, its operations act at once. */
    void (*init)(void);
    /* After every thread ended or died: looks at the final state, alone. May be NULL. */
    void (*final)(void);
    void (*threads[MODEL_THREADS])(void);
    unsigned killable; /* bit t: thread t may die at any step (at most one of them an execution) */
    void *ghost;       /* what the threads share outside of the model; zeroed before init */
    size_t ghost_bytes;
    /* Which operations the language lets each thread see; false for litmus tests that want a count.
     */
    bool (*stuck)(void); /* no thread can go on: is that fine? NULL: never */
    bool fails;          /* something is left out: the search must find why it is there */
};

/* ---- for scenarios ---- */

/* Ends this execution as a failure. */
_Noreturn void model_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define MODEL_CHECK(expr)                                                                          \
    ((expr) ? (void)0 : model_fail("%s:%d: not so: %s", __FILE__, __LINE__, #expr))

/* A step without effect: others may come between what stands before and after it. */
void model_point(void);
/* Declares, in init, a 64-bit word that is (also) accessed as plain memory. */
void model_plain(const volatile void *word);
/* Plain accesses: no step of their own; a data race with anybody fails the execution. */
uint64_t model_plain_read(const volatile void *word);
void model_plain_write(volatile void *word, uint64_t value);

/* An eventfd: a counter in the kernel. Orders nothing by itself (less than the kernel gives). */
void model_signal(unsigned event);
/*
 * Sleeps until one of these events was signalled or one of these threads ended or died, as poll
 * does; returns what is so: events in bits 0.., threads in bits 16... The events are then reset;
 * what an ended thread did came before (its exit and the pidfd's report go through the kernel).
 */
#define MODEL_ENDED(thread) (1u << (16 + (thread)))
unsigned model_wait(unsigned events, unsigned threads);
/* Did this thread die rather than end? Only in final, or after model_wait told its end. */
bool model_died(unsigned thread);

/* ---- for the program ---- */

enum model_access { MODEL_LOAD, MODEL_STORE, MODEL_RMW };
enum model_weak {
    MODEL_AS_IS,
    MODEL_NOT_SEQ_CST, /* load: acquire, store: release, read-modify-write: acq_rel */
    MODEL_NOT_ACQUIRE, /* load: relaxed, read-modify-write: release */
    MODEL_NOT_RELEASE, /* store: relaxed, read-modify-write: acquire */
};

#define MODEL_SCENARIOS 160u /* the last stands for the litmus tests */
struct model_label {         /* one operation of the source, as it was seen */
    const char *name;
    enum model_access access;
    int order;                       /* enum cw_model_order */
    bool scenarios[MODEL_SCENARIOS]; /* which of them used it */
};
#define MODEL_LABELS 192u
extern struct model_label model_labels[MODEL_LABELS];
extern unsigned model_label_count;

struct model_result {
    bool failed;
    char reason[256];
    uint64_t executions; /* runs from the beginning */
    uint64_t states;     /* different states reached */
    uint64_t ends;       /* executions that came to their end */
    unsigned depth;      /* longest */
};
/* Explores a scenario; its number is noted with the labels. weak_label: its name, or NULL. */
void model_explore(const struct model_scenario *scenario, unsigned number,
                   const struct model_label *weak_label, enum model_weak weak,
                   struct model_result *result);
/* Prints the steps of the last failing execution. */
void model_print_trace(FILE *out);

#endif
