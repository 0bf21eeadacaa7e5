/*
 * Deeds: puts and removes at a peer, which are asked for until they are answered and done once.
 *
 * The asker's broker numbers them, whoever of its bridges asks; the peer's broker notes which it
 * has done (broker/roles/once.h). So they may be asked again of the same run of that broker, over
 * any connection, and of no other, which knows nothing:
 *
 *   not asked yet --asked--> open --answered--> over
 *                             |  ^
 *                the link ends|  |a link to the same run of the broker: asked again (CWB_AGAIN)
 *                             v  |
 *                           between --another run, or none in CWB_SILENCE_NS--> not known
 *
 * A job that an earlier bridge of ours had begins "between". Which run it was asked of died with
 * that bridge: it is this one if this one ran already when our broker took the job.
 */
#ifndef CW_BROKER_BRIDGE_LOCAL_ONCE_H
#define CW_BROKER_BRIDGE_LOCAL_ONCE_H

#include "broker/bridge/local/broker_channel.h"
#include "broker/bridge/local/job.h"

/* CLOCK_BOOTTIME, which goes on while a machine is suspended. */
uint64_t cwb_deed_now_ns(void);
/* A HELLO says that its broker has run for up_ns: the moment at which it surely did, as clocks of
 * two machines may differ by 1 in 1000. */
uint64_t cwb_deed_since_ns(uint64_t up_ns);
/* How long a link is waited for. */
int64_t cwb_deed_wait_ns(const struct cwb_job *job);
/* A link is there: token and flags of the request. 0, or -EREMOTEIO: it was asked of another run,
 * and whether it was done is not known. */
int cwb_deed_ask(struct cwb_job *job, const struct cwb_link *link, struct cwb_token *token,
                 uint32_t *flags);
/* It fails on this side, by code and this thread's last sentence: returns code, or, if it was asked
 * before, -EREMOTEIO: whether it was done is not known. */
int cwb_deed_fail(const struct cwb_job *job, int code);
/*
 * What a peer asks for, here, by the broker, as cwd_deed(). It is asked over the broker channel, so
 * the loop does not wait, and what is asked first is done first; the answer goes to on_answer,
 * until which owner stays. 0, or a negative code: nothing was asked.
 */
/* One that may have been asked for before (CWB_AGAIN): was it done? 0: it was; -ENOENT: it was not.
 * This is asked before anything else can refuse it. */
int cwb_deed_asked(const struct cwb_peer *peer, struct cwb_bridge *bridge,
                   const struct cwb_token *token, cwb_on_answer *on_answer, void *owner);
int cwb_deed_remove(const struct cwb_peer *peer, struct cwb_bridge *bridge,
                    const struct cwb_token *token, uint32_t flags, const struct cw_name_key *name,
                    cwb_on_answer *on_answer, void *owner);
/* array: plain bytes, which get the layout that meta says, or (CW_PUT_TREE) the index of a tree of
 * this node, an anchor; it stays until the answer, of which cwb_deed_version() takes the version.
 */
int cwb_deed_put(const struct cwb_peer *peer, struct cwb_bridge *bridge,
                 const struct cwb_offer *offer, const struct cw_name_key *name, cw_array *array,
                 const void *meta, cwb_on_answer *on_answer, void *owner);

/* Which version a put or ASK that was answered with 0 gave: of a tree; else 0. */
uint64_t cwb_deed_version(const void *body, uint32_t body_bytes);

#endif
