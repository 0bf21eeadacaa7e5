/*
 * The kernels that the test double knows (kernels.h says what they do).
 */
#ifndef CW_TESTS_FAKECUDA_STREAMS_KERNEL_H
#define CW_TESTS_FAKECUDA_STREAMS_KERNEL_H

#include "tests/fakecuda/streams/stream.h"

CUresult fake_kernel_run(struct fake_stream *stream, const struct fake_launch *launch);

#endif
