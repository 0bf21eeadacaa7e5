/*
 * Fences of this process: one a CUDA stream, and how streams wait for those of other processes.
 *
 * Pages of fences (CW_SEGMENT_FENCES: header, then CW_FENCES_PER_PAGE fences at CW_PAGE) are made
 * by the broker, one session's each, so that it can poison them. A fence's number is
 * page * CW_FENCES_PER_PAGE + index; numbers are never given out again in a run of the broker, and
 * 0 is none. A process maps its own pages and, when it meets a stamp of another, that page, once;
 * it registers each with CUDA (all contexts) and keeps both until it ends: unregistering blocks
 * while any stream waits.
 *
 * The four rules
 *   1 One writer. A stream has one fence, found by the stream's id (cuStreamGetId: handles are
 *     reused, ids are not). Values begin at 1 and only rise.
 *   2 A stream waits only for what is submitted: if the fence's enqueued word is below the stamp's
 *     value, the CPU waits until it is not. At most CW_STREAM_WAITS_MAX streams of a process wait
 *     on the GPU at once; a further one waits on the CPU.
 *   3 Poison: when a fence's process is dead the broker stores poison, which ends every wait. After
 *     each wait, and at the next call that touches the array, the stamps are looked at again: not
 *     reached means -EOWNERDEAD. What a write had waited for is looked at as well (order.h).
 *   4 Nothing of ours stands in the default stream (0, 1 and 2 as handles): waits for its sake are
 *     done by the CPU, and its work is stamped through a stream of ours that waits for an event.
 *     In a stream that is being captured every call here is -EINVAL.
 *
 * Owner: the client, under its fences' own lock, which is never held while anything waits. Dies the
 * process: the broker notes and poisons; what it had submitted may still run, and its memory comes
 * back only after the poison is final. Dies the broker: pages stay mapped and go on working among
 * those who have them; a stamp whose page is not mapped here is -ECONNRESET.
 * Fork: nothing here may be used in the child; the client's forked word says so.
 */
#ifndef CW_IPC_FENCE_H
#define CW_IPC_FENCE_H

#include "ipc/client.h"
#include "shm/order.h"

#define CW_STREAM_WAITS_MAX 4u

/* Has the work behind this stamp passed? 1 yes, 0 not yet, -EOWNERDEAD: its process died before.
 * Opens the fence's page when it is not mapped: may ask the broker the first time. The caller does
 * NOT hold client->lock. */
int cw_stamp_poll(cw_client *client, cw_stamp stamp);
/* Waits for it on the CPU. 0, -EOWNERDEAD, -ETIMEDOUT, -EINTR, -ECONNRESET. */
int cw_stamp_wait(cw_client *client, cw_stamp stamp, int64_t timeout_ns);
/*
 * May the owner carve this block anew? True when its last write and all reads have passed or belong
 * to the dead (whose poison is final). Called by the heap with client->lock held, so it never asks
 * the broker and never blocks: a page that is not mapped counts as not passed, and is noted to be
 * opened at the next call without the lock.
 */
bool cw_order_passed(cw_client *client, struct cw_slab *slab, uint32_t block);
/* The same before the memory is forgotten: a block with work of ours under way that is dropped.
 * Ends all that belongs to the client's streams. */
void cw_fences_deinit(cw_client *client);

/* ---- public: these go into causeway.h together with their functions (the Python package is linked
 * against all that stands there) ---- */

/*
 * Work on a GPU array that a stream is given between begin and end is put in order with that of
 * other streams, in whichever process, without the CPU: the stream waits for the last write (a
 * writer also for the reads under way), and the next user waits for this one. stream is a CUstream
 * of this process on any GPU; 0, 1 and 2 are CUDA's default streams, where begin waits on the CPU.
 * Call end on the same thread, after the work was submitted; between the two, submit to this stream
 * alone. A stream under capture is refused (-EINVAL). Host arrays: nothing to be done, 0.
 *
 * begin blocks while another writes (submits), while what it must wait for is not submitted yet,
 * and when CW_STREAM_WAITS_MAX streams of this process wait already; timeout_ns bounds it.
 * -ETIMEDOUT and -EINTR: nothing was begun. -EOWNERDEAD: who wrote last died before it was complete
 * (nothing was begun); writing_begin does not say so, since it is about to write anew.
 *
 * whole 1: all of the array is written, so that what was incomplete before does not matter.
 * end: 0, or -EOWNERDEAD when what the work waited for died meanwhile: the result is no good, and
 * whoever reads the array is told so too.
 */
int cw_array_writing_begin(cw_array *array, void *stream, int64_t timeout_ns);
int cw_array_writing_end(cw_array *array, void *stream, int whole);
int cw_array_reading_begin(cw_array *array, void *stream, int64_t timeout_ns);
int cw_array_reading_end(cw_array *array, void *stream);
/* Waits on the CPU until the array's last write is complete. 0, -EOWNERDEAD, -ETIMEDOUT, -EINTR. */
int cw_array_wait(cw_array *array, int64_t timeout_ns);

#endif
