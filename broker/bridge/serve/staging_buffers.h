/*
 * Slots: the host memory in which chunks of a staged array lie (staging.h), a ring of CWB_SLOTS at
 * most. A chunk lies in one slot, or is away.
 *
 *   a slot: empty, or its chunk may go --fill--> filling --> full --pieces hold it--> held
 *              ^--all of it was sent, or another chunk is demanded, and nobody holds it--+
 *
 * Invariant: the loop alone gives a slot another chunk, and only one that nobody holds; so who
 * holds one may read its bytes without the lock. All else is under the lock, which is held for some
 * instructions: strands find what is there, and let go of it, without the loop. Threads end with
 * the process alone.
 */
#ifndef CW_BROKER_BRIDGE_SERVE_STAGING_BUFFERS_H
#define CW_BROKER_BRIDGE_SERVE_STAGING_BUFFERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "broker/bridge/wire/frame.h"

#define CWB_SLOTS    8u
#define CWB_NO_CHUNK UINT64_MAX

struct cwb_slot {
    uint64_t chunk;       /* CWB_NO_CHUNK: none */
    uint64_t valid_bytes; /* from its begin on; 0 while it is being filled */
    uint64_t sent_bytes;
    uint32_t holds; /* pieces, and the hash */
    bool filling;
    uint64_t turn; /* when it was filled: the oldest is taken first */
};

struct cwb_slots {
    /* fixed; bytes before anything is filled */
    uint8_t *bytes;
    uint64_t size_bytes, chunks; /* of the array */
    uint32_t chunk_bytes, slot_bytes, count;
    /* the lock's */
    pthread_mutex_t lock;
    bool demanded; /* a slot is wanted although not all of it was sent */
    uint64_t turns;
    struct cwb_slot slots[CWB_SLOTS];
};

void cwb_slots_init(struct cwb_slots *slots, uint64_t size_bytes, uint32_t chunk_bytes);
void cwb_slots_deinit(struct cwb_slots *slots);
/* So much memory they take. */
uint64_t cwb_slots_bytes(const struct cwb_slots *slots);
uint64_t cwb_slots_length(const struct cwb_slots *slots, uint64_t chunk);

/* ---- the loop's ---- */
/* The slot of a chunk; NULL: it is away. */
struct cwb_slot *cwb_slots_of(struct cwb_slots *slots, uint64_t chunk);
uint8_t *cwb_slots_at(const struct cwb_slots *slots, const struct cwb_slot *slot);
/* A slot for a chunk, which is filling from now on: an empty one, else the one that was filled
 * first of those that were sent, or, where it is demanded, of others too, but for chunks from keep
 * on. NULL: there is none. */
struct cwb_slot *cwb_slots_begin(struct cwb_slots *slots, uint64_t chunk, bool demanded,
                                 uint64_t keep);
/* It has so many bytes of its chunk; 0: it failed. */
void cwb_slots_filled(struct cwb_slots *slots, struct cwb_slot *slot, uint64_t valid_bytes);
/* Does somebody wait for a slot? Said before one is looked for: who lets go later tells us. */
void cwb_slots_demand(struct cwb_slots *slots, bool demanded);
void cwb_slots_hold(struct cwb_slots *slots, struct cwb_slot *slot);
void cwb_slots_unhold(struct cwb_slots *slots, struct cwb_slot *slot);

/* ---- any thread ---- */
/* Where the bytes of a READ lie, whose slot is held for it; NULL: not all are there. */
const uint8_t *cwb_slots_take(struct cwb_slots *slots, const struct cwb_read *read);
/* Where they lie; the slot is held. */
const uint8_t *cwb_slots_held(struct cwb_slots *slots, uint64_t offset_bytes);
/* Lets go; sent: these bytes went out. true: the loop is to look for what it can fill. */
bool cwb_slots_let_go(struct cwb_slots *slots, uint64_t offset_bytes, uint32_t length_bytes,
                      bool sent);

#endif
