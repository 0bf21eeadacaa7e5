/*
 * Starting a broker.
 */
#ifndef CW_IPC_REQUEST_START_H
#define CW_IPC_REQUEST_START_H

/* Starts a broker at place (a socket's path), detached. 0: one was started, or runs already. Blocks
 * until it listens. -ECONNRESET with its reason, -EDQUOT. */
int cw_start_broker(const char *place);

#endif
