/*
 * Is there memory? The checks before a segment is allocated in full.
 *
 * Past a memory cgroup's limit the kernel kills, past RLIMIT_FSIZE it signals; neither returns an
 * error (FACTS.md). So the room is looked for first. Others allocate at the same time: a margin is
 * kept, and what remains of the race is said in the README.
 */
#include "shm/base/segment.h"

#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "shm/base/error.h"

/* A file's content as text; false if it cannot be read. */
static bool read_text(const char *path, char *text, size_t text_bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t count = read(fd, text, text_bytes - 1);
    close(fd);
    if (count < 0)
        return false;
    text[count] = 0;
    return true;
}

/* A file's content as one number; "max" and what is no number are no limit. */
static uint64_t read_number(const char *folder, const char *name) {
    char path[PATH_MAX + 32], text[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!read_text(path, text, sizeof text) || !isdigit((unsigned char)text[0]))
        return UINT64_MAX;
    return strtoull(text, NULL, 10);
}

/* What "name value" lines of memory.stat say: page cache that the kernel gives back under pressure.
 */
static uint64_t read_reclaimable(const char *folder, bool v2) {
    char path[PATH_MAX + 32], text[8192];
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (!read_text(path, text, sizeof text))
        return 0;
    uint64_t total = 0;
    const char *names[] = {v2 ? "inactive_file " : "total_inactive_file ",
                           v2 ? "active_file " : "total_active_file "};
    for (int i = 0; i < 2; i++) {
        const char *at = strstr(text, names[i]);
        while (at && at != text && at[-1] != '\n')
            at = strstr(at + 1, names[i]);
        if (at)
            total += strtoull(at + strlen(names[i]), NULL, 10);
    }
    return total;
}

/* The room left in one cgroup folder; UINT64_MAX where it has no limit. */
static uint64_t cgroup_room(const char *folder, bool v2) {
    uint64_t limit = read_number(folder, v2 ? "memory.max" : "memory.limit_in_bytes");
    if (limit >= UINT64_MAX / 4)
        return UINT64_MAX;
    uint64_t used = read_number(folder, v2 ? "memory.current" : "memory.usage_in_bytes");
    if (used == UINT64_MAX)
        return UINT64_MAX;
    uint64_t reclaimable = read_reclaimable(folder, v2);
    used -= reclaimable < used ? reclaimable : used;
    return limit > used ? limit - used : 0;
}

/* The least room in the cgroup at mount/path and all above it; *where is that folder. */
static uint64_t cgroup_least(const char *mount, const char *path, bool v2, char *where) {
    char folder[PATH_MAX];
    if ((size_t)snprintf(folder, sizeof folder, "%s%s", mount, path) >= sizeof folder)
        return UINT64_MAX;
    uint64_t least = UINT64_MAX;
    size_t mount_length = strlen(mount);
    for (;;) {
        uint64_t room = cgroup_room(folder, v2);
        if (room < least) {
            least = room;
            snprintf(where, PATH_MAX, "%s", folder);
        }
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < mount_length)
            return least;
        *slash = 0;
    }
}

static uint64_t cgroups_least(char *where) {
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file)
        return UINT64_MAX;
    uint64_t least = UINT64_MAX;
    char line[PATH_MAX + 64], folder[PATH_MAX];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        names++;
        uint64_t room = UINT64_MAX;
        if (strcmp(names, "memory") == 0)
            room = cgroup_least("/sys/fs/cgroup/memory", path, false, folder);
        else if (*names == 0)
            room = cgroup_least("/sys/fs/cgroup", path, true, folder);
        if (room < least) {
            least = room;
            strcpy(where, folder);
        }
    }
    fclose(file);
    return least;
}

uint64_t cw_memory_cgroup_room(char *where, size_t where_bytes) {
    char folder[PATH_MAX] = "";
    uint64_t room = cgroups_least(folder);
    snprintf(where, where_bytes, "%s", folder);
    return room;
}

static uint64_t memory_available(void) {
    char text[8192];
    if (!read_text("/proc/meminfo", text, sizeof text))
        return UINT64_MAX;
    const char *at = strstr(text, "MemAvailable:");
    return at ? strtoull(at + 13, NULL, 10) * 1024 : UINT64_MAX;
}

int cw_memory_check(uint64_t size_bytes) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        size_bytes > limit.rlim_cur)
        return cw_fail(
            -EDQUOT,
            "%llu bytes of shared memory were asked for, RLIMIT_FSIZE allows %llu a file: "
            "raise it (ulimit -f)",
            (unsigned long long)size_bytes, (unsigned long long)limit.rlim_cur);
    if (size_bytes < CW_PAGE * 64 && size_bytes != 0)
        return 0; /* less than the margin is for: not worth reading a dozen files */
    uint64_t needed = size_bytes + CW_MEMORY_MARGIN_BYTES;
    uint64_t available = memory_available();
    if (needed < size_bytes || needed > available)
        return cw_fail(
            -EDQUOT,
            "%llu bytes of shared memory were asked for, the machine has %llu available: "
            "free some, or ask for less",
            (unsigned long long)size_bytes, (unsigned long long)available);
    char where[PATH_MAX] = "";
    uint64_t room = cgroups_least(where);
    if (needed > room)
        return cw_fail(
            -EDQUOT,
            "%llu bytes of shared memory were asked for, the memory cgroup %.200s has room for "
            "%llu: raise its limit, or ask for less",
            (unsigned long long)size_bytes, where, (unsigned long long)room);
    return 0;
}
