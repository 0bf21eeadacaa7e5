/*
 * Failed contexts: a GPU error after which nothing in this process's context works any more, while
 * the process lives on. Who waits for its work must be told as if it had died.
 *
 * Invariants
 *   R1  Once a context is known to have failed, every section of its streams is ended here, its
 *       turns given back with what was written marked as incomplete, and no new one begins
 *       (-ENODEV, with the driver's name for the error). Only after that are its fences poisoned
 *       and the broker told: so the broker never takes out a turn that this process may still give
 *       back itself.
 *   R2  Poison comes before the process's next wait on any array: it does not wait for itself.
 *       The broker is told without waiting: one that stands still, its ring full, hears of it at
 *       a later look of this process, and nobody waits for it meanwhile. Poison is there already.
 *   R3  What other contexts of the process do is not touched: pages of fences are one GPU's.
 * The driver tells of a failed context at the next call that this process makes in it; who makes
 * none is not heard of before its end. So whoever waits on the CPU here asks while it waits.
 *
 * Owner: this process. The books of all its clients stand in one list, whose lock comes before any
 * fences' lock and is taken with none held but a client's. The process dies: the broker poisons
 * all its fences in any case. Dies between poison and word: the same. The broker is dead: the
 * poison is stored by this process, so that those who have the page mapped are told all the same.
 * What was submitted before cannot land later: the driver has thrown it away; the broker repeats
 * the poison for CW_POISON_NS nevertheless, and takes the stamps out of all records then.
 * In a forked child nothing here applies: it has no contexts.
 */
#ifndef CW_IPC_ORDER_CONTEXT_FAILURE_H
#define CW_IPC_ORDER_CONTEXT_FAILURE_H

#include "ipc/order/fence.h"

/* Books that are to be told, and their end. */
void cw_context_failure_watch(struct cw_fences *fences);
void cw_context_failure_forget(struct cw_fences *fences);
/* What each call that may have met the driver ends with: if a fatal error was seen since, contexts
 * are looked at. Returns code, this thread's text unchanged. With no lock held. One load mostly. */
int cw_context_failure_serve(int code);
/* The same without a hint: asks every context of this process, a call of the driver each. */
void cw_context_failure_look(void);

#endif
