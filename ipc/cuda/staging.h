/*
 * Stages: from GPU to GPU through host memory, where the hardware knows no other way.
 *
 * A stage belongs to a source GPU: CW_STAGE_CHUNKS pieces of registered host memory, used in turn.
 * A stream of the source GPU fills them, a stream of the target GPU empties them, and events put
 * the two in order, so that both directions are under way at once and the CPU only submits:
 *
 *   out (source GPU)   wait empty[i]   copy to piece i     record full[i]
 *   in  (target GPU)   wait full[i]    copy from piece i   record empty[i]
 *
 * Invariant: a piece is filled only when the copy that last read it has passed, whichever target
 * GPU that was for, and read only when its filling has passed. Both are the GPUs' own order:
 * everything is submitted under the stage's lock, and a wait refers to what was submitted before
 * it.
 *
 * State of the process; any thread. Pieces, streams and events stay until it ends. If it dies in
 * the middle the driver ends both streams; what the target then holds is the caller's matter. In a
 * forked child nothing of CUDA can be used, and cw_gpu_get() has said so.
 */
#ifndef CW_IPC_CUDA_STAGING_H
#define CW_IPC_CUDA_STAGING_H

#include "ipc/cuda/device.h"

/* Pieces are smaller where a copy is small, since its first and its last piece overlap with
 * nothing: a CW_STAGE_SHARE of it, within these bounds. */
#define CW_STAGE_SHARE       32u
#define CW_STAGE_LEAST_BYTES (512ull << 10)
#define CW_STAGE_CHUNK_BYTES (4ull << 20) /* 80 us of PCIe: long beside an event's 5 us */
#define CW_STAGE_CHUNKS      4u           /* one of jitter on either side of a double buffer */

/*
 * Copies between two GPUs whose contexts are open. stream NULL: blocks until it is done. Else the
 * copy comes after what that stream was given, and before what it is given later; the stream's
 * context is current. -EDQUOT: no memory for a stage. -ENODEV: CUDA refuses.
 */
int cw_stage_copy(struct cw_gpu *to, CUdeviceptr target, struct cw_gpu *from, CUdeviceptr source,
                  uint64_t size_bytes, CUstream stream);

#endif
