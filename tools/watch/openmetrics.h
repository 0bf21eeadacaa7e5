/*
 * OpenMetrics text on stdout. Only counters and gauges are written, without time stamps: so
 * Prometheus's older text format reads it, too, in which node_exporter takes files.
 */
#ifndef CW_TOOLS_WATCH_OPENMETRICS_H
#define CW_TOOLS_WATCH_OPENMETRICS_H

#include <stdint.h>

enum openmetrics_type { OPENMETRICS_GAUGE, OPENMETRICS_COUNTER };

/* Begins a family; all of its samples follow before the next one. name is without "_total". unit:
 * "bytes", "seconds", or NULL; the name ends with it. */
void openmetrics_family(const char *name, enum openmetrics_type type, const char *unit,
                        const char *help);
/*
 * One sample of the family that was begun last. labels ends with NULL: name, value, name, value...;
 * NULL: none. Values are made safe: invalid UTF-8 and control characters are written as \xNN.
 */
void openmetrics_sample(const char *const *labels, uint64_t value);
/* The same of a number >= 0, or INFINITY. */
void openmetrics_sample_real(const char *const *labels, double value);
/* Nothing may follow. */
void openmetrics_end(void);

#endif
