/*
 * Stepping: a child runs an operation between two marks, one instruction at a time, and is killed
 * with SIGKILL after the n-th of them.
 *
 * The child calls step_ready(), runs the operation, and calls step_done(). The parent steps from
 * the first mark. Parent and child share one core: a step then costs two switches and no wake-up of
 * another core.
 */
#ifndef CW_TESTS_CRASH_SUPPORT_STEP_H
#define CW_TESTS_CRASH_SUPPORT_STEP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum step_end {
    STEP_KILLED,  /* the child was killed after n instructions, the operation was not over */
    STEP_OVER,    /* the operation ended within n instructions (the child is killed as well) */
    STEP_TRAPPED, /* another thread of the child came to where it was to be stopped: the process was
                     killed by that, in the midst, and is reaped */
    STEP_BROKEN,  /* the child failed by itself: its status is printed */
    STEP_REFUSED  /* tracing is not allowed here */
};

/* The child's marks. step_ready() asks to be traced; nothing is stepped before it. */
void step_ready(void);
void step_done(void);

/* Forks; body runs in the child and must call the two marks. Returns the child, stopped at the
 * first mark, or -1 where tracing is refused. */
pid_t step_fork(void (*body)(void *context), void *context);
/* Steps the child n instructions further, *steps counts those that were made. */
enum step_end step_by(pid_t pid, uint64_t n, uint64_t *steps);
/*
 * The path of an operation: the address of each of its instructions, as one run went. With it a
 * child is brought to its n-th instruction by a breakpoint at the last instruction before that
 * which the path meets for the first time, and by steps from there. A run that takes another path
 * is still killed somewhere in the operation.
 */
struct step_path {
    uint64_t *at; /* addresses */
    bool *first;  /* met for the first time */
    uint64_t count, room;
};
/* Steps a child to its second mark and notes the path. */
enum step_end step_trace(pid_t pid, struct step_path *path);
void step_path_deinit(struct step_path *path);
/* Brings a child that stands at its first mark to the n-th instruction. */
enum step_end step_to(pid_t pid, const struct step_path *path, uint64_t n);

/* Kills the child and reaps it. */
void step_kill(pid_t pid);
/* This process and its children on one core from now on. */
void step_pin(void);

#endif
