/*
 * Pace: how often a process may cause something, by buckets that fill with time. Private to the
 * loop's thread.
 *
 * A bucket holds at_once tokens at most and gets per_second more each second; what is caused takes
 * one. Of processes the PIDS_KNOWN that caused something last are known: another one takes the
 * place of who did so the longest time ago, and begins with a full bucket.
 */
#ifndef CW_BROKER_SESSION_PACE_H
#define CW_BROKER_SESSION_PACE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct cwd_bucket {
    double tokens;
    int64_t filled_ns; /* CLOCK_MONOTONIC; 0: full */
};

#define CWD_PIDS_KNOWN 64u
struct cwd_pace { /* all zero: nobody has caused anything */
    struct {
        pid_t pid;
        struct cwd_bucket bucket;
    } pids[CWD_PIDS_KNOWN];
};

/* Takes a token. False: there is none. */
bool cwd_bucket_take(struct cwd_bucket *bucket, double per_second, double at_once, int64_t now_ns);
/* The same of a process's bucket. */
bool cwd_pace_take(struct cwd_pace *pace, pid_t pid, double per_second, double at_once,
                   int64_t now_ns);
/* Takes a token in any case, if need be one that is still to come: a debt, of at_once tokens at
 * most. Returns how long until it is paid, 0: there is none. */
int64_t cwd_pace_owe(struct cwd_pace *pace, pid_t pid, double per_second, double at_once,
                     int64_t now_ns);
/* Is a process's bucket empty? Takes nothing. */
bool cwd_pace_is_spent(const struct cwd_pace *pace, pid_t pid, double per_second, double at_once,
                       int64_t now_ns);

#endif
