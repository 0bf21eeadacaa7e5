/*
 * Rendezvous: the broker's socket and lock in the socket folder (ipc/request/address.h).
 *
 * One lock decides which process is the broker: the flock on the lock file, held as long as the
 * process lives. Its holder may take over a stale socket.
 */
#ifndef CW_BROKER_CORE_RENDEZVOUS_H
#define CW_BROKER_CORE_RENDEZVOUS_H

#include "broker/broker.h"

/* Folder, lock, log. *exit_code says why not. */
int cwd_rendezvous_lock(struct cwd_broker *broker, const struct cwd_options *options,
                        enum cwd_exit *exit_code);
/* Makes the socket and listens; then writes the lock file's line. */
int cwd_rendezvous_listen(struct cwd_broker *broker);
/* Removes the socket, then empties the lock file: nobody finds us any more, and but for log and
 * lock nothing of ours is left in the folder. Before clients are let go, so that they do not come
 * back to us. */
void cwd_rendezvous_withdraw(struct cwd_broker *broker);
/* withdraw, and gives the lock back: the next broker may begin. May be repeated. */
void cwd_rendezvous_leave(struct cwd_broker *broker);

#endif
