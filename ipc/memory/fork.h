/*
 * All clients of this process, and what fork() does to them.
 */
#ifndef CW_IPC_MEMORY_FORK_H
#define CW_IPC_MEMORY_FORK_H

#include "ipc/cableway.h"

#define CW_FORK_TIMEOUT_NS 10000000000 /* how long fork() waits for the broker, each time twice */

void cw_fork_register(cw_client *client);
void cw_fork_unregister(cw_client *client);
/* An inherited array was renewed or closed. */
void cw_fork_settled(cw_client *client);

#endif
