/*
 * Changes: how the bridge hears that names of this node mean something else. It asks (CHANGES), and
 * is answered when there is something to tell: which puts (their numbers in the directory) ended
 * since it was last answered, and, where it asks for that, that any name is new. Peers hold
 * replicas of the former, and wait for the latter.
 *
 * Every end is noted from the begin on, asked for or not; more than CW_CHANGES_MAX are not told
 * apart, and the bridge then looks at all that it knows. If the bridge dies what was noted goes to
 * the next one, to which it means nothing.
 */
#ifndef CW_BROKER_NAMES_CHANGES_H
#define CW_BROKER_NAMES_CHANGES_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/wire.h"

struct cwd_broker;

struct cwd_changes {
    uint64_t request;       /* the CHANGES that waits; 0: none */
    uint64_t seen;          /* what it said that it has seen */
    bool news;              /* it wants new names, too */
    struct cw_changed told; /* what the next answer says */
};

/* CHANGES of the bridge. One that waited already is answered now. */
void cwd_changes_ask(struct cwd_broker *broker, uint64_t request, const struct cw_changes *asked);
/* This put ended: removed, replaced, or swept. */
void cwd_changes_ended(struct cwd_broker *broker, uint64_t entry);
/* After names were put or ended: answers. */
void cwd_changes_tell(struct cwd_broker *broker);
/* The bridge's request is taken back. false: it is none of these. */
bool cwd_changes_cancel(struct cwd_broker *broker, uint64_t request);
/* The bridge is gone. */
void cwd_changes_forget(struct cwd_broker *broker);

#endif
