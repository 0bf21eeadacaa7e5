/*
 * Limits: a bound on everything, each with its own error and a way to set it.
 *
 * The list is CW_LIMITS in shm/session/monitor.h. Values come from, the later the stronger:
 * defaults, the configuration files, the environment (config.h), and, while the broker runs, a
 * client's LIMIT_SET. One that is lower than what is in use takes nothing away: it refuses what is
 * asked for from then on. Times count from when each thing began, also of those under way.
 */
#ifndef CW_BROKER_CORE_LIMITS_H
#define CW_BROKER_CORE_LIMITS_H

#include <stdbool.h>
#include <sys/types.h>

#include "shm/session/lease.h"
#include "shm/session/monitor.h"

struct cwd_broker;

struct cwd_limits {
    uint64_t value[CW_LIMIT_COUNT];
    bool follows[CW_LIMIT_COUNT]; /* nobody has set it: it is as its leader (cw_limit_leader()) */
};

void cwd_limits_init(struct cwd_limits *limits);
/* Sets the limit of that name from text, as cw_limit_parse(): 0, or -EINVAL, also for no such
 * limit. */
int cwd_limits_set(struct cwd_limits *limits, const char *name, const char *text,
                   const char *where);
/* Replaces what means "as the machine allows" by numbers, and raises RLIMIT_NOFILE as far as it
 * goes; max_fds becomes what is really there. *lowered: max_fds had to be lowered. -EDQUOT: it is
 * so little that the broker would only stand in the way of one that was started elsewhere. */
int cwd_limits_settle(struct cwd_limits *limits, bool *lowered);

/*
 * While the broker runs: sets the limit of that name (not terminated), and shows it on the monitor
 * page. by: of whom the log tells. 0 and both numbers: before and now, where 0 bytes became what
 * they mean. -EINVAL: no such limit, or out of its range; -EDQUOT: max_fds, and the machine allows
 * no more.
 */
int cwd_limits_change(struct cwd_broker *broker, const char *name, uint32_t name_bytes,
                      uint64_t value, pid_t by, uint64_t *before, uint64_t *now);

/* Counts the refusal and returns -EDQUOT with a sentence: what was asked (a whole clause), the
 * limit's name and number, how to change it. */
int cwd_limit_refuse(struct cwd_broker *broker, enum cw_limit which, const char *asked, ...)
    __attribute__((format(printf, 3, 4)));

#define CWD_LIMIT(broker, name) ((broker)->limits.value[CW_LIMIT_##name])

#endif
