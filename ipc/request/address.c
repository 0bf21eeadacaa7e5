/*
 * Where a user's broker lives: see address.h.
 *
 * Used by the broker and by every client, from any thread; it keeps no state. Nothing here is
 * undone when a process dies: a folder, a stale socket and a stale lock file may stay, and the next
 * broker takes them over under the flock.
 */
#include "ipc/request/address.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/wire.h"
#include "shm/base/error.h"

static bool is_own_directory(const char *path) {
    struct stat status;
    return path[0] == '/' && stat(path, &status) == 0 && S_ISDIR(status.st_mode) &&
           status.st_uid == geteuid();
}

static bool find_folder(char *out, size_t out_bytes) {
    const char *chosen = secure_getenv("CABLEWAY_DIR");
    int count;
    if (chosen && *chosen)
        count = snprintf(out, out_bytes, "%s", chosen);
    else if ((chosen = secure_getenv("XDG_RUNTIME_DIR")) && is_own_directory(chosen))
        count = snprintf(out, out_bytes, "%s/cableway", chosen);
    else
        count = snprintf(out, out_bytes, "/tmp/cableway-%u", (unsigned)geteuid());
    return count > 0 && (size_t)count < out_bytes;
}

/* The batch job that we are in, with '-' before it, or "". */
static void find_job(char *out, size_t out_bytes) {
    static const char *const names[] = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"};
    const char *job = NULL;
    for (unsigned i = 0; i < sizeof names / sizeof *names && (!job || !*job); i++)
        job = secure_getenv(names[i]);
    *out = 0;
    if (!job || !*job)
        return;
    snprintf(out, out_bytes, "-%s", job);
    for (char *at = out; *at; at++)
        if (!isalnum((unsigned char)*at) && !strchr("_.-", *at))
            *at = '_';
}

static bool ends_in_sock(const char *place) {
    size_t length = strlen(place);
    return length > 5 && strcmp(place + length - 5, ".sock") == 0;
}

/* Splits a socket's whole path into folder and stem. */
static int split_socket_path(const char *place, char *folder, size_t folder_bytes, char *stem,
                             size_t stem_bytes) {
    const char *slash = strrchr(place, '/'), *name = slash + 1;
    int name_length = (int)strlen(name) - 5;
    int folder_length = slash == place ? 1 : (int)(slash - place); /* 1: the root */
    if (name_length < 1 || (size_t)name_length >= stem_bytes ||
        (size_t)folder_length >= folder_bytes)
        return cw_fail(-EINVAL, "the socket path %.200s is too long, or names no file", place);
    snprintf(folder, folder_bytes, "%.*s", folder_length, place);
    snprintf(stem, stem_bytes, "%.*s", name_length, name);
    return 0;
}

static void join(char *path, size_t path_bytes, char *name, const struct cw_address *address,
                 const char *stem, const char *ending) {
    snprintf(name, CW_ADDRESS_NAME_MAX, "%s.%s", stem, ending);
    snprintf(path, path_bytes, "%s/%s", address->folder, name);
}

/* A relative path would name another folder, and another broker, after the next chdir and in each
 * process that is told of it. */
static int make_absolute(const char *place, char *out, size_t out_bytes) {
    char here[PATH_MAX] = "";
    if (place[0] != '/' && (!getcwd(here, sizeof here) || here[0] != '/'))
        return cw_fail(-EINVAL, "the address %.200s is relative, and the working folder is gone",
                       place);
    const char *slash = place[0] == '/' || here[1] == 0 ? "" : "/";
    int count = snprintf(out, out_bytes, "%s%s%s", here, slash, place);
    return count > 0 && (size_t)count < out_bytes
               ? 0
               : cw_fail(-EINVAL, "the address of %zu bytes is too long for a path",
                         strlen(here) + strlen(slash) + strlen(place));
}

int cw_address_find(const char *place, struct cw_address *out) {
    char stem[CW_ADDRESS_NAME_MAX - 8], job[64], whole[PATH_MAX];
    struct cw_address found = {.folder = ""};
    if (place && !*place)
        return cw_fail(-EINVAL, "an empty address names no broker");
    if (place) {
        int code = make_absolute(place, whole, sizeof whole);
        if (code)
            return code;
        place = whole;
    }
    if (place && ends_in_sock(place)) {
        int code = split_socket_path(place, found.folder, sizeof found.folder, stem, sizeof stem);
        if (code)
            return code;
    } else {
        if (place)
            strcpy(found.folder, whole);
        else if (!find_folder(found.folder, sizeof found.folder))
            return cw_fail(-EINVAL, "CABLEWAY_DIR or XDG_RUNTIME_DIR is too long for a path");
        if (found.folder[0] != '/')
            return cw_fail(-EINVAL,
                           "CABLEWAY_DIR is %.200s, which is another folder wherever the working "
                           "folder is another: give the whole path",
                           found.folder);
        find_job(job, sizeof job);
        snprintf(stem, sizeof stem, "cablewayd-v%u%s", CW_PROTOCOL_VERSION, job);
    }
    join(found.socket_path, sizeof found.socket_path, found.socket_name, &found, stem, "sock");
    join(found.lock_path, sizeof found.lock_path, found.lock_name, &found, stem, "lock");
    join(found.log_path, sizeof found.log_path, found.log_name, &found, stem, "log");
    *out = found;
    return 0;
}

