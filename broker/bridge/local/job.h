/*
 * Job: what a local client wants of another node, as the broker handed it over. It ends with one
 * cwb_job_done(); if this process dies first, the broker gives it to the next one. Who holds a job
 * sets on_cancel while it can be given up: nobody waits for the answer then, and none is given.
 */
#ifndef CW_BROKER_BRIDGE_LOCAL_JOB_H
#define CW_BROKER_BRIDGE_LOCAL_JOB_H

#include <stdint.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/memory.h"
#include "ipc/base/name_key.h"

struct cwb_local_client;

struct cwb_job {
    uint64_t id;               /* the broker's; 0: it came over the fast path */
    struct cw_remote_job head; /* as the broker gave it; zero: the same */
    uint64_t asked_of;         /* once.h: of which run of the peer's broker; 0: of none yet */
    struct cwb_local_client *local_client; /* whose it is then; NULL: nobody's any more */
    struct cwb_bridge *bridge;
    struct cwb_peer *peer;
    struct cw_remote remote;
    struct cw_name_key key;   /* as the client has it: namespace, NUL, //node/name */
    struct cw_name_key there; /* namespace, NUL, name */
    void (*on_cancel)(struct cwb_job *);
    void *owner;          /* whose on_cancel it is */
    struct cwb_job *next; /* its holder's */
    UT_hash_handle hh;
    uint8_t meta[]; /* PUT: remote.meta_bytes */
};

/* Answers and frees it. status < 0: cw_detail() is the sentence; else the body of the reply. */
void cwb_job_done(struct cwb_job *job, int status, const void *body, uint32_t body_bytes);

/* Begins what a client asked, by the broker or over the fast path (head NULL). 0, or -EDQUOT: there
 * is no job, and nobody was answered. */
int cwb_job_begin(struct cwb_bridge *bridge, struct cwb_local_client *local_client,
                  const struct cw_remote_job *head, const uint8_t *body, uint32_t body_bytes);
/* Frees it without an answer: whoever calls answers for its number, which is returned. */
uint64_t cwb_job_release(struct cwb_job *job);

/* 0 or -EDQUOT. */
int cwb_jobs_init(struct cwb_bridge *bridge);
/* Asks for changes where they are wanted. Returns when it wants to be called again. */
int64_t cwb_jobs_tick(struct cwb_bridge *bridge);
/* From now on changes of names are to be told (cwb_serve_changes). */
void cwb_jobs_watch(struct cwb_bridge *bridge);

#endif
