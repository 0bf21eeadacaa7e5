/*
 * Queues: see queues.h. Every process of a queue writes its words: a copy is read, by pread(), so
 * that nothing of theirs is mapped, checked, and only shown.
 */
#include "tools/watch/queues.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/tasks/queue_head.h"

int queues_open_data(const struct monitor *monitor, uint64_t inode) {
    char path[64];
    struct stat status;
    int found = -ENOENT;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)monitor->lock.pid);
    DIR *folder = opendir(path);
    if (!folder)
        return errno == EACCES || errno == EPERM ? -EPERM : -ENOENT;
    for (struct dirent *entry; found < 0 && (entry = readdir(folder));) {
        int fd = monitor_open_memfd((pid_t)monitor->lock.pid, entry->d_name, "/memfd:cw-slab ");
        if (fd >= 0 && fstat(fd, &status) == 0 && status.st_ino == inode)
            found = fd;
        else if (fd >= 0)
            close(fd);
    }
    closedir(folder);
    return found;
}

/* The mark that holds, of a count that may have risen meanwhile: both are of about this moment. */
static const struct cw_queue_mark *mark_of(const struct cw_queue_end *end, uint64_t count) {
    return &end->mark[count & 1];
}

bool queues_read(int data, uint64_t offset_bytes, struct queue_row *out) {
    struct head head; /* a private copy: its words are plain from here on */
    if (pread(data, &head, sizeof head, (off_t)offset_bytes) != (ssize_t)sizeof head ||
        head.magic != QUEUE_MAGIC)
        return false;
    struct cw_queue_core *core = &head.core;
    uint64_t put = monitor_word(&core->put.count), taken = monitor_word(&core->get.count);
    struct cw_queue_mark puts = *mark_of(&core->put, put), gets = *mark_of(&core->get, taken);
    uint64_t bytes_put = monitor_word(&puts.bytes), bytes_taken = monitor_word(&gets.bytes);
    *out = (struct queue_row){
        .items = put > taken ? put - taken : 0,
        .bytes = bytes_put > bytes_taken ? bytes_put - bytes_taken : 0,
        .put = put,
        .taken = taken,
        .lost = monitor_word(&gets.lost),
        .max_items = core->max_items,
        .id = head.id,
    };
    return true;
}