static int check_folder(const char *folder, int fd) {
    struct stat status;
    if (fstat(fd, &status) < 0)
        return cw_fail(-errno, "looking at the socket folder %.200s failed: %m", folder);
    if (status.st_uid != geteuid())
        return cw_fail(-EPERM,
                       "the socket folder %.200s belongs to uid %u, we are uid %u: remove it, or "
                       "set CABLEWAY_DIR to a folder of your own",
                       folder, (unsigned)status.st_uid, (unsigned)geteuid());
    if (status.st_mode & 077)
        return cw_fail(-EPERM,
                       "the socket folder %.200s is open to others (mode %03o): chmod 700 it, or "
                       "set CABLEWAY_DIR to a folder of your own",
                       folder, (unsigned)status.st_mode & 0777);
    return 0;
}

int cw_address_open_folder(const struct cw_address *address, bool create, int *fd) {
    if (create && mkdir(address->folder, 0700) < 0 && errno != EEXIST)
        return cw_fail(errno == EACCES || errno == EROFS ? -EPERM
                       : errno == ENOENT                 ? -ECONNRESET /* ENOENT is for names */
                       : errno == ENOSPC || errno == EDQUOT || errno == ENOMEM ? -EDQUOT
                                                                               : -errno,
                       "making the socket folder %.200s failed: %m; set CABLEWAY_DIR to a folder "
                       "that can be made",
                       address->folder);
    int opened = open(address->folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (opened < 0) {
        int code = errno;
        if (code == ENOENT)
            return cw_fail(-ENOENT, "there is no socket folder %.200s", address->folder);
        if (code == ELOOP || code == ENOTDIR)
            return cw_fail(-EPERM,
                           "the socket folder %.200s is a symbolic link or no folder: remove it, "
                           "or set CABLEWAY_DIR to a folder of your own",
                           address->folder);
        if (code == EMFILE || code == ENFILE || code == ENOMEM)
            return cw_fail(-EDQUOT, "opening the socket folder %.200s failed: %s; %s",
                           address->folder, strerror(code), cw_descriptor_remedy(code));
        return cw_fail(code == EACCES ? -EPERM : -code,
                       "opening the socket folder %.200s failed: %s; it must be yours, mode 700",
                       address->folder, strerror(code));
    }
    int code = check_folder(address->folder, opened);
    if (code) {
        close(opened);
        return code;
    }
    *fd = opened;
    return 0;
}

void cw_address_sockaddr(const struct cw_address *address, int folder_fd, struct sockaddr_un *out,
                         socklen_t *length) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int count = snprintf(out->sun_path, sizeof out->sun_path, "/proc/self/fd/%d/%s", folder_fd,
                         address->socket_name);
    CW_ASSERT(count > 0 &&
              (size_t)count < sizeof out->sun_path); /* CW_ADDRESS_NAME_MAX sees to it */
    *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)count + 1);
}

int cw_address_read_lock(const struct cw_address *address, int folder_fd,
                         struct cw_lock_line *out) {
    char line[96];
    int fd = openat(folder_fd, address->lock_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t count = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
    if (fd >= 0)
        close(fd);
    if (count <= 0 || line[count - 1] != '\n')
        return cw_fail(-ENOENT, "no broker listens at %.200s", address->socket_path);
    line[count] = 0;
    long pid;
    int root_fd;
    unsigned long long instance;
    if (sscanf(line, "%ld %d %llu", &pid, &root_fd, &instance) != 3 || pid <= 0 || root_fd < 0)
        return cw_fail(-ENOENT, "the lock file %.200s has no line of a broker", address->lock_path);
    *out = (struct cw_lock_line){.pid = (pid_t)pid, .root_fd = root_fd, .instance = instance};
    return 0;
}

/* Does a file of this name belong to a broker of another version, of our job? */
static bool is_of_other_version(const struct cw_address *address, const char *name,
                                unsigned *version) {
    unsigned own;
    int length = 0, own_length = 0;
    return sscanf(address->lock_name, "cablewayd-v%u%n", &own, &own_length) == 1 &&
           sscanf(name, "cablewayd-v%u%n", version, &length) == 1 && *version != own &&
           strcmp(name + length, address->lock_name + own_length) == 0;
}

int cw_address_check_versions(const struct cw_address *address, int folder_fd) {
    int code = 0, listed = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = listed < 0 ? NULL : fdopendir(listed);
    if (!folder) {
        if (listed >= 0)
            close(listed);
        return 0; /* nothing is known against it */
    }
    for (struct dirent *entry; code == 0 && (entry = readdir(folder));) {
        unsigned version;
        if (!is_of_other_version(address, entry->d_name, &version))
            continue;
        int fd = openat(folder_fd, entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK)
            code = cw_fail(-EPROTO,
                           "a broker of protocol version %u runs in %.200s (its lock file is "
                           "%.60s), and this library speaks version %u: nothing would be shared. "
                           "End that broker, or use programs of one version, or another "
                           "CABLEWAY_DIR",
                           version, address->folder, entry->d_name, CW_PROTOCOL_VERSION);
        close(fd);
    }
    closedir(folder);
    return code;
}

void cw_address_to_fast_path(struct cw_address *address) {
    char *ends[] = {address->socket_name, address->socket_path};
    for (unsigned i = 0; i < 2; i++) {
        size_t length = strlen(ends[i]);
        CW_ASSERT(length > 5 && strcmp(ends[i] + length - 5, ".sock") == 0);
        memcpy(ends[i] + length - 4, "door", 4);
    }
}
