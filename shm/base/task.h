/*
 * Tasks: a word that names one thread of this machine, for ever, and whether that thread still
 * runs.
 *
 * Word: bits 0..21 thread id, bits 22..63 when it started (clock ticks since boot). Thread ids are
 * used again, the pair is not. 0 names nobody. The kernel answers through /proc: no message is
 * needed, and a word that a hostile process wrote at worst names nobody.
 *
 * It holds within one pid namespace and one time namespace: cw_task_world() tells them apart.
 */
#ifndef CW_SHM_BASE_TASK_H
#define CW_SHM_BASE_TASK_H

#include <stdbool.h>
#include <stdint.h>

#define CW_TASK_TID_MASK ((1u << 22) - 1)

/* The calling thread's own word. Reads /proc once a thread (and once after a fork). Never 0. */
uint64_t cw_task_self(void);
/* The word of the calling process: that of its first thread. Reads /proc. Never 0. */
uint64_t cw_task_process(void);
/* Does the process with that word still run, that is any thread of it? As cw_task_runs(). */
bool cw_task_process_runs(uint64_t process);
/* Does that thread still run? A thread that has ended and was not reaped yet does not. If this
 * cannot be found out (no descriptor left), the answer is true; the caller asks again later. */
bool cw_task_runs(uint64_t task);
/* Does it run now, or wait only for a core? False if it sleeps, is stopped, frozen or dead. */
bool cw_task_ready(uint64_t task);
/* A number that is the same in processes which can ask about each other's tasks. */
uint64_t cw_task_world(void);

#endif
