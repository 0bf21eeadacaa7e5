/*
 * Names and texts of limits, counters and gauges: constants, the same in broker, tools and docs.
 */
#include "shm/session/monitor.h"

#include "shm/base/error.h"

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
