/*
 * Whether a member that waits gives its core to others (sched_yield) while it looks for who is
 * missing. Where members share cores it has to: the missing one may want this very core. Where
 * others compute, the core is theirs for a time slice then, and a sleeper that is woken gets a core
 * sooner than who has given it up. So a member that lost a time slice gives no core away for a
 * while, and sleeps at once. That is short at first, since one that is lost may be no more than a
 * timer's work, or another member's that copies; it becomes twice as long each time that it happens
 * again soon.
 *
 * Owner: the thread that is in an operation. Not shared; no clock is read here.
 */
#ifndef CW_IPC_GROUP_YIELDS_H
#define CW_IPC_GROUP_YIELDS_H

#include <stdbool.h>
#include <stdint.h>

#define YIELD_LOST_NS       500000    /* a core that comes back so late was lost for a time slice */
#define YIELD_PAUSE_NS      1000000   /* the first pause, */
#define YIELD_PAUSE_MOST_NS 100000000 /* and the longest one */
#define YIELDS_WELL         256       /* cores that came back soon: the next pause is a first one */

struct group_yields { /* zeros: none was given away yet */
    int64_t from_ns;  /* when a core is given away again, */
    int64_t pause_ns; /* and how long it was not */
    uint32_t well;    /* so many came back soon since then */
};

static inline bool group_may_yield(const struct group_yields *yields, int64_t now_ns) {
    return now_ns >= yields->from_ns;
}

/* A core that was given away then is back now. */
static inline void group_yielded(struct group_yields *yields, int64_t given_ns, int64_t back_ns) {
    if (back_ns - given_ns < YIELD_LOST_NS) {
        yields->well++;
        return;
    }
    int64_t pause_ns = yields->well < YIELDS_WELL ? 2 * yields->pause_ns : 0;
    pause_ns = pause_ns > YIELD_PAUSE_NS ? pause_ns : YIELD_PAUSE_NS;
    yields->pause_ns = pause_ns < YIELD_PAUSE_MOST_NS ? pause_ns : YIELD_PAUSE_MOST_NS;
    yields->from_ns = back_ns + yields->pause_ns;
    yields->well = 0;
}

#endif
