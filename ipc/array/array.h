/*
 * The struct of an array, and how one is made on a block.
 */
#ifndef CW_IPC_ARRAY_ARRAY_H
#define CW_IPC_ARRAY_ARRAY_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/layout.h"
#include "ipc/cableway.h"
#include "ipc/memory/mapping.h"
#include "ipc/memory/slab.h"
#include "shm/base/atomic.h"

struct cw_array {
    cw_client *client;    /* whose lease it is; one reference */
    cw_client *home;      /* whose mapping data points into; a reference if it is not client */
    struct cw_slab *slab; /* of client */
    struct cw_slab *home_slab;
    uint32_t block;
    uint64_t gen;
    uint64_t offset_bytes; /* of the lowest byte within the block */
    uint64_t size_bytes;   /* the span */
    uint8_t *bytes;        /* the lowest byte */
    uint8_t *data;         /* element 0 */
    uint32_t ndim, itemsize;
    bool readonly;
    cw_a32 fresh; /* 1: host memory that nobody has written, as far as we know (first_touch.c) */
    struct cw_mapping *mapping; /* host memory: where it was counted (mapping.h); else NULL */
    uint64_t origin_bytes;      /* of element 0, from the lowest byte */
    struct cw_evictable *evict; /* evict.h; NULL: it stays where it is. While its bytes are away
                                 * slab, home_slab, bytes and data are NULL */
    struct cw_mapping cow;      /* CW_PRIVATE: where bytes lie; else base NULL */
    uint64_t cow_begin_bytes;   /* in the slab */
    int64_t *shape, *strides;
    char *dtype;
    void *spill; /* where they lie if they do not fit below */
    int64_t axes[2 * 6];
    char text[40];
    cw_array *next; /* in the pool */
};

/* cw_array_new() in host memory of this client that is there, for who may not wait: -EAGAIN,
 * without a sentence, where there is none. Without the lock. */
int cw_array_new_here(cw_client *client, const cw_layout *layout, cw_array **out);
/* An array struct on a block that is held already and has that range of its slab; that hold
 * becomes the array's. flags: as of cw_array_attach(). -EAGAIN: the mapping in which it would lie
 * is not there. The caller holds the lock. */
int cw_array_make(cw_client *client, struct cw_slab *slab, uint32_t block, uint64_t gen,
                  const struct cw_range *range, uint64_t offset_bytes, uint64_t size_bytes,
                  const struct cw_shape *shape, uint32_t flags, cw_array **out);
/* Holds a block, maps its slab and makes an array on it; checks that the range lies in the block.
 * flags: CW_READONLY, CW_PRIVATE or CW_UNMAPPED, and CW_CURRENT. */
int cw_array_attach(cw_client *client, uint32_t slab_id, uint32_t block, uint64_t gen,
                    uint64_t offset_bytes, uint64_t size_bytes, const struct cw_shape *shape,
                    uint32_t flags, cw_array **out);
/* 0, or -EINVAL when the array is not this process's: NULL, or it came over a fork. */
int cw_array_ours(const cw_array *array);
/* The same for who asks the broker about it: -ECONNRESET when that is gone. */
int cw_array_usable(const cw_array *array);

#endif
