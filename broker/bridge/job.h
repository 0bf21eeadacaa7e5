/*
 * Job: what a local client wants of another node, as the broker handed it over. It ends with one
 * cwb_job_done(); if this process dies first, the broker gives it to the next one. Who holds a job
 * sets on_cancel while it can be given up: nobody waits for the answer then, and none is given.
 */
#ifndef CW_BRIDGE_JOB_H
#define CW_BRIDGE_JOB_H

#include "broker/bridge/parts.h"
#include "ipc/name_key.h"

struct cwb_visitor;

struct cwb_job {
    uint64_t id;                 /* the broker's; 0: it came by the door */
    struct cwb_visitor *visitor; /* whose it is then; NULL: nobody's any more */
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

/* Begins what a client asked, by the broker or by the door (id 0). */
void cwb_job_begin(struct cwb_bridge *bridge, struct cwb_visitor *visitor, uint64_t id,
                   const uint8_t *body, uint32_t body_bytes);
/* Frees it without an answer: whoever calls answers for its number, which is returned. */
uint64_t cwb_job_release(struct cwb_job *job);

/* put.c, ask.c: begin a job; they own it from then on. */
void cwb_job_put(struct cwb_job *job);
void cwb_job_ask(struct cwb_job *job);
/* The text about all peers. */
void cwb_job_peers(struct cwb_job *job);
/* Answers with an array of bytes: count texts, each terminated. */
void cwb_job_texts(struct cwb_job *job, const char *texts, uint64_t size_bytes, uint64_t count);

#endif
