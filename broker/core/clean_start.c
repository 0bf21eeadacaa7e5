/*
 * A clean start: see clean_start.h. Session, working folder, signals and descriptors are
 * detach.c's.
 *
 * Limits: each soft limit is raised to its hard one, and both to "unlimited" where we may (root). A
 * hard limit that somebody else has set stays, and is named in the log if it hurts. The stack's
 * size and core dumps are left: nobody else feels them.
 *
 * The cgroup stays: to leave one, another must be given to us, and which one is the machine's
 * business. A broker that is to outlive its starter's unit is started as one of its own
 * (tools/cablewayd.service.in).
 */
#include "broker/core/clean_start.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/core/log.h"
#include "shm/base/error.h"

#define NOTES       8
#define CPUS_MAX    8192       /* as the kernel's largest */
#define DESCRIPTORS (1u << 20) /* that root gives itself, if there were fewer */

static const struct {
    int resource;
    const char *ulimit; /* NULL: nobody need hear that it stays */
} limits[] = {
    {RLIMIT_AS, "-v"},    {RLIMIT_CPU, "-t"},      {RLIMIT_DATA, "-d"},
    {RLIMIT_FSIZE, "-f"}, {RLIMIT_MEMLOCK, NULL},  {RLIMIT_NPROC, NULL},
    {RLIMIT_RSS, NULL},   {RLIMIT_MSGQUEUE, NULL}, {RLIMIT_SIGPENDING, NULL},
};

static char notes[NOTES][256];
static unsigned note_count;

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...) {
    va_list arguments;
    CW_ASSERT(note_count < NOTES);
    va_start(arguments, format);
    vsnprintf(notes[note_count++], sizeof notes[0], format, arguments);
    va_end(arguments);
}

static void raise_limit(int resource, const char *ulimit) {
    struct rlimit limit, most = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    if (setrlimit(resource, &most) == 0 || getrlimit(resource, &limit) < 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(resource, &limit); /* to the hard limit one always may */
    if (ulimit && limit.rlim_max != RLIM_INFINITY)
        note("it was started under a hard limit that holds for all its clients: ulimit %s is %llu; "
             "if "
             "that is too little, stop it and start it from elsewhere",
             ulimit, (unsigned long long)limit.rlim_max);
}

/* The soft limit is limits.c's business, which also tells how far it came. */
static void raise_descriptors(void) {
    struct rlimit limit, most = {.rlim_cur = DESCRIPTORS, .rlim_max = DESCRIPTORS};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max < DESCRIPTORS)
        (void)setrlimit(RLIMIT_NOFILE, &most);
}

static void run_anywhere(void) {
    size_t nbytes = CPU_ALLOC_SIZE(CPUS_MAX);
    cpu_set_t *all = CPU_ALLOC(CPUS_MAX);
    struct sched_param plain = {.sched_priority = 0};
    if (all) {
        memset(all, 0xff, nbytes);
        (void)sched_setaffinity(0, nbytes, all); /* the kernel takes those that there are */
        CPU_FREE(all);
    }
    (void)sched_setscheduler(0, SCHED_OTHER, &plain);
    errno = 0;
    if (getpriority(PRIO_PROCESS, 0) > 0 && errno == 0 && setpriority(PRIO_PROCESS, 0, 0) < 0)
        cwd_log(
            "started at nice %d, which this user may not undo: clients will wait for the broker "
            "on a busy machine",
            getpriority(PRIO_PROCESS, 0));
}

/* Who raises its own score, so that the kernel ends it first, does not speak for all. */
static void stay(void) {
    static const char path[] = "/proc/self/oom_score_adj";
    char text[16] = "";
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    if (read(fd, text, sizeof text - 1) > 0 && atoi(text) > 0 && pwrite(fd, "0", 1, 0) < 0)
        note("it was started with an oom_score_adj of %d, which this user may not lower",
             atoi(text));
    close(fd);
}

/* What changes how every program runs that sees it. All else in the environment may be meant for us
 * or for CUDA. */
static void forget_environment(void) {
    static const char *const names[] = {"LD_PRELOAD",      "LD_AUDIT",      "LD_DEBUG",
                                        "LD_PROFILE",      "LD_BIND_NOW",   "GLIBC_TUNABLES",
                                        "MALLOC_PERTURB_", "MALLOC_CHECK_", "MALLOC_TRACE"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        (void)unsetenv(names[i]);
}

void cwd_clean(void) {
    for (unsigned i = 0; i < sizeof limits / sizeof *limits; i++)
        raise_limit(limits[i].resource, limits[i].ulimit);
    raise_descriptors();
    run_anywhere();
    stay();
    forget_environment();
    umask(077);
}

void cwd_clean_tell(void) {
    for (unsigned i = 0; i < note_count; i++)
        cwd_log("%s", notes[i]);
}
