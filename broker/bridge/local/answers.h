/*
 * Texts for local clients. See answers.c.
 */
#ifndef CW_BROKER_BRIDGE_LOCAL_ANSWERS_H
#define CW_BROKER_BRIDGE_LOCAL_ANSWERS_H

#include <stdint.h>

struct cwb_job;

/* Answers with an array of bytes, texts that are each terminated. They are copied. */
void cwb_job_texts(struct cwb_job *job, const char *texts, uint64_t size_bytes);
/* The same of what the job's peer calls names: what are none are left out. */
void cwb_job_names(struct cwb_job *job, const char *texts, uint64_t size_bytes);

#endif
