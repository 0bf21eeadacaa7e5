/*
 * Log: what the broker has to say, to standard error (--foreground) or to a file of limited size.
 */
#ifndef CW_BROKER_CORE_LOG_H
#define CW_BROKER_CORE_LOG_H

#include <stdint.h>
#include <sys/types.h>

#include "ipc/request/address.h"

/* When the file has grown to this it becomes NAME.1 (the one before it is lost) and begins anew. */
#define CWD_LOG_MAX_BYTES (256u << 10)

/* From here on lines go to address->log_name in the folder. Returns 0 or a negative code. */
int cwd_log_open(const struct cw_address *address, int folder_fd);
void cwd_log_close(void);
/* One line, with time and pid before it; left out, and counted, where more come than max_log_lines
 * allow or nobody takes them. Never blocks. */
void cwd_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same of an error, which is noted (errors.h) whatever becomes of its line. pid: the process
 * that caused it, which max_pid_log_lines bounds; 0: none did. */
void cwd_log_error(pid_t pid, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Lines a second, of all and of one process. At once CWD_LOG_AT_ONCE times as many may come. */
void cwd_log_limits(uint64_t lines, uint64_t pid_lines);
#define CWD_LOG_AT_ONCE 25u
/* Where lines go; borrowed. */
int cwd_log_fd(void);

#endif
