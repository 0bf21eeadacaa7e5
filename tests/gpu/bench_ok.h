/*
 * What the benchmarks of GPU memory end with when a call fails.
 */
#ifndef CW_TESTS_GPU_BENCH_OK_H
#define CW_TESTS_GPU_BENCH_OK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "ipc/cableway.h"

static inline void fail(const char *what, int code) {
    fprintf(stderr, "%s: %s: %d, %s\n", program_invocation_short_name, what, code, cw_error());
    exit(1);
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        int ok_code = (int)(call);                                                                 \
        if (ok_code)                                                                               \
            fail(#call, ok_code);                                                                  \
    } while (0)

#endif
