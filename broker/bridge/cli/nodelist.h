/*
 * Nodelist: SLURM's short form of many host names, to each of them.
 *
 *   list   = name { "," name }
 *   name   = text { "[" ranges "]" text }      any number of brackets: rack[1-2]n[01-10]-ib
 *   ranges = range { "," range }
 *   range  = number [ "-" number ]             zeros in front are kept: [08-11] is 08 09 10 11
 *
 * The last bracket turns fastest, as `scontrol show hostnames` has it. A pure function; what it is
 * given may be anything.
 */
#ifndef CW_BROKER_BRIDGE_CLI_NODELIST_H
#define CW_BROKER_BRIDGE_CLI_NODELIST_H

#include <stdint.h>

/* The names, in order, each a node's (cw_node_valid), malloced as a whole: names[count]. At most
 * `most`. 0, -EINVAL with the sentence. */
int cwb_nodelist_expand(const char *list, uint32_t most, char ***names, uint32_t *count);
void cwb_nodelist_free(char **names, uint32_t count);

#endif
