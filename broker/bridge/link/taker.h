/*
 * Who listens at an address: found in /proc, for people who are told that it is taken.
 */
#ifndef CW_BROKER_BRIDGE_LINK_TAKER_H
#define CW_BROKER_BRIDGE_LINK_TAKER_H

#include <netdb.h>
#include <stddef.h>

#define CWB_TAKER_TEXT 96

/* Who listens there, among what pid sees of the network (0: we): its pid; 0: somebody who cannot be
 * seen; -1: nobody. text: how to call them, "" for nobody. */
int cwb_taker(const struct addrinfo *at, int pid, char text[CWB_TAKER_TEXT]);

#endif
