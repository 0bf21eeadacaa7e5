/*
 * Limits: see limits.h. Plain numbers of the broker's one thread; clients read a copy on the
 * monitor page.
 */
#include "broker/core/limits.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "broker/broker.h"
#include "broker/core/monitor.h"
#include "shm/base/error.h"

/* Reserved for descriptors that are not counted: the loop, the log, new connections, segments. */
#define FDS_SPARE 128
#define FDS_LEAST (2 * FDS_SPARE)

static const struct {
    uint64_t least, most;
} ranges[CW_LIMIT_COUNT] = {
    [CW_LIMIT_max_clients] = {1, CW_MONITOR_CLIENTS},
    [CW_LIMIT_max_names] = {1, 1ull << 26},
    [CW_LIMIT_max_slabs] = {1, 1ull << 20},
    [CW_LIMIT_max_fds] = {32, 1ull << 22},
    [CW_LIMIT_max_bytes] = {0, INT64_MAX},
    [CW_LIMIT_max_user_bytes] = {0, INT64_MAX},
    [CW_LIMIT_max_gpu_bytes] = {0, INT64_MAX},
    [CW_LIMIT_max_client_slabs] = {1, 1ull << 20},
    [CW_LIMIT_max_client_leases] = {CW_LEASE_TABLE_SLOTS, 1ull << 24},
    [CW_LIMIT_max_client_transits] = {1, 1ull << 20},
    [CW_LIMIT_max_client_fence_pages] = {1, 1ull << 20},
    [CW_LIMIT_max_client_waits] = {1, 1ull << 20},
    [CW_LIMIT_max_client_jobs] = {1, 4096},
    [CW_LIMIT_max_client_unread] = {1, 200},
    [CW_LIMIT_transit_seconds] = {1, 366ull * 86400},
    [CW_LIMIT_pickle_seconds] = {0, 366ull * 86400},
    [CW_LIMIT_max_pickle_bytes] = {0, INT64_MAX},
    [CW_LIMIT_names_linger_seconds] = {0, 366ull * 86400},
};

void cwd_limits_init(struct cwd_limits *limits) {
    for (unsigned i = 0; i < CW_LIMIT_COUNT; i++)
        limits->value[i] = cw_limit_default(i);
}

static bool parse_number(const char *text, uint64_t *out) {
    char *end;
    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno || *end)
        return false;
    *out = number;
    return true;
}

int cwd_limits_set(struct cwd_limits *limits, const char *name, const char *text,
                   const char *where) {
    unsigned which = 0;
    while (which < CW_LIMIT_COUNT && strcmp(cw_limit_name(which), name) != 0)
        which++;
    if (which == CW_LIMIT_COUNT)
        return cw_fail(-EINVAL, "%s: there is no limit \"%.64s\"; cablewayd --help lists them",
                       where, name);
    uint64_t number;
    if (!parse_number(text, &number))
        return cw_fail(-EINVAL, "%s: %s = \"%.64s\" is not a whole number", where, name, text);
    if (number < ranges[which].least || number > ranges[which].most)
        return cw_fail(-EINVAL, "%s: %s = %llu is out of range: %llu to %llu", where, name,
                       (unsigned long long)number, (unsigned long long)ranges[which].least,
                       (unsigned long long)ranges[which].most);
    limits->value[which] = number;
    return 0;
}

static uint64_t half_of_memory(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes / 2 : 1ull << 30;
}

int cwd_limits_settle(struct cwd_limits *limits, bool *lowered) {
    if (!limits->value[CW_LIMIT_max_bytes])
        limits->value[CW_LIMIT_max_bytes] = half_of_memory();
    if (!limits->value[CW_LIMIT_max_user_bytes])
        limits->value[CW_LIMIT_max_user_bytes] = limits->value[CW_LIMIT_max_bytes];
    if (!limits->value[CW_LIMIT_max_gpu_bytes])
        limits->value[CW_LIMIT_max_gpu_bytes] = INT64_MAX;
    *lowered = false;
    uint64_t wanted = limits->value[CW_LIMIT_max_fds] + FDS_SPARE;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return 0;
    if (files.rlim_cur < wanted) {
        files.rlim_cur = files.rlim_max < wanted ? files.rlim_max : wanted;
        (void)setrlimit(RLIMIT_NOFILE, &files); /* what it did is read back below */
        if (getrlimit(RLIMIT_NOFILE, &files) < 0)
            return 0;
    }
    if (files.rlim_cur >= wanted)
        return 0;
    if (files.rlim_cur < FDS_LEAST && files.rlim_max < FDS_LEAST)
        return cw_fail(-EDQUOT,
                       "a broker serves all programs of its user and needs %u open files at least; "
                       "the hard limit here is %llu (ulimit -Hn): raise it, or start the broker "
                       "elsewhere first (cablewayd)",
                       FDS_LEAST, (unsigned long long)files.rlim_max);
    limits->value[CW_LIMIT_max_fds] =
        files.rlim_cur > FDS_LEAST ? files.rlim_cur - FDS_SPARE : FDS_SPARE;
    *lowered = true;
    return 0;
}

int cwd_limit_refuse(struct cwd_broker *broker, enum cw_limit which, const char *asked, ...) {
    char text[160], variable[64];
    va_list arguments;
    va_start(arguments, asked);
    vsnprintf(text, sizeof text, asked, arguments);
    va_end(arguments);
    snprintf(variable, sizeof variable, "CABLEWAY_%s", cw_limit_name(which));
    for (char *at = variable; *at; at++)
        *at = (char)toupper((unsigned char)*at);
    CWD_COUNT(broker, limits_hit);
    return cw_fail(-EDQUOT,
                   "%s; %s allows %llu (%s): set %s under [limits] in cableway.conf, or %s, and "
                   "start the broker again",
                   text, cw_limit_name(which), (unsigned long long)broker->limits.value[which],
                   cw_limit_what(which), cw_limit_name(which), variable);
}
