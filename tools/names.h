/*
 * Names as `ls` and `stat` show them: one cw_name_info as JSON, and its parts as text.
 */
#ifndef CW_TOOLS_NAMES_H
#define CW_TOOLS_NAMES_H

#include <jansson.h>

#include "ipc/cableway.h"

json_t *names_json(const cw_name_info *info, const char *name_space);

#endif
