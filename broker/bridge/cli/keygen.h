/*
 * cableway keygen. See keygen.c.
 */
#ifndef CW_BROKER_BRIDGE_CLI_KEYGEN_H
#define CW_BROKER_BRIDGE_CLI_KEYGEN_H

/* The exit code (command.h). */
int cwb_command_keygen(int argc, char **argv);

#endif
