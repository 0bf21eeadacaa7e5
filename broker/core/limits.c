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
#include "broker/core/log.h"
#include "broker/core/monitor.h"
#include "broker/memory/transit.h"
#include "shm/base/error.h"

/* Reserved for descriptors that are not counted: the loop, the log, new connections, segments. */
#define FDS_SPARE 128
#define FDS_LEAST (2 * FDS_SPARE)

void cwd_limits_init(struct cwd_limits *limits) {
    *limits = (struct cwd_limits){.value = {0}}; /* none follows another yet */
    for (unsigned i = 0; i < CW_LIMIT_COUNT; i++)
        limits->value[i] = cw_limit_default(i);
}

int cwd_limits_set(struct cwd_limits *limits, const char *name, const char *text,
                   const char *where) {
    unsigned which = cw_limit_find(name, strlen(name));
    if (which == CW_LIMIT_COUNT)
        return cw_fail(-EINVAL, "%.300s: there is no limit \"%.64s\"; cablewayd --help lists them",
                       where, name);
    return cw_limit_parse(which, text, where, &limits->value[which]);
}

static uint64_t half_of_memory(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes / 2 : 1ull << 30;
}

/* What 0 means. */
static void settle_values(struct cwd_limits *limits) {
    if (!limits->value[CW_LIMIT_max_bytes])
        limits->value[CW_LIMIT_max_bytes] = half_of_memory();
    if (!limits->value[CW_LIMIT_max_gpu_bytes])
        limits->value[CW_LIMIT_max_gpu_bytes] = INT64_MAX;
    for (unsigned i = 0; i < CW_LIMIT_COUNT; i++) {
        unsigned leader = cw_limit_leader(i);
        if (leader == CW_LIMIT_COUNT)
            continue;
        if (!limits->value[i])
            limits->follows[i] = true;
        if (limits->follows[i])
            limits->value[i] = limits->value[leader];
    }
}

/* Raises RLIMIT_NOFILE for so many descriptors, as far as it goes. True: it is enough. */
static bool raise_files(uint64_t fds, struct rlimit *files) {
    uint64_t wanted = fds + FDS_SPARE;
    *files = (struct rlimit){RLIM_INFINITY, RLIM_INFINITY};
    if (getrlimit(RLIMIT_NOFILE, files) < 0)
        return true;
    if (files->rlim_cur < wanted) {
        files->rlim_cur = files->rlim_max < wanted ? files->rlim_max : wanted;
        (void)setrlimit(RLIMIT_NOFILE, files); /* what it did is read back below */
        if (getrlimit(RLIMIT_NOFILE, files) < 0)
            return true;
    }
    return files->rlim_cur >= wanted;
}

int cwd_limits_settle(struct cwd_limits *limits, bool *lowered) {
    struct rlimit files;
    settle_values(limits);
    *lowered = false;
    if (raise_files(limits->value[CW_LIMIT_max_fds], &files))
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

/* Those under way keep the time at which they began. */
static void move_ends(struct cwd_broker *b, const struct cwd_limits *before) {
    int64_t more_s[] = {
        (int64_t)CWD_LIMIT(b, transit_seconds) - (int64_t)before->value[CW_LIMIT_transit_seconds],
        (int64_t)CWD_LIMIT(b, pickle_seconds) - (int64_t)before->value[CW_LIMIT_pickle_seconds]};
    if (more_s[0] || more_s[1])
        cwd_transits_move_limits(b, more_s[0] * 1000000000, more_s[1] * 1000000000);
}

int cwd_limits_change(struct cwd_broker *b, const char *name, uint32_t name_bytes, uint64_t value,
                      pid_t by, uint64_t *before, uint64_t *now) {
    struct cwd_limits old = b->limits;
    struct rlimit files;
    unsigned which = cw_limit_find(name, name_bytes);
    if (which == CW_LIMIT_COUNT)
        return cw_fail(-EINVAL, "there is no limit \"%.*s\"; cableway limit show lists them",
                       name_bytes < 64 ? (int)name_bytes : 64, name);
    int code = cw_limit_check(which, value, "limit set");
    if (code)
        return code;
    if (which == CW_LIMIT_max_fds && !raise_files(value, &files))
        return cw_fail(-EDQUOT,
                       "max_fds = %llu was asked for; the broker needs %d open files more than "
                       "that, and its hard limit is %llu (ulimit -Hn): at most %llu, or start it "
                       "where the hard limit is higher",
                       (unsigned long long)value, FDS_SPARE, (unsigned long long)files.rlim_max,
                       (unsigned long long)(files.rlim_cur - FDS_SPARE));
    b->limits.value[which] = value;
    b->limits.follows[which] = value == 0 && cw_limit_leader(which) != CW_LIMIT_COUNT;
    settle_values(&b->limits);
    move_ends(b, &old);
    cwd_monitor_limits(b);
    *before = old.value[which];
    *now = b->limits.value[which];
    cwd_log("pid %d set %s from %llu to %llu", (int)by, cw_limit_name(which),
            (unsigned long long)*before, (unsigned long long)*now);
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
                   "%s; %s allows %llu (%s). `cableway limit set %s NUMBER` changes it now; for "
                   "later brokers set it under [limits] in cableway.conf, or %s",
                   text, cw_limit_name(which), (unsigned long long)broker->limits.value[which],
                   cw_limit_what(which), cw_limit_name(which), variable);
}
