/*
 * What the threads of clients wait for, from their traces: a Queue, a task or results of a Pool, a
 * group, a GPU. A trace is found once and stays mapped, so that a look reads memory alone, and
 * works when the broker is stopped or dead.
 */
#ifndef CW_TOOLS_TOP_WAITS_H
#define CW_TOOLS_TOP_WAITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WAITS_TEXT 128u

struct waits_process; /* waits.c */
struct waits {        /* zeros are none */
    struct waits_process *all;
    size_t count, room;
    uint64_t looks;
};

/* What a client waits for, of the thread that began first if several do, its main thread before all
 * others. False: nothing that is seen. */
bool waits_of(struct waits *waits, uint32_t pid, uint32_t session, char text[WAITS_TEXT]);
/* After each look: unmaps the traces of clients that were not asked for. */
void waits_looked(struct waits *waits);
void waits_close(struct waits *waits);

#endif
