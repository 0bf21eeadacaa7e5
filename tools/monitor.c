/*
 * The broker seen from outside: see monitor.h.
 *
 * Everything is opened read-only and without blocking: the lock file's line may be stale, and its
 * pid may by now belong to anything. So the descriptor's link is looked at before it is opened, and
 * the segment's header names the instance that the lock file named.
 */
#include "tools/monitor.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/cableway.h"
#include "ipc/wire.h"
#include "shm/base/error.h"
#include "shm/base/pidfd.h"
#include "shm/base/wait.h"

#define READ_TURNS 10u /* of the directory, which is built anew under us */

static int none_runs(const struct cw_address *address) {
    return cw_fail(-ENOENT, "no broker runs (none listens at %.300s)", address->socket_path);
}

int monitor_open_memfd(pid_t pid, const char *number, const char *prefix) {
    char path[64], link[128];
    snprintf(path, sizeof path, "/proc/%d/fd/%.16s", (int)pid, number);
    ssize_t length = readlink(path, link, sizeof link - 1);
    if (length < 0)
        return errno == EACCES || errno == EPERM ? -EPERM : -ENOENT;
    link[length] = 0;
    if (strncmp(link, prefix, strlen(prefix)))
        return -ENOENT;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    return fd >= 0 ? fd : errno == EACCES || errno == EPERM ? -EPERM : -ENOENT;
}

/* Maps a segment whose size its maker knows and we do not. */
static int map_segment(int fd, uint32_t kind, struct cw_segment *out) {
    struct stat status;
    if (fcntl(fd, F_GET_SEALS) < 0 || fstat(fd, &status)) {
        close(fd);
        return cw_fail(-EPROTO, "a descriptor of the broker that should be shared memory is none");
    }
    return cw_segment_open(fd, (uint64_t)status.st_size, kind, false, 0, out);
}

/* The state letter of a process, as /proc/PID/stat has it; 0 when there is none. */
static char process_state(pid_t pid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t count = read(fd, text, sizeof text - 1);
    close(fd);
    if (count <= 0)
        return 0;
    text[count] = 0;
    char *name_end = strrchr(text, ')'); /* the name before it may hold anything */
    return name_end && name_end[1] == ' ' ? name_end[2] : 0;
}

static bool process_ended(char state) {
    return state == 0 || state == 'Z' || state == 'X';
}

static int open_root(struct monitor *monitor) {
    char number[16];
    snprintf(number, sizeof number, "%d", monitor->lock.root_fd);
    int fd = monitor_open_memfd(monitor->lock.pid, number, "/memfd:cw-");
    if (fd == -ENOENT)
        return none_runs(&monitor->address);
    /* What is left of a dead one until it is waited for is root's alone to read. */
    if (fd < 0 && process_ended(process_state(monitor->lock.pid)))
        return none_runs(&monitor->address);
    if (fd < 0)
        return cw_fail(-EPERM, "the broker with pid %d may run, but /proc/%d/fd cannot be read: %s",
                       (int)monitor->lock.pid, (int)monitor->lock.pid, strerror(-fd));
    int code = map_segment(fd, CW_SEGMENT_ROOT, &monitor->segment);
    if (code)
        return code;
    monitor->root = monitor->segment.base;
    if (monitor->segment.size_bytes < sizeof(struct cw_root) ||
        monitor->root->protocol != CW_PROTOCOL_VERSION)
        return cw_fail(
            -EPROTO, "the broker with pid %d is of another version (protocol %u, this command %u)",
            (int)monitor->lock.pid,
            monitor->segment.size_bytes < CW_PAGE ? 0 : monitor->root->protocol,
            CW_PROTOCOL_VERSION);
    if (monitor->root->header.instance != monitor->lock.instance)
        return none_runs(&monitor->address);
    return 0;
}

