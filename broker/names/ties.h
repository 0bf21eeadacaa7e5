/*
 * Ties: names that end with the process that put them, however it ends: by BYE or by SIGKILL.
 *
 * Invariant: a name has a tie if and only if its record has CW_ENTRY_TIED; the tie belongs to the
 * session that put the name, and that session's process lives. So a tie is made when the name is
 * put, and goes with the name: when somebody removes or replaces it, or by cwd_ties_end(). Who has
 * the array open keeps it. The owner of a name's end tells the bridge, as of any name: replicas on
 * other nodes lose their names, too.
 *
 * Deaths: the pidfd alone tells: a child that lives on, with the socket, does not put again. What
 * the process had asked for, and is read only after its end, puts no tied name (-EPERM). Only its
 * socket's end, or a breach, ends no name as long as the process lives. If the broker dies, all
 * names are gone; if the bridge dies, nothing changes.
 *
 * Owner: the loop's thread.
 */
#ifndef CW_BROKER_NAMES_TIES_H
#define CW_BROKER_NAMES_TIES_H

#include <stddef.h>
#include <stdint.h>

struct cwd_broker;
struct cwd_session;
struct cwd_tie;

/* 0 or -EDQUOT: the table is never empty (broker/core/table.h). */
int cwd_ties_init(struct cwd_broker *broker);
void cwd_ties_deinit(struct cwd_broker *broker);
/* Memory for a tie of a name that is about to be put: the put itself then needs none. 0, -EDQUOT,
 * -EPERM: the process is dead, or the session is the bridge's, whose puts are for others. */
int cwd_tie_make(struct cwd_broker *broker, const struct cwd_session *session, const char *key,
                 size_t key_bytes, struct cwd_tie **out);
/* The put was not done. NULL: nothing. */
void cwd_tie_discard(struct cwd_tie *tie);
/* The name was put: entry is which put it is. */
void cwd_tie_add(struct cwd_broker *broker, struct cwd_session *session, struct cwd_tie *tie,
                 uint64_t entry);
/* The name of that put is gone, which had a tie. */
void cwd_tie_gone(struct cwd_broker *broker, uint64_t entry);
/* The session's process has ended: its tied names go. May be repeated. */
void cwd_ties_end(struct cwd_broker *broker, struct cwd_session *session);

#endif
