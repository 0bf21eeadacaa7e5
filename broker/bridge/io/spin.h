/*
 * Spin policy: when the loop looks for what comes, again and again, in place of sleeping. To wake a
 * process on another core costs both sides some 10 us and more, several times what a small answer
 * costs, so for as long as one wake-up takes (CW_SPIN_NS) it spins
 *   after it answered a client that asked again within that time, from another core, and,
 *   where there are CWB_SPIN_CORES or more, so that it takes none from who has the work,
 *   after it asked a peer on behalf of a client that waits: for the answer;
 *   after it answered a peer that asked again within that time: for the next.
 * Back-off: where the answer did not come in that time twice in a row (the node is far away), it
 * sleeps the next 1, 2, up to 2^CWB_SPIN_BACKOFF_MAX times. Idle, it sleeps.
 */
#ifndef CW_BROKER_BRIDGE_IO_SPIN_H
#define CW_BROKER_BRIDGE_IO_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define CWB_SPIN_CORES       4u
#define CWB_SPIN_BACKOFF_MAX 5u

struct cwb_spin {
    bool spare; /* cores */
    int64_t until_ns;
    int64_t asked_ns; /* since when it has spun for an answer; 0: it does not */
    unsigned backoff; /* answers that are not spun for; */
    unsigned misses;  /* answers in a row that came too late; ipc/client.h has the same for a client
                         that waits */
};

void cwb_spin_init(struct cwb_spin *spin, unsigned cores);
/* A peer was asked; the client's answer is given later. */
void cwb_spin_asked(struct cwb_spin *spin, int64_t now_ns);
/* A client's answer is given. again: it asked soon after its last one, from another core. */
void cwb_spin_answered(struct cwb_spin *spin, bool again, int64_t now_ns);
/* A peer's question was answered at once. *last_ns: when it was last, 0 at first; kept here. */
void cwb_spin_served(struct cwb_spin *spin, int64_t *last_ns, int64_t now_ns);
/* A client asked: that is what the loop spun for. */
void cwb_spin_end(struct cwb_spin *spin);

#endif
