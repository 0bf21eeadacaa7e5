/*
 * cableway peers list, show, wait. See list.c.
 */
#ifndef CW_BROKER_BRIDGE_CLI_LIST_H
#define CW_BROKER_BRIDGE_CLI_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* peers list [--json], peers show [NAME]. The exit code (command.h). */
int cwb_command_list(int argc, char **argv);
/* peers wait [NAME] [--timeout SECONDS]. The exit code. */
int cwb_command_wait(int argc, char **argv);
/* The value of a key in what the bridge tells of a peer; false: it has none. */
bool cwb_text_value(const char *text, const char *key, char *value, size_t room);

#endif