int monitor_open(struct monitor *out) {
    *out = (struct monitor){.pidfd = -1, .segment = {.fd = -1}};
    int folder, code = cw_address_find(NULL, &out->address);
    if (code)
        return code;
    code = cw_address_open_folder(&out->address, false, &folder);
    if (code)
        return code == -ENOENT ? none_runs(&out->address) : code;
    code = cw_address_read_lock(&out->address, folder, &out->lock);
    close(folder);
    if (code)
        return code == -ENOENT ? none_runs(&out->address) : code;
    /* The pidfd first: what the segment then proves about the process holds for this pidfd, too. */
    out->pidfd = cw_pidfd_open((pid_t)out->lock.pid);
    if (out->pidfd < 0)
        snprintf(out->no_pidfd, sizeof out->no_pidfd, "%s", cw_detail());
    code = open_root(out);
    if (code)
        monitor_close(out);
    return code;
}

void monitor_close(struct monitor *monitor) {
    cw_segment_close(&monitor->segment);
    monitor->root = NULL;
    if (monitor->pidfd >= 0)
        close(monitor->pidfd);
    monitor->pidfd = -1;
}

enum monitor_state monitor_look(const struct monitor *monitor, double *still_seconds) {
    uint64_t beat_ns = monitor_word(&monitor->root->heartbeat_ns);
    bool asleep = CW_LOAD(MON, &monitor->root->broker.asleep, relaxed) != 0;
    *still_seconds = beat_ns ? (double)(cw_now_ns() - (int64_t)beat_ns) * 1e-9 : -1;
    char state = process_state(monitor->lock.pid);
    if (process_ended(state))
        return MONITOR_GONE;
    if (state == 'T' || state == 't')
        return MONITOR_STOPPED;
    if (asleep)
        return MONITOR_IDLE;
    return *still_seconds > MONITOR_HANG_SECONDS ? MONITOR_HANGS : MONITOR_RUNNING;
}

char monitor_process_state(const struct monitor *monitor) {
    return process_state(monitor->lock.pid);
}

const char *monitor_state_text(enum monitor_state state) {
    switch (state) {
    case MONITOR_IDLE:
        return "idle";
    case MONITOR_RUNNING:
        return "running";
    case MONITOR_HANGS:
        return "hangs";
    case MONITOR_STOPPED:
        return "stopped";
    case MONITOR_GONE:
        return "gone";
    }
    return "unknown";
}

/* How the directory's reader gets the broker's segments here: by their labels in /proc/PID/fd. */
static int fetch_segment(void *context, uint32_t kind, uint64_t which, struct cw_segment *out) {
    struct monitor *monitor = context;
    char path[64], label[64];
    snprintf(label, sizeof label, "/memfd:cw-%s-%llu ",
             kind == CW_SEGMENT_INDEX ? "index" : "records", (unsigned long long)which);
    snprintf(path, sizeof path, "/proc/%d/fd", (int)monitor->lock.pid);
    DIR *folder = opendir(path);
    if (!folder)
        return cw_fail(-ECONNRESET, "%s cannot be read: %m", path);
    int code = cw_fail(-ECONNRESET, "the broker holds no segment %s", label + 7);
    for (struct dirent *entry; (entry = readdir(folder));) {
        int fd = monitor_open_memfd(monitor->lock.pid, entry->d_name, label);
        if (fd < 0)
            continue;
        code = map_segment(fd, kind, out);
        if (code == 0 &&
            ((struct cw_segment_header *)out->base)->instance != monitor->lock.instance) {
            cw_segment_close(out); /* a client's memory under our label */
            code = -ECONNRESET;
            continue;
        }
        break;
    }
    closedir(folder);
    return code;
}

/* ---- names ---- */

/* Keys of the directory, each a namespace, a zero and a name; terminated. */
struct keys {
    char **keys;
    size_t count, room;
};

static void keys_forget(struct keys *keys) {
    for (size_t i = 0; i < keys->count; i++)
        free(keys->keys[i]);
    keys->count = 0;
}

static const char *name_in(const char *key) {
    return key + strlen(key) + 1;
}

static size_t key_length(const char *key) {
    const char *name = name_in(key);
    return (size_t)(name - key) + strlen(name);
}

