/*
 * Environment variables: see variable.h. Pure functions, from any thread. Limits of the broker are
 * variables, too: CABLEWAY_ and the limit's name in capitals.
 */
#include "shm/session/variable.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "shm/session/monitor.h"

#define FAR 3u /* a distance that is too large to be a slip */

/* Without the prefix. Those of tests and benchmarks are not among them: nobody sets them by hand.
 */
static const char *const others[] = {
    "BRIDGE", "BRIDGE_EPOLL", "BRIDGE_REKEY", "BROKER",       "CACHE_BYTES",
    "CONFIG", "CUDA_DRIVER",  "DIR",          "FULL_WAIT_MS", "GPU_CACHE_BYTES",
    "GROUP",  "MOVER",        "MOVER_IDLE",   "NAMESPACE",    "NODE_DIR",
    "NVML",   "PYTHON",       "RANK",         "ROUTE",        "SIZE",
    "TRACE",
};
#define OTHERS (sizeof others / sizeof *others)

/* The name of variable number i, with its prefix. False: there are no more. */
static bool variable(unsigned i, char *name) {
    if (i >= OTHERS + CW_LIMIT_COUNT)
        return false;
    snprintf(name, CW_VARIABLE_MAX, CW_VARIABLE_PREFIX "%s",
             i < OTHERS ? others[i] : cw_limit_name(i - OTHERS));
    for (char *at = name; *at; at++)
        *at = (char)toupper((unsigned char)*at);
    return true;
}

bool cw_variable_is_known(const char *name) {
    char known[CW_VARIABLE_MAX];
    for (unsigned i = 0; variable(i, known); i++) {
        if (!strcmp(known, name))
            return true;
    }
    return false;
}

static unsigned least(unsigned a, unsigned b) {
    return a < b ? a : b;
}

/* How many letters must be changed, added or taken away to make one of the other, or swapped with
 * the next: Damerau and Levenshtein's distance, by rows. Both are shorter than CW_VARIABLE_MAX. */
static unsigned distance(const char *a, const char *b) {
    unsigned rows[3][CW_VARIABLE_MAX], length = (unsigned)strlen(b), i;
    for (unsigned j = 0; j <= length; j++)
        rows[0][j] = j;
    for (i = 0; a[i]; i++) {
        const unsigned *above = rows[i % 3], *two_above = rows[(i + 2) % 3];
        unsigned *row = rows[(i + 1) % 3];
        row[0] = i + 1;
        for (unsigned j = 0; j < length; j++) {
            row[j + 1] = least(above[j] + (a[i] != b[j]), least(row[j], above[j + 1]) + 1);
            if (i && j && a[i] == b[j - 1] && a[i - 1] == b[j])
                row[j + 1] = least(row[j + 1], two_above[j - 1] + 1);
        }
    }
    return rows[i % 3][length];
}

bool cw_variable_meant(const char *name, char *meant) {
    char known[CW_VARIABLE_MAX];
    unsigned nearest = FAR;
    size_t prefix = strlen(CW_VARIABLE_PREFIX);
    if (strncmp(name, CW_VARIABLE_PREFIX, prefix) != 0 || strlen(name) >= CW_VARIABLE_MAX ||
        cw_variable_is_known(name))
        return false;
    for (unsigned i = 0; variable(i, known); i++) {
        unsigned far = distance(name, known);
        /* Of a short name two letters are most of it: DIR is not misspelt NVM. */
        if (far < nearest && strlen(known) - prefix >= 3 * (size_t)far) {
            nearest = far;
            strcpy(meant, known);
        }
    }
    return nearest < FAR;
}
