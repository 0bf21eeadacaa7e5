/*
 * Neighbour: a well-behaved client in a process of its own, who must go on within a bounded time
 * whatever others do to the broker.
 */
#ifndef CW_TESTS_CRASH_SUPPORT_NEIGHBOUR_H
#define CW_TESTS_CRASH_SUPPORT_NEIGHBOUR_H

#include <stdint.h>
#include <sys/types.h>

#define NEIGHBOUR_X_BYTES   4096
#define NEIGHBOUR_LIMIT_MS  2000 /* for any one answer, in looks of a millisecond: see answer() */
#define NEIGHBOUR_CHILD_PUT 0x5a /* every byte of what a stepped child puts as "y" */

struct neighbour {
    pid_t pid;
    int fd;
    int64_t worst_ns; /* the longest answer so far */
};

enum neighbour_wish {
    NEIGHBOUR_LIVE = 'l',   /* ping, get, check, put, list: all that a client does */
    NEIGHBOUR_NEW_X = 'n',  /* puts a new array as "x" and keeps no lease on it */
    NEIGHBOUR_DROP_X = 'x', /* removes "x" */
    NEIGHBOUR_LOOK_Y = 'y', /* "y" is whole or not there; removes it. 1 when it was there */
    NEIGHBOUR_GROW = 'g',   /* allocates, checks and gives back more than its slabs have room for */
    NEIGHBOUR_SWEEP = 's',  /* removes all names that begin with "nonsense/" */
    NEIGHBOUR_QUIT = 'q',
};

/* Forks and connects. Ends the test program when that fails. Call it in a process that has no
 * client. */
void neighbour_start(struct neighbour *neighbour);
/* The result of a wish; -ETIMEDOUT when it took longer than NEIGHBOUR_LIMIT_MS. */
int neighbour_ask(struct neighbour *neighbour, enum neighbour_wish wish);
void neighbour_stop(struct neighbour *neighbour);

#endif
