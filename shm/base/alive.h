/*
 * Alive: a word that says whether the process that made a shared segment still lives. Reading it
 * needs no system call, and the kernel clears it at the process's death.
 *
 * Owner: one thread of that process. It stores its thread id and registers the word with the kernel
 * as a robust futex (no other code of that thread may use these). However the thread ends, the
 * kernel takes its id out of the word, and does so BEFORE it closes the process's files and so
 * frees their locks. So whoever gets the file lock of a dead process gets it after the word said
 * "dead".
 *
 * Invariant: a reader reads something in memory of that process, and then finds the word alive.
 * Then it has read before anybody else could hold a lock that the process held until its end.
 */
#ifndef CW_SHM_BASE_ALIVE_H
#define CW_SHM_BASE_ALIVE_H

#include <linux/futex.h>
#include <stdbool.h>

#include "shm/base/atomic.h"

struct cw_alive_keeper { /* the owner's alone; stays at one address until its end or cw_alive_end()
                          */
    struct robust_list_head head;
    struct robust_list entry;
    cw_a32 *word;
};

/* From now on the word says that this thread lives. 0, or -EDQUOT: the kernel has no robust
 * futexes. */
int cw_alive_begin(struct cw_alive_keeper *keeper, cw_a32 *word);
/* From now on the word says "dead". Called by the same thread, before it gives up the locks that
 * the word stands for. May be repeated. */
void cw_alive_end(struct cw_alive_keeper *keeper);
/* Any process, after its reads. */
static inline bool cw_alive(const cw_a32 *word) {
    /* AL1: behind what told the reader of anything that came after the death. */
    return (CW_LOAD(AL1, (cw_a32 *)(uintptr_t)word, relaxed) & FUTEX_TID_MASK) != 0;
}

#endif
