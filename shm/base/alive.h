/*
 * Alive: does the process still live that made a shared segment? One word says so, without a system
 * call; the kernel itself ends it.
 *
 * Owner: one thread of that process. It stores its thread id and tells the kernel of the word (as
 * of a robust futex, which no other code of that thread may use). However the thread ends, the
 * kernel takes its id out of the word, and does so BEFORE it gives back the process's files, their
 * locks with them. So who holds the lock of a dead process holds it after the word said so.
 *
 * Invariant: who finds the word alive after it has read something else in memory of that process
 * has read it before anybody could hold a lock which that process held to its end.
 */
#ifndef CW_SHM_BASE_ALIVE_H
#define CW_SHM_BASE_ALIVE_H

#include <linux/futex.h>
#include <stdbool.h>

#include "shm/base/atomic.h"

struct cw_alive_keeper { /* private to the owner, at one address until its end or cw_alive_end() */
    struct robust_list_head head;
    struct robust_list entry;
    cw_a32 *word;
};

/* From now on the word says that this thread lives. 0, or -EDQUOT: the kernel has no robust
 * futexes. */
int cw_alive_begin(struct cw_alive_keeper *keeper, cw_a32 *word);
/* It says so no more: the same thread, before it gives up what its life stands for. May be
 * repeated. */
void cw_alive_end(struct cw_alive_keeper *keeper);
/* Any process, after what it has read. */
static inline bool cw_alive(const cw_a32 *word) {
    /* AL1: behind what told the reader of anything that came after the death. */
    return (CW_LOAD(AL1, (cw_a32 *)(uintptr_t)word, relaxed) & FUTEX_TID_MASK) != 0;
}

#endif
