/*
 * Memory of one process: pieces of device memory, and what its addresses are.
 *
 * A *piece* is device memory: a memfd, and a descriptor that keeps it on the card (card.h). It is
 * there as long as a handle or a range of this process refers to it, or any other process does. A
 * *range* is an address range: device memory mapped by cuMemMap with the devices that have access,
 * memory of cuMemAlloc or a legacy handle, or host memory that is registered. Device pointers are
 * host addresses; what a stream touches is looked up here first, so that a wrong pointer becomes an
 * illegal address and no fault of the process.
 *
 * All of it stands under one reader-writer lock. Work on streams holds it shared while it touches
 * memory, so that nothing is unmapped under it; it never waits for anything meanwhile.
 */
#ifndef CW_TESTS_FAKECUDA_MEMORY_MEMORY_H
#define CW_TESTS_FAKECUDA_MEMORY_MEMORY_H

#include <pthread.h>
#include <stddef.h>

#include "tests/fakecuda/driver/context.h"

struct fake_piece {
    struct fake_piece *next;
    int handles; /* of cuMemCreate and cuMemImportFromShareableHandle */
    int ranges;
    int index;
    bool exportable;
    uint64_t size_bytes;
    uint64_t id; /* on the card */
    int slot;
    int memory_fd; /* the memfd */
    int keeper_fd;
};

enum fake_range_kind {
    FAKE_RANGE_MAPPED, /* cuMemMap */
    FAKE_RANGE_OWN,    /* cuMemAlloc */
    FAKE_RANGE_OPENED, /* cuIpcOpenMemHandle */
    FAKE_RANGE_HOST,   /* cuMemHostRegister, cuMemHostAlloc */
};

struct fake_range {
    struct fake_range *next;
    enum fake_range_kind kind;
    uintptr_t base;
    size_t size_bytes;
    struct fake_piece *piece; /* NULL: host memory */
    uint32_t readers;         /* devices, a bit each; MAPPED alone */
    uint32_t writers;
    int opened; /* OPENED: times */
    bool ours;  /* HOST: of cuMemHostAlloc */
};

extern pthread_rwlock_t fake_ranges_lock;

/* The rest under the lock. */
struct fake_range *fake_range_find(uintptr_t address);
/* The range of this piece of the card and of this kind; NULL if there is none. */
struct fake_range *fake_range_of(uint64_t id, enum fake_range_kind kind);
struct fake_range *fake_range_add(struct fake_range range);
/* Takes it out of the list and drops its piece; unmapping is the caller's. */
void fake_range_remove(struct fake_range *range);
bool fake_range_overlaps(uintptr_t base, size_t size_bytes);
/* Is [address, +size) device or registered memory that work of context may touch? copy: by the
 * copy engine, which reaches the memory of cuMemAlloc on every device. */
bool fake_range_allows(const fake_context *context, uintptr_t address, size_t size_bytes,
                       bool write, bool copy);
/* Is the address device memory that this context may read and not write? The driver refuses to copy
 * or fill there at the call (measured on an H200); a kernel's store is an illegal address. */
bool fake_range_refuses(const fake_context *context, uintptr_t address);
/* Does any of it belong to a range? */
bool fake_range_known(uintptr_t address, size_t size_bytes);

/* New memory on a device, zeroed; it has no handle and no range yet. */
CUresult fake_piece_make(int index, uint64_t size_bytes, struct fake_piece **out);
struct fake_piece *fake_piece_adopt(struct fake_piece piece);
struct fake_piece *fake_piece_find(const void *handle);
/* Frees it if nothing refers to it any more. */
void fake_piece_drop(struct fake_piece *piece);

#endif
