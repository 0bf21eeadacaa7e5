/*
 * Arrays of a peer, read into our memory. See download.c.
 */
#ifndef CW_BROKER_BRIDGE_FETCH_DOWNLOAD_H
#define CW_BROKER_BRIDGE_FETCH_DOWNLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/cableway.h"

struct cwb_bridge;
struct cwb_peer;
struct cwb_download_state;

struct cwb_download { /* embedded in its owner's struct, which stays until on_done */
    /* status 0: all bytes are in array, checked. Else cw_detail() has the sentence. */
    void (*on_done)(struct cwb_download *download, int status);
    /* Bytes from the begin on, without a gap, are here and hashed; told when they are
     * progress_bytes more, or all: before on_done. NULL: nobody asks. It ends nothing. */
    void (*on_progress)(struct cwb_download *download, uint64_t bytes);
    /* set by the owner */
    struct cwb_bridge *bridge;
    struct cwb_peer *peer;
    uint64_t source, size_bytes, progress_bytes;
    int64_t wait_ns;     /* as cwb_peer_await(); 0: CWB_SILENCE_NS, as a client waits for it */
    cw_array *array;     /* plain bytes, the download's until done */
    uint64_t ring_bytes; /* 0: array has them all; else it is a ring of so many, at least
                            CWB_READ_MAX, of which cwb_download_consumed() gives bytes back */
    /* download.c's */
    struct cwb_download_state *state;
};
/* All large downloads of the peer go on over streams that have just opened, or over its link, if
 * its last stream ended. */
void cwb_downloads_spread(struct cwb_peer *peer);
/* A peer is heard, and sent nothing of this for stall_ns: -EREMOTEIO with the sentence. */
int cwb_stalled(const struct cwb_bridge *bridge, const struct cwb_peer *peer, const char *what);
/* Fails those of which nothing comes. Returns when it wants to be called again. */
int64_t cwb_downloads_tick(struct cwb_bridge *bridge);
/* Begins to read; array is there. */
void cwb_download_begin(struct cwb_download *download, uint64_t run);
/* A ring: bytes from the begin on that are needed there no more. */
void cwb_download_consumed(struct cwb_download *download, uint64_t bytes);
/* How much of the ring it uses: byte i lies at i modulo this. It has begun, and is not done. */
uint64_t cwb_download_ring_bytes(const struct cwb_download *download);
/* What was opened there is not read at all: the peer need not keep it. */
void cwb_download_refuse(struct cwb_peer *peer, uint64_t run, uint64_t source);
/* Nobody wants it any more: on_done is not called. The array stays the owner's. */
void cwb_download_cancel(struct cwb_download *download);

#endif
