/*
 * cableway peers, with all its commands. See peers.c.
 */
#ifndef CW_BROKER_BRIDGE_CLI_PEERS_H
#define CW_BROKER_BRIDGE_CLI_PEERS_H

/* The exit code (command.h). */
int cwb_command_peers(int argc, char **argv);

#endif
