/*
 * Parked READs: those of a staged upload whose bytes are not here yet (staging.h). Each holds a
 * reference to the upload, and is in the list of its staging until it is answered, or its link or
 * stream ends. The loop's thread owns all.
 */
#ifndef CW_BROKER_BRIDGE_SERVE_PARKED_READS_H
#define CW_BROKER_BRIDGE_SERVE_PARKED_READS_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/bridge/wire/frame.h"

struct cwb_served;
struct cwb_stream;
struct cwb_upload;

struct cwb_parked_read {
    struct cwb_upload *upload; /* one reference */
    struct cwb_served *served; /* NULL: over a stream, with id */
    struct cwb_stream *stream;
    uint64_t id;
    struct cwb_read read;
    int64_t since_ns;
    struct cwb_parked_read **list; /* in which it is */
    struct cwb_parked_read *prev, *next;
};

/* Parks a READ like this. false: there is no memory (cw_detail()). */
bool cwb_parked_read_add(struct cwb_parked_read **list, const struct cwb_parked_read *what);
/* It is gone, without an answer; its upload stays. */
void cwb_parked_read_remove(struct cwb_parked_read *parked);
/* Answers a READ that is not parked, or no more: by its bytes (false: its connection ends, and they
 * are not held), or by this thread's sentence. */
bool cwb_parked_read_send(const struct cwb_parked_read *what, const uint8_t *bytes);
void cwb_parked_read_refuse(const struct cwb_parked_read *what, int status);
/* All hear this thread's sentence. */
void cwb_parked_reads_refuse(struct cwb_parked_read **list, int status);
/* The stream ended: nothing is answered over it. */
void cwb_parked_reads_forget(struct cwb_parked_read **list, const struct cwb_stream *stream);

#endif
