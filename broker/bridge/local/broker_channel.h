/*
 * The broker channel: what the loop has to do with its own broker: jobs, their ends, replicas'
 * names, changes.
 *
 * The bridge is two clients of its broker. One, bridge->client, is as any: whoever of its threads
 * needs an array opened or made asks there, and may wait. This one belongs to the loop alone, which
 * never waits for it: what is asked is written at once, or, if the ring is full, when the broker
 * has read; what is answered is handed on in the loop's turns. So a job comes from the broker to
 * the loop, and its end goes back, without another thread in between. The role of the bridge
 * (broker/roles/remote.h) is this session's.
 *
 * The end of the broker, or of either session, is the end of this process.
 */
#ifndef CW_BROKER_BRIDGE_LOCAL_BROKER_CHANNEL_H
#define CW_BROKER_BRIDGE_LOCAL_BROKER_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

struct cwb_bridge;
struct cwb_broker_channel;

/* status < 0: cw_detail() is the sentence. body: the call's. */
typedef void cwb_on_answer(void *owner, int status, const void *body, uint32_t body_bytes);

/* Connects. 0 or a negative code. */
int cwb_broker_channel_new(struct cwb_bridge *bridge, struct cwb_broker_channel **out);
/* Asks; on_answer NULL: of an op without a reply, or nobody wants it: that never fails. Else 0 or
 * -EDQUOT: nothing was asked. Never waits, and on_answer comes in a later turn. What is asked
 * earlier is read earlier. */
int cwb_broker_channel_ask(struct cwb_broker_channel *channel, uint16_t op,
                           const struct iovec *parts, uint32_t count, cwb_on_answer *on_answer,
                           void *owner);
/* The session that it is to the broker. */
uint32_t cwb_broker_channel_session(const struct cwb_broker_channel *channel);
/* Ends this process if its broker is dead: before a peer is told what was read in its directory, as
 * there may be another broker by now, which knows something newer. */
void cwb_broker_channel_check(const struct cwb_broker_channel *channel);
/* Hands on what came. Once a turn. */
void cwb_broker_channel_turn(struct cwb_broker_channel *channel);
/* What was asked last need not wake the broker now: it does some milliseconds later, with what was
 * asked meanwhile. */
void cwb_broker_channel_batch_notify(struct cwb_broker_channel *channel);
/* true: what is asked from here on need not wake the broker at all; it is served when the broker
 * wakes for something else, which it does once a second while a bridge runs
 * (broker/roles/remote.c). */
void cwb_broker_channel_quiet(struct cwb_broker_channel *channel, bool quiet);
/* The broker is to be told of such ones now, after all. */
void cwb_broker_channel_flush(struct cwb_broker_channel *channel);
/* Wakes the broker if anything was asked. Once a turn, before the loop waits. Returns when it wants
 * to be called again, or INT64_MAX. */
int64_t cwb_broker_channel_notify(struct cwb_broker_channel *channel);
/* Before the loop sleeps: false: do not, something came. After it: rise. */
bool cwb_broker_channel_rest(struct cwb_broker_channel *channel);
void cwb_broker_channel_rise(struct cwb_broker_channel *channel);

#endif
