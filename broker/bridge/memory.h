/*
 * Memory of the bridge, and the want of it; the rule is in bridge.h. Tables are the broker's
 * (broker/core/table.h): after HASH_ADD(), CWD_ADDED() says whether it is in.
 */
#ifndef CW_BRIDGE_MEMORY_H
#define CW_BRIDGE_MEMORY_H

#include "broker/core/table.h"

/* The outcome of what a peer or a client asked for: -EDQUOT and its sentence. */
#define cwb_no_memory(what)                                                                        \
    cw_fail(-EDQUOT, "the bridge has no memory left for %s: close something, or let it have more", \
            what)

#endif
