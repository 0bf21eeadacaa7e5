/*
 * GPU receive: an array that comes into memory of a GPU of this node. The bridge has no driver:
 * cableway-mover makes the memory and copies into it, from a ring in host memory into which a
 * download reads the peer's bytes; so network and copy go on at once, and no more host memory is
 * needed than the ring, however large the array is.
 *
 *   BEGUN --ring--> COMING --all here, hash right--> COPYING --all copied--> told, gone
 *     +--memory, made meanwhile: copies begin--+          |
 *     +--it fails: whatever was made is freed, and its owner told
 *
 * Who has a place of the ring, at each moment:
 *   the download  from when it asks for its bytes until it has hashed them (on_progress)
 *   the receive   from then on; a copy job lets the mover read it
 *   the download  again, when the copy job and all before it are done (cwb_download_consumed)
 * A cut changes nothing: what is in the ring or on the GPU stays, and the download asks for the
 * rest.
 *
 * Invariant: nobody but us and the mover knows the memory until all bytes are there and their hash
 * is the peer's; then its owner gives it a name. On failure the block is closed, which frees it.
 *
 * Deaths: the mover: the broker has the copy job done again, from the same place of the ring to the
 * same bytes of the GPU; memory that was made and not yet told of goes with it
 * (broker/memory/transit.h). This process: the broker holds both ends of a copy job until it is
 * done; then all of it is free, memory that it was told of and had not opened, too. The owner:
 * cwb_gpu_receive_cancel() at any moment; what helpers have in hand goes when they are done.
 */
#ifndef CW_BROKER_BRIDGE_FETCH_GPU_RECEIVE_H
#define CW_BROKER_BRIDGE_FETCH_GPU_RECEIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/bridge/local/arrays.h"
#include "ipc/wire.h"

struct cwb_bridge;
struct cwb_gpu_receive;
struct cwb_peer;

struct cwb_gpu_receive_spec {
    uint64_t size_bytes; /* of the array */
    bool to_host;        /* of a local array: it is to lie in host memory */
    struct cw_make gpu;  /* else: which GPU; its size does not count */
    /* where the bytes are: one of these three */
    cw_array *local;       /* of this node, complete; the receive's from now on */
    const uint8_t *inside; /* copied at once */
    struct cwb_peer *peer; /* and its run and source: as a download has them */
    uint64_t run, source;
    int64_t wait_ns;
    /* The GPU is full. Has the owner made room, so that another try is worth it? NULL: no. */
    bool (*make_room)(void *owner);
};

/* on_done(owner, code, array): 0 and an array of plain bytes (not mapped), the owner's; else
 * cw_detail(): -EDQUOT (GPU or host memory), -ENODEV, or what the download says. Never from within.
 * NULL: there is no memory for the receive itself (cw_detail()), what the spec brought is given up,
 * and on_done is not called. */
struct cwb_gpu_receive *cwb_gpu_receive_begin(struct cwb_bridge *bridge,
                                              const struct cwb_gpu_receive_spec *spec,
                                              cwb_on_array *on_done, void *owner);
/* on_done is not called. NULL: nothing. */
void cwb_gpu_receive_cancel(struct cwb_gpu_receive *receive);
/* Tries again where there was no room. Returns when it wants to be called again. */
int64_t cwb_gpu_receives_tick(struct cwb_bridge *bridge);

#endif
