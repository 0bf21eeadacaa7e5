/*
 * Host backend: slabs are memfds, allocated in full and sealed; mapping them is mmap.
 *
 * No state; from any thread. Memory of somebody else (CW_SLAB_FOREIGN) may be unsealed: its size is
 * looked at when it is mapped, and a later shrink by its owner is a SIGBUS for who reads.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/memory/backend.h"
#include "ipc/wire.h"
#include "shm/base/error.h"
#include "shm/base/segment.h"

static int host_device_count(int *out) {
    *out = 1;
    return 0;
}

static int host_device_uuid(int device, uint8_t uuid[CW_UUID_BYTES]) {
    (void)device;
    memset(uuid, 0, CW_UUID_BYTES);
    return 0;
}

static int host_device_find(const uint8_t uuid[CW_UUID_BYTES], int *device) {
    (void)uuid; /* whatever it says: there is one host */
    *device = 0;
    return 0;
}

static int host_device_limits(int device, uint64_t *granule_bytes, uint64_t *cache_bytes) {
    uint64_t eighth = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 8;
    (void)device;
    *granule_bytes = CW_PAGE;
    *cache_bytes = eighth < (1ull << 30) ? eighth : 1ull << 30;
    return 0;
}

static int host_device_stat(int device, cw_device_info *out) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    (void)device;
    *out = (cw_device_info){.memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * page,
                            .free_bytes = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page};
    strcpy(out->name, "host memory");
    return 0;
}

static int host_slab_create(int device, uint64_t size_bytes, int *fd) {
    (void)device;
    struct cw_segment segment;
    int code =
        cw_segment_create("slab", size_bytes, 0, 0, CW_SEGMENT_RAW | CW_SEGMENT_UNMAPPED, &segment);
    if (code == 0)
        *fd = segment.fd;
    return code;
}

/* Shared memory of this size? F_GET_SEALS first: only shared memory answers it, and then fstat
 * cannot block. */
static int check_fd(int fd, uint64_t size_bytes, uint32_t slab_flags) {
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat status;
    if (seals < 0)
        return cw_fail(-EINVAL,
                       "the descriptor is not shared memory (a memfd, or a file in /dev/shm)");
    if (!(slab_flags & CW_SLAB_FOREIGN) && !(seals & F_SEAL_SHRINK))
        return cw_fail(-EPROTO, "a slab that is not sealed against shrinking was refused");
    if (fstat(fd, &status) < 0 || (uint64_t)status.st_size < size_bytes)
        return cw_fail(-EINVAL, "shared memory of %llu bytes is needed, it has %llu",
                       (unsigned long long)size_bytes, (unsigned long long)status.st_size);
    return 0;
}

static int host_slab_map(int device, int fd, uint64_t size_bytes, uint32_t slab_flags, int readonly,
                         struct cw_mapping *out) {
    (void)device;
    int code = check_fd(fd, size_bytes, slab_flags);
    if (code)
        return code;
    void *base =
        mmap(NULL, size_bytes, readonly ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return cw_fail(errno == EACCES || errno == EPERM ? -EPERM : -EDQUOT,
                       "mapping %llu bytes failed: %m", (unsigned long long)size_bytes);
    *out = (struct cw_mapping){.base = base, .size_bytes = size_bytes};
    return 0;
}

static int host_slab_map_cow(int fd, uint64_t slab_bytes, uint32_t slab_flags, uint64_t begin_bytes,
                             uint64_t size_bytes, struct cw_mapping *out) {
    int code = check_fd(fd, slab_bytes, slab_flags);
    if (code)
        return code;
    /* Not reserved: most of it is never written, and then takes no memory of its own. */
    void *base = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd,
                      (off_t)begin_bytes);
    if (base == MAP_FAILED)
        return cw_fail(errno == EACCES || errno == EPERM ? -EPERM : -EDQUOT,
                       "mapping %llu bytes privately failed: %m", (unsigned long long)size_bytes);
    *out = (struct cw_mapping){.base = base, .size_bytes = size_bytes};
    return 0;
}

