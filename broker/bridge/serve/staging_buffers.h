/*
 * Staging buffers: the host memory in which chunks of a staged array lie (staging.h), a ring of
 * CWB_STAGING_BUFFERS at most. A chunk lies in one buffer, or is away.
 *
 *   a buffer: empty, or its chunk may go --fill--> filling --> full --pieces hold it--> held
 *              ^--all of it was sent, or another chunk is demanded, and nobody holds it--+
 *
 * Invariant: the loop alone gives a buffer another chunk, and only one that nobody holds; so who
 * holds one may read its bytes without the lock. All else is under the lock, which is held for some
 * instructions: I/O threads find what is there, and let go of it, without the loop. Threads end
 * with the process alone.
 */
#ifndef CW_BROKER_BRIDGE_SERVE_STAGING_BUFFERS_H
#define CW_BROKER_BRIDGE_SERVE_STAGING_BUFFERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "broker/bridge/wire/frame.h"

#define CWB_STAGING_BUFFERS 8u
#define CWB_NO_CHUNK        UINT64_MAX

struct cwb_staging_buffer {
    uint64_t chunk;       /* CWB_NO_CHUNK: none */
    uint64_t valid_bytes; /* from its begin on; 0 while it is being filled */
    uint64_t sent_bytes;
    uint32_t holds; /* pieces, and the hash */
    bool filling;
    uint64_t turn; /* when it was filled: the oldest is taken first */
};

struct cwb_staging_buffers {
    /* fixed; bytes before anything is filled */
    uint8_t *bytes;
    uint64_t size_bytes, chunk_count; /* of the array */
    uint32_t chunk_bytes, buffer_bytes, count;
    /* the lock's */
    pthread_mutex_t lock;
    bool demanded; /* a buffer is wanted although not all of it was sent */
    uint64_t turns;
    struct cwb_staging_buffer buffers[CWB_STAGING_BUFFERS];
};

void cwb_staging_buffers_init(struct cwb_staging_buffers *buffers, uint64_t size_bytes,
                              uint32_t chunk_bytes);
void cwb_staging_buffers_deinit(struct cwb_staging_buffers *buffers);
/* So much memory they take. */
uint64_t cwb_staging_buffers_bytes(const struct cwb_staging_buffers *buffers);
uint64_t cwb_staging_buffers_length(const struct cwb_staging_buffers *buffers, uint64_t chunk);

/* ---- the loop's ---- */
/* The buffer of a chunk; NULL: it is away. */
struct cwb_staging_buffer *cwb_staging_buffers_of(struct cwb_staging_buffers *buffers,
                                                  uint64_t chunk);
uint8_t *cwb_staging_buffers_at(const struct cwb_staging_buffers *buffers,
                                const struct cwb_staging_buffer *buffer);
/* A buffer for a chunk, which is filling from now on: an empty one, else the one that was filled
 * first of those that were sent, or, where it is demanded, of others too, but for chunks from keep
 * on. NULL: there is none. */
struct cwb_staging_buffer *cwb_staging_buffers_begin(struct cwb_staging_buffers *buffers,
                                                     uint64_t chunk, bool demanded, uint64_t keep);
/* It has so many bytes of its chunk; 0: it failed. */
void cwb_staging_buffers_filled(struct cwb_staging_buffers *buffers,
                                struct cwb_staging_buffer *buffer, uint64_t valid_bytes);
/* Does somebody wait for a buffer? Said before one is looked for: who lets go later tells us. */
void cwb_staging_buffers_demand(struct cwb_staging_buffers *buffers, bool demanded);
void cwb_staging_buffers_hold(struct cwb_staging_buffers *buffers,
                              struct cwb_staging_buffer *buffer);
void cwb_staging_buffers_unhold(struct cwb_staging_buffers *buffers,
                                struct cwb_staging_buffer *buffer);

/* ---- any thread ---- */
/* Where the bytes of a READ lie, whose buffer is held for it; NULL: not all are there. */
const uint8_t *cwb_staging_buffers_acquire(struct cwb_staging_buffers *buffers,
                                           const struct cwb_read *read);
/* Where they lie; the buffer is held. */
const uint8_t *cwb_staging_buffers_held(struct cwb_staging_buffers *buffers, uint64_t offset_bytes);
/* Lets go; sent: these bytes went out. true: the loop is to look for what it can fill. */
bool cwb_staging_buffers_release(struct cwb_staging_buffers *buffers, uint64_t offset_bytes,
                                 uint32_t length_bytes, bool sent);

#endif
