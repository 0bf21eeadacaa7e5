/*
 * Failed contexts: after a GPU error nothing works any more in a CUDA context of this process,
 * while the process lives on. Whoever waits for its work must be told as if the process had died.
 *
 * Invariants
 *   R1  Once a context is known to have failed, every section of its streams is ended here: its
 *       turns are given back, and what was written is marked as incomplete. No new section begins
 *       (-ENODEV, with the driver's name for the error). Only after that are its fences poisoned
 *       and the broker told. So the broker never takes out a turn that this process may still give
 *       back itself.
 *   R2  Poison comes before the process's next wait on any array: it does not wait for itself. The
 *       broker is told without waiting. If it stands still and its ring is full, a later call of
 *       this process tells it, and nobody waits for that: the poison is there already.
 *   R3  Other contexts of the process are not touched: each page of fences belongs to one GPU.
 *
 * The driver reports a failed context at the next call that this process makes in it. If it makes
 * none, the failure is not known before the process ends. So whoever waits on the CPU here makes
 * such a call while it waits.
 *
 * Owner: this process. The fences of all its clients are in one list, whose lock comes before any
 * fences' lock and is taken with none held but a client's.
 * The process dies, also between poison and message: the broker poisons all its fences in any case.
 * The broker is dead: this process stores the poison, so all who have the page mapped are told.
 * Work that was submitted before cannot land later, since the driver has thrown it away. The broker
 * repeats the poison for CW_POISON_NS all the same, and then takes the stamps out of all records.
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
