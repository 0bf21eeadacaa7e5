/*
 * What people call: `causeway keygen` and `causeway peers`. Each returns the program's exit code
 * (causeway --help lists them) and prints what is to be printed.
 */
#ifndef CW_BRIDGE_COMMAND_H
#define CW_BRIDGE_COMMAND_H

#include <limits.h>

/* Where this node's key and peers lie: $CAUSEWAY_NODE_DIR, else $XDG_CONFIG_HOME/causeway, else
 * ~/.config/causeway. Returns folder. */
const char *cwb_node_folder(char folder[PATH_MAX]);
int cwb_command_keygen(int argc, char **argv);
int cwb_command_peers(int argc, char **argv);

#endif
