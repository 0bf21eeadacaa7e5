/*
 * Idle: links of which nobody has any use any more are closed, and lose nothing by it.
 *
 *   OPEN --nothing under way, nothing depends on it, --link-idle seconds long; who dialed says
 * IDLE--> PARTING --refused--> OPEN
 *           --its end--> gone; who wants the peer dials
 *
 * Invariant: nothing is under way on a link that ends idle, in either direction, and nothing that
 * this node has depends on it. For
 *   - who dialed it says IDLE only while it is idle here (cwb_link_is_idle). From then until the
 *     answer it sends nothing over it but PINGs and answers: who wants the peer waits
 *     (cwb_peer_await). It answers what the other side asked before that one has read the IDLE.
 *   - who hears IDLE has read all answers that were sent before it. Is the link idle there, too,
 * and can it dial itself, it ends it at once: nothing of either side can be under way then. Else it
 *     refuses, and nothing has changed.
 * One side alone says IDLE, so two never cross. Whoever wants the peer afterwards dials; where both
 * do, peer.h says which connection stays.
 *
 * Deaths: whoever dies or is cut while a link is PARTING ends it, and nothing was under way. Who
 * does not answer and is heard keeps waiters no longer than any request that it does not answer:
 * CWB_SILENCE_NS counts from when they came.
 *
 * A node that does not listen, or has --link-idle 0, dials all its peers at its start and keeps the
 * links: those that have no address of it would not reach it otherwise.
 */
#ifndef CW_BROKER_BRIDGE_LINK_IDLE_H
#define CW_BROKER_BRIDGE_LINK_IDLE_H

#include <stdbool.h>
#include <stdint.h>

#define CWB_IDLE_S 60u /* --link-idle: how long a link is kept that nobody uses */

struct cwb_bridge;
struct cwb_frame;
struct cwb_link;

/* Are links to all peers dialed at the start, and kept? */
bool cwb_links_stand(const struct cwb_bridge *bridge);
/* Is nothing under way on an open link, and does nothing here depend on it? */
bool cwb_link_is_idle(const struct cwb_link *link);
/* It is being used: something was asked, here or by the other side. */
void cwb_link_use(struct cwb_link *link);
/* Says IDLE when it is time. Returns when it wants to be called again; INT64_MAX: with the next
 * change. */
int64_t cwb_link_idle_tick(struct cwb_link *link);
/* The other side said IDLE: 0: refused; or a negative code: it ends. */
int cwb_link_take_idle(struct cwb_link *link, const struct cwb_frame *frame);

#endif
