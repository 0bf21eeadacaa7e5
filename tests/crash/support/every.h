/*
 * Every instruction: a test that runs an operation in a child, kills it after n = 0, 1, 2, ...
 * instructions until the operation ends, and checks after each kill. See step.h for the stepping.
 */
#ifndef CW_TESTS_CRASH_SUPPORT_EVERY_H
#define CW_TESTS_CRASH_SUPPORT_EVERY_H

#include <stdint.h>

struct every_operation {
    void (*prepare)(void); /* in the parent, before each child */
    void (*enter)(void);   /* in the child, before the stepping; NULL: nothing */
    void (*run)(void);     /* what is stepped */
    void (*check)(void);   /* in the parent, after the kill */
    uint64_t least;        /* fewer instructions than this cannot be the operation */
};

/* A cmocka test whose state is an every_operation. Skips where ptrace is not allowed. */
void at_every_instruction(void **state);

#define EVERY_TEST(name, prepare, enter, run, check, least)                                        \
    {                                                                                              \
#name, at_every_instruction, NULL, NULL, &(struct every_operation) {                       \
            prepare, enter, run, check, least                                                      \
        }                                                                                          \
    }

#endif
