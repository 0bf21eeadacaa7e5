/*
 * Names and texts of limits, counters and gauges: constants, the same in broker, tools and docs.
 */
#include "shm/session/monitor.h"

#include <stdio.h>
#include <string.h>

#include "shm/base/error.h"
#include "shm/base/number.h"
#include "shm/session/lease.h"

#define COUNT(table) (sizeof(table) / sizeof *(table))

static const struct {
    const char *name, *what;
    uint64_t value;
} limits[] = {
#define X(name, def, what) {#name, what, def},
    CW_LIMITS(X)
#undef X
};
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
    [CW_LIMIT_max_client_bytes] = {0, INT64_MAX},
    [CW_LIMIT_max_pid_bytes] = {0, INT64_MAX},
    [CW_LIMIT_max_pid_clients] = {0, CW_MONITOR_CLIENTS},
    [CW_LIMIT_max_log_lines] = {1, 1000000},
    [CW_LIMIT_max_pid_log_lines] = {1, 1000000},
};
static const struct {
    const char *name, *what;
} counters[] =
    {
#define X(name, what) {#name, what},
        CW_COUNTERS(X)
#undef X
},
  gauges[] = {
#define X(name, what) {#name, what},
      CW_GAUGES(X)
#undef X
};

const char *cw_limit_name(enum cw_limit which) {
    CW_ASSERT(which < COUNT(limits));
    return limits[which].name;
}
const char *cw_limit_what(enum cw_limit which) {
    CW_ASSERT(which < COUNT(limits));
    return limits[which].what;
}
uint64_t cw_limit_default(enum cw_limit which) {
    CW_ASSERT(which < COUNT(limits));
    return limits[which].value;
}
unsigned cw_limit_leader(enum cw_limit which) {
    switch (which) {
    case CW_LIMIT_max_user_bytes:
    case CW_LIMIT_max_client_bytes:
    case CW_LIMIT_max_pid_bytes:
        return CW_LIMIT_max_bytes;
    case CW_LIMIT_max_pid_clients:
        return CW_LIMIT_max_clients;
    default:
        return CW_LIMIT_COUNT;
    }
}

uint64_t cw_limit_most(enum cw_limit which) {
    CW_ASSERT(which < COUNT(ranges));
    return ranges[which].most;
}

bool cw_limit_in_bytes(enum cw_limit which) {
    static const char end[] = "_bytes";
    const char *name = cw_limit_name(which);
    size_t length = strlen(name);
    return length >= sizeof end && !strcmp(name + length - (sizeof end - 1), end);
}

unsigned cw_limit_find(const char *name, size_t name_bytes) {
    unsigned which = 0;
    while (which < CW_LIMIT_COUNT && (strlen(limits[which].name) != name_bytes ||
                                      memcmp(limits[which].name, name, name_bytes) != 0))
        which++;
    return which;
}

static int refuse(enum cw_limit which, const char *text, const char *where) {
    return cw_fail(-EINVAL, "%.300s: %s = \"%.64s\" is not %s from %llu to %llu", where,
                   limits[which].name, text,
                   cw_limit_in_bytes(which) ? CW_BYTES_FORM : "a whole number",
                   (unsigned long long)ranges[which].least, (unsigned long long)ranges[which].most);
}

int cw_limit_check(enum cw_limit which, uint64_t value, const char *where) {
    char text[24];
    CW_ASSERT(which < CW_LIMIT_COUNT);
    if (value >= ranges[which].least && value <= ranges[which].most)
        return 0;
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return refuse(which, text, where);
}

int cw_limit_parse(enum cw_limit which, const char *text, const char *where, uint64_t *out) {
    uint64_t value;
    CW_ASSERT(which < CW_LIMIT_COUNT);
    bool parsed =
        cw_limit_in_bytes(which) ? cw_bytes_parse(text, &value) : cw_number_parse(text, &value);
    if (!parsed || value < ranges[which].least || value > ranges[which].most)
        return refuse(which, text, where);
    *out = value;
    return 0;
}

const char *cw_counter_name(enum cw_counter which) {
    CW_ASSERT(which < COUNT(counters));
    return counters[which].name;
}
const char *cw_counter_what(enum cw_counter which) {
    CW_ASSERT(which < COUNT(counters));
    return counters[which].what;
}
const char *cw_gauge_name(enum cw_gauge which) {
    CW_ASSERT(which < COUNT(gauges));
    return gauges[which].name;
}
const char *cw_gauge_what(enum cw_gauge which) {
    CW_ASSERT(which < COUNT(gauges));
    return gauges[which].what;
}
