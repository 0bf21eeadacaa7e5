/*
 * A memory cgroup of a test's own, below the one that it runs in (v1's memory controller, else v2).
 * Where that is not allowed the test is skipped.
 */
#ifndef CW_TESTS_CGROUP_H
#define CW_TESTS_CGROUP_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct cgroup {
    char folder[512];
    const char *limit; /* the limit's file */
};

static inline bool cgroup_write(const char *folder, const char *name, const char *text) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool done = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    return done;
}

/* Our own place in the hierarchy: v1's memory controller, else v2. */
static inline bool cgroup_base(struct cgroup *group) {
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[400];
    bool found = false;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        bool v1 = strcmp(names + 1, "memory") == 0;
        if (!v1 && names[1] != 0)
            continue;
        char base[480];
        snprintf(base, sizeof base, "/sys/fs/cgroup%s%s", v1 ? "/memory" : "", path);
        if (access(base, W_OK) != 0)
            snprintf(base, sizeof base, "/sys/fs/cgroup%s", v1 ? "/memory" : "");
        snprintf(group->folder, sizeof group->folder, "%s/cw-test-%d", base, (int)getpid());
        group->limit = v1 ? "memory.limit_in_bytes" : "memory.max";
        found = true;
        if (v1)
            break;
    }
    if (file)
        fclose(file);
    return found;
}

static inline bool cgroup_open(struct cgroup *group, uint64_t limit_bytes) {
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)limit_bytes);
    if (!cgroup_base(group) || mkdir(group->folder, 0755) != 0)
        return false;
    if (cgroup_write(group->folder, group->limit, text))
        return true;
    rmdir(group->folder);
    return false;
}

/* Moves a process into it (0: ourselves). */
static inline bool cgroup_join(struct cgroup *group, pid_t pid) {
    char text[32];
    snprintf(text, sizeof text, "%d", (int)pid);
    return cgroup_write(group->folder, "cgroup.procs", text);
}

/* Removes it, once its last process has ended. */
static inline void cgroup_close(struct cgroup *group) {
    for (int i = 0; i < 500 && rmdir(group->folder) != 0 && errno == EBUSY; i++)
        usleep(10000);
}

#endif
