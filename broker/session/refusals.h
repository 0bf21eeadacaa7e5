/*
 * Refusals: a process whose requests are refused again and again is heard later, so that others
 * keep the broker's time: a refusal costs the broker as much as what it refuses, and who is refused
 * asks again at once.
 *
 * Of each process some refusals are free; then it may cause REFUSALS_PER_SECOND. What is beyond
 * that is a debt, and after a refusal with a debt the session's request ring is not read until the
 * debt would be paid, but for REFUSALS_PAUSE_NS at most. So nothing is kept for it: what it asks
 * meanwhile stands in its own ring, and is answered later, in its order. The pause is bounded since
 * others wait for what stands in that ring, too (memory/reclaim.h): with a ring full of requests
 * that are all refused it is read through within 100 ms.
 *
 * Invariants
 *   A session that pauses is read again without anybody's doing: the loop's turn is due then.
 *   Nobody is paused for what another process did.
 *
 * Deaths: a session that ends is drained as any other. The broker's own bridge and mover, which ask
 * for others, are never paused. A broker that stops answers all.
 *
 * Owner: the loop's thread.
 */
#ifndef CW_BROKER_SESSION_REFUSALS_H
#define CW_BROKER_SESSION_REFUSALS_H

#include <stdbool.h>

struct cwd_broker;
struct cwd_session;

#define CWD_REFUSALS_PER_SECOND 1000.0
#define CWD_REFUSALS_AT_ONCE    200.0
#define CWD_REFUSALS_PAUSE_NS   5000000

/* A request of the session was refused. */
void cwd_refusal(struct cwd_broker *broker, struct cwd_session *session);
/* Is its request ring not to be read in this turn? Notes when it is. */
bool cwd_refusals_pause(struct cwd_broker *broker, struct cwd_session *session);

#endif
