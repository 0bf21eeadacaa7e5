/*
 * Segments: sealed memfds, see segment.h.
 *
 * The struct cw_segment owns descriptor and mapping. Steps: check that there is memory,
 * memfd_create, fallocate, map, write the header, seal. A process that dies anywhere between leaves
 * nothing, since the memory has no name.
 */
#include "shm/base/segment.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "shm/base/fd.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define PIECE_BYTES (4ull << 20) /* that are allocated by one call */

static uint64_t round_to_page(uint64_t size_bytes) {
    return (size_bytes + CW_PAGE - 1) & ~(uint64_t)(CW_PAGE - 1);
}

static int memfd_open(const char *label) {
    char name[64];
    snprintf(name, sizeof name, "cw-%s", label);
    /* Kernels before 6.3 do not know NOEXEC_SEAL and answer EINVAL. */
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    fd = cw_fd_above_stdio(fd);
    if (fd < 0)
        return cw_fail(errno == EMFILE || errno == ENFILE || errno == ENOMEM ? -EDQUOT : -errno,
                       "memfd_create(%s) failed: %m; %s", name, cw_descriptor_remedy(errno));
    return fd;
}

static __thread bool interruptible;

bool cw_segment_interruptible(bool on) {
    bool before = interruptible;
    interruptible = on;
    return before;
}

/* fallocate touches every page: from here on no access can fail for want of memory. A signal in the
 * middle makes the kernel give back what this call had allocated (EINTR), so a piece is so small
 * that signals which come again and again let it pass. */
static int memfd_allocate(int fd, uint64_t size_bytes) {
    uint64_t at = 0;
    while (at < size_bytes) {
        uint64_t piece = size_bytes - at < PIECE_BYTES ? size_bytes - at : PIECE_BYTES;
        if (fallocate(fd, 0, (off_t)at, (off_t)piece) == 0)
            at += piece;
        else if (errno == EINTR && interruptible)
            return cw_fail(-EINTR, "a signal came while %llu bytes of shared memory were allocated",
                           (unsigned long long)size_bytes);
        else if (errno != EINTR)
            return cw_fail(errno == ENOSPC || errno == ENOMEM || errno == EFBIG ? -EDQUOT : -errno,
                           "allocating %llu bytes of shared memory failed: %m",
                           (unsigned long long)size_bytes);
    }
    return 0;
}

static int seal(int fd, int seals) {
    if (fcntl(fd, F_ADD_SEALS, seals) < 0)
        return cw_fail(-errno, "sealing shared memory failed: %m");
    return 0;
}

int cw_segment_create(const char *label, uint64_t size_bytes, uint32_t kind, uint64_t instance,
                      unsigned flags, struct cw_segment *out) {
    if (size_bytes == 0 || size_bytes > INT64_MAX - CW_PAGE)
        return cw_fail(-EINVAL, "a segment of %llu bytes cannot be",
                       (unsigned long long)size_bytes);
    size_bytes = round_to_page(size_bytes);
    int code = cw_memory_check(size_bytes);
    if (code)
        return code;
    struct cw_segment segment = {.fd = memfd_open(label), .size_bytes = size_bytes};
    if (segment.fd < 0)
        return segment.fd;
    code = memfd_allocate(segment.fd, size_bytes);
    if (code)
        goto close_segment;
    if (!(flags & CW_SEGMENT_UNMAPPED)) {
        void *base = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd, 0);
        if (base == MAP_FAILED) {
            code = cw_fail(-EDQUOT, "mapping %llu bytes of shared memory failed: %m",
                           (unsigned long long)size_bytes);
            goto close_segment;
        }
        segment.base = base;
    }
    if (segment.base && !(flags & CW_SEGMENT_RAW))
        *(struct cw_segment_header *)segment.base = (struct cw_segment_header){
            .magic = CW_SEGMENT_MAGIC,
            .version = CW_SEGMENT_VERSION,
            .kind = kind,
            .size_bytes = size_bytes,
            .instance = instance,
        };
    /* The future-write seal comes after our own writable mapping: it forbids only later ones. */
    code = seal(segment.fd, F_SEAL_SHRINK | F_SEAL_GROW |
                                (flags & CW_SEGMENT_READERS_ONLY ? F_SEAL_FUTURE_WRITE : 0) |
                                F_SEAL_SEAL);
    if (code)
        goto close_segment;
    *out = segment;
    return 0;

close_segment:
    cw_segment_close(&segment);
    return code;
}

/* Is fd sealed shared memory of this size? F_GET_SEALS first: it never blocks, whatever fd is, and
 * only shared memory answers it; after that fstat cannot block either. */
static int check_fd(int fd, uint64_t size_bytes) {
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat status;
    if (seals < 0)
        return cw_fail(-EPROTO, "a descriptor that should be shared memory is none");
    if (!(seals & F_SEAL_SHRINK))
        return cw_fail(-EPROTO, "shared memory that is not sealed against shrinking was refused");
    if (fstat(fd, &status) < 0 || size_bytes == 0 || (uint64_t)status.st_size < size_bytes)
        return cw_fail(-EPROTO, "shared memory of %llu bytes was announced, it has %llu",
                       (unsigned long long)size_bytes, (unsigned long long)status.st_size);
    return 0;
}

static int check_header(const struct cw_segment *segment, uint32_t kind) {
    struct cw_segment_header header = *(const volatile struct cw_segment_header *)segment->base;
    if (header.magic != CW_SEGMENT_MAGIC || header.version != CW_SEGMENT_VERSION ||
        header.kind != kind || header.size_bytes != segment->size_bytes)
        return cw_fail(
            -EPROTO,
            "a segment of kind %u, version %u and %llu bytes was expected, its header says %u, "
            "%u and %llu",
            kind, CW_SEGMENT_VERSION, (unsigned long long)segment->size_bytes, header.kind,
            header.version, (unsigned long long)header.size_bytes);
    return 0;
}

int cw_segment_open(int fd, uint64_t size_bytes, uint32_t kind, bool writable, unsigned flags,
                    struct cw_segment *out) {
    struct cw_segment segment = {.fd = fd, .size_bytes = round_to_page(size_bytes)};
    int code = check_fd(fd, segment.size_bytes);
    if (code)
        goto close_segment;
    void *base = mmap(NULL, segment.size_bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                      MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        code = cw_fail(errno == EPERM ? -EPERM : -EDQUOT,
                       "mapping %llu bytes of shared memory failed: %m",
                       (unsigned long long)segment.size_bytes);
        goto close_segment;
    }
    segment.base = base;
    if (!(flags & CW_SEGMENT_RAW)) {
        code = check_header(&segment, kind);
        if (code)
            goto close_segment;
    }
    *out = segment;
    return 0;

close_segment:
    cw_segment_close(&segment);
    return code;
}

void cw_segment_close_fd(struct cw_segment *segment) {
    if (segment->fd >= 0)
        close(segment->fd);
    segment->fd = -1;
}

void cw_segment_close(struct cw_segment *segment) {
    if (segment->base)
        munmap(segment->base, segment->size_bytes);
    segment->base = NULL;
    cw_segment_close_fd(segment);
}
