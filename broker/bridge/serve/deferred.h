/*
 * What peers ask of this node that needs our broker. See deferred.c.
 */
#ifndef CW_BROKER_BRIDGE_SERVE_DEFERRED_H
#define CW_BROKER_BRIDGE_SERVE_DEFERRED_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/bridge/wire/frame.h"

struct cwb_bridge;
struct cwb_link;
struct cwb_served;
struct cw_name_key;

/* A look-up for which something is not mapped: it is served again when it is. */
void cwb_defer(struct cwb_link *link, const struct cwb_frame *frame);
/* The same, where what is mapped has another key than the one that was asked for; NULL: that. */
void cwb_defer_for(struct cwb_link *link, const struct cwb_frame *frame,
                   const struct cw_name_key *key);
/* From now on it waits for the broker, and is refused (cwb_served_refuse) if that stands: it has an
 * on_cancel. May be repeated. */
void cwb_deferred_begin(struct cwb_served *served);
/* It does no more; or it is answered, or its link ends (serve.c). May be repeated. */
void cwb_deferred_end(struct cwb_served *served);
/* Is it known that the broker stands? Then -EREMOTEIO, and nothing is to be begun; else 0. again:
 * what is asked may have been done before. */
int cwb_deferred_refuse(const struct cwb_bridge *bridge, uint16_t op, bool again);
/* Asks the broker for a sign of life, unless it is being asked. 0, or -EREMOTEIO: it has given none
 * since it was asked, for as long as those above wait. */
int cwb_deferred_probe(struct cwb_bridge *bridge);
/* Refuses. Returns when it wants to be called again. */
int64_t cwb_deferred_tick(struct cwb_bridge *bridge);

#endif
