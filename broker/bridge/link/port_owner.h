/*
 * Port owner: who listens at an address, found in /proc, for people who are told that it is taken.
 */
#ifndef CW_BROKER_BRIDGE_LINK_PORT_OWNER_H
#define CW_BROKER_BRIDGE_LINK_PORT_OWNER_H

#include <netdb.h>
#include <stddef.h>

#define CWB_PORT_OWNER_TEXT 96

/* Who listens there, among what pid sees of the network (0: we): its pid; 0: somebody who cannot be
 * seen; -1: nobody. text: how to call them, "" for nobody. */
int cwb_port_owner(const struct addrinfo *at, int pid, char text[CWB_PORT_OWNER_TEXT]);

#endif
