/*
 * Segments that the broker holds: see segments.h. One thread. Descriptors come and go while they
 * are looked at; a link is read before anything is opened, so that nothing is touched that may
 * block.
 */
#include "tools/watch/segments.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "shm/base/wait.h"

#define SEARCH_NS 10000000000 /* the page's gauges may be as they were by chance */

static const struct {
    const char *label; /* of its link in /proc, up to a number or a blank */
    uint32_t kind;
    bool numbered;
} kinds[] = {
    {"/memfd:cw-blocks ", CW_SEGMENT_BLOCKS, false},
    {"/memfd:cw-session ", CW_SEGMENT_SESSION, false},
    {"/memfd:cw-leases ", CW_SEGMENT_LEASES, false},
    {"/memfd:cw-index-", CW_SEGMENT_INDEX, true},
    {"/memfd:cw-records-", CW_SEGMENT_RECORDS, true},
};
#define KINDS (sizeof kinds / sizeof *kinds)

void segments_init(struct segments *segments, const struct monitor *monitor) {
    *segments = (struct segments){.monitor = monitor};
}

void segments_deinit(struct segments *segments) {
    for (size_t i = 0; i < segments->count; i++)
        cw_segment_close(&segments->all[i].segment);
    free(segments->all);
    *segments = (struct segments){.all = NULL};
}

static int by_inode(const void *a, const void *b) {
    const struct segments_one *first = a, *second = b;
    return (first->inode > second->inode) - (first->inode < second->inode);
}

static void add(struct segments *segments, const struct segments_one *one) {
    if (segments->count == segments->room) {
        segments->room = segments->room ? 2 * segments->room : 64;
        segments->all = realloc(segments->all, segments->room * sizeof *segments->all);
        CW_ASSERT(segments->all);
    }
    segments->all[segments->count++] = *one;
}

/* Maps what a descriptor of the broker is, whose link was read. */
static void map(struct segments *segments, const char *number, const char *label,
                struct segments_one *one) {
    struct stat status;
    int fd = monitor_open_memfd((pid_t)segments->monitor->lock.pid, number, label);
    if (fd < 0)
        return;
    if (fstat(fd, &status)) {
        close(fd);
        return;
    }
    /* Takes fd over, and makes sure that nobody shortens it under us. */
    if (cw_segment_open(fd, (uint64_t)status.st_size, one->kind, false, 0, &one->segment))
        return;
    cw_segment_close_fd(&one->segment);
    one->inode = status.st_ino;
    add(segments, one);
}

/* One entry of /proc/PID/fd. known: how many stand sorted in front. */
static void look_at(struct segments *segments, size_t known, int folder, const char *number) {
    char link[64];
    struct stat status;
    ssize_t length = readlinkat(folder, number, link, sizeof link - 1);
    if (length <= 0)
        return;
    link[length] = 0;
    for (size_t k = 0; k < KINDS; k++) {
        size_t label = strlen(kinds[k].label);
        if (strncmp(link, kinds[k].label, label) != 0)
            continue;
        if (fstatat(folder, number, &status, 0))
            return;
        struct segments_one one = {
            .inode = status.st_ino,
            .kind = kinds[k].kind,
            .which = kinds[k].numbered ? strtoull(link + label, NULL, 10) : 0,
            .seen = true,
            .segment = {.fd = -1},
        };
        struct segments_one *found = NULL;
        if (known)
            found = bsearch(&one, segments->all, known, sizeof one, by_inode);
        if (found)
            found->seen = true;
        else
            map(segments, number, kinds[k].label, &one);
        return;
    }
}

static void forget_unseen(struct segments *segments) {
    size_t count = 0;
    for (size_t i = 0; i < segments->count; i++) {
        if (segments->all[i].seen)
            segments->all[count++] = segments->all[i];
        else
            cw_segment_close(&segments->all[i].segment);
    }
    segments->count = count;
}

static int search(struct segments *segments) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)segments->monitor->lock.pid);
    DIR *folder = opendir(path);
    if (!folder)
        return cw_fail(errno == EACCES || errno == EPERM ? -EPERM : -ECONNRESET,
                       "%s cannot be read: %m", path);
    size_t known = segments->count;
    for (size_t i = 0; i < known; i++)
        segments->all[i].seen = false;
    for (struct dirent *entry; (entry = readdir(folder));)
        look_at(segments, known, dirfd(folder), entry->d_name);
    closedir(folder);
    double still_seconds;
    /* Of a process that ends the descriptors go one by one. */
    if (monitor_look(segments->monitor, &still_seconds) != MONITOR_GONE)
        forget_unseen(segments);
    if (segments->count)
        qsort(segments->all, segments->count, sizeof *segments->all, by_inode);
    return 0;
}

int segments_update(struct segments *segments) {
    struct cw_root *root = segments->monitor->root;
    const uint64_t now[] = {
        monitor_word(&root->gauges[CW_GAUGE_fds]),
        monitor_word(&root->counters[CW_COUNTER_clients_accepted]),
        monitor_word(&root->counters[CW_COUNTER_slabs_added]) +
            monitor_word(&root->counters[CW_COUNTER_slabs_closed]),
    };
    if (segments->searched_ns && memcmp(now, segments->gauges, sizeof now) == 0 &&
        cw_now_ns() - segments->searched_ns < SEARCH_NS)
        return 0;
    int code = search(segments);
    if (code == 0) {
        memcpy(segments->gauges, now, sizeof now);
        segments->searched_ns = cw_now_ns();
    }
    return code;
}

static bool give(struct segments *segments, uint32_t kind, uint64_t which, struct cw_segment *out) {
    for (size_t i = 0; i < segments->count; i++) {
        struct segments_one *one = &segments->all[i];
        if (one->kind != kind || one->which != which || !one->segment.base)
            continue;
        /* Not a client's memory under this label. */
        if (((struct cw_segment_header *)one->segment.base)->instance !=
            segments->monitor->lock.instance)
            continue;
        *out = one->segment;
        one->segment = (struct cw_segment){.fd = -1};
        return true;
    }
    return false;
}

int segments_fetch(void *context, uint32_t kind, uint64_t which, struct cw_segment *out) {
    struct segments *segments = context;
    if (give(segments, kind, which, out))
        return 0;
    segments->searched_ns = 0; /* it is newer than what the last search found */
    int code = segments_update(segments);
    if (code)
        return code;
    return give(segments, kind, which, out)
               ? 0
               : cw_fail(-ECONNRESET, "the broker holds no segment of kind %u with the number %llu",
                         kind, (unsigned long long)which);
}
