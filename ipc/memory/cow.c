/*
 * Private mappings: the pages of one array, copy-on-write (CW_PRIVATE).
 *
 * Invariant: a mapping belongs to one array, or it is spare. In a spare one no page was ever
 * written here, so that it shows what the slab holds now, as a new mapping would.
 *
 * Making one is cheap, its page faults and its end are not (6 and 1.5 ms for 64 MiB). So a mapping
 * of which no page was written stays as a spare when its array is closed, CW_SPARES_MAX of them,
 * the least recently used first to go. Which pages were written is told by the kernel: a written
 * page of a copy-on-write mapping belongs to no file any more (/proc/PID/pagemap).
 *
 * To make one takes the slab's descriptor, which the broker has. Those of the last CW_COW_FILES_MAX
 * slabs stay here, so that a process that opens many views of a slab asks once.
 *
 * Where pages were not written, later writes to the slab show. So nobody may write to a block that
 * others have mapped copy-on-write: who lends it does not use it again before its last lease has
 * ended, which is when the broker says so.
 *
 * A part of the slab's own mapping is made copy-on-write where an array is the only one on its
 * pages here and a fork comes (CW_OWN_PAGES): then neither process sees what the other writes. Its
 * close puts the slab's pages there again, before the block can be another array's; where that
 * fails, the block stays held for good. The slab's file is here for that, since a fork may not wait
 * for the broker.
 *
 * Owner: the array, or client->lock for the spares. A forked child has its own copy, by the kernel:
 * neither side sees what the other writes. If this process dies nothing is left, and if the broker
 * or the slab's maker dies mappings stay.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/client.h"
#include "ipc/memory/cow.h"
#include "ipc/memory/slab.h"

#define PAGEMAP_FILE    (1ull << 61) /* the page is a file's, or shared memory's */
#define PAGEMAP_SWAPPED (1ull << 62)
#define PAGEMAP_PRESENT (1ull << 63)
#define ENTRIES         1024u /* of the page map, looked at in one go */

/* Was no page of it ever written? False also where the kernel does not tell. */
static bool is_clean(const struct cw_mapping *mapping) {
    uint64_t entries[ENTRIES];
    uint64_t pages = mapping->size_bytes / CW_PAGE;
    uint64_t at_bytes = (uintptr_t)mapping->base / CW_PAGE * sizeof *entries;
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    while (pages) {
        uint64_t count = pages < ENTRIES ? pages : ENTRIES;
        ssize_t got = pread(fd, entries, count * sizeof *entries, (off_t)at_bytes);
        if (got != (ssize_t)(count * sizeof *entries))
            break;
        uint64_t written = 0;
        for (uint64_t i = 0; i < count; i++)
            written |= entries[i] & PAGEMAP_SWAPPED ||
                       (entries[i] & PAGEMAP_PRESENT && !(entries[i] & PAGEMAP_FILE));
        if (written)
            break;
        pages -= count;
        at_bytes += count * sizeof *entries;
    }
    close(fd);
    return pages == 0;
}

static void unmap(struct cw_mapping *mapping) {
    if (mapping->base)
        munmap(mapping->base, mapping->size_bytes);
    *mapping = (struct cw_mapping){.base = NULL};
}

/* Takes the spare at index out of the row; those behind it move up. */
static struct cw_spare take_spare(struct cw_spares *spares, uint32_t index) {
    struct cw_spare found = spares->rows[index];
    spares->count--;
    for (uint32_t i = index; i < spares->count; i++)
        spares->rows[i] = spares->rows[i + 1];
    return found;
}

int cw_cow_take(cw_client *client, struct cw_slab *slab, uint64_t begin_bytes, uint64_t size_bytes,
                struct cw_mapping *out) {
    struct cw_spares *spares = &client->spares;
    uint64_t first = begin_bytes / CW_PAGE * CW_PAGE;
    uint64_t length = (begin_bytes + size_bytes - first + CW_PAGE - 1) / CW_PAGE * CW_PAGE;
    const struct cw_backend *backend = slab->backend;
    if (slab->device_kind != CW_DEVICE_HOST || !backend->slab_map_cow)
        return cw_fail(
            -EINVAL,
            "CW_PRIVATE works only for arrays in host memory: copy this array there first");
    for (uint32_t i = spares->count; i-- > 0;) {
        struct cw_spare *spare = &spares->rows[i];
        if (spare->slab == slab && spare->begin_bytes == first &&
            spare->mapping.size_bytes == length) {
            *out = take_spare(spares, i).mapping;
            return 0;
        }
    }
    return cw_slab_map_cow(client, slab, first, length, out);
}

