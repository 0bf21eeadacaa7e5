/*
 * JSON of traces, in the Trace Event Format that Perfetto (ui.perfetto.dev) and Chrome read.
 */
#ifndef CW_TOOLS_TRACE_WRITE_H
#define CW_TOOLS_TRACE_WRITE_H

#include <stdio.h>

#include "tools/trace/find.h"

/* Writes all; sorts the events. Returns false if the file could not be written (errno). */
bool traces_write(struct traces *traces, FILE *file);

#endif
