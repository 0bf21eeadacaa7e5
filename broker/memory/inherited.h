/*
 * Ghosts: leases that a fork doubled. A child inherits mappings, but neither lane nor lease table.
 * Before it forks the parent hands over the read end of a pipe, the lifeline; every block that its
 * tables name then is referred to once more, until every copy of the write end is closed.
 */
#ifndef CW_BROKER_MEMORY_INHERITED_H
#define CW_BROKER_MEMORY_INHERITED_H

#include <stdint.h>

struct cwd_broker;
struct cwd_session;

/* Takes lifeline over on success. 0, -EPROTO (no pipe), -EDQUOT. */
int cwd_ghost_new(struct cwd_broker *broker, struct cwd_session *session, int lifeline);
/* The lifeline's last write end was closed. */
void cwd_ghost_on_lifeline(struct cwd_broker *broker, uint32_t id);
void cwd_ghosts_deinit(struct cwd_broker *broker);

#endif
