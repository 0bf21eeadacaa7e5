/*
 * Pieces and ranges: see memory.h.
 */
#include "tests/fakecuda/memory/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fakecuda/driver/card.h"

pthread_rwlock_t fake_ranges_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct fake_range *ranges;
static struct fake_piece *pieces;

struct fake_range *fake_range_find(uintptr_t address) {
    for (struct fake_range *range = ranges; range; range = range->next)
        if (address >= range->base && address - range->base < range->size_bytes)
            return range;
    return NULL;
}

struct fake_range *fake_range_of(uint64_t id, enum fake_range_kind kind) {
    for (struct fake_range *range = ranges; range; range = range->next)
        if (range->kind == kind && range->piece && range->piece->id == id)
            return range;
    return NULL;
}

struct fake_range *fake_range_add(struct fake_range from) {
    struct fake_range *range = malloc(sizeof *range);
    if (!range)
        abort();
    *range = from;
    range->next = ranges;
    ranges = range;
    if (range->piece)
        range->piece->ranges++;
    return range;
}

void fake_range_remove(struct fake_range *range) {
    struct fake_range **at = &ranges;
    while (*at != range)
        at = &(*at)->next;
    *at = range->next;
    if (range->piece) {
        range->piece->ranges--;
        fake_piece_drop(range->piece);
    }
    free(range);
}

bool fake_range_overlaps(uintptr_t base, size_t size_bytes) {
    for (struct fake_range *range = ranges; range; range = range->next)
        if (base < range->base + range->size_bytes && range->base < base + size_bytes)
            return true;
    return false;
}

bool fake_range_known(uintptr_t address, size_t size_bytes) {
    return fake_range_overlaps(address, size_bytes ? size_bytes : 1);
}

static bool allows(const fake_context *context, const struct fake_range *range, bool write,
                   bool copy) {
    switch (range->kind) {
    case FAKE_RANGE_MAPPED:
        return (write ? range->writers : range->readers | range->writers) >> context->index & 1;
    case FAKE_RANGE_OWN:
        return copy || range->piece->index == context->index || context->peer[range->piece->index];
    case FAKE_RANGE_OPENED: /* opened for this device alone or lazily for its peers */
        return copy || fake_config.peer[context->index][range->piece->index];
    case FAKE_RANGE_HOST:
        return true;
    }
    return false;
}

bool fake_range_refuses(const fake_context *context, uintptr_t address) {
    const struct fake_range *range = fake_range_find(address);
    return range && range->kind == FAKE_RANGE_MAPPED && range->readers >> context->index & 1;
}

bool fake_range_allows(const fake_context *context, uintptr_t address, size_t size_bytes,
                       bool write, bool copy) {
    while (size_bytes) {
        const struct fake_range *range = fake_range_find(address);
        if (!range || !allows(context, range, write, copy))
            return false;
        size_t here = range->size_bytes - (address - range->base);
        if (here >= size_bytes)
            return true;
        address += here;
        size_bytes -= here;
    }
    return true;
}

CUresult fake_piece_make(int index, uint64_t size_bytes, struct fake_piece **out) {
    struct fake_piece piece = {.index = index, .size_bytes = size_bytes};
    CUresult code = fake_card_take(index, size_bytes, &piece.keeper_fd, &piece.slot, &piece.id);
    if (code)
        return code;
    piece.memory_fd = memfd_create("fakecuda", MFD_CLOEXEC);
    if (piece.memory_fd < 0 || ftruncate(piece.memory_fd, (off_t)size_bytes) < 0) {
        fprintf(stderr, "fakecuda: %llu bytes of device memory: %m\n",
                (unsigned long long)size_bytes);
        if (piece.memory_fd >= 0)
            close(piece.memory_fd);
        close(piece.keeper_fd);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *out = fake_piece_adopt(piece);
    return CUDA_SUCCESS;
}

struct fake_piece *fake_piece_adopt(struct fake_piece from) {
    struct fake_piece *piece = malloc(sizeof *piece);
    if (!piece)
        abort();
    *piece = from;
    piece->next = pieces;
    pieces = piece;
    return piece;
}

struct fake_piece *fake_piece_find(const void *handle) {
    for (struct fake_piece *piece = pieces; piece; piece = piece->next)
        if (piece == handle && piece->handles)
            return piece;
    return NULL;
}

void fake_piece_drop(struct fake_piece *piece) {
    if (piece->handles || piece->ranges)
        return;
    struct fake_piece **at = &pieces;
    while (*at != piece)
        at = &(*at)->next;
    *at = piece->next;
    close(piece->memory_fd);
    close(piece->keeper_fd);
    free(piece);
}
