/*
 * Call sites: see sites.c.
 */
#ifndef CW_TESTS_FAULTS_SITES_H
#define CW_TESTS_FAULTS_SITES_H

#include <stdbool.h>

/* A call is about to be made from here. Returns 0: make it; an errno value: fail with it; -1: fail
 * in the way that is the call's own. Keeps errno. */
int faults_here(const char *call);

/* fails(name): the lines by which a wrapper returns when its turn has come. */
#define FAULTS_FAIL(name, value)                                                                   \
    do {                                                                                           \
        int fault_ = faults_here(name);                                                            \
        if (fault_) {                                                                              \
            errno = fault_;                                                                        \
            return (value);                                                                        \
        }                                                                                          \
    } while (0)

#endif
