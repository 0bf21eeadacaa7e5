/*
 * Files of traces: see files.h. Processes may end at any moment, and write while they are read.
 */
#include "tools/trace/files.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/monitor.h"

#define LABEL     "/memfd:cw-trace "
#define TIDS_MAX  (1u << 22)
#define FUTURE_NS 1000000000 /* an event that ends later than this from now cannot be */

void files_of(uint32_t pid, bool visit(void *context, int fd), void *context) {
    char path[64], link[64];
    bool goes_on = true;
    snprintf(path, sizeof path, "/proc/%u/fd", pid);
    DIR *folder = opendir(path);
    if (!folder)
        return;
    for (struct dirent *entry; goes_on && (entry = readdir(folder));) {
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, link, sizeof link - 1);
        link[length > 0 ? length : 0] = 0;
        if (strncmp(link, LABEL, strlen(LABEL)) != 0)
            continue;
        int fd = monitor_open_memfd((pid_t)pid, entry->d_name, LABEL);
        if (fd >= 0)
            goes_on = visit(context, fd);
    }
    closedir(folder);
}

bool files_thread_lives(uint32_t pid, uint32_t tid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/task/%u", pid, tid);
    return access(path, F_OK) == 0;
}

bool files_can_be(const struct cw_trace_record *record, int64_t now_ns) {
    return record->kind > CW_TRACE_NONE && record->kind < CW_TRACE_KINDS && record->tid > 0 &&
           record->tid <= TIDS_MAX && record->begun_ns > 0 && record->duration_ns >= 0 &&
           record->begun_ns <= now_ns + FUTURE_NS &&
           record->duration_ns <= now_ns + FUTURE_NS - record->begun_ns;
}
