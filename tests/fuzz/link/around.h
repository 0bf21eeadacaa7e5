/*
 * What lies around the bridge of fuzz_link.c, played by around.c: sockets that take all
 * and tell nothing, TLS that is none, helpers that work at once, and the channel to the broker,
 * whose answers the input gives. One thread.
 */
#ifndef CW_FUZZ_AROUND_H
#define CW_FUZZ_AROUND_H

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/download.h"
#include "broker/bridge/fetch/replica.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/link/streams.h"
#include "broker/bridge/local/job.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/serve/deferred.h"
#include "broker/bridge/serve/incoming_put.h"
#include "broker/bridge/serve/name_lists.h"
#include "broker/bridge/serve/serve.h"
#include "broker/bridge/serve/upload.h"
#include "broker/bridge/wire/frame.h"
#include "broker/bridge/wire/send.h"
#include "broker/bridge/wire/turns.h"
#include "broker/bridge/wire/wire.h"

void promise(bool kept);

/* A bridge with one peer, "evil", which may do everything; the caller's, as the peer is. */
struct cwb_peer *around_begin(struct cwb_bridge *bridge);
/* Each of so many jobs was answered once, or cancelled. Frees what around_begin() made. */
void around_end(struct cwb_bridge *bridge, uint64_t jobs);
int around_socket(void);
/* Sockets connect, send and close, helpers are done. */
void around_turn(struct cwb_bridge *bridge);
/* The broker gives a job, or takes one back. false: no NEXT waits. */
bool around_job(struct cwb_bridge *bridge, const void *body, uint32_t body_bytes);
/* The broker answers one of what it was asked. false: there is none. */
bool around_answer(struct cwb_bridge *bridge, uint8_t which, uint8_t how);
/* A name of ours means another put from now on: who watches it is to be told. */
void around_change(uint8_t which);
/* A part of s/tree, which has two and is never replaced, more often than not. */
void around_part(uint8_t how, struct cwb_part *out);
/* An array of ours, as a put has it. */
void around_handle(uint8_t which, struct cw_remote *remote);
uint64_t around_hash(const void *bytes, uint64_t size_bytes);
/* Of as many pieces of zeros as an array has; the size by number. */
uint64_t around_hash_of_zeros(uint64_t number);

#endif
