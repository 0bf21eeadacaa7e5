/*
 * The files of traces: those of one process, found through /proc, and whether what a process wrote
 * there can be.
 */
#ifndef CW_TOOLS_TRACE_FILES_H
#define CW_TOOLS_TRACE_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/base/trace_ring.h"

/* Calls visit with each descriptor of a process that is a trace by its name, until it returns
 * false; visit takes fd over. A child has its parent's for a moment. Nothing where the process has
 * ended, or is not ours to look into. */
void files_of(uint32_t pid, bool visit(void *context, int fd), void *context);
/* Can an event be? What another process wrote may be anything. */
bool files_can_be(const struct cw_trace_record *record, int64_t now_ns);
bool files_thread_lives(uint32_t pid, uint32_t tid);

#endif
