/*
 * Carving: see extent.h for the invariants C1 to C4.
 *
 * Free extents stand in bins by length: four bins for each power of two, and a bitmap of the bins
 * that are not empty. A search begins in the bin of the length wanted and takes the smallest of the
 * first CW_CARVE_WALK extents that fit; a higher bin is looked at only if none does. So the time is
 * bounded and the fit is good, not best.
 *
 * Private to one process, under its client's lock.
 */
#include "ipc/memory/extent.h"

#include <stdlib.h>

#include "shm/base/error.h"

static unsigned bin_of(uint64_t length_bytes) {
    uint64_t units = length_bytes / CW_CARVE_UNIT;
    if (units < 4)
        return (unsigned)units;
    unsigned log = 63 - (unsigned)__builtin_clzll(units);
    unsigned bin = 4 * (log - 1) + (unsigned)((units >> (log - 2)) & 3);
    return bin < CW_CARVE_BINS ? bin : CW_CARVE_BINS - 1;
}

static void bin_add(struct cw_extent *extent) {
    struct cw_carver *carver = extent->arena->carver;
    unsigned bin = bin_of(extent->length_bytes);
    extent->prev = NULL;
    extent->next = carver->bins[bin];
    if (extent->next)
        extent->next->prev = extent;
    carver->bins[bin] = extent;
    carver->filled[bin / 64] |= 1ull << (bin % 64);
}

static void bin_remove(struct cw_extent *extent) {
    struct cw_carver *carver = extent->arena->carver;
    unsigned bin = bin_of(extent->length_bytes);
    if (extent->next)
        extent->next->prev = extent->prev;
    if (extent->prev)
        extent->prev->next = extent->next;
    else {
        carver->bins[bin] = extent->next;
        if (!extent->next)
            carver->filled[bin / 64] &= ~(1ull << (bin % 64));
    }
    extent->prev = extent->next = NULL;
}

bool cw_arena_init(struct cw_arena *arena, struct cw_carver *carver, void *user,
                   uint64_t size_bytes, bool clean) {
    CW_ASSERT(size_bytes > 0 && size_bytes % CW_CARVE_UNIT == 0);
    struct cw_extent *extent = calloc(1, sizeof *extent);
    if (!extent)
        return false;
    *arena = (struct cw_arena){.carver = carver,
                               .user = user,
                               .first = extent,
                               .size_bytes = size_bytes,
                               .free_bytes = size_bytes};
    extent->arena = arena;
    extent->length_bytes = size_bytes;
    extent->clean = clean;
    bin_add(extent);
    return true;
}

void cw_arena_deinit(struct cw_arena *arena) {
    struct cw_extent *extent = arena->first;
    while (extent) {
        struct cw_extent *after = extent->after;
        if (!extent->carved)
            bin_remove(extent);
        free(extent);
        extent = after;
    }
    arena->first = NULL;
    arena->free_bytes = 0;
}

/* Where in a free extent the range would begin; UINT64_MAX if it does not fit. */
static uint64_t place_in(const struct cw_extent *extent, uint64_t size_bytes,
                         uint64_t align_bytes) {
    uint64_t offset = (extent->offset_bytes + align_bytes - 1) & ~(align_bytes - 1);
    uint64_t gap = offset - extent->offset_bytes;
    if (gap > extent->length_bytes || extent->length_bytes - gap < size_bytes)
        return UINT64_MAX;
    return offset;
}

/* A new extent that takes over the bytes of extent from offset on; it is neither free nor carved
 * yet. */
static void split(struct cw_extent *extent, struct cw_extent *rest, uint64_t offset_bytes) {
    *rest = (struct cw_extent){.arena = extent->arena,
                               .before = extent,
                               .after = extent->after,
                               .offset_bytes = offset_bytes,
                               .length_bytes =
                                   extent->offset_bytes + extent->length_bytes - offset_bytes,
                               .clean = extent->clean};
    if (rest->after)
        rest->after->before = rest;
    extent->after = rest;
    extent->length_bytes = offset_bytes - extent->offset_bytes;
}

