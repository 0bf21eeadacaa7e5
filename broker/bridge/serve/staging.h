/*
 * Staging: the bytes of an array on a GPU, as a peer reads them. The bridge has no driver, so
 * cableway-mover copies them to host memory, chunk by chunk, while others go out; no more than
 * CWB_STAGING_BUFFERS chunks (staging_buffers.h) are there at once, however large the array is.
 *
 *   a chunk: away --fill (mover)--> full --all of it was sent, or another is wanted--> away
 *
 *   a READ:  parked until the buffer of its chunk is full, then a piece that holds the buffer
 *            until it was encrypted, or dropped with its link
 *
 * Invariants: chunks are filled for the first time in order. Whoever sends a piece hashes it
 * (checksum.h), while its bytes lie in the core's cache; what was never sent is filled and hashed
 * for who closes. Who asks for a chunk again, after a cut, has it filled again: the array stays on
 * its GPU until the upload ends. A buffer is written by the mover alone from `filling` to the end
 * of its copy job, and never while a piece or the hash holds it; so whoever reads it reads what was
 * copied last.
 *
 * Order: nothing is copied before the array's last write is complete; a helper looks for that, with
 * back-off. Who writes into it between then and the end is found by the count of writes: the peer
 * is told -EAGAIN in place of the hash, and reads again.
 *
 * Deaths: the mover: the broker has the copy job done again, into the same buffer. The writer
 * before its work was complete: -EOWNERDEAD to all READs. The GPU, or no host memory: the same with
 * -ENODEV, -EDQUOT. The link: its READs are gone, what they held is free. The upload: the staging
 * is freed when the last helper is done with it. This process: the broker holds both ends of each
 * copy job.
 *
 * All of it is the loop's; helpers touch their own piece of work, and the buffer that it is about.
 * An I/O thread finds what is there, sends it and lets go of it without the loop, which hears of a
 * READ only if its bytes are away, and of a buffer when it may be filled anew.
 */
#ifndef CW_BROKER_BRIDGE_SERVE_STAGING_H
#define CW_BROKER_BRIDGE_SERVE_STAGING_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/bridge/wire/frame.h"
#include "ipc/cableway.h"

struct cwb_bridge;
struct cwb_served;
struct cwb_upload;
struct cwb_staging;
struct cwb_stream;

/* Begins to stage; array (CW_UNMAPPED) is the staging's from now on. The upload stays until
 * cwb_staging_end(). read_max: what a READ of this peer asks for. NULL: there is no memory, and the
 * array stays the caller's. */
struct cwb_staging *cwb_staging_new(struct cwb_bridge *bridge, struct cwb_upload *upload,
                                    cw_array *array, uint64_t size_bytes, uint32_t read_max);
/* A READ within the array: it is answered when its bytes are there, over its link (served), or over
 * a stream (served NULL). */
void cwb_staging_read(struct cwb_staging *staging, struct cwb_served *served,
                      struct cwb_stream *stream, uint64_t id, const struct cwb_read *read);
/* The stream ended: nothing is answered over it. */
void cwb_stagings_forget(struct cwb_bridge *bridge, struct cwb_stream *stream);
/* The hash over all is wanted: cwb_upload_staged() tells it, perhaps at once. */
void cwb_staging_close(struct cwb_staging *staging);
/* The bytes of a READ if they are there, for a piece, which holds their buffer; else NULL, and
 * cwb_staging_read() waits for them. Any thread. */
const uint8_t *cwb_staging_acquire(struct cwb_staging *staging, const struct cwb_read *read);
/* A piece lets go of its buffer. sent: its bytes went out. true: the loop is to look. Any
 * thread. */
bool cwb_staging_release(struct cwb_staging *staging, uint64_t offset_bytes, uint32_t length_bytes,
                         bool sent);
/* A buffer may be free to be filled. */
void cwb_staging_look(struct cwb_staging *staging);
/* The upload is gone: no piece refers to it any more. */
void cwb_staging_end(struct cwb_staging *staging);
/* Its upload ends, but pieces may be left: answers what is parked with -ESTALE and this thread's
 * sentence. Who asked for the hash is the upload's to tell: cwb_upload_staged() is not called any
 * more. */
void cwb_staging_drop(struct cwb_staging *staging);
/* Looks again at those that wait for a write. Returns when it wants to be called again. */
int64_t cwb_stagings_tick(struct cwb_bridge *bridge);

#endif
