/*
 * Output of ranks with `[rank]` before each line: pipes to read from, and a thread that writes
 * whole lines to our own stdout and stderr.
 */
#ifndef CW_TOOLS_RUN_TAGS_H
#define CW_TOOLS_RUN_TAGS_H

#include <stdint.h>

struct tags;

/* Room for the output of so many ranks. */
struct tags *tags_new(uint32_t ranks);
/* A pipe for a descriptor (1 or 2) of a rank: the end to write to, which the caller closes. < 0:
 * errno. */
int tags_pipe(struct tags *tags, uint32_t rank, int fd);
/* Starts the thread. 0 or -errno. */
int tags_begin(struct tags *tags);
/* Writes what is still in the pipes, and ends the thread. Blocks as long as who reads our output
 * does. Frees it. 0, or -errno of the first write that failed (but EPIPE). NULL is 0. */
int tags_end(struct tags *tags);

#endif