/* Carves [offset, offset + size) out of a free extent that holds it. NULL without memory. */
static struct cw_extent *carve_at(struct cw_extent *extent, uint64_t offset_bytes,
                                  uint64_t size_bytes) {
    uint64_t end = offset_bytes + size_bytes;
    struct cw_extent *middle = NULL, *tail = NULL;
    if (offset_bytes > extent->offset_bytes && !(middle = malloc(sizeof *middle)))
        return NULL;
    if (end < extent->offset_bytes + extent->length_bytes && !(tail = malloc(sizeof *tail))) {
        free(middle);
        return NULL;
    }
    bin_remove(extent);
    struct cw_extent *carved = extent;
    if (middle) {
        split(extent, middle, offset_bytes);
        bin_add(extent);
        carved = middle;
    }
    if (tail) {
        split(carved, tail, end);
        bin_add(tail);
    }
    carved->carved = true;
    carved->arena->free_bytes -= size_bytes;
    return carved;
}

struct cw_extent *cw_arena_claim(struct cw_arena *arena, uint64_t offset_bytes,
                                 uint64_t length_bytes) {
    if (length_bytes == 0 || (offset_bytes | length_bytes) % CW_CARVE_UNIT ||
        offset_bytes > arena->size_bytes || length_bytes > arena->size_bytes - offset_bytes)
        return NULL;
    for (struct cw_extent *extent = arena->first; extent; extent = extent->after) {
        if (offset_bytes >= extent->offset_bytes + extent->length_bytes)
            continue;
        if (extent->carved ||
            offset_bytes + length_bytes > extent->offset_bytes + extent->length_bytes)
            return NULL;
        return carve_at(extent, offset_bytes, length_bytes);
    }
    return NULL;
}

/* The best fit among the first extents of a bin. */
static struct cw_extent *search_bin(struct cw_extent *extent, uint64_t size_bytes,
                                    uint64_t align_bytes, bool used) {
    struct cw_extent *best = NULL;
    for (unsigned n = 0; extent && n < CW_CARVE_WALK; n++, extent = extent->next) {
        if (extent->arena->full || (used && extent->clean) ||
            size_bytes < extent->arena->least_bytes ||
            (best && extent->length_bytes >= best->length_bytes))
            continue;
        if (place_in(extent, size_bytes, align_bytes) != UINT64_MAX)
            best = extent;
    }
    return best;
}

struct cw_extent *cw_carve_take(struct cw_carver *carver, uint64_t size_bytes, uint64_t align_bytes,
                                bool used) {
    CW_ASSERT(size_bytes > 0 && align_bytes >= CW_CARVE_UNIT);
    if (size_bytes > UINT64_MAX - CW_CARVE_UNIT)
        return NULL;
    size_bytes = (size_bytes + CW_CARVE_UNIT - 1) & ~(uint64_t)(CW_CARVE_UNIT - 1);
    for (unsigned bin = bin_of(size_bytes); bin < CW_CARVE_BINS; bin++) {
        uint64_t filled = carver->filled[bin / 64] >> (bin % 64);
        if (!filled) {
            bin |= 63; /* the next word of the bitmap */
            continue;
        }
        bin += (unsigned)__builtin_ctzll(filled);
        struct cw_extent *extent = search_bin(carver->bins[bin], size_bytes, align_bytes, used);
        if (extent)
            return carve_at(extent, place_in(extent, size_bytes, align_bytes), size_bytes);
    }
    return NULL;
}

/* Joins extent with the free one behind it. Neither is in a bin. */
static void join_after(struct cw_extent *extent) {
    struct cw_extent *gone = extent->after;
    extent->length_bytes += gone->length_bytes;
    extent->clean = extent->clean && gone->clean;
    extent->after = gone->after;
    if (extent->after)
        extent->after->before = extent;
    free(gone);
}

void cw_carve_give(struct cw_extent *extent) {
    CW_ASSERT(extent->carved);
    extent->arena->free_bytes += extent->length_bytes;
    extent->carved = extent->clean = extent->published = extent->pending = false;
    extent->told = false;
    if (extent->after && !extent->after->carved) {
        bin_remove(extent->after);
        join_after(extent);
    }
    if (extent->before && !extent->before->carved) {
        extent = extent->before;
        bin_remove(extent);
        join_after(extent);
    }
    bin_add(extent);
}