/* ---- fixed addresses: mmap() puts one file in the place of another at once ---- */

static int host_fixed_reserve(int device, uint64_t size_bytes, struct cw_mapping *out) {
    (void)device;
    void *base =
        mmap(NULL, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return cw_fail(-EDQUOT, "reserving %llu addresses failed: %m",
                       (unsigned long long)size_bytes);
    *out = (struct cw_mapping){.base = base, .size_bytes = size_bytes, .empty = true};
    return 0;
}

static void host_fixed_give_back(struct cw_mapping *mapping) {
    munmap(mapping->base, mapping->size_bytes);
    *mapping = (struct cw_mapping){.base = NULL};
}

static int host_fixed_hold(int device, int fd, uint64_t size_bytes, uint32_t slab_flags,
                           uint64_t *memory) {
    (void)device;
    int code = check_fd(fd, size_bytes, slab_flags), mine;
    if (code)
        return code;
    mine = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (mine < 0)
        return cw_fail(-EDQUOT, "keeping a descriptor of %llu bytes of shared memory failed: %m",
                       (unsigned long long)size_bytes);
    *memory = (uint64_t)mine + 1;
    return 0;
}

static void host_fixed_drop(uint64_t memory) {
    close((int)(memory - 1));
}

static int host_fixed_unmap(struct cw_mapping *mapping) {
    if (mmap(mapping->base, mapping->size_bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        return cw_fail(-EDQUOT, "unmapping %zu bytes failed: %m", mapping->size_bytes);
    mapping->empty = true;
    return 0;
}

static int host_fixed_map(struct cw_mapping *mapping, uint64_t memory) {
    if (mmap(mapping->base, mapping->size_bytes, PROT_READ, MAP_SHARED | MAP_FIXED,
             (int)(memory - 1), 0) == MAP_FAILED) {
        int code = cw_fail(-EDQUOT, "mapping %zu bytes at a fixed address failed: %m",
                           mapping->size_bytes);
        mapping->empty = true;
        return code;
    }
    mapping->empty = false;
    return 0;
}

static void host_slab_unmap(struct cw_mapping *mapping) {
    cw_backend_forget_host(mapping);
    munmap(mapping->base, mapping->size_bytes);
    *mapping = (struct cw_mapping){.base = NULL};
}

static int host_copy(int device, void *target, const void *source, size_t size_bytes) {
    (void)device;
    memcpy(target, source, size_bytes);
    return 0;
}

static int host_zero(int device, void *target, size_t size_bytes) {
    (void)device;
    memset(target, 0, size_bytes);
    return 0;
}

const struct cw_backend cw_backend_host = {
    .name = "cpu",
    .device_kind = CW_DEVICE_HOST,
    .slab_min_bytes = 2ull << 20,
    .slab_max_bytes = 64ull << 20,
    .align_bytes = 64,
    .block_bytes = 512,
    .large_blocks = CW_LARGE_SLAB_BLOCKS,
    .protects = true,
    .device_count = host_device_count,
    .device_uuid = host_device_uuid,
    .device_find = host_device_find,
    .device_limits = host_device_limits,
    .device_stat = host_device_stat,
    .slab_create = host_slab_create,
    .slab_map = host_slab_map,
    .slab_unmap = host_slab_unmap,
    .slab_map_cow = host_slab_map_cow,
    .fixed_reserve = host_fixed_reserve,
    .fixed_give_back = host_fixed_give_back,
    .fixed_hold = host_fixed_hold,
    .fixed_drop = host_fixed_drop,
    .fixed_map = host_fixed_map,
    .fixed_unmap = host_fixed_unmap,
    .copy_in = host_copy,
    .copy_out = host_copy,
    .zero = host_zero,
};
