/*
 * Names as `ls` and `stat` show them: one cw_name_info as JSON, and its parts as text.
 */
#ifndef CW_TOOLS_NAMES_H
#define CW_TOOLS_NAMES_H

#include <jansson.h>
#include <stdbool.h>

#include "ipc/cableway.h"

/* name: as it is said here, with the node that it is of. held: who holds it is known. */
json_t *names_json(const char *name, const cw_name_info *info, const char *name_space, bool held);
/* "//NODE/" of a name or prefix of another node, else "". The caller frees it. */
char *names_node(const char *name);

#endif
