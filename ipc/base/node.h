/*
 * Nodes: how they are called, and where they are reached. The broker checks what its options say,
 * the bridge what its files do.
 */
#ifndef CW_IPC_BASE_NODE_H
#define CW_IPC_BASE_NODE_H

#include <stdbool.h>

#define CW_NODE_MAX    63u /* bytes of a node's name */
#define CW_ADDRESS_MAX 255u

/* Is this a node's name? 1 to 63 of A-Z a-z 0-9 _ . -, not beginning with '.' or '-'. */
bool cw_node_valid(const char *node);
/* HOST:PORT or [HOST]:PORT to its parts, HOST perhaps ""; false: it is none. */
bool cw_address_split(const char *text, char host[CW_ADDRESS_MAX + 1], char port[8]);

#endif
