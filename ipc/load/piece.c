/*
 * A piece of a file: read, and hashed while it lies in the core's cache.
 *
 * What the page cache has is copied from there, in steps that stay in a core's own cache until they
 * are hashed. What it has not is read past it, aligned, into a buffer (direct.c), from where host
 * memory gets a copy: tensors lie in files at any eighth byte, so hardly ever could they go
 * straight to where they belong, and a disk is slower than the copy.
 *
 * Invariant: each byte of a segment is read once and hashed once. No state; the caller's thread.
 */
#include "ipc/load/piece.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ipc/base/sum.h"
#include "ipc/load/reading.h"
#include "shm/base/error.h"
#include "shm/base/segment.h"

#define STEP_BYTES (256ull << 10) /* of a core's cache, beside what is copied from */

#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

struct cursor { /* in a piece: a segment, and how many of its bytes are behind */
    uint32_t segment;
    uint64_t done_bytes;
};

static int short_file(const struct cw_direct *file) {
    return cw_fail(-EPROTO, "%.300s was cut off while it was read: load it again", file->path);
}

/* Reads all of these parts, which it changes. */
static int read_parts(const struct cw_direct *file, struct iovec *parts, uint32_t count,
                      uint64_t offset_bytes) {
    while (count) {
        ssize_t got = preadv(file->fd, parts, (int)count, (off_t)offset_bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return cw_fail(-errno, "reading %.300s failed: %m", file->path);
        if (got == 0)
            return short_file(file);
        offset_bytes += (uint64_t)got;
        for (; count && (size_t)got >= parts->iov_len; parts++, count--)
            got -= (ssize_t)parts->iov_len;
        if (count) {
            parts->iov_base = (char *)parts->iov_base + got;
            parts->iov_len -= (size_t)got;
        }
    }
    return 0;
}

/* The parts of the next so many bytes; what lies in one piece is one part. How many they are. */
static uint32_t gather(const struct cw_piece *piece, struct cursor *at, uint64_t size_bytes,
                       struct iovec *parts) {
    uint32_t count = 0;
    while (size_bytes) {
        const struct cw_stretch *segment = &piece->segments[at->segment];
        uint64_t left = segment->size_bytes - at->done_bytes,
                 some = left < size_bytes ? left : size_bytes;
        uint8_t *bytes = segment->bytes + at->done_bytes;
        if (count && (uint8_t *)parts[count - 1].iov_base + parts[count - 1].iov_len == bytes)
            parts[count - 1].iov_len += some;
        else
            parts[count++] = (struct iovec){bytes, some};
        size_bytes -= some;
        at->done_bytes += some;
        if (at->done_bytes == segment->size_bytes)
            *at = (struct cursor){.segment = at->segment + 1};
    }
    return count;
}

/* Hashes what was read until there: whole pieces of the sum, and the ends of segments. */
static void hash_until(struct cw_piece *piece, struct cursor *hashed, const struct cursor *read) {
    while (hashed->segment < piece->count && hashed->segment <= read->segment) {
        struct cw_stretch *segment = &piece->segments[hashed->segment];
        bool whole = hashed->segment < read->segment;
        uint64_t end = whole ? segment->size_bytes : read->done_bytes / CW_SUM_PIECE * CW_SUM_PIECE;
        if (end > hashed->done_bytes)
            segment->sum += cw_sum(segment->bytes + hashed->done_bytes, end - hashed->done_bytes,
                                   (segment->from_bytes + hashed->done_bytes) / CW_SUM_PIECE);
        hashed->done_bytes = end > hashed->done_bytes ? end : hashed->done_bytes;
        if (!whole)
            return;
        *hashed = (struct cursor){.segment = hashed->segment + 1};
    }
}

/* From the page cache, or by way of it. */
static int read_steps(struct cw_piece *piece, const struct cw_direct *file) {
    struct iovec parts[CW_PIECE_SEGMENTS];
    struct cursor read = {.segment = 0}, hashed = read;
    int code = 0;
    for (uint64_t at = 0, some; at < piece->size_bytes && code == 0; at += some) {
        some = piece->size_bytes - at < STEP_BYTES ? piece->size_bytes - at : STEP_BYTES;
        uint32_t count = gather(piece, &read, some, parts);
        code = read_parts(file, parts, count, piece->offset_bytes + at);
        if (code == 0)
            hash_until(piece, &hashed, &read);
    }
    return code;
}

/* Past the page cache. 1; 0: not this file, or not here; else a failure. */
static int read_direct(struct cw_piece *piece, struct cw_direct *file, uint8_t *buffer) {
    const uint64_t begin = piece->offset_bytes / CW_READ_ALIGN * CW_READ_ALIGN,
                   front = piece->offset_bytes - begin, wanted = front + piece->size_bytes,
                   whole = (wanted + CW_READ_ALIGN - 1) / CW_READ_ALIGN * CW_READ_ALIGN;
    uint64_t done = 0;
    int fd = cw_direct_fd(file);
    while (fd >= 0 && done < wanted) {
        ssize_t got = pread(fd, buffer + done, whole - done, (off_t)(begin + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EINVAL) { /* the file system wants something else */
            cw_direct_refused(file);
            return 0;
        }
        if (got < 0)
            return cw_fail(-errno, "reading %.300s failed: %m", file->path);
        if (got == 0)
            return short_file(file);
        if (done + (uint64_t)got < wanted && (uint64_t)got % CW_READ_ALIGN)
            return 0; /* ended within a block: the other way goes on from any byte */
        done += (uint64_t)got;
    }
    return fd >= 0;
}

/* Maps whole pages by one call, which one by one takes as long as the copy. A hint. */
static void populate(const struct cw_piece *piece) {
    for (uint32_t i = 0; i < piece->count; i++) {
        uintptr_t first = (uintptr_t)piece->segments[i].bytes,
                  end = (first + piece->segments[i].size_bytes) / CW_PAGE * CW_PAGE;
        first = (first + CW_PAGE - 1) / CW_PAGE * CW_PAGE;
        if (first < end)
            (void)madvise((void *)first, end - first, MADV_POPULATE_WRITE);
    }
}

/* Hashes all of a piece that lies at bytes, and copies it to where its segments are, if any. */
static void take_from(struct cw_piece *piece, uint8_t *bytes, bool copy) {
    for (uint32_t i = 0; i < piece->count; i++) {
        struct cw_stretch *segment = &piece->segments[i];
        segment->sum = cw_sum(bytes, segment->size_bytes, segment->from_bytes / CW_SUM_PIECE);
        if (copy)
            memcpy(segment->bytes, bytes, segment->size_bytes);
        else
            segment->bytes = bytes;
        bytes += segment->size_bytes;
    }
}

int cw_piece_read(struct cw_piece *piece, struct cw_direct *file, uint8_t *buffer, uint8_t *spare,
                  uint64_t *direct_bytes) {
    uint8_t *place = buffer ? buffer : spare;
    if (!buffer)
        populate(piece);
    int code = place && !cw_direct_cached(file, piece->offset_bytes, piece->size_bytes)
                   ? read_direct(piece, file, place)
                   : 0;
    if (code < 0)
        return code;
    if (code == 1) {
        take_from(piece, place + piece->offset_bytes % CW_READ_ALIGN, !buffer);
        *direct_bytes += piece->size_bytes;
        return 0;
    }
    for (uint32_t i = 0; buffer && i < piece->count; i++) {
        piece->segments[i].bytes = place;
        place += piece->segments[i].size_bytes;
    }
    return read_steps(piece, file);
}
