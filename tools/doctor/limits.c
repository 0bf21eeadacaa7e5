/*
 * Doctor: how much memory there is for arrays, and the resource limits that stand in the way.
 */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "shm/session/monitor.h"
#include "shm/base/segment.h"
#include "tools/doctor/doctor.h"

#define LITTLE_BYTES (256ull << 20)

/* "name: 123 kB" out of /proc/meminfo, in bytes; 0 when it is not there. */
static uint64_t meminfo(const char *name) {
    char line[256];
    uint64_t found = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && fgets(line, sizeof line, file)) {
        if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':')
            found = strtoull(line + strlen(name) + 1, NULL, 10) * 1024;
    }
    if (file)
        fclose(file);
    return found;
}

static void check_memory(struct doctor *doctor) {
    char available[OUTPUT_SHORT], total[OUTPUT_SHORT];
    uint64_t bytes = meminfo("MemAvailable");
    doctor_add(doctor, bytes < LITTLE_BYTES ? DOCTOR_WARNING : DOCTOR_OK, "memory",
               bytes < LITTLE_BYTES ? "free some: large arrays will not fit" : NULL,
               "%s available of %s", output_size(bytes, available),
               output_size(meminfo("MemTotal"), total));
}

static void check_cgroup(struct doctor *doctor) {
    char where[PATH_MAX], path[PATH_MAX + 32], text[64] = "", room[OUTPUT_SHORT],
                                               limit[OUTPUT_SHORT];
    uint64_t room_bytes = cw_memory_cgroup_room(where, sizeof where);
    if (room_bytes == UINT64_MAX) {
        doctor_add(doctor, DOCTOR_OK, "memory cgroup", NULL, "no limit");
        return;
    }
    snprintf(path, sizeof path, "%s/memory.max", where);
    bool v2 = doctor_read(path, text, sizeof text);
    snprintf(path, sizeof path, "%s/memory.limit_in_bytes", where);
    if (!v2)
        doctor_read(path, text, sizeof text);
    bool little = room_bytes < LITTLE_BYTES;
    doctor_add(doctor, little ? DOCTOR_WARNING : DOCTOR_OK, "memory cgroup",
               little ? "raise the container's or job's memory limit: past it arrays are refused "
                        "(LimitExceeded)"
                      : NULL,
               "%s: room for %s, limit %s (v%d)", where, output_size(room_bytes, room),
               output_size(strtoull(text, NULL, 10), limit), v2 ? 2 : 1);
}

static const char *limit_text(rlim_t value, char *text) {
    if (value == RLIM_INFINITY)
        snprintf(text, OUTPUT_SHORT, "unlimited");
    else
        output_size(value, text);
    return text;
}

static void check_files(struct doctor *doctor) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files))
        return;
    bool few = files.rlim_max < cw_limit_default(CW_LIMIT_max_fds);
    doctor_add(
        doctor, few ? DOCTOR_WARNING : DOCTOR_OK, "open files",
        few ? "the broker may hold up to max_fds descriptors: raise the hard limit (ulimit -Hn, "
              "limits.conf, LimitNOFILE=)"
            : NULL,
        "soft limit %llu, hard limit %llu; the broker's max_fds is %llu by default",
        (unsigned long long)files.rlim_cur, (unsigned long long)files.rlim_max,
        (unsigned long long)cw_limit_default(CW_LIMIT_max_fds));
}

static void check_file_size(struct doctor *doctor) {
    struct rlimit size;
    char text[OUTPUT_SHORT];
    if (getrlimit(RLIMIT_FSIZE, &size))
        return;
    bool limited = size.rlim_cur != RLIM_INFINITY;
    doctor_add(doctor, limited ? DOCTOR_WARNING : DOCTOR_OK, "file size",
               limited ? "it bounds shared memory, too: ulimit -f unlimited" : NULL, "%s",
               limit_text(size.rlim_cur, text));
}

void doctor_limits(struct doctor *doctor) {
    check_memory(doctor);
    check_cgroup(doctor);
    check_files(doctor);
    check_file_size(doctor);
}
