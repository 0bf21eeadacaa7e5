/*
 * Puts to a peer. See outgoing_put.c.
 */
#ifndef CW_BROKER_BRIDGE_LOCAL_OUTGOING_PUT_H
#define CW_BROKER_BRIDGE_LOCAL_OUTGOING_PUT_H

struct cwb_job;

/* Begins it; the job is owned from then on. */
void cwb_job_put(struct cwb_job *job);

#endif
