/*
 * Limits: a bound on everything, each with its own error and a way to set it.
 *
 * The list is CW_LIMITS in shm/session/monitor.h. Values come from, the later the stronger:
 * defaults, the configuration files, the environment (config.h). They do not change while the
 * broker runs.
 */
#ifndef CW_BROKER_CORE_LIMITS_H
#define CW_BROKER_CORE_LIMITS_H

#include "shm/session/lease.h"
#include "shm/session/monitor.h"

struct cwd_broker;

struct cwd_limits {
    uint64_t value[CW_LIMIT_COUNT];
};

void cwd_limits_init(struct cwd_limits *limits);
/* Sets the limit of that name from text; where says where the text stands, for the sentence.
 * Returns 0, or -EINVAL: no such limit, no number, or out of its range. */
int cwd_limits_set(struct cwd_limits *limits, const char *name, const char *text,
                   const char *where);
/* Replaces what means "as the machine allows" by numbers, and raises RLIMIT_NOFILE as far as it
 * goes; max_fds becomes what is really there. *lowered: max_fds had to be lowered. -EDQUOT: it is
 * so little that the broker would only stand in the way of one that was started elsewhere. */
int cwd_limits_settle(struct cwd_limits *limits, bool *lowered);

/* Counts the refusal and returns -EDQUOT with a sentence: what was asked (a whole clause), the
 * limit's name and number, how to change it. */
int cwd_limit_refuse(struct cwd_broker *broker, enum cw_limit which, const char *asked, ...)
    __attribute__((format(printf, 3, 4)));

#define CWD_LIMIT(broker, name) ((broker)->limits.value[CW_LIMIT_##name])

#endif
