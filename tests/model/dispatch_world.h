/*
 * What the scenarios of dispatch share: a parent, two workers, two cells, one group or two.
 *
 * A task is a number from 1 to 4 in a plain word beside its cell: the worker that takes it reads
 * the number and writes another one, so that a race on what a cell holds fails. The parent's
 * threads share a lock, as the caller of dispatch.h has one.
 *
 * In the model one task is READY beyond the bound of a group with one worker when two are
 * (CW_DISPATCH_STEAL_BEYOND, see the Makefile).
 */
#ifndef CW_TESTS_MODEL_DISPATCH_WORLD_H
#define CW_TESTS_MODEL_DISPATCH_WORLD_H

#include <errno.h>

#include "model.h"
#include "shm/tasks/dispatch.h"

#define WORKERS  2u
#define CELLS    2u
#define GROUPS   2u
#define ANSWERED 100u
#define FOR_EVER (-1)

extern struct cw_dispatch_words words;
extern struct cw_dispatch_group groups[GROUPS];
extern struct cw_dispatch_worker workers[WORKERS];
extern struct cw_cell cells[CELLS];
extern struct cw_dispatch_parent parent;
extern struct cw_dispatch_view views[WORKERS]; /* of each worker */
extern uint64_t payload[CELLS], note;          /* plain */

extern struct dispatch_ghost {
    uint8_t taken[5];     /* by value: tasks that a worker has taken */
    uint8_t collected[5]; /* by value: answers that came back */
    uint8_t lost[5];      /* by value: tasks that went with a dead worker */
    uint8_t withdrawn, left;
    uint8_t waits[2]; /* of a listener, of the helper: so often it saw that it has to wait */
} ghost;

/* One group. */
void fresh(uint32_t cell_count, uint32_t spinners);
/* Two groups, worker 0 in the first; nobody spins. */
void fresh_groups(uint32_t cell_count, uint32_t group_of_1);

/* ---- the parent's ---- */

void submit_to(uint32_t group, uint64_t value);
void submit(uint64_t value);
void submit_and_wake(uint64_t value);
void note_answer(int cell);
/* All answers that are there. */
unsigned collect(void);
/* What a dead worker had. */
void bury(uint32_t w);
/* Waits for the end of thread 0, worker 0; if it died, buries it. */
void undertaker(void);
/* The lock of the parent's threads; it begins taken. */
void lock(void);
void unlock(void);

/* ---- the workers' ---- */

int take(uint32_t w);
void answer(uint32_t w, int cell);
void one_by_0(void);
void one_by_1(void);

/* ---- what holds ---- */

bool is_ready(uint32_t cell);
/* Workers may sleep for ever only when nothing is READY. */
bool nothing_ready(void);
/* A task was answered, or lost with a worker that died, or nobody has it: one of these. */
void accounted(unsigned value);

#define DISPATCH(text, says, start, dies, end, wait, ...)                                          \
    {                                                                                              \
        .name = text, .promise = says, .init = start, .final = end, .threads = {__VA_ARGS__},      \
        .killable = dies, .ghost = &ghost, .ghost_bytes = sizeof ghost, .stuck = wait              \
    }
#define WORKER_0 (1u << 0)

#endif
