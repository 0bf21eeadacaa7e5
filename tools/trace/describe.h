/*
 * Words for events: what one is called, of which category it is, and what else is known of it.
 */
#ifndef CW_TOOLS_TRACE_DESCRIBE_H
#define CW_TOOLS_TRACE_DESCRIBE_H

#include <jansson.h>

#include "tools/trace/find.h"

#define DESCRIBE_BYTES 512u

/* What it is called, made safe; text holds DESCRIBE_BYTES. Returns text. */
char *describe_name(const struct trace_process *process, const struct trace_event *event,
                    char *text);
/* "request", "task", "queue" ... */
const char *describe_category(const struct cw_trace_record *record);
/* Figures of it, in base units. */
json_t *describe_args(const struct trace_process *process, const struct trace_event *event);
/* "cuda:0 to cpu"; text holds DESCRIBE_BYTES. Returns text. */
char *describe_way(const struct cw_trace_record *record, char *text);

#endif
