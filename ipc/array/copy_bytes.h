/*
 * Bytes of arrays, copied between any two devices of this process by the route that there is.
 *
 *   host      both ends in host memory
 *   same      within one GPU
 *   peer      GPU to GPU, by the copy engine of the source (a push is 7 us cheaper than a pull);
 *             of the target where that is somebody else's memory, open to its GPU alone perhaps
 *   in, out   between host memory and a GPU. Our slabs are registered with CUDA at the first copy
 *             of a MiB and stay registered: copies are then three times as fast
 *   staged    GPU to GPU where the hardware has no direct route: through host memory (staging.h).
 *             If this process sees both GPUs it copies by itself, since it has contexts and
 *             mappings and can use a stream; else cableway-mover copies (mover_copy.h)
 * The session's segment counts bytes per route, so that an unexpected route can be seen.
 *
 * Nothing here pins an array or allocates one: whoever calls sees to it that both ends stay where
 * they are. So an eviction can copy by it, which is what moves them (evict.h).
 *
 * No state of its own. The caller holds leases on both blocks. If this process dies in a copy, the
 * target has some of the bytes. Others hear of an array only when it is complete.
 */
#ifndef CW_IPC_ARRAY_COPY_BYTES_H
#define CW_IPC_ARRAY_COPY_BYTES_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/cableway.h"
#include "shm/base/trace.h"
#include "shm/session/session.h"

struct cw_mapping;

/* One end of a copy. */
struct cw_copy_end {
    uint8_t *bytes;
    int gpu;                    /* -1: host memory */
    struct cw_mapping *mapping; /* of a slab of ours; NULL: somebody else's memory */
    cw_array *array;            /* and offset in it: for the mover, between two GPUs */
    uint64_t offset_bytes;
};

struct cw_copy_end cw_copy_end_of(cw_array *array, uint64_t offset_bytes);

/* The GPU that copies where no stream of the caller's says; one of both ends lies on one. */
int cw_copy_gpu(const struct cw_copy_end *target, const struct cw_copy_end *source);

/* ---- in no order with anybody ---- */

/* stream NULL: blocks until done. in_mover: this process is the mover, which it does not ask. */
int cw_copy_bytes(cw_client *client, const struct cw_copy_end *target,
                  const struct cw_copy_end *source, uint64_t size_bytes, void *stream,
                  bool in_mover);
/* The same from array to array. */
int cw_copy_one(cw_array *target, uint64_t target_bytes, cw_array *source, uint64_t source_bytes,
                uint64_t size_bytes, void *stream);
/* Enters the span of a copy between memory of these GPUs (-1: host memory), unless the thread is in
 * one already. Copies on the host count from CW_COPY_TRACED_BYTES on. Then cw_trace_leave(). */
#define CW_COPY_TRACED_BYTES (256u << 10)
void cw_copy_span(struct cw_trace_span *span, int to, int from, uint64_t size_bytes, void *stream);
/* Adds to the figures of a route. */
void cw_copy_count(cw_client *client, enum cw_route route, uint64_t size_bytes);

/* ---- in order with the arrays' other users ---- */

/* What CW_STREAM_OWN means: a stream of ours on the target's GPU; none where the target is host
 * memory, of which nobody could tell when it is complete. */
int cw_copy_own_stream(const struct cw_copy_end *target, void **stream);
/* A copy into an array by a stream, which others' work on the array comes after. from is no array
 * of others. Pins nothing. */
int cw_copy_ordered(cw_array *target, const struct cw_copy_end *to, const struct cw_copy_end *from,
                    uint64_t size_bytes, void *stream);

#endif