void cw_cow_give(cw_client *client, const struct cw_slab *slab, uint64_t begin_bytes,
                 struct cw_mapping *mapping) {
    if (!mapping->base)
        return;
    struct cw_spares *spares = &client->spares;
    struct cw_spare spare = {.slab = slab, .begin_bytes = begin_bytes, .mapping = *mapping};
    struct cw_mapping old = {.base = NULL};
    *mapping = (struct cw_mapping){.base = NULL};
    if (cw_client_forked(client) || !is_clean(&spare.mapping)) {
        unmap(&spare.mapping);
        return;
    }
    pthread_mutex_lock(&client->lock);
    if (spares->count == CW_SPARES_MAX)
        old = take_spare(spares, 0).mapping;
    spares->rows[spares->count++] = spare;
    pthread_mutex_unlock(&client->lock);
    unmap(&old);
}

int cw_cow_file(cw_client *client, const struct cw_slab *slab) {
    const struct cw_spares *spares = &client->spares;
    for (uint32_t i = 0; i < CW_COW_FILES_MAX; i++)
        if (spares->files[i].slab == slab)
            return spares->files[i].fd;
    return -1;
}

static void drop_file(struct cw_cow_file *file) {
    if (file->slab)
        close(file->fd);
    *file = (struct cw_cow_file){.slab = NULL};
}

void cw_cow_keep_file(cw_client *client, const struct cw_slab *slab, int fd) {
    struct cw_spares *spares = &client->spares;
    if (cw_cow_file(client, slab) >= 0) { /* another thread was quicker */
        close(fd);
        return;
    }
    struct cw_cow_file *file = &spares->files[spares->next_file++ % CW_COW_FILES_MAX];
    drop_file(file);
    *file = (struct cw_cow_file){.slab = slab, .fd = fd};
}

int cw_part_prepare(cw_client *client, struct cw_slab *slab) {
    if (slab->own_file >= 0)
        return 0;
    int fd, code = cw_slab_file(client, slab, &fd);
    if (code)
        return code;
    if (slab->own_file < 0)
        slab->own_file = fd;
    else
        close(fd); /* another thread was quicker, while the broker was asked */
    return 0;
}

static int put_over(const struct cw_slab *slab, uint64_t begin_bytes, uint64_t size_bytes,
                    void *address, int how) {
    void *base = mmap(address, size_bytes, PROT_READ | PROT_WRITE, how | MAP_FIXED, slab->own_file,
                      (off_t)begin_bytes);
    return base == MAP_FAILED ? cw_fail(-EDQUOT, "mapping %llu bytes anew failed: %m",
                                        (unsigned long long)size_bytes)
                              : 0;
}

int cw_part_begin(const struct cw_slab *slab, uint64_t begin_bytes, uint64_t size_bytes,
                  void *address) {
    /* Not reserved, as in host.c. */
    return put_over(slab, begin_bytes, size_bytes, address, MAP_PRIVATE | MAP_NORESERVE);
}

int cw_part_end(const struct cw_slab *slab, uint64_t begin_bytes, uint64_t size_bytes,
                void *address) {
    return put_over(slab, begin_bytes, size_bytes, address, MAP_SHARED);
}

void cw_cow_forget(cw_client *client, const struct cw_slab *slab) {
    struct cw_spares *spares = &client->spares;
    if (slab->own_file >= 0)
        close(slab->own_file);
    for (uint32_t i = 0; i < CW_COW_FILES_MAX; i++)
        if (spares->files[i].slab == slab)
            drop_file(&spares->files[i]);
    for (uint32_t i = spares->count; i-- > 0;)
        if (spares->rows[i].slab == slab) {
            struct cw_spare spare = take_spare(spares, i);
            unmap(&spare.mapping);
        }
}
