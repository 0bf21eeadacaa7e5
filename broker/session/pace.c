/*
 * Pace: see pace.h.
 */
#include "broker/session/pace.h"

static void fill(struct cwd_bucket *bucket, double per_second, double at_once, int64_t now_ns) {
    if (!bucket->filled_ns)
        bucket->tokens = at_once;
    else
        bucket->tokens += (double)(now_ns - bucket->filled_ns) * 1e-9 * per_second;
    bucket->filled_ns = now_ns;
    if (bucket->tokens > at_once)
        bucket->tokens = at_once;
}

bool cwd_bucket_take(struct cwd_bucket *bucket, double per_second, double at_once, int64_t now_ns) {
    fill(bucket, per_second, at_once, now_ns);
    if (bucket->tokens < 1)
        return false;
    bucket->tokens -= 1;
    return true;
}

static struct cwd_bucket *bucket_of(struct cwd_pace *pace, pid_t pid) {
    unsigned oldest = 0;
    for (unsigned i = 0; i < CWD_PIDS_KNOWN; i++) {
        if (pace->pids[i].pid == pid)
            return &pace->pids[i].bucket;
        if (pace->pids[i].bucket.filled_ns < pace->pids[oldest].bucket.filled_ns)
            oldest = i;
    }
    pace->pids[oldest].pid = pid;
    pace->pids[oldest].bucket = (struct cwd_bucket){.filled_ns = 0};
    return &pace->pids[oldest].bucket;
}

bool cwd_pace_take(struct cwd_pace *pace, pid_t pid, double per_second, double at_once,
                   int64_t now_ns) {
    return cwd_bucket_take(bucket_of(pace, pid), per_second, at_once, now_ns);
}

int64_t cwd_pace_owe(struct cwd_pace *pace, pid_t pid, double per_second, double at_once,
                     int64_t now_ns) {
    struct cwd_bucket *bucket = bucket_of(pace, pid);
    fill(bucket, per_second, at_once, now_ns);
    bucket->tokens -= 1;
    if (bucket->tokens < -at_once)
        bucket->tokens = -at_once;
    return bucket->tokens < 0 ? (int64_t)(-bucket->tokens / per_second * 1e9) : 0;
}

bool cwd_pace_is_spent(const struct cwd_pace *pace, pid_t pid, double per_second, double at_once,
                       int64_t now_ns) {
    for (unsigned i = 0; i < CWD_PIDS_KNOWN; i++) {
        if (pace->pids[i].pid != pid)
            continue;
        struct cwd_bucket copy = pace->pids[i].bucket;
        return !cwd_bucket_take(&copy, per_second, at_once, now_ns);
    }
    return false;
}
