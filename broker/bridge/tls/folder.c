/*
 * Folder: see folder.h. Paths, modes and the lock; nothing here knows what stands in the files.
 */
#include "broker/bridge/tls/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/bridge/wire/frame.h"
#include "shm/base/error.h"
#include "shm/base/wait.h"

const char *cwb_user_folder(char folder[PATH_MAX]) {
    const char *given = secure_getenv("CABLEWAY_NODE_DIR"),
               *config = secure_getenv("XDG_CONFIG_HOME"), *home = secure_getenv("HOME");
    if (given && *given)
        snprintf(folder, PATH_MAX, "%s", given);
    else if (config && *config == '/')
        snprintf(folder, PATH_MAX, "%s/cableway", config);
    else
        snprintf(folder, PATH_MAX, "%s/.config/cableway", home && *home ? home : "");
    return folder;
}

static bool is_number(const char *text) {
    return text && *text && strlen(text) <= 20 && strspn(text, "0123456789") == strlen(text);
}

bool cwb_job_name(char name[CWB_JOB_NAME]) {
    const char *job = secure_getenv("SLURM_JOB_ID"), *again = secure_getenv("SLURM_RESTART_COUNT");
    if (!is_number(job))
        return false;
    bool anew = is_number(again) && strcmp(again, "0") != 0;
    snprintf(name, CWB_JOB_NAME, "job-%s%s%s", job, anew ? "." : "", anew ? again : "");
    return true;
}

/* The job's folder of this node, if there is one. */
static bool job_folder(char folder[PATH_MAX]) {
    const char *node = secure_getenv("SLURMD_NODENAME");
    char user[PATH_MAX], job[CWB_JOB_NAME], name[CWB_JOB_NAME + CW_NODE_MAX + 2];
    if (!node || !cw_node_valid(node) || !cwb_job_name(job))
        return false;
    snprintf(name, sizeof name, "%s/%s", job, node);
    return cwb_folder_path(cwb_user_folder(user), name, folder) == 0 && access(folder, F_OK) == 0;
}

const char *cwb_node_folder(char folder[PATH_MAX]) {
    return job_folder(folder) ? folder : cwb_user_folder(folder);
}

const char *cwb_job_node(void) {
    char folder[PATH_MAX];
    return job_folder(folder) ? secure_getenv("SLURMD_NODENAME") : NULL;
}

static int path_too_long(const char *folder) {
    return cw_fail(-EINVAL,
                   "the path of the folder %.200s... is longer than %d bytes: set "
                   "CABLEWAY_NODE_DIR to a shorter one",
                   folder, PATH_MAX - 1);
}

int cwb_folder_make(const char *folder) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s", folder) >= PATH_MAX)
        return path_too_long(folder);
    if (mkdir(path, 0700) == 0 || errno == EEXIST) /* those above it are there, most often */
        return 0;
    for (char *at = path + 1; *at; at++) {
        if (*at != '/')
            continue;
        *at = 0;
        if (mkdir(path, 0700) < 0 && errno != EEXIST)
            return cw_fail(-errno, "making the folder %.300s failed: %m", path);
        *at = '/';
    }
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return cw_fail(-errno, "making the folder %.300s failed: %m", path);
    return 0;
}

int cwb_folder_path(const char *folder, const char *name, char path[PATH_MAX]) {
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX)
        return 0;
    return path_too_long(folder);
}

const char *cwb_folder_job_node(const char *folder) {
    const char *node = strrchr(folder, '/'), *job = node;
    if (!node || node == folder || !cw_node_valid(node + 1))
        return NULL;
    while (job > folder && job[-1] != '/')
        job--;
    return strncmp(job, "job-", 4) == 0 && job[4] >= '0' && job[4] <= '9' ? node + 1 : NULL;
}

/* Of the file that all nodes of a job have in common. false: the folder is none of a job's. */
static bool common_path(const char *folder, const char *name, char path[PATH_MAX]) {
    const char *node = cwb_folder_job_node(folder);
    return node && snprintf(path, PATH_MAX, "%.*s/%s", (int)(node - 1 - folder), folder, name) > 0;
}

int cwb_folder_find(const char *folder, const char *name, char path[PATH_MAX], bool *common) {
    char other[PATH_MAX];
    int code = cwb_folder_path(folder, name, path);
    if (common)
        *common = false;
    if (code || access(path, F_OK) == 0 || errno != ENOENT || !common_path(folder, name, other) ||
        access(other, F_OK) != 0)
        return code;
    strcpy(path, other); /* it is shorter */
    if (common)
        *common = true;
    return 0;
}

int cwb_folder_trust(const char *path, bool secret) {
    struct stat status;
    if (stat(path, &status) < 0)
        return errno == ENOENT ? cw_fail(-ENOENT, "there is no %.300s", path)
                               : cw_fail(-EINVAL, "%.300s: %m", path);
    if (status.st_uid != geteuid() && status.st_uid != 0)
        return cw_fail(-EINVAL, "%.300s belongs to another user (%u): chown it", path,
                       (unsigned)status.st_uid);
    if (secret && (status.st_mode & 077))
        return cw_fail(-EINVAL, "%.300s may be read by others; chmod 600 it, or make a new one",
                       path);
    if (status.st_mode & 022)
        return cw_fail(-EINVAL, "%.300s may be changed by others; chmod go-w it", path);
    return 0;
}

FILE *cwb_folder_create(const char *path, mode_t mode) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    return fd < 0 ? NULL : fdopen(fd, "w");
}

int cwb_folder_lock(const char *folder) {
    char path[PATH_MAX];
    int code = cwb_folder_path(folder, "peers.lock", path);
    if (code)
        return code;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return cw_fail(-errno, "%.300s: %m", path);
    int64_t until_ns = cw_now_ns() + CWB_LOCK_NS;
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        struct timespec pause = {.tv_nsec = 2000000};
        if (errno == EINTR)
            continue;
        if (errno != EWOULDBLOCK)
            code = cw_fail(-errno, "locking %.300s failed: %m", path);
        else if (cw_now_ns() >= until_ns)
            code = cw_fail(-EBUSY,
                           "another process has been changing the peers for %d s (it holds %.300s; "
                           "`fuser` tells which); nothing was changed",
                           (int)(CWB_LOCK_NS / 1000000000), path);
        else {
            nanosleep(&pause, NULL);
            continue;
        }
        close(fd);
        return code;
    }
    return fd;
}

struct cwb_stamp cwb_folder_stamp(const char *folder, const char *name) {
    char path[PATH_MAX];
    struct stat status;
    if (cwb_folder_path(folder, name, path))
        return (struct cwb_stamp){.inode = 0};
    if (stat(path, &status) < 0 &&
        (errno != ENOENT || !common_path(folder, name, path) || stat(path, &status) < 0))
        return (struct cwb_stamp){.inode = 0};
    return (struct cwb_stamp){.device = status.st_dev,
                              .inode = status.st_ino,
                              .size_bytes = status.st_size,
                              .changed = status.st_ctim};
}

bool cwb_stamp_same(const struct cwb_stamp *a, const struct cwb_stamp *b) {
    return a->device == b->device && a->inode == b->inode && a->size_bytes == b->size_bytes &&
           a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec;
}
