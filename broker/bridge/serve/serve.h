/*
 * What peers ask of this node, and requests of theirs that are answered later. See serve.c.
 */
#ifndef CW_BROKER_BRIDGE_SERVE_SERVE_H
#define CW_BROKER_BRIDGE_SERVE_SERVE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "broker/bridge/link/link.h"

struct cw_changed;
struct cw_entry;

struct cwb_served { /* a request of theirs that is answered later */
    uint64_t id;
    uint16_t op;
    struct cwb_link *link;                  /* NULL: it ended, nobody hears the answer */
    void (*on_cancel)(struct cwb_served *); /* CANCEL, or its link ended: NULL: goes on */
    void *owner;
    struct cwb_served *next, *prev; /* its keeper's */
    int64_t deferred_ns; /* deferred.c: since when it waits for the broker; 0: it does not */
    struct cwb_served *deferred_next, *deferred_prev;
    UT_hash_handle hh;
};
/* NULL: there is no memory (cw_detail()), and nobody was answered. */
struct cwb_served *cwb_served_new(struct cwb_link *link, const struct cwb_frame *frame);
/* Takes it from its link, to be answered there in another way, and frees it. */
struct cwb_link *cwb_served_leave(struct cwb_served *served);
/* Answers and frees it. status < 0: cw_detail() is the sentence. */
void cwb_served_reply(struct cwb_served *served, int status, const struct iovec *parts,
                      uint32_t count);
/* It is answered so, and its on_cancel called: with or without an answer of its own it goes its
 * way. status < 0: cw_detail() is the sentence. */
void cwb_served_refuse(struct cwb_served *served, int status);
/* Names of this node changed: who waits for one, and who holds what one meant, is told, soon. */
void cwb_serve_changes(struct cwb_bridge *bridge, const struct cw_changed *changed);
/* -ENOENT, with the sentence for a peer. */
int cwb_not_there(const char *name);
/* May a peer write this name? false: cw_detail() says so. */
bool cwb_may_write(const struct cwb_bridge *bridge, const struct cwb_peer *peer, const char *key,
                   uint32_t key_bytes);
/* May a peer read this name, put as the record says? */
bool cwb_may_read(const struct cwb_peer *peer, const char *name, const struct cw_entry *entry);
/* Is there a name that this peer may read, and (unless after is NULL) does it mean a later version
 * than that one? 0; -ENOENT; CW_WOULD_WAIT: something must be mapped first. */
int cwb_is_there(struct cwb_bridge *bridge, const struct cwb_peer *peer, const char *key,
                 uint32_t key_bytes, const struct cwb_after *after);
/* Some of the changes are looked at, if any are to be. Asks nobody: what it needs is mapped first,
 * by a helper. Once a turn. */
void cwb_changes_turn(struct cwb_bridge *bridge);
/* Are there changes to be looked at now? */
bool cwb_changes_due(const struct cwb_bridge *bridge);
/* Answers a NAMES and frees it: names is malloced (NULL: none) and taken over. status < 0:
 * cw_detail() is the sentence. */
void cwb_list_answer(struct cwb_served *served, int status, char *names, uint64_t size_bytes);
/* Does anybody want to be told? */
bool cwb_serve_watches(const struct cwb_bridge *bridge);
/* One request of theirs. 0, or -EPROTO: a breach. */
int cwb_serve(struct cwb_link *link, const struct cwb_frame *frame);
/* The link ends: nothing is answered any more. */
void cwb_serve_end(struct cwb_link *link);

#endif
