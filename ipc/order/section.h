/*
 * Work on arrays in order: begin and end of one section on any number of arrays. See order.h for
 * the record of a block, fence.h for the rules, stream.h for sections.
 *
 * Invariants
 *   W1  The records of several arrays are taken in the order of their slabs and blocks, each once.
 *       Before the next is taken, all work on which this one depends is submitted. So two processes
 *       that begin on the same arrays, in whatever order, never wait for each other in a circle: a
 *       record is a lock for readers and writers, and all lock them in one order.
 *   W2  A begin that fails leaves every record as it was: it gives back what it had taken.
 *   W3  An end submits one value for all of its arrays, and publishes it in each record.
 *
 * A turn holds the stamp of its section, so that everyone who meets it can see whether its process
 * is dead. A reader is told so at once. A writer waits until no write of the dead process can land
 * any more (cw_fence_is_final). It gets an error if that takes longer than DEAD_TURN_TIMEOUT_NS:
 * then a forked child of the dead process lives on and keeps its GPU work alive.
 *
 * No state of its own. If this process dies between begin and end, the broker takes its turns out.
 */
#ifndef CW_IPC_ORDER_SECTION_H
#define CW_IPC_ORDER_SECTION_H

#include "ipc/order/stream.h"

/* Begins. uses: GPU memory of this client, in the order of W1, no block twice, at least one; the
 * arrays stay open until the end. several: of cw_work_begin(). 0: *out is open; else nothing was
 * begun, see cw_array_writing_begin(). Without the lock. */
int cw_section_begin(cw_client *client, struct cw_fences *fences, const cw_use *uses,
                     uint32_t count, bool several, void *handle, int64_t timeout_ns,
                     struct cw_section **out);
/* Ends it. failed: what was to be written is not complete: it is marked so. 0, or -EOWNERDEAD and
 * others: what was written is marked. out, if not NULL: what is to be asked for later, set in any
 * case; it says -EOWNERDEAD, too, where a write kept something that was incomplete before. The lock
 * is held, and given up meanwhile. */
int cw_section_end(cw_client *client, struct cw_fences *fences, struct cw_section *section,
                   bool failed, cw_completion *out);
/* cw_array_writing_end() of work that was begun and is not complete: readers of the array are told,
 * until it is written anew. */
int cw_array_writing_fail(cw_array *array, void *stream);
/* The same of a cw_work whose work failed with code, which it returns; this thread's text stays. */
int cw_work_fail(cw_work *work, int code);

/* On the CPU, without a section: waits until the last write (or, uses: all uses) has passed.
 * Without the lock. */
int cw_order_await(cw_client *client, struct cw_fences *fences, struct cw_order *order, bool uses,
                   int64_t timeout_ns);

#endif
