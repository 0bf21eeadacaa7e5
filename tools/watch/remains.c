/*
 * What outlives a broker: see remains.h. A client maps its broker's root segment and has no
 * descriptor of it; the broker has one for as long as it lives, which it may write through. So a
 * root that is mapped somewhere, and open for writing nowhere, is that of one that has ended.
 *
 * Who only watches, as `cableway top` does, has opened all for reading alone, and keeps it so when
 * the broker has ended. It counts neither as the broker nor as a client.
 */
#include "tools/watch/remains.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/base/error.h"

#define INODES_MAX 1024u
#define ROOT       "/memfd:cw-root "
#define SESSION    "/memfd:cw-session "
#define SLAB       "/memfd:cw-slab "

struct inodes {
    uint64_t all[INODES_MAX];
    size_t count;
};

static bool has(const struct inodes *inodes, uint64_t inode) {
    for (size_t i = 0; i < inodes->count; i++) {
        if (inodes->all[i] == inode)
            return true;
    }
    return false;
}

/* False: it is there already. */
static bool add(struct inodes *inodes, uint64_t inode) {
    if (has(inodes, inode))
        return false;
    if (inodes->count < INODES_MAX)
        inodes->all[inodes->count++] = inode;
    return true;
}

/* Adds the roots that a process has open for writing, as the permissions of its links tell. */
static void find_open(struct inodes *roots, const char *pid) {
    char path[64], link[64];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%.16s/fd", pid);
    DIR *folder = opendir(path);
    if (!folder)
        return; /* it has ended, or is not ours to look into */
    for (struct dirent *entry; (entry = readdir(folder));) {
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, link, sizeof link - 1);
        link[length > 0 ? length : 0] = 0;
        if (strncmp(link, ROOT, strlen(ROOT)) == 0 &&
            fstatat(dirfd(folder), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
            status.st_mode & S_IWUSR && fstatat(dirfd(folder), entry->d_name, &status, 0) == 0)
            add(roots, status.st_ino);
    }
    closedir(folder);
}

static void read_comm(const char *pid, char *comm, int room) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%.16s/comm", pid);
    FILE *file = fopen(path, "re");
    if (file && !fgets(comm, room, file))
        *comm = 0;
    if (file)
        fclose(file);
    comm[strcspn(comm, "\n")] = 0;
}

/* True: it is a client, which writes into a session of its own, and maps a root whose broker has
 * ended. */
static bool read_maps(const struct inodes *roots, const char *pid, struct remains_row *out) {
    struct inodes *slabs = calloc(1, sizeof *slabs);
    char path[64], line[512];
    bool ended = false, client = false;
    CW_ASSERT(slabs);
    snprintf(path, sizeof path, "/proc/%.16s/maps", pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        unsigned long long begin, end, inode;
        char rights[8];
        const char *name = strchr(line, '/');
        if (!name || sscanf(line, "%llx-%llx %7s %*s %*s %llu", &begin, &end, rights, &inode) != 4)
            continue;
        if (strncmp(name, ROOT, strlen(ROOT)) == 0)
            ended |= !has(roots, inode);
        else if (strncmp(name, SESSION, strlen(SESSION)) == 0)
            client |= rights[1] == 'w';
        else if (strncmp(name, SLAB, strlen(SLAB)) == 0 && add(slabs, inode))
            out->host_bytes += end - begin;
    }
    if (file)
        fclose(file);
    free(slabs);
    return ended && client;
}

static bool is_process(const char *name) {
    return *name >= '1' && *name <= '9';
}

void remains_walk(remains_each *each, void *context) {
    struct inodes *roots = calloc(1, sizeof *roots);
    DIR *folder = opendir("/proc");
    CW_ASSERT(roots);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (is_process(entry->d_name))
            find_open(roots, entry->d_name);
    }
    if (folder)
        rewinddir(folder);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        struct remains_row row = {.pid = (uint32_t)strtoul(entry->d_name, NULL, 10)};
        if (!is_process(entry->d_name) || !read_maps(roots, entry->d_name, &row))
            continue;
        read_comm(entry->d_name, row.comm, sizeof row.comm);
        each(context, &row);
    }
    if (folder)
        closedir(folder);
    free(roots);
}
