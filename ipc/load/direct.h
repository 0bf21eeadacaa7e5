/*
 * A file that is read past the page cache where it is not in there. See direct.c.
 */
#ifndef CW_IPC_LOAD_DIRECT_H
#define CW_IPC_LOAD_DIRECT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct cw_direct {
    const char *path; /* borrowed, as fd, which reads by way of the page cache */
    int fd;
    uint64_t size_bytes;
    const uint8_t *mapping; /* to ask what is cached, never read; NULL: that is not known */
    pthread_mutex_t lock;
    int direct; /* a descriptor; -1: not opened yet; -2: it cannot be */
    bool refused;
};

void cw_direct_init(struct cw_direct *file, const char *path, int fd);
/* Makes it possible to ask what is cached of a file of that size, which is not zero. Before threads
 * use it, once. */
void cw_direct_ask(struct cw_direct *file, uint64_t size_bytes);
void cw_direct_deinit(struct cw_direct *file);
/* Are these bytes in the page cache, as far as some pages tell? true where nobody can tell. */
bool cw_direct_cached(const struct cw_direct *file, uint64_t offset_bytes, uint64_t size_bytes);
/* The descriptor for reading past the page cache; below 0: the file system has none. Any thread. */
int cw_direct_fd(struct cw_direct *file);
/* It was refused after all: from now on there is none. */
void cw_direct_refused(struct cw_direct *file);

#endif
