/*
 * The kernels of reductions (ipc/cuda/kernel.h), which the test double knows by their names.
 */
#ifndef CW_TESTS_FAKECUDA_STREAMS_REDUCTION_H
#define CW_TESTS_FAKECUDA_STREAMS_REDUCTION_H

#include "tests/fakecuda/streams/stream.h"

#define FAKE_PARTS_MAX 64

struct fake_reduction { /* as its name says */
    int element, operation;
    uint64_t access_bytes;
};

/* Of "sum_f4_16". Whether it is such a name. */
bool fake_reduction_named(const char *name, struct fake_reduction *out);
/* arguments: target, count, parts; sources: as many addresses. What breaks the context. */
CUresult fake_reduction_run(struct fake_stream *stream, struct fake_reduction reduction,
                            const uint64_t *arguments, const uint64_t *sources);

#endif
