/*
 * A file that is read past the page cache (O_DIRECT) where it is not in there.
 *
 * Cold files are read faster so, with a piece in flight for each thread: the kernel neither guesses
 * what comes next nor copies. What is cached is copied, which is faster than any disk. Which it is,
 * is asked for each piece, by mincore() of some of its pages through a mapping that nobody reads:
 * so a file that lies there in part is read in both ways. (preadv2(RWF_NOWAIT) begins to read what
 * it does not find, so that the next one who asks is told something else.) The kernel says "all is
 * cached" to who neither owns the file nor may write to it; such a file is read by way of the
 * cache.
 *
 * Invariant: either way gives the bytes of the file: the kernel writes back what is newer in the
 * cache before it reads past it. Which way is only a matter of time.
 *
 * Owner: one read of a checkpoint; any of its threads. The process dies: a descriptor and a
 * mapping, no more.
 */
#include "ipc/load/direct.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/base/segment.h"

#define SAMPLES 5u
#define NOT_YET (-1)
#define NEVER   (-2)

void cw_direct_init(struct cw_direct *file, const char *path, int fd) {
    *file = (struct cw_direct){.path = path, .fd = fd, .direct = NOT_YET};
    pthread_mutex_init(&file->lock, NULL);
}

void cw_direct_ask(struct cw_direct *file, uint64_t size_bytes) {
    void *mapping = mmap(NULL, size_bytes, PROT_READ, MAP_SHARED, file->fd, 0);
    file->size_bytes = size_bytes;
    file->mapping = mapping == MAP_FAILED ? NULL : mapping;
}

void cw_direct_deinit(struct cw_direct *file) {
    if (file->direct >= 0)
        close(file->direct);
    if (file->mapping)
        munmap((void *)(uintptr_t)file->mapping, file->size_bytes);
    pthread_mutex_destroy(&file->lock);
}

static bool page_cached(const struct cw_direct *file, uint64_t offset_bytes) {
    unsigned char there = 0;
    uintptr_t page = ((uintptr_t)file->mapping + offset_bytes) / CW_PAGE * CW_PAGE;
    return mincore((void *)page, CW_PAGE, &there) != 0 || there & 1;
}

bool cw_direct_cached(const struct cw_direct *file, uint64_t offset_bytes, uint64_t size_bytes) {
    if (!file->mapping || size_bytes == 0)
        return true;
    for (uint64_t i = 0; i < SAMPLES; i++)
        if (!page_cached(file, offset_bytes + (size_bytes - 1) / (SAMPLES - 1) * i))
            return false;
    return true;
}

int cw_direct_fd(struct cw_direct *file) {
    char path[40];
    pthread_mutex_lock(&file->lock);
    if (file->direct == NOT_YET) { /* the same file, whatever its path means now */
        snprintf(path, sizeof path, "/proc/self/fd/%d", file->fd);
        file->direct = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_DIRECT);
        file->direct = file->direct < 0 ? NEVER : file->direct;
    }
    int found = file->refused ? NEVER : file->direct;
    pthread_mutex_unlock(&file->lock);
    return found;
}

void cw_direct_refused(struct cw_direct *file) {
    pthread_mutex_lock(&file->lock);
    file->refused = true; /* others may read from it just now: it is closed at the end */
    pthread_mutex_unlock(&file->lock);
}
