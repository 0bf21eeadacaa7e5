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

uint64_t cwd_limit_most(enum cw_limit which) {
    CW_ASSERT(which < CW_LIMIT_COUNT);
    return ranges[which].most;
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

static int check_range(unsigned which, uint64_t number, const char *where) {
    if (number >= ranges[which].least && number <= ranges[which].most)
        return 0;
    return cw_fail(-EINVAL, "%s: %s = %llu is out of range: %llu to %llu", where,
                   cw_limit_name(which), (unsigned long long)number,
                   (unsigned long long)ranges[which].least, (unsigned long long)ranges[which].most);
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
    int code = check_range(which, number, where);
    if (code == 0)
        limits->value[which] = number;
    return code;
}

static uint64_t half_of_memory(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes / 2 : 1ull << 30;
}

/* What 0 bytes means. */
static void settle_bytes(struct cwd_limits *limits) {
    if (!limits->value[CW_LIMIT_max_bytes])
        limits->value[CW_LIMIT_max_bytes] = half_of_memory();
    if (!limits->value[CW_LIMIT_max_user_bytes])
        limits->user_bytes_follow = true;
    if (limits->user_bytes_follow)
        limits->value[CW_LIMIT_max_user_bytes] = limits->value[CW_LIMIT_max_bytes];
    if (!limits->value[CW_LIMIT_max_gpu_bytes])
        limits->value[CW_LIMIT_max_gpu_bytes] = INT64_MAX;
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
    settle_bytes(limits);
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

static int find(const char *name, uint32_t name_bytes, unsigned *which) {
    for (*which = 0; *which < CW_LIMIT_COUNT; ++*which) {
        const char *known = cw_limit_name(*which);
        if (strlen(known) == name_bytes && !memcmp(known, name, name_bytes))
            return 0;
    }
    return cw_fail(-EINVAL, "there is no limit \"%.*s\"; cableway limit show lists them",
                   name_bytes < 64 ? (int)name_bytes : 64, name);
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
    unsigned which;
    int code = find(name, name_bytes, &which);
    if (code == 0)
        code = check_range(which, value, "limit set");
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
    if (which == CW_LIMIT_max_user_bytes)
        b->limits.user_bytes_follow = value == 0;
    settle_bytes(&b->limits);
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
