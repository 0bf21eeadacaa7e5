/*
 * Hostile: runs what a hostile client does in a process of its own, while a neighbour goes on, and
 * looks that nothing of it is left behind.
 */
#ifndef CW_TESTS_CRASH_SUPPORT_HOSTILE_H
#define CW_TESTS_CRASH_SUPPORT_HOSTILE_H

#include "tests/crash/support/neighbour.h"
#include "tests/crash/support/world.h"
#include "tests/support.h"
#include "tests/unit/raw_client.h"

extern struct world hostile_world;
extern struct neighbour hostile_neighbour;
extern struct raw_broker hostile_broker; /* only its address: what raw_connect() needs */

/* cmocka's set-up and tear-down of a group. */
int hostile_set_up(void **state);
int hostile_tear_down(void **state);

#define HOSTILE_SKIP 77 /* exit status of an act that is impossible here */

/*
 * Runs act in a child. All the while the neighbour must live; afterwards the broker must be as
 * before: no client but the neighbour, no descriptor more. Fails the cmocka test otherwise. The act
 * returns 0, or the number of the line that was not as expected, or HOSTILE_SKIP, which skips the
 * test. patience_ms: how long the act may take.
 */
void hostile_run(int (*act)(void), int patience_ms);
/* The same for an act that stops itself: once it has stopped, the neighbour lives for some time and
 * the child is killed. */
void hostile_run_until_stopped(int (*act)(void));
/* Clients dropped so far. */
uint64_t hostile_dropped(void);

/* In an act: what must hold. */
#define ACT(condition)                                                                             \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("# %s:%d: %s\n", __FILE__, __LINE__, #condition);                               \
            fflush(stdout);                                                                        \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

#endif
