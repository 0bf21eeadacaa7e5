/*
 * Jobs that are one question to a peer. See questions.c.
 */
#ifndef CW_BROKER_BRIDGE_LOCAL_QUESTIONS_H
#define CW_BROKER_BRIDGE_LOCAL_QUESTIONS_H

struct cwb_job;

/* Begins it; the job is owned from then on. */
void cwb_job_ask(struct cwb_job *job);
/* The text about all peers. */
void cwb_job_peers(struct cwb_job *job);

#endif
