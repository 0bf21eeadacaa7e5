/*
 * Completions: how the work of one section ended, for a caller who asks after the section's end.
 *
 * As soon as a section has ended, its fence and lists serve the stream's next section, and a stream
 * forgets what it waited for once that has passed or was reported. So the caller that ends a
 * section may keep a completion: the stamp of the section's end, and the stamps for which its
 * stream was still made to wait.
 *
 * Invariants
 *   C1  Each stamp in a completion was submitted by its process, so it is reached or poisoned. The
 *       pages of all of them stay mapped here, so that they can be read after the broker has buried
 *       their sessions.
 *   C2  The own stamp is read first. The GPU stores it when the stream's waits have ended, each by
 *       its value or by poison, and poison comes after the broker's note (shm/blocks/fence.h). So a
 *       reader of the own value sees the note of each death that has released the stream.
 *   C3  The stamps are those of the stream, not only of the section's arrays: a result that the
 *       stream computed in an earlier section lies in memory that only its user knows.
 *   C4  After an answer none of the section's work is under way, whatever the answer is.
 *
 * Owner: the caller. A completion is plain memory, owns nothing and is never written after the end.
 *   A producer dies before its work is submitted: the begin has waited for it, and reports it.
 *     While the stream waits for it: poison ends the wait, and the work runs on the data as they
 *     are. The end reports it, or the completion if the end came first.
 *     After its value: nothing is wrong.
 *   The waiting process dies: nobody depends on it. Its context fails: -ENODEV.
 *   The broker dies: what has passed is reported all the same; what has not is -ECONNRESET, since
 *     nobody would report a death.
 */
#ifndef CW_IPC_ORDER_COMPLETION_H
#define CW_IPC_ORDER_COMPLETION_H

#include "ipc/order/stream.h"

/* Notes a section that has ended with this stamp, its own work submitted unless code says
 * otherwise. The lock is held. */
void cw_completion_note(const cw_client *client, const struct cw_stream *stream, cw_stamp stamp,
                        int code, cw_completion *out);
/* What a public end begins and ends with: nothing is noted yet (-EINVAL for NULL); and what the
 * call returns, whose end returned code. */
int cw_completion_clear(cw_completion *out);
int cw_completion_end(int code, cw_completion *out);

#endif
