/*
 * Log: what the broker has to say, to standard error (--foreground) or to a file of limited size.
 */
#ifndef CW_BROKER_CORE_LOG_H
#define CW_BROKER_CORE_LOG_H

#include "ipc/request/address.h"

/* When the file has grown to this it becomes NAME.1 (the one before it is lost) and begins anew. */
#define CWD_LOG_MAX_BYTES (256u << 10)

/* From here on lines go to address->log_name in the folder. Returns 0 or a negative code. */
int cwd_log_open(const struct cw_address *address, int folder_fd);
void cwd_log_close(void);
/* One line, with time and pid before it; left out, and counted, where more come than 20 a second
 * (500 at once) or nobody takes them. Never blocks. */
void cwd_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Where lines go; borrowed. */
int cwd_log_fd(void);

#endif
