/*
 * Completions: what the work of one section came to, for who asks after its end.
 *
 * A section's books serve the stream's next section as soon as it has ended, and a stream forgets
 * what it waited for once that has passed or was told. So whoever ends a section may take along the
 * stamp of its end and the stamps that its stream was still made to wait for.
 *
 * Invariants
 *   C1  Each stamp in a completion was submitted by its process, so it is reached or poisoned; and
 *       the pages of all of them are mapped here, for good: they can be looked at when their
 *       sessions are buried, too.
 *   C2  The own stamp is looked at first. The GPU stores it when the stream's waits have ended,
 * each by its value or by poison, and poison comes after the broker's note (shm/blocks/fence.h): so
 * who sees the own value sees the note of each death that has released the stream. C3  The stamps
 * are those of the stream, not of the section's arrays alone: what the stream computed from an
 * earlier section stands in memory that nobody but its user knows. C4  After an answer none of the
 * section's work is under way, whatever the answer is.
 *
 * Owner: the caller. It is plain memory, that owns nothing and is never written after the end.
 *   A producer dies before its work is submitted: the begin has waited for it, and says so.
 *     While the stream waits for it: poison ends that, the work runs on what was there, and the end
 *     says so, or the completion where the end came first. After its value: nothing is wrong.
 *   Who waits dies: nobody depends on it. Its context fails: -ENODEV.
 *   The broker dies: what has passed is told all the same; what has not is -ECONNRESET, since
 *     nobody would tell of a death.
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
