/*
 * Inherited references: leases that a fork doubled. A child inherits mappings, but neither channel
 * nor lease table. So before it forks, the parent hands over the read end of a pipe, the fork pipe.
 * The broker takes one more reference on every block that the parent's tables name at that time,
 * and keeps these until every copy of the write end is closed.
 */
#ifndef CW_BROKER_MEMORY_INHERITED_H
#define CW_BROKER_MEMORY_INHERITED_H

#include <stdint.h>

struct cwd_broker;
struct cwd_session;

/* Takes fork_pipe over on success. 0, -EPROTO (no pipe), -EDQUOT. */
int cwd_inherited_new(struct cwd_broker *broker, struct cwd_session *session, int fork_pipe);
/* The fork pipe's last write end was closed. */
void cwd_inherited_on_fork_pipe(struct cwd_broker *broker, uint32_t id);
void cwd_inherited_deinit(struct cwd_broker *broker);

#endif