static void keys_add(struct keys *keys, const struct cw_found *found) {
    size_t length = found->entry.key_bytes, space = strnlen(found->key, length);
    if (space > CW_NAMESPACE_MAX || space == length)
        return; /* no key of ours */
    if (found->key[space + 1] == '/')
        return; /* a replica, whose name is its owner's */
    if (keys->count == keys->room) {
        keys->room = keys->room ? 2 * keys->room : 64;
        keys->keys = realloc(keys->keys, keys->room * sizeof *keys->keys);
        CW_ASSERT(keys->keys);
    }
    char *key = malloc(length + 1);
    CW_ASSERT(key);
    memcpy(key, found->key, length);
    key[length] = 0;
    keys->keys[keys->count++] = key;
}

static int compare_keys(const void *a, const void *b) {
    const char *first = *(char *const *)a, *second = *(char *const *)b;
    int order = strcmp(first, second);
    return order ? order : strcmp(name_in(first), name_in(second));
}

/* All keys, sorted. */
static int keys_read(struct cw_directory_reader *reader, struct keys *out) {
    struct cw_found *found = malloc(sizeof *found);
    CW_ASSERT(found);
    int code = -EAGAIN;
    for (unsigned turn = 0; (code == -EAGAIN || code == -ECONNRESET) && turn < READ_TURNS; turn++) {
        uint64_t cursor = 0;
        keys_forget(out);
        while ((code = cw_directory_next(reader, &cursor, found)) == 1)
            keys_add(out, found);
    }
    free(found);
    if (code == 0 && out->count)
        qsort(out->keys, out->count, sizeof *out->keys, compare_keys);
    return code;
}

static int tell_keys(struct cw_directory_reader *reader, const struct keys *keys,
                     const char *name_space, const char *prefix, monitor_on_name *each,
                     void *context) {
    struct cw_found *found = malloc(sizeof *found);
    int code = 0;
    CW_ASSERT(found);
    for (size_t i = 0; i < keys->count && code == 0; i++) {
        const char *key = keys->keys[i], *name = name_in(key);
        if ((name_space && strcmp(key, name_space) != 0) ||
            strncmp(name, prefix, strlen(prefix)) != 0)
            continue;
        code = cw_directory_find(reader, key, key_length(key), found);
        if (code == 0)
            code = each(context, key, name, found);
        else if (code == -ENOENT)
            code = 0;
    }
    free(found);
    return code;
}

int monitor_names(struct monitor *monitor, const char *name_space, const char *prefix,
                  monitor_on_name *each, void *context) {
    struct cw_directory_reader *reader = malloc(sizeof *reader);
    struct keys keys = {.keys = NULL};
    CW_ASSERT(reader);
    cw_directory_reader_init(reader, &monitor->root->directory, fetch_segment, monitor);
    int code = keys_read(reader, &keys);
    if (code == 0)
        code = tell_keys(reader, &keys, name_space, prefix, each, context);
    cw_directory_reader_deinit(reader);
    free(reader);
    keys_forget(&keys);
    free(keys.keys);
    return code;
}

int monitor_namespaces(struct monitor *monitor, char ***out, size_t *count) {
    struct cw_directory_reader *reader = malloc(sizeof *reader);
    struct keys keys = {.keys = NULL};
    CW_ASSERT(reader);
    cw_directory_reader_init(reader, &monitor->root->directory, fetch_segment, monitor);
    int code = keys_read(reader, &keys);
    cw_directory_reader_deinit(reader);
    free(reader);
    char **texts = calloc(keys.count + 1, sizeof *texts);
    CW_ASSERT(texts);
    size_t used = 0;
    for (size_t i = 0; code == 0 && i < keys.count; i++) {
        if (used && !strcmp(texts[used - 1], keys.keys[i]))
            continue;
        texts[used] = strdup(keys.keys[i]);
        CW_ASSERT(texts[used]);
        used++;
    }
    keys_forget(&keys);
    free(keys.keys);
    if (code) {
        free(texts);
        return code;
    }
    *out = texts;
    *count = used;
    return 0;
}
