/*
 * Errors: what the broker met, and what it told clients that is no usual outcome, each kind once,
 * on the monitor page (struct cw_monitor_error). `cableway log` shows it.
 */
#ifndef CW_BROKER_CORE_ERRORS_H
#define CW_BROKER_CORE_ERRORS_H

#include <stdbool.h>
#include <sys/types.h>

struct cw_root;

/* From here on they are written there; NULL: nowhere. */
void cwd_errors_at(struct cw_root *root);
/* Is an answer of that status an error, or one of the outcomes that a client acts on? */
bool cwd_is_error(int status);
/* Counts one. pid: whose request it was; 0: nobody's. Never blocks, and takes no memory. */
void cwd_errors_note(pid_t pid, const char *text);
/* A line that was not written into the log. */
void cwd_errors_line_left_out(void);

#endif
