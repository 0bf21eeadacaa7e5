/*
 * Memory of slabs: see memory.h. Tables come and go while they are looked for; each is mapped, read
 * and unmapped.
 */
#include "tools/watch/memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/device.h"
#include "ipc/wire.h"
#include "shm/base/error.h"
#include "shm/blocks/block.h"

struct slabs {
    struct memory_slab *slabs;
    size_t count, room;
};

static void name_device(struct cw_block_table *table, struct memory_slab *out) {
    uint64_t words[2] = {monitor_word(&table->device_uuid[0]),
                         monitor_word(&table->device_uuid[1])};
    uint8_t uuid[16];
    out->gpu = CW_LOAD(MON, &table->device_kind, relaxed) == CW_DEVICE_CUDA;
    memcpy(uuid, words, sizeof uuid);
    if (out->gpu)
        cw_uuid_text(uuid, out->device);
    else
        strcpy(out->device, "cpu");
}

static void count_blocks(struct cw_block_table *table, uint32_t capacity, struct memory_slab *out) {
    for (uint32_t i = 0; i < capacity; i++) {
        struct cw_block *block = &table->blocks[i];
        if (cw_block_state(monitor_word(&block->word)) == CW_BLOCK_FREE)
            continue;
        uint64_t bytes = monitor_word(&block->length_bytes),
                 left = out->size_bytes - out->live_bytes;
        out->live_bytes += bytes < left ? bytes : left; /* a block is no larger than its slab */
        out->blocks++;
    }
}

bool memory_read(const struct cw_segment *segment, struct memory_slab *out, uint32_t *capacity) {
    struct cw_block_table *table = segment->base;
    if (segment->size_bytes < sizeof *table)
        return false;
    uint64_t room = (segment->size_bytes - sizeof *table) / sizeof *table->blocks;
    *capacity = *(volatile uint32_t *)&table->capacity;
    if (*capacity > room)
        *capacity = (uint32_t)room;
    *out = (struct memory_slab){.slab = CW_LOAD(MON, &table->slab, relaxed),
                                .owner = CW_LOAD(MON, &table->owner, relaxed),
                                .orphan_ns = monitor_word(&table->orphan_ns),
                                .size_bytes = *(volatile uint64_t *)&table->slab_bytes};
    name_device(table, out);
    count_blocks(table, *capacity, out);
    return out->slab != 0;
}

static void add(struct slabs *slabs, const struct memory_slab *slab) {
    if (slabs->count == slabs->room) {
        slabs->room = slabs->room ? 2 * slabs->room : 64;
        slabs->slabs = realloc(slabs->slabs, slabs->room * sizeof *slabs->slabs);
        CW_ASSERT(slabs->slabs);
    }
    slabs->slabs[slabs->count++] = *slab;
}

static void look_at(struct slabs *slabs, int fd) {
    struct cw_segment segment;
    struct stat status;
    struct memory_slab slab;
    uint32_t capacity;
    if (fstat(fd, &status)) {
        close(fd);
        return;
    }
    /* Takes fd over, and makes sure that nobody shortens it under us. */
    if (cw_segment_open(fd, (uint64_t)status.st_size, CW_SEGMENT_BLOCKS, false, 0, &segment))
        return;
    if (memory_read(&segment, &slab, &capacity))
        add(slabs, &slab);
    cw_segment_close(&segment);
}

static int by_number(const void *a, const void *b) {
    const struct memory_slab *first = a, *second = b;
    return (first->slab > second->slab) - (first->slab < second->slab);
}

int memory_slabs(const struct monitor *monitor, struct memory_slab **out, size_t *count) {
    struct slabs slabs = {.slabs = NULL};
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)monitor->lock.pid);
    DIR *folder = opendir(path);
    if (!folder)
        return cw_fail(errno == EACCES || errno == EPERM ? -EPERM : -ECONNRESET,
                       "%s cannot be read: %m", path);
    for (struct dirent *entry; (entry = readdir(folder));) {
        int fd = monitor_open_memfd(monitor->lock.pid, entry->d_name, "/memfd:cw-blocks ");
        if (fd >= 0)
            look_at(&slabs, fd);
    }
    closedir(folder);
    if (slabs.count)
        qsort(slabs.slabs, slabs.count, sizeof *slabs.slabs, by_number);
    *out = slabs.slabs;
    *count = slabs.count;
    return 0;
}
